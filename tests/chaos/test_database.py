"""PostgreSQL goes away in the middle of runs, and comes back; connections break under the servers' hands."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import asyncpg
import pytest

from swarmkeep.store import schema
from swarmkeep_client import Session, SwarmkeepError
from tests.chaos.cluster import Acknowledgements, BackgroundReader, ServerCluster, wait_until_quiet
from tests.chaos.plans import call_step, make_plan, say_step, wait_until
from tests.support.postgres import PrivatePostgres, private_postgres

pytestmark = pytest.mark.long

# Longer than any of these outages, so that what goes on does so without anybody taking over.
LONG_LEASE_SECONDS = 5.0
BREAK_COUNT = 12
TALKERS = 4


@pytest.fixture(scope="module")
def server() -> Iterator[PrivatePostgres]:
    """A PostgreSQL that may be stopped: nobody else uses it."""
    with private_postgres() as server:
        yield server


@pytest.fixture
def cluster(server: PrivatePostgres, tmp_path: Path) -> Iterator[ServerCluster]:
    url = server.create(server.template("schema", schema.upgrade))
    with ServerCluster(url, tmp_path) as cluster:
        yield cluster
    server.drop(url)


def break_connections(cluster: ServerCluster, which: str = "true") -> int:
    """Break the connections to the cluster's database, and return how many there were."""
    mine = "datname = current_database() AND pid <> pg_backend_pid()"
    return len(cluster.sql(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {mine} AND {which}"))


def test_runs_continue_after_immediate_database_stop(server: PrivatePostgres, cluster: ServerCluster) -> None:
    one, other = cluster.server(), cluster.server()
    witnesses = {name: Acknowledgements() for name in ("asking", "paying", "waiting", "done")}
    client = cluster.client(one)
    sessions = {name: told.session(client.sessions.create(id=name)) for name, told in witnesses.items()}
    witnesses["done"].run(sessions["done"].run(make_plan(say_step("Done."))))
    witnesses["waiting"].run(sessions["waiting"].run(make_plan(call_step(("refund", {"what": "a"})))))
    sessions["asking"].run(make_plan(say_step("Done.", hold="gate")), background=True)
    cluster.planned_model.wait_for("gate")
    sessions["paying"].run(
        make_plan(call_step(("pay", {"what": "a", "door": "door"})), say_step("Done.")), background=True
    )
    wait_until("the effect has begun", lambda: cluster.effects.count())

    server.stop_immediately()
    # The model and the tool answer while nothing can be recorded.
    cluster.planned_model.release("gate")
    cluster.open("door")
    wait_until("the effect has ended", lambda: cluster.effects.count("end"))
    assert one.health("live") == other.health("live") == 200
    assert one.health("ready") == 503
    server.start()
    wait_until("the servers are ready again", lambda: one.health("ready") == other.health("ready") == 200)

    for name in ("asking", "paying", "done"):
        assert wait_until_quiet(sessions[name]).run("And then?").status == "completed"
    (run,) = sessions["waiting"].runs()
    denied = {"tool_call_id": run.pending[0].tool_call_id, "decision": "deny"}
    assert sessions["waiting"].resume(run.id, approvals=[denied]).status == "completed"
    for name, witness in witnesses.items():
        log = cluster.read_checked_log(name)
        assert not witness.list_missing(log)
        assert {end for run_id in log.run_ids for end in log.list_ends(run_id)} == {"run.completed"}
    assert not cluster.effects.list_repeated()


@pytest.mark.chaos
def test_unrecordable_run_taken_up_others_continue(server: PrivatePostgres, cluster: ServerCluster) -> None:
    one = cluster.server(LEASE_SECONDS=str(LONG_LEASE_SECONDS), LOG_LEVEL="debug")
    client = cluster.client(one)
    sessions = {name: client.sessions.create(id=name) for name in ("unlucky", "patient")}
    for name, session in sessions.items():
        session.run(make_plan(say_step("Done.", hold=name)), background=True)
        cluster.planned_model.wait_for(name)
    server.stop_immediately()
    cluster.planned_model.release("unlucky")
    wait_until("the answer could not be recorded", lambda: "session unlucky: waiting for the database" in one.output())
    server.start()
    wait_until("the server is ready again", lambda: one.health("ready") == 200)
    wait_until_quiet(sessions["unlucky"], 2 * LONG_LEASE_SECONDS)
    cluster.planned_model.release("patient")
    assert wait_until_quiet(sessions["patient"]).status == "idle"


@pytest.mark.chaos
def test_broken_connections_lose_nothing(cluster: ServerCluster) -> None:
    clients = [cluster.client(cluster.server()) for _ in range(2)]
    told = {f"s{number}": Acknowledgements() for number in range(TALKERS)}
    stop = threading.Event()

    def talk(number: int) -> None:
        session: Session | None = None
        while not stop.is_set():
            with suppress(SwarmkeepError):
                session = session or clients[number % 2].sessions.create(id=f"s{number}")
                wait_until_quiet(session)
                batch = call_step(("pay", {"what": "a"}), ("put", {"what": "b"}))
                told[session.id].run(session.run(make_plan(batch, say_step("Done."))))

    talkers = [BackgroundReader(lambda number=number: talk(number)) for number in range(TALKERS)]  # type: ignore[misc]
    for count in range(1, BREAK_COUNT + 1):
        wait_until("they talk", lambda least=3 * count: sum(len(witness.runs) for witness in told.values()) >= least)
        break_connections(cluster)
    stop.set()
    for talker in talkers:
        talker.join()
        assert talker.error is None
    for name, witness in told.items():
        assert wait_until_quiet(clients[0].sessions.get(name)).run("And then?").status == "completed"
        assert not witness.list_missing(cluster.read_checked_log(name))
    assert not cluster.effects.list_repeated()


def test_breaking_connection_fails_no_run(cluster: ServerCluster) -> None:
    server = cluster.server(LEASE_SECONDS="60")
    session = cluster.client(server).sessions.create(id="s")
    run = session.run(make_plan(say_step("Done.", hold="gate")), background=True)
    cluster.planned_model.wait_for("gate")
    blocked = "wait_event_type = 'Lock' AND query LIKE '%head_seq%'"

    async def hold_up() -> None:
        # While somebody else has the row, the reply cannot be recorded, and its connections can be told by that.
        other = await asyncpg.connect(cluster.url)
        async with other.transaction():
            await other.execute("SELECT 1 FROM sessions WHERE id = 's' FOR UPDATE")
            cluster.planned_model.release("gate")
            for _ in range(2):
                await asyncio.to_thread(wait_until, "the commit hangs", lambda: break_connections(cluster, blocked))
        await other.close()

    asyncio.run(hold_up())
    wait_until("the run has ended", lambda: session.get_run(run.id).status != "running")
    assert session.get_run(run.id).status == "completed"
    cluster.read_checked_log("s")
