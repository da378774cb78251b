"""A server stands still for longer than its lease, another one takes over, and then the first one wakes up."""

from __future__ import annotations

import pytest

from tests.chaos.cluster import ServerCluster, wait_until_quiet
from tests.chaos.parallel import run_in_parallel
from tests.chaos.plans import call_step, make_plan, say_step, wait_until

pytestmark = pytest.mark.long


@pytest.mark.chaos
@run_in_parallel
def test_late_model_answer_is_not_recorded(cluster: ServerCluster) -> None:
    zombie, heir = cluster.server(), cluster.server()
    asleep = cluster.client(zombie).sessions.create(id="s")
    run = asleep.run(make_plan(say_step("Hello.", hold="gate")), background=True)
    cluster.planned_model.wait_for("gate")
    cluster.freeze(zombie)
    session = wait_until_quiet(cluster.client(heir).sessions.get("s"))
    assert session.get_run(run.id).status == "completed"
    before = cluster.read_checked_log("s")
    assert [data["reason"] for data in before.of("run.resumed")] == ["recovery"]
    zombie.resume()
    cluster.planned_model.release("gate")
    # It takes new work as before, which it begins only once it is done with the old.
    assert asleep.run(make_plan(say_step("Awake."))).output_text == "Awake."
    after = cluster.read_checked_log("s")
    assert after.types[len(before.types) :] == ["run.started", "message.added", "message.added", "run.completed"]
    assert before.hashes.items() <= after.hashes.items()


@run_in_parallel
@pytest.mark.parametrize("tool", ["pay", pytest.param("visit", marks=pytest.mark.chaos)])
def test_late_tool_result_is_not_recorded(cluster: ServerCluster, tool: str) -> None:
    zombie, heir = cluster.server(), cluster.server()
    asleep = cluster.client(zombie).sessions.create(id="s")
    asleep.run(
        make_plan(call_step((tool, {"what": "a", "door": "door"}), ("put", {"what": "b"})), say_step("Done.")),
        background=True,
    )
    wait_until("the effect has begun", lambda: cluster.effects.count("begin", tool))
    cluster.freeze(zombie)
    wait_until_quiet(cluster.client(heir).sessions.get("s"))
    before = cluster.read_checked_log("s")
    assert sorted(before.read_tool_status().values()) == ["ok", "unknown_outcome"]
    zombie.resume()
    cluster.open("door")
    if tool == "pay":
        # An async function is cancelled as soon as the server finds out; a plain one cannot be.
        wait_until("the effect has ended", lambda: cluster.effects.count("end", tool))
    assert asleep.run(make_plan(say_step("Awake."))).output_text == "Awake."
    after = cluster.read_checked_log("s")
    assert after.types[len(before.types) :] == ["run.started", "message.added", "message.added", "run.completed"]
    assert before.hashes.items() <= after.hashes.items()
    assert not cluster.effects.list_repeated()


@pytest.mark.chaos
@run_in_parallel
def test_late_answer_stays_out_of_next_run(cluster: ServerCluster) -> None:
    zombie, heir = cluster.server(), cluster.server()
    asleep = cluster.client(zombie).sessions.create(id="s")
    asleep.run(make_plan(say_step("Old.", hold="old")), background=True)
    cluster.planned_model.wait_for("old")
    cluster.freeze(zombie)
    session = wait_until_quiet(cluster.client(heir).sessions.get("s"))
    session.run(make_plan(say_step("New.", hold="new")), background=True)
    cluster.planned_model.wait_for("new")
    zombie.resume()
    cluster.planned_model.release("old")
    # It has learnt its lesson once it does other sessions' work again.
    assert cluster.client(zombie).sessions.create(id="other").run(make_plan(say_step("Hello."))).status == "completed"
    cluster.planned_model.release("new")
    wait_until_quiet(session)
    log = cluster.read_checked_log("s")
    assert [data["message"]["content"] for data in log.of("message.added") if "completion" in data] == ["Old.", "New."]


@run_in_parallel
def test_woken_servers_old_work_blocks_none(cluster: ServerCluster) -> None:
    zombie, heir = cluster.server(), cluster.server()
    asleep = cluster.client(zombie).sessions.create(id="s")
    asleep.run(make_plan(say_step("Old.", hold="never")), background=True)
    cluster.planned_model.wait_for("never")
    cluster.freeze(zombie)
    wait_until_quiet(cluster.client(heir).sessions.get("s"))
    zombie.resume()
    assert cluster.client(zombie, seconds=8).sessions.get("s").run(make_plan(say_step("New."))).output_text == "New."


@pytest.mark.chaos
@run_in_parallel
def test_unreplaced_server_continues_in_place(cluster: ServerCluster) -> None:
    server = cluster.server()
    session = cluster.client(server).sessions.create(id="s")
    run = session.run(make_plan(call_step(("pay", {"what": "a", "door": "door"})), say_step("Done.")), background=True)
    wait_until("the effect has begun", lambda: cluster.effects.count())
    cluster.freeze(server)
    wait_until("the lease has expired", lambda: cluster.read_lease_seconds("s") <= 0)
    server.resume()
    cluster.open("door")
    wait_until_quiet(session)
    assert session.get_run(run.id).output_text == "Done."
    log = cluster.read_checked_log("s")
    assert list(log.read_tool_status().values()) == ["ok"]
    assert not log.of("run.resumed")
