"""Servers that share a database learn of what others did, and finish what others began."""

from __future__ import annotations

import pytest

from swarmkeep_client import RunCancelled
from tests.chaos.house import House, broken_off, quiet
from tests.chaos.plans import calls, plan, say, until
from tests.chaos.reader import Reader
from tests.chaos.scene import at_once

SOON = 8.0


@at_once
def test_a_run_that_was_cancelled_elsewhere_does_not_delay_the_next_one(house: House) -> None:
    one, other = house.server(), house.server()
    session = house.client(one, seconds=SOON).sessions.create(id="s")
    run = session.run(plan(say("Old.", hold="never")), background=True)
    house.mind.wait_for("never")
    house.client(other).sessions.get("s").cancel(run.id)
    assert session.run(plan(say("New."))).output_text == "New."
    house.checked("s")


@pytest.mark.chaos
@at_once
def test_whoever_waits_for_a_run_is_told_that_it_was_cancelled_elsewhere(house: House) -> None:
    one, other = house.server(), house.server()
    session = house.client(one, seconds=SOON).sessions.create(id="s")
    waiting = Reader(lambda: session.run(plan(say("Old.", hold="never"))))
    house.mind.wait_for("never")
    house.client(other).sessions.get("s").cancel()
    waiting.join()
    assert isinstance(waiting.error, RunCancelled)
    house.checked("s")


@at_once
def test_what_was_queued_runs_although_whoever_cancelled_the_run_before_it_died(house: House) -> None:
    one, other = house.server(), house.server(kill_at="run.cancelled")
    session = house.client(one).sessions.create(id="s")
    run = session.run(plan(say("Old.", hold="gate")), background=True)
    house.mind.wait_for("gate")
    queued = session.run(plan(say("New.")), background=True, on_busy="queue")
    with broken_off():
        house.client(other).sessions.get("s").cancel(run.id)
    assert other.wait() == -9
    house.mind.release("gate")
    until("the queued run has run", lambda: session.get_run(queued.id).status == "completed", SOON)
    house.checked("s")


@pytest.mark.chaos
@at_once
def test_a_server_whose_run_was_replaced_before_it_began_still_takes_over(house: House) -> None:
    one, other = house.server(), house.server()
    session = house.client(one).sessions.create(id="s")
    farewell = {"what": "a", "door": "never", "farewell_seconds": 1.0}
    session.run(plan(calls(("visit", farewell))), background=True)
    until("the effect has begun", lambda: house.effects.count())
    # The tool of the first run takes a while to say good-bye, and the second one has to wait for that.
    second = session.run(plan(say("Never said.")), background=True, on_busy="interrupt")
    session.cancel(second.id)
    house.client(other).sessions.get("s").run(plan(say("Hello.", hold="gate")), background=True)
    house.mind.wait_for("gate")
    other.kill()
    quiet(session, 2 * SOON)
    assert house.checked("s").of("run.resumed") == [{"reason": "recovery"}]
