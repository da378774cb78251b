"""A server stands still for longer than its lease, another one takes over, and then the first one wakes up."""

from __future__ import annotations

import pytest

from tests.chaos.house import House, quiet
from tests.chaos.plans import calls, plan, say, until
from tests.chaos.scene import at_once


@pytest.mark.chaos
@at_once
def test_a_late_answer_of_the_model_is_not_recorded(house: House) -> None:
    zombie, heir = house.server(), house.server()
    asleep = house.client(zombie).sessions.create(id="s")
    run = asleep.run(plan(say("Hello.", hold="gate")), background=True)
    house.mind.wait_for("gate")
    house.freeze(zombie)
    session = quiet(house.client(heir).sessions.get("s"))
    assert session.get_run(run.id).status == "completed"
    before = house.checked("s")
    assert [data["reason"] for data in before.of("run.resumed")] == ["recovery"]
    zombie.resume()
    house.mind.release("gate")
    # It takes new work as before, which it begins only once it is done with the old.
    assert asleep.run(plan(say("Awake."))).output_text == "Awake."
    after = house.checked("s")
    assert after.types[len(before.types) :] == ["run.started", "message.added", "message.added", "run.completed"]
    assert before.hashes.items() <= after.hashes.items()


@at_once
@pytest.mark.parametrize("tool", ["pay", pytest.param("visit", marks=pytest.mark.chaos)])
def test_a_late_result_of_a_tool_is_not_recorded(house: House, tool: str) -> None:
    zombie, heir = house.server(), house.server()
    asleep = house.client(zombie).sessions.create(id="s")
    asleep.run(
        plan(calls((tool, {"what": "a", "door": "door"}), ("put", {"what": "b"})), say("Done.")), background=True
    )
    until("the effect has begun", lambda: house.effects.count("begin", tool))
    house.freeze(zombie)
    quiet(house.client(heir).sessions.get("s"))
    before = house.checked("s")
    assert sorted(before.tool_status().values()) == ["ok", "unknown_outcome"]
    zombie.resume()
    house.open("door")
    if tool == "pay":
        # An async function is cancelled as soon as the server finds out; a plain one cannot be.
        until("the effect has ended", lambda: house.effects.count("end", tool))
    assert asleep.run(plan(say("Awake."))).output_text == "Awake."
    after = house.checked("s")
    assert after.types[len(before.types) :] == ["run.started", "message.added", "message.added", "run.completed"]
    assert before.hashes.items() <= after.hashes.items()
    assert not house.effects.twice()


@pytest.mark.chaos
@at_once
def test_a_late_answer_does_not_get_into_the_run_that_came_next(house: House) -> None:
    zombie, heir = house.server(), house.server()
    asleep = house.client(zombie).sessions.create(id="s")
    asleep.run(plan(say("Old.", hold="old")), background=True)
    house.mind.wait_for("old")
    house.freeze(zombie)
    session = quiet(house.client(heir).sessions.get("s"))
    session.run(plan(say("New.", hold="new")), background=True)
    house.mind.wait_for("new")
    zombie.resume()
    house.mind.release("old")
    # It has learnt its lesson once it does other sessions' work again.
    assert house.client(zombie).sessions.create(id="other").run(plan(say("Hello."))).status == "completed"
    house.mind.release("new")
    quiet(session)
    log = house.checked("s")
    assert [data["message"]["content"] for data in log.of("message.added") if "completion" in data] == ["Old.", "New."]


@at_once
def test_a_server_that_woke_up_does_not_keep_others_waiting_for_its_old_work(house: House) -> None:
    zombie, heir = house.server(), house.server()
    asleep = house.client(zombie).sessions.create(id="s")
    asleep.run(plan(say("Old.", hold="never")), background=True)
    house.mind.wait_for("never")
    house.freeze(zombie)
    quiet(house.client(heir).sessions.get("s"))
    zombie.resume()
    assert house.client(zombie, seconds=8).sessions.get("s").run(plan(say("New."))).output_text == "New."


@pytest.mark.chaos
@at_once
def test_a_server_that_nobody_replaced_goes_on_where_it_was(house: House) -> None:
    server = house.server()
    session = house.client(server).sessions.create(id="s")
    run = session.run(plan(calls(("pay", {"what": "a", "door": "door"})), say("Done.")), background=True)
    until("the effect has begun", lambda: house.effects.count())
    house.freeze(server)
    until("the lease has expired", lambda: house.lease_left("s") <= 0)
    server.resume()
    house.open("door")
    quiet(session)
    assert session.get_run(run.id).output_text == "Done."
    log = house.checked("s")
    assert list(log.tool_status().values()) == ["ok"]
    assert not log.of("run.resumed")
