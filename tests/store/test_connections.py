"""A database that is missing, not ours, too slow, or gone for a moment."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from sqlalchemy import Connection, text

from swarmkeep.events.errors import Overloaded
from swarmkeep.events.facts import EventDraft, SessionUpdated
from swarmkeep.events.records import UsageQuery
from swarmkeep.events.state import State
from swarmkeep.events.words import parse_terms
from swarmkeep.store import postgres_connections, schema
from swarmkeep.store import postgres_connections as standstill
from swarmkeep.store.index import SessionFilter
from swarmkeep.store.opening import SqlStore, open_store
from swarmkeep.store.postgres_connections import connect
from swarmkeep.store.records import Lease, OutcomeUnknown, SchemaBehind, StoreUnavailable
from swarmkeep.store.tables import audit_log, sessions, usage_days
from swarmkeep.store.urls import PostgresServer, locate
from tests.store.conftest import Opener
from tests.store.sessions import KEY, begin_session, draft_creation, draft_user_messages, list_seqs, new_key
from tests.support.postgres import replace_database


async def expect_failure(url: str, error: type[Exception] = StoreUnavailable) -> str:
    """Both kinds of call fail alike; returns what they say."""
    store = open_store(url)
    try:
        with pytest.raises(error) as refused:
            await store.ping()
        with pytest.raises(error):
            await store.append(KEY, State(), draft_creation())
        return str(refused.value)
    finally:
        await store.close()


async def test_missing_file_is_not_created(tmp_path: Path) -> None:
    said = await expect_failure(f"sqlite:///{tmp_path / 'absent.db'}")
    assert "absent.db" in said
    assert "swarmkeep db upgrade" in said
    assert os.listdir(tmp_path) == []


async def test_missing_directory_is_named(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'nowhere' / 'x.db'}"
    assert "nowhere" in await expect_failure(url)
    with pytest.raises(StoreUnavailable, match="nowhere"):
        schema.upgrade(url)


async def test_a_directory_is_no_database(tmp_path: Path) -> None:
    assert f"{tmp_path}: it is a folder" in await expect_failure(f"sqlite:///{tmp_path}")


async def test_foreign_file_is_left_alone(tmp_path: Path) -> None:
    other = tmp_path / "notes.txt"
    other.write_text("not a database, but somebody's notes\n" * 100)
    before = other.read_bytes()
    assert "not a database" in await expect_failure(f"sqlite:///{other}")
    with pytest.raises(StoreUnavailable, match="not a database"):
        schema.upgrade(f"sqlite:///{other}")
    assert other.read_bytes() == before


@pytest.fixture
def empty_url(database_url: str) -> str:
    schema.upgrade(database_url)
    schema.downgrade(database_url, "base")
    return database_url


async def test_empty_database_names_the_command(empty_url: str) -> None:
    assert "swarmkeep db upgrade" in await expect_failure(empty_url, SchemaBehind)


async def test_refused_connection_is_named_without_password() -> None:
    said = await expect_failure("postgresql://me:hunter2@127.0.0.1:1/mine")
    assert "postgresql://me@127.0.0.1:1/mine" in said
    assert "hunter2" not in said


async def test_unanswering_server_is_awaited_once(postgres_ready: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(postgres_ready)
    waits: list[object] = []

    async def wait_in_vain(*_: object, **__: object) -> None:
        waits.append(1)
        raise TimeoutError

    monkeypatch.setattr(asyncpg, "connect", wait_in_vain)
    for write in (store.append(KEY, State(), draft_creation()), store.database.write(lambda connection: None)):
        waits.clear()
        with pytest.raises(StoreUnavailable, match="it did not answer in time"):
            await write
        assert len(waits) == 1
    await store.close()


async def test_missing_database_is_named(postgres_url: str) -> None:
    assert "no_such_database" in await expect_failure(replace_database(postgres_url, "no_such_database"))


async def break_connections(store: SqlStore) -> None:
    """Terminate every other connection to the store's database, as a restart of the server does."""
    other = text("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() "
                 "AND pid <> pg_backend_pid()")  # fmt: skip
    await store.database.read(lambda connection: connection.execute(other).all())


async def test_store_recovers_from_cut_connections(postgres_ready: str) -> None:
    store, operator = open_store(postgres_ready), open_store(postgres_ready)
    try:
        keys = [new_key() for _ in range(8)]
        states = await asyncio.gather(*(begin_session(store, each) for each in keys))
        for call in ("append", "state", "both"):
            await break_connections(operator)
            if call != "append":
                read = await asyncio.gather(*(store.state(each) for each in keys))
                assert read == states
            if call != "state":
                done = await asyncio.gather(
                    *(
                        store.append(each, state, draft_user_messages("x"))
                        for each, state in zip(keys, states, strict=True)
                    )
                )
                states = [each.state for each in done]
        assert [list_seqs(await store.read(each)) for each in keys] == [[1, 2, 3]] * 8
    finally:
        await store.close()
        await operator.close()


async def test_stalled_process_frees_its_row(postgres_ready: str) -> None:
    """Wherever it writes from: also from the thread that keeps its leases."""
    store = open_store(postgres_ready)
    shown = text("SELECT current_setting('idle_in_transaction_session_timeout'), current_setting('lock_timeout')")
    for write in (store.database.write, store.database.write_from_anywhere):
        assert tuple(await write(lambda connection: connection.execute(shown).one())) == ("5s", "5s")
    await store.close()


async def test_process_stalled_amid_rows_frees_them(postgres_ready: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the rest of a batch is on its way, PostgreSQL has no limit for how long it waits: nothing is sent so."""
    from asyncpg import Connection as Driver

    async def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a batch is sent in pieces")

    monkeypatch.setattr(Driver, "executemany", refuse)
    store = open_store(postgres_ready)
    metadata = {"team": "desk", "order": "4711", "kind": "refund"}
    state = await begin_session(store, KEY, metadata=metadata)
    state = (await store.append(KEY, state, draft_user_messages(*(f"message {n}" for n in range(100))))).state
    while await store.index_some():
        pass
    assert list_seqs(await store.read(KEY)) == list(range(1, 102))
    assert (await store.list_sessions(SessionFilter(KEY.tenant, terms=parse_terms("message 99")))).sessions[
        0
    ].id == KEY.id
    assert (await store.list_sessions(SessionFilter(KEY.tenant, metadata=metadata))).sessions[0].id == KEY.id
    await store.close()


@pytest.fixture
async def half_sent(postgres_ready: str) -> AsyncIterator[Callable[[str], Awaitable[Any]]]:
    """What locks a session's rows in a table and then stands still half way through its next statement."""
    connection = await asyncpg.connect(postgres_ready, server_settings={"application_name": "swarmkeep"})

    async def lock(table: str) -> Any:
        await connection.execute("BEGIN")
        await connection.execute(f"UPDATE {table} SET tenant = tenant")
        # The text is sent, its values are not: as long as they do not come, PostgreSQL waits for them.
        await connection.prepare("SELECT seq FROM events WHERE seq = $1")
        return connection

    yield lock
    connection.terminate()


@pytest.mark.parametrize("table", ["sessions", "search_marks"])
async def test_process_stalled_mid_statement_frees_rows(
    half_sent: Callable[[str], Awaitable[Any]], postgres_ready: str, monkeypatch: pytest.MonkeyPatch, table: str
) -> None:
    monkeypatch.setattr(postgres_connections, "_LOCK_SECONDS", 0.2)
    monkeypatch.setattr(standstill, "STANDSTILL_SECONDS", 0.2)
    store = open_store(postgres_ready)
    try:
        state = await begin_session(store)
        while await store.index_some():
            pass
        ended = asyncio.Event()
        (await half_sent(table)).add_termination_listener(lambda _: ended.set())
        # What is told to end may take a moment.
        for _ in range(20):
            with suppress(Overloaded):
                state = (await store.append(KEY, state, draft_user_messages("Hello."))).state
                break
        await store.index_some()
        assert list_seqs(await store.read(KEY)) == [1, 2]
        await asyncio.wait_for(ended.wait(), 10)
    finally:
        await store.close()


@pytest.mark.parametrize("name", ["swarmkeep", "somebody"])
async def test_only_what_stands_still_is_ended(postgres_ready: str, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Not what another program does, and not what is busy."""
    monkeypatch.setattr(postgres_connections, "_LOCK_SECONDS", 0.2)
    monkeypatch.setattr(standstill, "STANDSTILL_SECONDS", 0.2)
    store = open_store(postgres_ready)
    busy = await asyncpg.connect(postgres_ready, server_settings={"application_name": name})
    try:
        state = await begin_session(store)
        await busy.execute("BEGIN")
        await busy.execute("UPDATE sessions SET tenant = tenant")
        working: asyncio.Future[Any]
        if name == "swarmkeep":
            working = asyncio.ensure_future(busy.execute("SELECT pg_sleep(1.5)"))
        else:
            working = asyncio.ensure_future(busy.prepare("SELECT seq FROM events WHERE seq = $1"))
            await working
        with pytest.raises(Overloaded):
            await store.append(KEY, state, draft_user_messages("Hello."))
        await working
        await busy.execute("COMMIT")
        assert (await store.append(KEY, state, draft_user_messages("Hello."))).state.seq == 2
    finally:
        busy.terminate()
        await store.close()


async def test_uncertain_commit_is_not_repeated(postgres_ready: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from asyncpg.transaction import Transaction  # type: ignore[import-untyped]

    store, operator = open_store(postgres_ready), open_store(postgres_ready)
    commit: Any = Transaction.commit
    try:
        state = await begin_session(store)

        async def commit_then_break(self: Any) -> None:
            await commit(self)
            self._connection.terminate()
            raise ConnectionResetError("cut after the commit")

        monkeypatch.setattr(Transaction, "commit", commit_then_break)
        labelled = EventDraft(SessionUpdated(metadata={"n": 1}), None, "Triage")
        with pytest.raises(OutcomeUnknown, match="not known whether the commit succeeded"):
            await store.append(KEY, state, [labelled])
        monkeypatch.undo()
        assert (await store.state(KEY)).seq == 2
    finally:
        await store.close()
        await operator.close()


async def test_uncertain_autocommit_statement_is_not_repeated(
    postgres_ready: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from asyncpg import Connection

    store = open_store(postgres_ready)
    fetch: Any = Connection.fetch
    sent: list[str] = []
    try:
        state = await begin_session(store)

        async def fetch_then_break(self: Any, query: str, *values: Any) -> Any:
            sent.append(query)
            rows = await fetch(self, query, *values)
            if len(sent) == 1:
                self.terminate()
                raise ConnectionResetError("cut after the commit")
            return rows

        monkeypatch.setattr(Connection, "fetch", fetch_then_break)
        with pytest.raises(OutcomeUnknown, match="not known whether the commit succeeded") as unknown:
            await store.append(KEY, state, draft_user_messages("once"))
        monkeypatch.undo()
        # Sent once more, it found the session moved on.
        assert len(sent) == 2
        assert (await store.state(KEY)) == unknown.value.appended.state
        assert (await store.state(KEY)).seq == 2
    finally:
        await store.close()


async def test_timed_out_statement_stays_uncertain_without_server(
    postgres_ready: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when the network breaks: it was done, no answer came, and nothing can be looked for."""
    from asyncpg import Connection

    store = open_store(postgres_ready)
    fetch: Any = Connection.fetch
    try:
        state = await begin_session(store)

        async def refuse(*_: object, **__: object) -> None:
            raise ConnectionRefusedError

        async def fetch_and_wait_in_vain(self: Any, query: str, *values: Any) -> Any:
            await fetch(self, query, *values)
            self.terminate()
            monkeypatch.setattr(asyncpg, "connect", refuse)
            raise TimeoutError

        monkeypatch.setattr(Connection, "fetch", fetch_and_wait_in_vain)
        with pytest.raises(OutcomeUnknown):
            await store.append(KEY, state, draft_user_messages("once"))
        monkeypatch.undo()
        assert (await store.state(KEY)).seq == 2
    finally:
        await store.close()


async def test_undone_statement_is_sent_again(postgres_ready: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from asyncpg import Connection

    store = open_store(postgres_ready)
    fetch: Any = Connection.fetch
    breaks = iter([True])
    try:
        state = await begin_session(store)

        async def break_then_fetch(self: Any, query: str, *values: Any) -> Any:
            if next(breaks, False):
                self.terminate()
            return await fetch(self, query, *values)

        monkeypatch.setattr(Connection, "fetch", break_then_fetch)
        appended = await store.append(KEY, state, draft_user_messages("once"))
        monkeypatch.undo()
        assert await store.state(KEY) == appended.state
        assert list_seqs(await store.read(KEY)) == [1, 2]
    finally:
        await store.close()


async def test_excess_waiting_writes_are_refused(opener: Opener) -> None:
    store = opener(max_waiting=5)
    keys = [new_key() for _ in range(60)]
    outcomes = await asyncio.gather(*(begin_session(store, each) for each in keys), return_exceptions=True)
    done = [outcome for outcome in outcomes if isinstance(outcome, State)]
    refused = [outcome for outcome in outcomes if isinstance(outcome, Overloaded)]
    assert len(done) + len(refused) == 60
    assert done
    assert refused
    assert len((await store.list_sessions(SessionFilter("default"), limit=100)).sessions) == len(done)
    assert (await begin_session(store, new_key())).seq == 1


async def test_closing_finishes_the_writes_that_wait(url: str) -> None:
    store = open_store(url)
    keys = [new_key() for _ in range(30)]
    writes = [asyncio.ensure_future(begin_session(store, each)) for each in keys]
    await asyncio.sleep(0)
    await store.close()
    assert [state.seq for state in await asyncio.gather(*writes)] == [1] * 30
    for call in (store.read(KEY), store.append(KEY, State(), draft_creation()), store.ping()):
        with pytest.raises(StoreUnavailable, match="closed"):
            await call
    await store.close()


async def test_cancelled_callers_leak_no_connection(store: SqlStore) -> None:
    state = await begin_session(store)
    for delay in (0, 0.0005, 0.001, 0.002, 0.005):
        calls = [asyncio.ensure_future(store.state(KEY)) for _ in range(40)]
        calls += [asyncio.ensure_future(begin_session(store, new_key())) for _ in range(10)]
        await asyncio.wait(calls, timeout=delay)
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
    async with asyncio.timeout(20):
        assert await asyncio.gather(*(store.state(KEY) for _ in range(40))) == [state] * 40
        assert (await store.append(KEY, state, draft_user_messages("x"))).state.seq == 2


async def test_read_only_store_refuses_writes(opener: Opener) -> None:
    state = await begin_session(opener())
    reader = opener(read_only=True)
    await reader.ping()
    assert await reader.state(KEY) == state
    for call in (
        reader.append(KEY, state, draft_user_messages("x")),
        reader.delete(KEY),
        reader.renew({KEY: Lease("a", 1)}, lease_seconds=1),
    ):
        with pytest.raises(StoreUnavailable, match="read-only"):
            await call


async def test_unused_store_closes(url: str) -> None:
    await open_store(url).close()


async def test_store_may_be_closed_repeatedly(opener: Opener) -> None:
    store = opener()
    assert await store.database.read_snapshot(lambda connection: connection.scalar(text("SELECT 1"))) == 1
    await store.close()
    await store.close()
    with pytest.raises(StoreUnavailable):
        await store.database.read_snapshot(lambda connection: connection.scalar(text("SELECT 1")))


async def test_nothing_is_left_running_after_close(url: str) -> None:
    threads = set(threading.enumerate())
    store = open_store(url)
    await begin_session(store)
    await store.close()
    left = [thread for thread in set(threading.enumerate()) - threads if "swarmkeep" in thread.name]
    assert left == []
    assert [task for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []


@pytest.mark.skipif(sys.platform == "win32", reason="uvloop is not made for Windows")
def test_store_works_under_uvloop_and_asyncio(url: str) -> None:
    import uvloop

    async def use(name: str) -> int:
        store = open_store(url)
        session = new_key(name)
        state = await begin_session(store, session)
        await asyncio.gather(*(begin_session(store, new_key(name)) for _ in range(10)))
        seq = (await store.append(session, state, draft_user_messages("x"))).state.seq
        await store.close()
        return seq

    runs: list[Callable[[Any], int]] = [asyncio.run, uvloop.run]
    assert [run(use(run.__module__)) for run in runs] == [2, 2]


# A query whose cost its caller chose ends in its time, and the next one is answered.


ENDLESS = {
    "sqlite": "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n",
    "postgresql": "SELECT pg_sleep(600)",
}


def run_endless(connection: Connection) -> None:
    connection.execute(text(ENDLESS[connection.dialect.name]))


async def test_slow_query_ends(opener: Opener) -> None:
    store = opener()
    for _ in range(3):
        with pytest.raises(Overloaded, match="took too long"):
            await store.database.read(run_endless, seconds=0.05)
    # The connection is as it was: the next query has no limit, and is answered.
    assert await store.database.read(lambda connection: connection.scalar(text("SELECT 1"))) == 1
    assert (await store.list_sessions(SessionFilter("default"))).sessions == []


async def test_lists_and_sums_respect_set_limit(postgres_ready: str) -> None:
    server = locate(postgres_ready)
    assert isinstance(server, PostgresServer)
    other = await connect(server, {})
    store = open_store(postgres_ready, read_seconds=0.05)
    async with other.transaction():
        names = ", ".join(table.name for table in (sessions, usage_days, audit_log))
        await other.execute(f"LOCK TABLE {names} IN ACCESS EXCLUSIVE MODE")
        for slow in (
            store.list_sessions(SessionFilter("t")),
            store.sum_usage("t", UsageQuery()),
            store.read_audit_log("t"),
        ):
            with pytest.raises(Overloaded, match="took too long"):
                await slow
    assert (await store.list_sessions(SessionFilter("t"))).sessions == []
    await store.close()
    await other.close()
