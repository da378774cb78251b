"""Processes that are killed: what they committed is there, what they were in the middle of is not."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from swarmkeep.events.errors import SessionNotFound
from swarmkeep.store import schema
from swarmkeep.store.opening import SqlStore, open_store
from swarmkeep.store.records import Claim, IdempotencyRecord, StoreUnavailable
from swarmkeep.store.usage import recount_totals
from tests.store.sessions import KEY, begin_session, draft_user_messages, list_seqs, read_all_rows
from tests.support.postgres import private_postgres
from tests.support.processes import Process

ROOT = Path(__file__).parents[2]

# Appends again and again, and says after each what was acknowledged. Ends itself with SIGKILL as told.
WRITER = """
import asyncio, itertools, os, signal, sys
from sqlalchemy import Engine, event
from swarmkeep.events.facts import EventDraft
from swarmkeep.events.facts import SessionUpdated
from swarmkeep.events.state import State
from swarmkeep.store.records import Claim, IdempotencyRecord
from swarmkeep.store.opening import open_store
from tests.store.sessions import KEY, draft_creation, draft_run_start, draft_user_messages

url, where, which = sys.argv[1], sys.argv[2], int(sys.argv[3])
count = itertools.count(1)

def die():
    if next(count) == which:
        os.kill(os.getpid(), signal.SIGKILL)

@event.listens_for(Engine, "after_cursor_execute")
def executed(connection, cursor, statement, parameters, context, executemany):
    if connection.dialect.name != "sqlite" and statement.startswith(where):
        die()

# Statements of the hot path go to SQLite's driver itself. It tells of each that begins: the one before it is done.
traced = []

def trace(statement):
    if traced and traced.pop().startswith(where):
        die()
    traced.append(statement)

@event.listens_for(Engine, "connect")
def connected(raw, record):
    if hasattr(raw, "set_trace_callback"):
        raw.set_trace_callback(trace)

@event.listens_for(Engine, "commit")
def committing(connection):
    if where == "before_commit":
        die()

async def main():
    store = open_store(url)
    state = State()
    lease = Claim("writer", 60)
    for number in range(20):
        drafts = draft_user_messages(str(number), "more")
        if number == 0:
            drafts = [*draft_creation({"n": 0}), *draft_run_start(state)]
        drafts.append(EventDraft(SessionUpdated(metadata={"n": number}), None, "Triage"))
        blobs = {f"h{number}": "text", f"f{number}": b"a file"}
        appended = await store.append(
            KEY, state, drafts, lease=lease, blobs=blobs, idempotency=IdempotencyRecord(key=f"k{number}", digest="d")
        )
        state, lease = appended.state, appended.lease
        print(state.seq, state.hash, flush=True)
        if where == "after_commit":
            die()

asyncio.run(main())
"""


async def crash_writer(url: str, folder: Path, where: str, which: int) -> list[tuple[int, str]]:
    """Run the writer until it kills itself; returns the seqs and hashes that it acknowledged."""
    command = [sys.executable, "-c", WRITER, url, where, str(which)]
    writer = Process(command, folder=folder, env={"PYTHONPATH": str(ROOT)})
    writer.start()
    assert await asyncio.to_thread(writer.wait, 60) == -9, writer.output()
    lines = [line.split() for line in writer.output().splitlines()]
    return [(int(seq), hash) for seq, hash in lines]


@pytest.mark.parametrize(
    ("where", "which"),
    [
        ("INSERT INTO events", 1),
        pytest.param("UPDATE sessions", 2, marks=pytest.mark.long),
        pytest.param("INSERT INTO session_labels", 3, marks=pytest.mark.long),
        pytest.param("before_commit", 4, marks=pytest.mark.long),
        ("after_commit", 3),
        pytest.param("INSERT INTO sessions", 1, marks=pytest.mark.chaos),
        ("INSERT INTO files", 2),
        pytest.param("INSERT INTO idempotency", 3, marks=pytest.mark.chaos),
        pytest.param("INSERT INTO events", 3, marks=pytest.mark.chaos),
        pytest.param("INSERT INTO blobs", 3, marks=pytest.mark.chaos),
        pytest.param("DELETE FROM session_labels", 2, marks=pytest.mark.chaos),
        pytest.param("INSERT INTO totals", 3, marks=pytest.mark.long),
    ],
)
async def test_process_kill_leaves_whole_appends(
    store: SqlStore, url: str, tmp_path: Path, where: str, which: int
) -> None:
    acknowledged = await crash_writer(url, tmp_path, where, which)
    rows = await read_all_rows(store)
    assert await recount_totals(store.database, mend=False) == []
    if not acknowledged:
        assert not any(rows.values())
        with pytest.raises(SessionNotFound):
            await store.state(KEY)
        return
    last = len(acknowledged) - 1
    state = await store.state(KEY)
    assert (state.seq, state.hash) == acknowledged[-1]
    assert list_seqs(await store.read(KEY)) == list(range(1, state.seq + 1))
    assert state.metadata == {"n": last}
    assert [row[2] for row in rows["blobs"]] == [f"h{number}" for number in range(last + 1)]
    assert [row[2] for row in rows["files"]] == sorted(f"f{number}" for number in range(last + 1))
    assert len(rows["session_labels"]) == len(rows["sessions"]) == 1
    assert await store.find_idempotency_record(KEY, f"k{last}") == IdempotencyRecord(
        key=f"k{last}", digest="d", seq=state.seq
    )
    assert len(rows["idempotency"]) == last + 1
    # The dead one's lease still runs; its own name may claim it again at once, as a restarted process would.
    appended = await store.append(KEY, state, draft_user_messages("recovered"), lease=Claim("writer", 60))
    assert appended.state.seq == state.seq + 1


@pytest.mark.chaos
async def test_acknowledged_data_survives_database_crash() -> None:
    with private_postgres() as server:
        schema.upgrade(server.url)
        store = open_store(server.url)
        state = await begin_session(store)
        for round in range(3):
            state = (await store.append(KEY, state, draft_user_messages(str(round)))).state
            server.stop_immediately()
            with pytest.raises(StoreUnavailable):
                await store.state(KEY)
            with pytest.raises(StoreUnavailable):
                await store.append(KEY, state, draft_user_messages("while it is down"))
            server.start()
            assert await store.state(KEY) == state
        await store.close()
