"""An operator stops a server (SIGTERM) while runs are short, long, streamed or queued."""

from __future__ import annotations

import signal
import time
from functools import partial

import pytest

from swarmkeep_client import Done, Event, RunFailed
from tests.chaos.cluster import LEASE_SECONDS, BackgroundReader, ServerCluster, wait_until_quiet
from tests.chaos.parallel import run_in_parallel
from tests.chaos.plans import call_step, make_plan, say_step, wait_until

pytestmark = pytest.mark.long


@pytest.mark.chaos
@run_in_parallel
def test_timely_runs_answered_and_streams_end(cluster: ServerCluster) -> None:
    server = cluster.server(cold=True, GRACE_SECONDS="30")
    client = cluster.client(server)
    streamed, followed = (client.sessions.create(id=name) for name in ("streamed", "followed"))
    running = BackgroundReader(lambda: streamed.stream(make_plan(say_step("One two three.", pause="gate"))))
    following = BackgroundReader(followed.follow)
    cluster.planned_model.wait_for("gate")
    wait_until("the follower follows", lambda: following.items)
    server.signal(signal.SIGTERM)
    wait_until("it says that it is not ready", lambda: server.health("ready") == 503, 10)
    cluster.planned_model.release("gate")
    assert server.wait() == 0
    running.join()
    following.join()
    last = running.items[-1]
    assert isinstance(last, Done)
    assert last.run.output_text == "One two three."
    assert [item.type for item in following.items if isinstance(item, Event)] == ["session.created"]
    log = cluster.read_checked_log("streamed")
    told = {item.seq: item.hash for item in running.items if isinstance(item, Event)}
    assert told.items() == log.hashes.items() - {(1, log.hashes[1])}
    assert cluster.client(cluster.server()).sessions.get("streamed").run("And then?").status == "completed"


@pytest.mark.chaos
@run_in_parallel
def test_stragglers_interrupted_and_resumable(cluster: ServerCluster) -> None:
    server = cluster.server(GRACE_SECONDS="0.3")
    client = cluster.client(server)
    sessions = {name: client.sessions.create(id=name) for name in ("asking", "paying", "putting", "visiting")}
    messages = {
        "asking": make_plan(say_step("One two three.", pause="gate")),
        "paying": make_plan(call_step(("pay", {"what": "a", "door": "never"})), say_step("Done.")),
        "putting": make_plan(call_step(("put", {"what": "a", "door": "later"})), say_step("Done.")),
        "visiting": make_plan(call_step(("visit", {"what": "a", "door": "never"})), say_step("Done.")),
    }
    readers = {name: BackgroundReader(partial(session.stream, messages[name])) for name, session in sessions.items()}
    cluster.planned_model.wait_for("gate")
    wait_until("the effects have begun", lambda: len(cluster.effects.count()) == 3)
    server.signal(signal.SIGTERM)
    wait_until("it says that it is not ready", lambda: server.health("ready") != 200, 10)
    assert server.wait() == 0
    for reader in readers.values():
        reader.join()
        assert isinstance(reader.items[-1], Done)
        assert isinstance(reader.error, RunFailed)
        assert (reader.error.run.status, reader.error.code) == ("interrupted", "draining")
    cluster.open("later")
    server.start()
    for name, session in sessions.items():
        (run,) = session.runs()
        assert session.resume(run.id).status == "completed"
        assert session.run("And then?").status == "completed"
        log = cluster.read_checked_log(name)
        assert log.list_ends(run.id) == ["run.interrupted", "run.completed"]
        ends = {"asking": [], "paying": ["unknown_outcome"], "putting": ["ok"], "visiting": ["unknown_outcome"]}
        assert list(log.read_tool_status().values()) == ends[name]
    assert not cluster.effects.list_repeated()


@run_in_parallel
def test_queue_behind_straggler_runs_elsewhere(cluster: ServerCluster) -> None:
    # A queue is nobody's lease, so nothing here has to run out.
    server, other = cluster.server(GRACE_SECONDS="0.3", LEASE_SECONDS="30"), cluster.server()
    session = cluster.client(server).sessions.create(id="s")
    first = session.run(make_plan(say_step("First.", hold="gate", always=True)), background=True)
    second = session.run(make_plan(say_step("Second.")), background=True, on_busy="queue")
    cluster.planned_model.wait_for("gate")
    assert server.stop() == 0
    there = wait_until_quiet(cluster.client(other).sessions.get("s"))
    assert there.get_run(second.id).status == "completed"
    assert there.get_run(first.id).status == "interrupted"
    cluster.read_checked_log("s")


@pytest.mark.chaos
@run_in_parallel
def test_long_grace_time_prevents_take_over(cluster: ServerCluster) -> None:
    server, other = cluster.server(GRACE_SECONDS="60"), cluster.server()
    session = cluster.client(server).sessions.create(id="s")
    session.run(make_plan(call_step(("pay", {"what": "a", "door": "door"})), say_step("Done.")), background=True)
    wait_until("the effect has begun", lambda: cluster.effects.count())
    server.signal(signal.SIGTERM)
    wait_until("it says that it is not ready", lambda: server.health("ready") == 503)
    later = time.monotonic() + 2 * LEASE_SECONDS
    wait_until(
        "it still has the lease",
        lambda: cluster.read_lease_seconds("s") > 0 and time.monotonic() > later,
        3 * LEASE_SECONDS,
    )
    cluster.open("door")
    assert server.wait() == 0
    there = wait_until_quiet(cluster.client(other).sessions.get("s"))
    log = cluster.read_checked_log("s")
    assert there.status == "idle"
    assert list(log.read_tool_status().values()) == ["ok"]
    assert not log.of("run.resumed")
