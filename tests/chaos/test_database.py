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
from tests.chaos.house import House, Witness, quiet
from tests.chaos.plans import calls, plan, say, until
from tests.chaos.reader import Reader
from tests.chaos.warm import Nursery
from tests.support.postgres import PrivatePostgres, private_postgres

# Longer than any of these outages, so that what goes on does so without anybody taking over.
LONG_LEASE_SECONDS = 5.0
HANG_UPS = 12
TALKERS = 4


@pytest.fixture(scope="module")
def server() -> Iterator[PrivatePostgres]:
    """A PostgreSQL that may be stopped: nobody else uses it."""
    with private_postgres() as server:
        yield server


@pytest.fixture
def house(server: PrivatePostgres, nursery: Nursery, tmp_path: Path) -> Iterator[House]:
    url = server.create(server.template("schema", schema.upgrade))
    with House(nursery, url, tmp_path) as house:
        yield house
    server.drop(url)


def hang_up(house: House, which: str = "true") -> int:
    """Break the connections to the house's database, and return how many there were."""
    mine = "datname = current_database() AND pid <> pg_backend_pid()"
    return len(house.sql(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {mine} AND {which}"))


def test_runs_go_on_after_the_database_was_stopped_at_once(server: PrivatePostgres, house: House) -> None:
    one, other = house.server(), house.server()
    witnesses = {name: Witness() for name in ("asking", "paying", "waiting", "done")}
    client = house.client(one)
    sessions = {name: told.session(client.sessions.create(id=name)) for name, told in witnesses.items()}
    witnesses["done"].run(sessions["done"].run(plan(say("Done."))))
    witnesses["waiting"].run(sessions["waiting"].run(plan(calls(("refund", {"what": "a"})))))
    sessions["asking"].run(plan(say("Done.", hold="gate")), background=True)
    house.mind.wait_for("gate")
    sessions["paying"].run(plan(calls(("pay", {"what": "a", "door": "door"})), say("Done.")), background=True)
    until("the effect has begun", lambda: house.effects.count())

    server.stop_immediately()
    # The model and the tool answer while nothing can be recorded.
    house.mind.release("gate")
    house.open("door")
    until("the effect has ended", lambda: house.effects.count("end"))
    assert one.health("live") == other.health("live") == 200
    assert one.health("ready") == 503
    server.start()
    until("the servers are ready again", lambda: one.health("ready") == other.health("ready") == 200)

    for name in ("asking", "paying", "done"):
        assert quiet(sessions[name]).run("And then?").status == "completed"
    (run,) = sessions["waiting"].runs()
    denied = {"tool_call_id": run.pending[0].tool_call_id, "decision": "deny"}
    assert sessions["waiting"].resume(run.id, approvals=[denied]).status == "completed"
    for name, witness in witnesses.items():
        log = house.checked(name)
        assert not witness.missing(log)
        assert {end for run_id in log.run_ids for end in log.ends(run_id)} == {"run.completed"}
    assert not house.effects.twice()


@pytest.mark.chaos
def test_a_run_that_could_not_be_recorded_is_taken_up_while_others_go_on(server: PrivatePostgres, house: House) -> None:
    one = house.server(LEASE_SECONDS=str(LONG_LEASE_SECONDS))
    client = house.client(one)
    sessions = {name: client.sessions.create(id=name) for name in ("unlucky", "patient")}
    for name, session in sessions.items():
        session.run(plan(say("Done.", hold=name)), background=True)
        house.mind.wait_for(name)
    server.stop_immediately()
    house.mind.release("unlucky")
    until("the answer could not be recorded", lambda: "session unlucky" in one.output())
    server.start()
    until("the server is ready again", lambda: one.health("ready") == 200)
    quiet(sessions["unlucky"], 2 * LONG_LEASE_SECONDS)
    house.mind.release("patient")
    assert quiet(sessions["patient"]).status == "idle"


@pytest.mark.chaos
def test_broken_connections_lose_nothing(house: House) -> None:
    clients = [house.client(house.server()) for _ in range(2)]
    told = {f"s{number}": Witness() for number in range(TALKERS)}
    stop = threading.Event()

    def talk(number: int) -> None:
        session: Session | None = None
        while not stop.is_set():
            with suppress(SwarmkeepError):
                session = session or clients[number % 2].sessions.create(id=f"s{number}")
                quiet(session)
                batch = calls(("pay", {"what": "a"}), ("put", {"what": "b"}))
                told[session.id].run(session.run(plan(batch, say("Done."))))

    talkers = [Reader(lambda number=number: talk(number)) for number in range(TALKERS)]  # type: ignore[misc]
    for count in range(1, HANG_UPS + 1):
        until("they talk", lambda least=3 * count: sum(len(witness.runs) for witness in told.values()) >= least)
        hang_up(house)
    stop.set()
    for talker in talkers:
        talker.join()
        assert talker.error is None
    for name, witness in told.items():
        assert quiet(clients[0].sessions.get(name)).run("And then?").status == "completed"
        assert not witness.missing(house.checked(name))
    assert not house.effects.twice()


def test_a_connection_that_keeps_breaking_fails_no_run(house: House) -> None:
    server = house.server(LEASE_SECONDS="60")
    session = house.client(server).sessions.create(id="s")
    run = session.run(plan(say("Done.", hold="gate")), background=True)
    house.mind.wait_for("gate")
    blocked = "wait_event_type = 'Lock' AND query LIKE '%head_seq%'"

    async def hold_up() -> None:
        # While somebody else has the row, the reply cannot be recorded, and its connections can be told by that.
        other = await asyncpg.connect(house.url)
        async with other.transaction():
            await other.execute("SELECT 1 FROM sessions WHERE id = 's' FOR UPDATE")
            house.mind.release("gate")
            for _ in range(2):
                await asyncio.to_thread(until, "the commit hangs", lambda: hang_up(house, blocked))
        await other.close()

    asyncio.run(hold_up())
    until("the run has ended", lambda: session.get_run(run.id).status != "running")
    assert session.get_run(run.id).status == "completed"
    house.checked("s")
