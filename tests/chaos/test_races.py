"""Sixteen want to run in one session at the same moment, half of them on another server."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from swarmkeep_client import Run, RunCancelled, Session, SessionBusy
from tests.chaos.cluster import ServerCluster, wait_until_quiet
from tests.chaos.parallel import run_in_parallel
from tests.chaos.plans import call_step, make_plan, say_step, wait_until

pytestmark = pytest.mark.long

RACERS = 16


def race(cluster: ServerCluster, attempt: Callable[[int, Session], Run | Exception]) -> list[Run | Exception]:
    """The result of each of the racers, which all start at once."""
    clients = [cluster.client(cluster.server()) for _ in range(2)]
    clients[0].sessions.create(id="s")
    lanes = [client.sessions.get("s") for client in clients]
    start = threading.Barrier(RACERS)

    def racer(number: int) -> Run | Exception:
        start.wait()
        return attempt(number, lanes[number % 2])

    with ThreadPoolExecutor(RACERS) as pool:
        return list(pool.map(racer, range(RACERS)))


def pick_runs(got: list[Run | Exception]) -> list[Run]:
    return [one for one in got if isinstance(one, Run)]


@run_in_parallel
def test_one_of_many_starts_runs(cluster: ServerCluster) -> None:
    def attempt(number: int, session: Session) -> Run | Exception:
        try:
            return session.run(make_plan(say_step(f"{number}", hold="gate", always=True)), background=True)
        except SessionBusy as busy:
            return busy

    got = race(cluster, attempt)
    (won,) = pick_runs(got)
    assert {one.active_run_id for one in got if isinstance(one, SessionBusy)} == {won.id}
    cluster.planned_model.release("gate")
    log = cluster.log("s")
    assert log.types[:3] == ["session.created", "run.started", "message.added"]
    assert log.run_ids == [won.id]


@run_in_parallel
@pytest.mark.parametrize("round", [1, *(pytest.param(number, marks=pytest.mark.chaos) for number in range(2, 6))])
def test_queued_runs_execute_once_in_order(cluster: ServerCluster, round: int) -> None:
    def attempt(number: int, session: Session) -> Run | Exception:
        message = make_plan(call_step(("pay", {"what": str(number)})), say_step(f"{number}"))
        return session.run(message, background=True, on_busy="queue")

    runs = pick_runs(race(cluster, attempt))
    assert len({run.id for run in runs}) == RACERS
    session = cluster.client(cluster.server()).sessions.get("s")
    wait_until("all have run", lambda: {run.status for run in session.runs(page_size=200)} == {"completed"}, every=0.2)
    log = cluster.read_checked_log("s")
    assert sorted(log.run_ids) == sorted(run.id for run in runs)
    assert [log.list_ends(run_id) for run_id in log.run_ids] == [["run.completed"]] * RACERS
    started = [event.run_id for event in log.events if event.type == "run.started"]
    assert started == log.run_ids
    assert len(cluster.effects.count()) == RACERS
    assert not cluster.effects.list_repeated()
    said = [
        message["content"] for message in session.messages() if message["role"] == "assistant" and message["content"]
    ]
    assert sorted(map(int, said)) == list(range(RACERS))


@run_in_parallel
@pytest.mark.parametrize("round", [1, *(pytest.param(number, marks=pytest.mark.chaos) for number in range(2, 6))])
def test_one_of_many_interrupting_runs_remains(cluster: ServerCluster, round: int) -> None:
    def attempt(number: int, session: Session) -> Run | Exception:
        message = make_plan(say_step(f"{number}", hold="gate", always=True))
        try:
            return session.run(message, background=True, on_busy="interrupt")
        except RunCancelled as cancelled:
            # The next one was so quick that the answer says it already.
            return cancelled.run

    runs = pick_runs(race(cluster, attempt))
    assert len(runs) == RACERS
    log = cluster.read_checked_log("s", at_rest=False)
    (left,) = [run_id for run_id in log.run_ids if not log.list_ends(run_id)]
    assert all(log.list_ends(run_id) == ["run.cancelled"] for run_id in log.run_ids if run_id != left)
    cluster.planned_model.release("gate")
    session = cluster.client(cluster.server()).sessions.get("s")
    wait_until_quiet(session)
    log = cluster.read_checked_log("s")
    assert sorted(log.run_ids) == sorted(run.id for run in runs)
    assert log.list_ends(left) == ["run.completed"]
    assert session.run("And then?").status == "completed"
