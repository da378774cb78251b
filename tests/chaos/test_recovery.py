"""Recovery: when it gives up, how soon it comes, and what servers that share a database, race or freeze leave."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from swarmkeep.store import schema
from swarmkeep_client import Run, RunCancelled, Session
from tests.chaos.cluster import (
    KILLED,
    ServerCluster,
    Succession,
    compute_allowed_seconds,
    ignore_lost_connection,
    wait_until_quiet,
)
from tests.chaos.parallel import DATABASE_KINDS, Case, run_in_parallel
from tests.chaos.plans import call_step, make_plan, say_step, wait_until
from tests.chaos.records import LogRows
from tests.support.processes import ProcessFailed

pytestmark = pytest.mark.long


@pytest.mark.chaos
@run_in_parallel
def test_run_killing_every_server_given_up(cluster: ServerCluster) -> None:
    server = cluster.server(kill_at="model.sent", LEASE_SECONDS="0.6")
    with ignore_lost_connection():
        cluster.client(server).sessions.create(id="s").run(make_plan(say_step("Hello.")))
    deaths = 0
    while True:
        with suppress(ProcessFailed):
            server.start() if server.returncode is not None else None
        wait_until(
            "it died, or gave up", lambda: server.returncode is not None or cluster.log("s").of("run.interrupted")
        )
        if server.returncode is None:
            break
        deaths += 1
        assert deaths < 10
    log = cluster.read_checked_log("s")
    assert len(log.of("run.resumed")) == 5
    (end,) = log.of("run.interrupted")
    assert end["error"]["code"] == "too_many_recoveries"
    calm = cluster.server()
    session = cluster.client(calm).sessions.get("s")
    assert session.resume(log.run_ids[0]).output_text == "Hello."
    assert session.run("And then?").status == "completed"
    cluster.read_checked_log("s")


@pytest.mark.chaos
@run_in_parallel
def test_usual_lease_takes_over_in_time(cluster: ServerCluster) -> None:
    lease = 15.0
    server = cluster.server(LEASE_SECONDS=str(lease))
    cluster.server(LEASE_SECONDS=str(lease))
    # The heir has just looked around as the run begins, so it looks again shortly before the lease ends.
    with ignore_lost_connection():
        session = cluster.client(server).sessions.create(id="s")
        session.run(make_plan(say_step("Hello.", hold="gate")), background=True)
    cluster.planned_model.wait_for("gate")
    server.kill()
    died = time.monotonic()
    wait_until("it is taken over", lambda: cluster.log("s").of("run.resumed"), every=0.1)
    assert time.monotonic() - died <= compute_allowed_seconds(lease)


# Servers that share a database learn of what others did, and finish what others began.


SOON = 8.0


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


# Servers that start at once on nothing.


STARTERS = 4


@pytest.fixture
def empty_cluster(request: pytest.FixtureRequest, tmp_path: Path) -> ServerCluster:
    """On a database that has nothing in it, not even tables."""
    kind = request.node.callspec.params["kind"]
    url = f"sqlite:///{tmp_path / 'new.db'}" if kind == "sqlite" else request.getfixturevalue("postgres_url")
    return ServerCluster(url, tmp_path)


@pytest.mark.parametrize("kind", DATABASE_KINDS)
def test_concurrent_starts_on_empty_database_succeed(kind: str, empty_cluster: ServerCluster) -> None:
    with empty_cluster as cluster:
        with ThreadPoolExecutor(STARTERS) as pool:
            servers = list(pool.map(lambda _: cluster.server(MIGRATE="true"), range(STARTERS)))
        assert schema.check(cluster.url) == []
        first, *others = (cluster.client(server).sessions for server in servers)
        first.create(id="s")
        for number, sessions in enumerate(others):
            assert sessions.get("s").run(make_plan(say_step(f"{number}"))).output_text == f"{number}"
        cluster.read_checked_log("s")


# Sixteen want to run in one session at the same moment, half of them on another server.


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


# A server is killed while an agent asks another one: both go on, and nothing is asked for or paid twice.


# From the start of the call to its result: what is recorded of both sessions, and what is done between.
POINTS = (
    "tool.started:1",  # the call that asks, of which nothing exists below yet
    "session.created:2",
    "run.started:2",
    "tool.started:2",  # a call of the agent that is asked
    "tool.done:1",
    "run.completed:1",
    "child.ended:1",  # its answer is known above
    "tool.done:2",
    "message.added:7",  # and recorded
)
SHORT = ("session.created:2", "tool.done:1", "child.ended:1")


def _cases() -> Iterator[Any]:
    for point in POINTS:
        for kind, restarted in (("sqlite", True), ("postgres", False)):
            marks = () if point in SHORT else (pytest.mark.chaos,)
            yield pytest.param(Case(kind, restarted, point), id=f"{point}-{kind}", marks=marks)


def ask_plan(*steps: Any) -> str:
    """A message that has the lead ask the clerk to take these steps."""
    return make_plan(call_step(("ask_clerk", {"input": make_plan(*steps)})), say_step("All is done."))


def read_child_ids(cluster: ServerCluster) -> list[str]:
    return [name for (name,) in cluster.sql("SELECT id FROM sessions WHERE id LIKE 'subsess%'")]


def recover(cluster: ServerCluster, servers: Succession) -> LogRows:
    """The log of the session that asks, once its server has died and its run has come to its end."""
    session = wait_until_quiet(cluster.client(servers.outlive()).sessions.get("s"))
    assert next(session.runs()).output_text == "All is done."
    return cluster.read_checked_log("s")


@run_in_parallel
@pytest.mark.parametrize("case", list(_cases()))
def test_asking_call_is_taken_up(cluster: ServerCluster, case: Case) -> None:
    servers = Succession(cluster, case.point, restarted=case.restarted)
    session = cluster.client(servers.armed).sessions.create(id="s", agent="Lead")
    with ignore_lost_connection():
        session.run(ask_plan(call_step(("put", {"what": "1"})), say_step("It is put.")))
    log = recover(cluster, servers)
    assert list(log.read_tool_status().values()) == ["ok"]
    assert list(log.attempts().values()) == [1]
    (child,) = read_child_ids(cluster)
    below = cluster.read_checked_log(child)
    assert [below.types.count(name) for name in ("run.started", "run.completed")] == [1, 1]
    assert list(below.read_tool_status().values()) == ["ok"]
    assert below.data[0]["parent"]["session_id"] == "s"
    # Model calls that are recorded: two above and two below, each once.
    assert sum("completion" in data for data in (*log.of("message.added"), *below.of("message.added"))) == 4


# A server stands still for longer than its lease, another one takes over, and then the first one wakes up.


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
