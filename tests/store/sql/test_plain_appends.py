"""An append as one statement, on PostgreSQL: it writes, and refuses, what the general way does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from sqlalchemy import Connection

from swarmkeep.decide.drafts import draft_events
from swarmkeep.events import facts
from swarmkeep.events.errors import LeaseLost, QuotaExceeded, SeqConflict
from swarmkeep.events.records import CompletionRecord
from swarmkeep.events.state import State
from swarmkeep.store import writes
from swarmkeep.store.heads import AppendPlan, plan_append
from swarmkeep.store.log import is_plain
from swarmkeep.store.opening import SqlStore, open_store
from swarmkeep.store.records import AppendResult, Claim, IdempotencyRecord, IdempotencyRecordExists, Lease, StorageQuota
from swarmkeep.store.tables import metadata
from tests.store.sessions import KEY, begin_run, begin_session, draft_run_start, draft_user_messages, read_rows
from tests.support.postgres import Postgres

QUOTA = StorageQuota(max_sessions=10, max_bytes=1_000_000)
RECORD = IdempotencyRecord(key='"quoted\0', digest="d", run_id="r1")


class _Undo(Exception):
    """Ends a transaction whose rows have been looked at."""


class CountingStatements:
    """A database that tells what its statements gave."""

    def __init__(self, database: Any) -> None:
        self._database = database
        self.rows: list[Sequence[Any]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database, name)

    async def write_statement(self, render: Any) -> Any:
        rows = await self._database.write_statement(render)
        self.rows.append([tuple(row) for row in rows])
        return rows


@pytest.fixture
def url(postgres_ready: str) -> str:
    return postgres_ready


@pytest.fixture
def statements(store: SqlStore) -> CountingStatements:
    counting: Any = CountingStatements(store.database)
    store.database = counting
    found: CountingStatements = counting
    return found


def draft_reply(state: State, text: str = "Hello.") -> list[facts.EventDraft]:
    said: dict[str, Any] = {"role": "assistant", "content": text}
    usage = {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}
    completion = CompletionRecord(model="m", usage=usage, duration_ms=1.5, finish_reason="stop")
    return draft_events(state.agent, [facts.MessageAdded(message=said, completion=completion)], "r1")


def draft_end(state: State) -> list[facts.EventDraft]:
    return [*draft_reply(state), *draft_events(state.agent, [facts.RunCompleted(stop_reason="end_turn")], "r1")]


async def write_generally(store: SqlStore, plan: AppendPlan) -> tuple[Lease | None, dict[str, Any]]:
    """What the general way grants, and the rows that it leaves; then it is undone."""
    found: list[Any] = []

    def job(connection: Connection) -> None:
        found.extend((writes.append(connection, plan), read_rows(connection)))
        raise _Undo

    with pytest.raises(_Undo):
        await store.database.write(job)
    return found[0], found[1]


def without_clock(rows: dict[str, Any]) -> dict[str, Any]:
    """The rows but for when leases expire, which is by the database's clock."""
    place = list(metadata.tables["sessions"].c.keys()).index("lease_expires_at")
    return rows | {"sessions": [(*row[:place], row[place] is None, *row[place + 1 :]) for row in rows["sessions"]]}


KINDS: dict[str, Callable[[State, Lease], tuple[State, list[facts.EventDraft], dict[str, Any]]]] = {
    "a message beside the run": lambda state, lease: (state, draft_user_messages("x", 'é "\0\ud800', None), {}),
    "the run's own": lambda state, lease: (state, draft_reply(state), {"lease": lease}),
    "its end": lambda state, lease: (state, draft_end(state), {"lease": lease}),
    "with all parts": lambda state, lease: (
        state,
        draft_reply(state, "with texts"),
        {"lease": lease, "blobs": {"h0": "there already", "h1": "new ü\0"}, "idempotency": RECORD, "quota": QUOTA},
    ),
}


@pytest.mark.parametrize("kind", KINDS)
async def test_plain_statement_leaves_the_general_rows(
    store: SqlStore, statements: CountingStatements, kind: str
) -> None:
    state, lease = await begin_run(store)
    state = (await store.append(KEY, state, draft_reply(state), lease=lease, blobs={"h0": "there already"})).state
    base, drafts, options = KINDS[kind](state, lease)
    plan = plan_append(KEY, base, store._seal(KEY, base, drafts), **options)
    assert is_plain(plan)
    granted, rows = await write_generally(store, plan)
    before = len(statements.rows)
    assert (await store._finish(plan, store._record(plan))).lease == granted
    assert [len(each) for each in statements.rows[before:]] == [1]
    assert without_clock(await store.database.read(read_rows)) == without_clock(rows)


async def test_a_claim_takes_the_next_epoch(store: SqlStore, statements: CountingStatements) -> None:
    state = await begin_session(store)
    appended = await store.append(KEY, state, draft_run_start(state), lease=Claim("a", 60), quota=QUOTA)
    assert appended.lease == Lease("a", 1)
    assert statements.rows == [[(1,)]]


async def test_refusal_gives_reason_and_leaves_nothing(store: SqlStore, statements: CountingStatements) -> None:
    state, lease = await begin_run(store)
    known = (await store.append(KEY, state, draft_reply(state), lease=lease, idempotency=RECORD)).state
    rows, before = await store.database.read(read_rows), len(statements.rows)
    drafts = draft_reply(known)
    with pytest.raises(SeqConflict):
        await store.append(KEY, state, drafts, lease=lease)
    with pytest.raises(LeaseLost):
        await store.append(KEY, known, drafts, lease=Lease("other", 1))
    with pytest.raises(LeaseLost):
        await store.append(KEY, known, drafts, lease=Lease("a", 2), blobs={"h": "text"})
    with pytest.raises(IdempotencyRecordExists):
        await store.append(KEY, known, drafts, lease=lease, idempotency=RECORD)
    with pytest.raises(QuotaExceeded):
        await store.append(KEY, known, drafts, lease=lease, quota=StorageQuota(max_sessions=1, max_bytes=10))
    assert statements.rows[before:] == [[]] * 5
    assert await store.database.read(read_rows) == rows


async def test_quota_ignores_already_stored_texts(store: SqlStore, statements: CountingStatements) -> None:
    state = await begin_session(store)
    text = "x" * 1000
    state = (await store.append(KEY, state, draft_user_messages("a"), blobs={"h": text})).state
    stored = (await store.read_totals(KEY.tenant)).bytes
    tight = StorageQuota(max_sessions=1, max_bytes=stored + 900)
    assert (await store.append(KEY, state, draft_user_messages("b"), blobs={"h": text}, quota=tight)).state.seq == 3
    assert statements.rows[-1] == []


@pytest.mark.parametrize(
    "drafts",
    [
        draft_user_messages(*range(9)),
        [facts.EventDraft(facts.SessionUpdated(metadata={"n": 1}), None, "Triage")],
        [facts.EventDraft(facts.SessionForked(from_session_id="s", from_seq=1, from_hash="00"), None, "Triage")],
        [facts.EventDraft(facts.SessionRedacted(seqs=(1,), reason="why", by="Lee", kept=("",)), None, "Triage")],
        [],
    ],
)
async def test_others_go_the_general_way(
    store: SqlStore, statements: CountingStatements, drafts: list[facts.EventDraft]
) -> None:
    state = await begin_session(store)
    appended = await store.append(KEY, state, drafts, idempotency=RECORD)
    assert (appended.state.seq, statements.rows) == (1 + len(drafts), [])


async def test_pooled_connections_use_no_named_statements(postgres_ready: str) -> None:
    pooled = open_store(f"{postgres_ready}&prepared_statement_cache_size=0")
    try:
        counting: Any = CountingStatements(pooled.database)
        pooled.database = counting
        state = await begin_session(pooled)
        for text in ("a", "b", "c"):
            state = (await pooled.append(KEY, state, draft_user_messages(text), quota=QUOTA)).state
        names = "SELECT count(*) FROM pg_prepared_statements WHERE statement LIKE 'WITH head%'"
        assert await pooled.database.read(lambda connection: connection.exec_driver_sql(names).scalar()) == 0
        assert (counting.rows, state.seq) == ([[(1,)], [(2,)], [(3,)]], 4)
    finally:
        await pooled.close()


async def test_racers_have_one_winner_at_any_isolation(postgres: Postgres, postgres_ready: str) -> None:
    postgres.alter(postgres_ready, "SET default_transaction_isolation = 'serializable'")
    store = open_store(postgres_ready)
    try:
        state = await begin_session(store)
        for _ in range(5):
            racers = (store.append(KEY, state, draft_user_messages("x")) for _ in range(8))
            outcomes = await asyncio.gather(*racers, return_exceptions=True)
            [won] = [each for each in outcomes if isinstance(each, AppendResult)]
            assert [type(each) for each in outcomes if each is not won] == [SeqConflict] * 7
            state = won.state
    finally:
        await store.close()
        postgres.alter(postgres_ready, "RESET default_transaction_isolation")
