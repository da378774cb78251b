"""Thirty-two want to run in one session at the same moment, half of them on another server."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from swarmkeep_client import Run, RunCancelled, Session, SessionBusy
from tests.chaos.house import House, quiet
from tests.chaos.plans import calls, plan, say, until
from tests.chaos.scene import at_once

RACERS = 32


def race(house: House, attempt: Callable[[int, Session], Run | Exception]) -> list[Run | Exception]:
    """What each of the racers got, all having started at once."""
    clients = [house.client(house.server()) for _ in range(2)]
    clients[0].sessions.create(id="s")
    lanes = [client.sessions.get("s") for client in clients]
    start = threading.Barrier(RACERS)

    def racer(number: int) -> Run | Exception:
        start.wait()
        return attempt(number, lanes[number % 2])

    with ThreadPoolExecutor(RACERS) as pool:
        return list(pool.map(racer, range(RACERS)))


def runs_of(got: list[Run | Exception]) -> list[Run]:
    return [one for one in got if isinstance(one, Run)]


@at_once
def test_of_many_that_start_a_run_one_does(house: House) -> None:
    def attempt(number: int, session: Session) -> Run | Exception:
        try:
            return session.run(plan(say(f"{number}", hold="gate", always=True)), background=True)
        except SessionBusy as busy:
            return busy

    got = race(house, attempt)
    (won,) = runs_of(got)
    assert {one.active_run_id for one in got if isinstance(one, SessionBusy)} == {won.id}
    house.mind.release("gate")
    log = house.log("s")
    assert log.types[:3] == ["session.created", "run.started", "message.added"]
    assert log.run_ids == [won.id]


@at_once
@pytest.mark.parametrize("round", [1, *(pytest.param(number, marks=pytest.mark.chaos) for number in range(2, 6))])
def test_of_many_that_queue_each_runs_once_and_in_order(house: House, round: int) -> None:
    def attempt(number: int, session: Session) -> Run | Exception:
        message = plan(calls(("pay", {"what": str(number)})), say(f"{number}"))
        return session.run(message, background=True, on_busy="queue")

    runs = runs_of(race(house, attempt))
    assert len({run.id for run in runs}) == RACERS
    session = house.client(house.server()).sessions.get("s")
    until("all have run", lambda: {run.status for run in session.runs(page_size=200)} == {"completed"}, every=0.2)
    log = house.checked("s")
    assert sorted(log.run_ids) == sorted(run.id for run in runs)
    assert [log.ends(run_id) for run_id in log.run_ids] == [["run.completed"]] * RACERS
    started = [event.run_id for event in log.events if event.type == "run.started"]
    assert started == log.run_ids
    assert len(house.effects.count()) == RACERS
    assert not house.effects.twice()
    said = [
        message["content"] for message in session.messages() if message["role"] == "assistant" and message["content"]
    ]
    assert sorted(map(int, said)) == list(range(RACERS))


@at_once
@pytest.mark.parametrize("round", [1, *(pytest.param(number, marks=pytest.mark.chaos) for number in range(2, 6))])
def test_of_many_that_interrupt_one_is_left(house: House, round: int) -> None:
    def attempt(number: int, session: Session) -> Run | Exception:
        message = plan(say(f"{number}", hold="gate", always=True))
        try:
            return session.run(message, background=True, on_busy="interrupt")
        except RunCancelled as cancelled:
            # The next one was so quick that the answer says it already.
            return cancelled.run

    runs = runs_of(race(house, attempt))
    assert len(runs) == RACERS
    log = house.checked("s", at_rest=False)
    (left,) = [run_id for run_id in log.run_ids if not log.ends(run_id)]
    assert all(log.ends(run_id) == ["run.cancelled"] for run_id in log.run_ids if run_id != left)
    house.mind.release("gate")
    session = house.client(house.server()).sessions.get("s")
    quiet(session)
    log = house.checked("s")
    assert sorted(log.run_ids) == sorted(run.id for run in runs)
    assert log.ends(left) == ["run.completed"]
    assert session.run("And then?").status == "completed"
