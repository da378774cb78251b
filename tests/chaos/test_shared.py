"""Servers that share a database learn of what others did, and finish what others began."""

from __future__ import annotations

import pytest

from swarmkeep_client import RunCancelled
from tests.chaos.cluster import KILLED, BackgroundReader, ServerCluster, ignore_lost_connection, wait_until_quiet
from tests.chaos.parallel import run_in_parallel
from tests.chaos.plans import call_step, make_plan, say_step, wait_until

SOON = 8.0


@pytest.mark.long
@run_in_parallel
def test_remotely_cancelled_run_delays_no_successor(cluster: ServerCluster) -> None:
    one, other = cluster.server(), cluster.server()
    session = cluster.client(one, seconds=SOON).sessions.create(id="s")
    run = session.run(make_plan(say_step("Old.", hold="never")), background=True)
    cluster.planned_model.wait_for("never")
    cluster.client(other).sessions.get("s").cancel(run.id)
    assert session.run(make_plan(say_step("New."))).output_text == "New."
    cluster.read_checked_log("s")


@pytest.mark.chaos
@run_in_parallel
def test_waiter_told_of_remote_cancellation(cluster: ServerCluster) -> None:
    one, other = cluster.server(), cluster.server()
    session = cluster.client(one, seconds=SOON).sessions.create(id="s")
    waiting = BackgroundReader(lambda: session.run(make_plan(say_step("Old.", hold="never"))))
    cluster.planned_model.wait_for("never")
    cluster.client(other).sessions.get("s").cancel()
    waiting.join()
    assert isinstance(waiting.error, RunCancelled)
    cluster.read_checked_log("s")


@pytest.mark.long
@run_in_parallel
def test_queued_run_survives_cancellers_death(cluster: ServerCluster) -> None:
    one, other = cluster.server(), cluster.server(kill_at="run.cancelled")
    session = cluster.client(one).sessions.create(id="s")
    run = session.run(make_plan(say_step("Old.", hold="gate")), background=True)
    cluster.planned_model.wait_for("gate")
    queued = session.run(make_plan(say_step("New.")), background=True, on_busy="queue")
    with ignore_lost_connection():
        cluster.client(other).sessions.get("s").cancel(run.id)
    assert other.wait() == KILLED
    cluster.planned_model.release("gate")
    wait_until("the queued run has run", lambda: session.get_run(queued.id).status == "completed", SOON)
    cluster.read_checked_log("s")


@pytest.mark.chaos
@run_in_parallel
def test_server_with_replaced_run_takes_over(cluster: ServerCluster) -> None:
    one, other = cluster.server(), cluster.server()
    session = cluster.client(one).sessions.create(id="s")
    farewell = {"what": "a", "door": "never", "farewell_seconds": 1.0}
    session.run(make_plan(call_step(("visit", farewell))), background=True)
    wait_until("the effect has begun", lambda: cluster.effects.count())
    # The tool of the first run takes a while to say good-bye, and the second one has to wait for that.
    second = session.run(make_plan(say_step("Never said.")), background=True, on_busy="interrupt")
    session.cancel(second.id)
    cluster.client(other).sessions.get("s").run(make_plan(say_step("Hello.", hold="gate")), background=True)
    cluster.planned_model.wait_for("gate")
    other.kill()
    wait_until_quiet(session, 2 * SOON)
    assert cluster.read_checked_log("s").of("run.resumed") == [{"reason": "recovery"}]
