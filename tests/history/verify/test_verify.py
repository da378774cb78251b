"""Changes of the rows of a session, or of the table itself: `verify` finds each, and names the event."""

from __future__ import annotations

import asyncio
import itertools
import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Column, Table, text

from swarmkeep.decide.drafts import draft_events
from swarmkeep.events.codec import encode_text
from swarmkeep.events.errors import SessionNotFound
from swarmkeep.events.facts import (
    EventDraft,
    MessageAdded,
    MessageRemoved,
    RunCompleted,
    RunStarted,
    SessionRedacted,
    ToolStarted,
)
from swarmkeep.events.records import ToolRecord
from swarmkeep.events.words import find_title
from swarmkeep.history.checkpoints import verify_audit_log
from swarmkeep.history.verify import CODES, MAX_PROBLEMS, Head, Verification, verify, verify_all
from swarmkeep.store import schema
from swarmkeep.store.hashing import GENESIS, commitment_of, header_of, link
from swarmkeep.store.index import SessionFilter
from swarmkeep.store.opening import SqlStore, open_store
from swarmkeep.store.records import SessionKey
from swarmkeep.store.tables import (
    SEARCH_TABLES,
    blobs,
    creations,
    events,
    idempotency,
    metadata,
    session_labels,
    sessions,
)
from tests.golden.make import FORK, MARKS, SHOP, fill_store
from tests.history.verify.rows import TABLES, Row, change_row, insert_row, make_other_value, read_rows, remove_row
from tests.store.calls import make_reply, record_calls
from tests.store.sessions import KEY, begin_session, draft_run_start, draft_user_messages, make_picture_part
from tests.support.hypothesis_profiles import some
from tests.support.pictures import hash_content

MISSING = SessionKey("default", "nobody")

# What the events say nothing about: which lease comes next, what was found before, and under which names requests were
# sent.
NOT_HISTORY = {("sessions", "lease_epoch"), ("sessions", "damaged_seq"), ("idempotency", "key")}


def made_session(row: Row) -> bool:
    """Whether a row is the record of the request that made its session, to which another row leads."""
    return row.get("key") == MARKS[0].key


async def fill_with_file(store: SqlStore) -> None:
    """The sessions, and a message with a picture towards the end of one: so there is a row in every table."""
    await fill_store(store)
    drafts = draft_user_messages([make_picture_part(b"a picture")], "later", "and later")
    await store.append(SHOP, await store.state(SHOP), drafts, blobs={hash_content(b"a picture"): b"a picture"})


def shop_database(url: str) -> None:
    async def make() -> None:
        store = open_store(url)
        await fill_with_file(store)
        assert await find_problems(store) == {}
        await store.close()

    schema.upgrade(url)
    asyncio.run(make())


@pytest.fixture(scope="module")
def sqlite_shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("shop") / "swarmkeep.db"
    shop_database(f"sqlite:///{path}")
    return path


@pytest.fixture
def shop_url(kind: str, request: pytest.FixtureRequest, sqlite_url: str) -> Iterator[str]:
    if kind == "sqlite":
        shutil.copy(request.getfixturevalue("sqlite_shop"), sqlite_url.removeprefix("sqlite:///"))
        yield sqlite_url
        return
    postgres = request.getfixturevalue("postgres")
    url = postgres.create(postgres.template("shop", shop_database))
    yield url
    postgres.drop(url)


@pytest.fixture
async def shop(shop_url: str) -> AsyncIterator[SqlStore]:
    """Two sessions with every type of event, one forked from the other."""
    store = open_store(shop_url)
    yield store
    await store.close()


async def find_problems(store: SqlStore) -> dict[str, list[tuple[int | None, str]]]:
    """What is wrong, by session."""
    found = {key.id: verification async for key, verification in verify_all(store)}
    assert all(found[name].valid is not bool(found[name].problems) for name in found)
    return {name: _list_codes(verification) for name, verification in found.items() if not verification.valid}


def _list_codes(verification: Verification) -> list[tuple[int | None, str]]:
    assert {problem.code for problem in verification.problems} <= set(CODES)
    assert all(problem.detail for problem in verification.problems)
    return [(problem.seq, problem.code) for problem in verification.problems]


async def problems_of(store: SqlStore, row: Row, changed: str) -> dict[str, list[tuple[int | None, str]]]:
    """What is wrong in the session that a changed row belongs to, or anywhere if nobody can tell any more."""
    if changed in ("tenant", "session_id", "id"):
        return await find_problems(store)
    name = row.get("session_id", row.get("id"))
    found = _list_codes(await verify(store, SessionKey(row["tenant"], name)))
    return {name: found} if found else {}


async def find_codes(store: SqlStore, noted: Head | None = None) -> list[tuple[int | None, str]]:
    return _list_codes(await verify(store, SHOP, noted=noted))


async def test_an_untouched_session_is_valid(shop: SqlStore) -> None:
    found = await verify(shop, SHOP)
    state = await shop.state(SHOP)
    assert (found.valid, found.problems, found.problem_count) == (True, [], 0)
    assert (found.events, found.head) == (state.seq, Head(seq=state.seq, hash=state.hash))
    assert (await verify(shop, FORK)).valid


async def test_missing_session_cannot_be_checked(shop: SqlStore) -> None:
    with pytest.raises(SessionNotFound):
        await verify(shop, MISSING)


@pytest.mark.long
@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
async def test_any_column_change_is_found(shop: SqlStore, kind: str, table: Table) -> None:
    rows = await read_rows(shop, table)
    assert rows
    for number, column in enumerate(table.c):
        # Where there are many, half of them on each kind of database, and others in the next column.
        half = rows if len(rows) < 8 else rows[(number + (kind == "sqlite")) % 2 :: 2]
        for row in some(half):
            await check_change(shop, table, row, column)
    assert await find_problems(shop) == {}


async def check_change(store: SqlStore, table: Table, row: Row, column: Column[Any]) -> None:
    """Another value in a column of a row is found, unless it says nothing of what was."""
    changed = {**row, column.name: make_other_value(column, row[column.name])}
    await change_row(store, table, row, **{column.name: changed[column.name]})
    found = await problems_of(store, row, column.name)
    if (table.name, column.name) in NOT_HISTORY and not made_session(row):
        assert found == {}
    else:
        assert found, (column.name, row)
    if table is events and column.name not in ("tenant", "session_id"):
        # Named: the first thing that is wrong is this event, or what it says was removed.
        first, *others = [seq for seq, _ in found[row["session_id"]]]
        assert first == row["seq"] or (row["type"] == "session.redacted" and row["seq"] in others)
    await change_row(store, table, changed, **{column.name: row[column.name]})


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
async def test_missing_row_is_missed(shop: SqlStore, table: Table) -> None:
    for row in some(await read_rows(shop, table)):
        await remove_row(shop, table, row)
        found = await find_problems(shop)
        if table is creations or (table is idempotency and not made_session(row)):
            assert found == {}
        else:
            assert found, row
        if table is events:
            assert (row["seq"], "event_missing") in found[row["session_id"]][:2]
        await insert_row(shop, table, row)


@pytest.mark.parametrize("table", [session_labels, blobs], ids=lambda table: table.name)
async def test_row_inserted_beside_events_found(shop: SqlStore, table: Table) -> None:
    row = (await read_rows(shop, table))[0]
    name = "label" if table is session_labels else "hash"
    await insert_row(shop, table, {**row, name: make_other_value(table.c[name], row[name])})
    assert (await find_codes(shop))[0][1] in ("labels_differ", "blob_stray")


async def test_rows_without_head_row_found(shop: SqlStore) -> None:
    for table in TABLES[1:]:
        row = {**(await read_rows(shop, table))[0], "session_id": "stray"}
        if table is creations:
            row["key"] = "another"
        await insert_row(shop, table, row)
        assert (await find_problems(shop))["stray"][-1] == (None, "head_missing")
        await remove_row(shop, table, row)


async def test_dangling_mark_found(shop: SqlStore) -> None:
    row = (await read_rows(shop, idempotency))[0]
    for wrong in ({"seq": 0}, {"seq": 1000}, {"run_id": "run_x"}):
        await insert_row(shop, idempotency, {**row, "key": "another", **wrong})
        assert await find_codes(shop) == [(None, "mark_dangling")]
        await remove_row(shop, idempotency, {**row, "key": "another"})


async def test_session_with_two_creator_keys_found(shop: SqlStore) -> None:
    (row,) = await read_rows(shop, creations)
    await insert_row(shop, creations, {**row, "key": "key-1"})
    assert await find_codes(shop) == [(None, "mark_invalid"), (None, "mark_dangling")]


async def test_swapped_events_are_found(shop: SqlStore) -> None:
    rows = await read_rows(shop, events, session_id=SHOP.id)
    for first, second in some(list(itertools.pairwise(rows))):
        await change_row(shop, events, first, seq=-1)
        await change_row(shop, events, second, seq=first["seq"])
        await change_row(shop, events, {**first, "seq": -1}, seq=second["seq"])
        found = await find_codes(shop)
        assert found[0][0] == first["seq"]
        assert (second["seq"], "hash_differs") in found
        await change_row(shop, events, {**second, "seq": first["seq"]}, seq=-1)
        await change_row(shop, events, {**first, "seq": second["seq"]}, seq=first["seq"])
        await change_row(shop, events, {**second, "seq": -1}, seq=second["seq"])
    assert await find_codes(shop) == []


async def test_inserted_events_are_found(shop: SqlStore) -> None:
    rows = await read_rows(shop, events, session_id=SHOP.id)
    last = rows[-1]
    for seq in (0, -1):
        await insert_row(shop, events, {**rows[0], "seq": seq})
        assert (seq, "event_unreadable") in await find_codes(shop)
        await remove_row(shop, events, {**rows[0], "seq": seq})
    await insert_row(shop, events, {**last, "seq": last["seq"] + 1})
    assert await find_codes(shop) == [(last["seq"] + 1, "event_beyond_head")]
    await remove_row(shop, events, {**last, "seq": last["seq"] + 1})
    # In the middle, with everything behind it moved on.
    for row in reversed(rows[4:]):
        await change_row(shop, events, row, seq=row["seq"] + 100)
    for row in rows[4:]:
        await change_row(shop, events, {**row, "seq": row["seq"] + 100}, seq=row["seq"] + 1)
    await insert_row(shop, events, {**rows[3], "seq": 5})
    assert (await find_codes(shop))[0] == (5, "hash_differs")


async def test_log_without_end_found(shop: SqlStore) -> None:
    rows = await read_rows(shop, events, session_id=SHOP.id)
    await remove_row(shop, events, rows[-1])
    await remove_row(shop, events, rows[-2])
    assert (await find_codes(shop))[0] == (rows[-2]["seq"], "event_missing")


async def test_truncated_log_and_head_need_noted_head(shop: SqlStore) -> None:
    """Like any that is made anew from some event on: nothing in the rows tells."""
    state = await shop.state(SHOP)
    noted = Head(seq=state.seq, hash=state.hash)
    assert await find_codes(shop, noted) == []
    await _cut(shop, 1)
    assert await find_codes(shop) == []
    assert await find_codes(shop, noted) == [(state.seq, "truncated")]


async def _cut(store: SqlStore, count: int) -> None:
    """Cut off events at the end, and mend the head row."""
    rows = await read_rows(store, events, session_id=SHOP.id)
    before = await store.state(SHOP, at=len(rows) - count)
    for row in rows[len(rows) - count :]:
        await remove_row(store, events, row)
    (head,) = await read_rows(store, sessions, id=SHOP.id)
    from swarmkeep.events.codec import encode_text
    from swarmkeep.events.views import find_last_run_status, view_stored_session

    await change_row(
        store,
        sessions,
        head,
        head_seq=before.seq,
        head_hash=bytes.fromhex(before.hash),
        agent=before.agent,
        status=before.status,
        updated_at=before.updated_at,
        due_at=before.due_at,
        view=encode_text(view_stored_session(SHOP.id, before)),
        active_at=before.updated_at,
        last_run=find_last_run_status(before),
        lease_owner="x" if before.status == "running" else None,
        lease_expires_at=1.0 if before.status == "running" else None,
    )


async def test_rewritten_history_needs_noted_head(shop: SqlStore) -> None:
    state = await shop.state(SHOP)
    noted = Head(seq=state.seq, hash=state.hash)
    rows = await read_rows(shop, events, session_id=SHOP.id)
    rows[3]["payload"] = '{"message":{"role":"user","content":"Another message.","sender":"user"}}'
    rows[3]["commitment"] = commitment_of(rows[3]["salt"], rows[3]["payload"])
    previous = GENESIS
    for row in rows:
        names = ("seq", "type", "version", "run_id", "agent", "recorded_at")
        previous = link(previous, header_of(*(row[name] for name in names)), row["commitment"])
        values = {"payload": row["payload"], "commitment": row["commitment"], "hash": previous}
        await change_row(shop, events, row, **values)
    (head,) = await read_rows(shop, sessions, id=SHOP.id)
    title = find_title(state)
    assert title is not None
    view = head["view"].replace(state.hash, previous.hex()).replace(encode_text(title), '"Another message."')
    await change_row(shop, sessions, head, head_hash=previous, view=view)
    assert await find_codes(shop) == []
    assert await find_codes(shop, noted) == [(noted.seq, "rewritten")]
    # Here there is another trace: the fork was made before, and still has what they shared.
    assert await find_problems(shop) == {FORK.id: [(12, "fork_differs")]}


async def test_fork_with_different_origin_history_found(shop: SqlStore) -> None:
    rows = await read_rows(shop, events, session_id=SHOP.id)
    await change_row(shop, events, rows[11], hash=b"x" * 32)
    assert (await find_problems(shop))[FORK.id] == [(12, "fork_differs")]


async def test_fork_outlives_its_origin(shop: SqlStore) -> None:
    await shop.delete(SHOP)
    assert await find_problems(shop) == {}
    await begin_session(shop, SHOP)
    assert await find_problems(shop) == {}


async def test_listed_problems_are_bounded(store: SqlStore) -> None:
    state = await begin_session(store, SHOP)
    await store.append(SHOP, state, draft_user_messages(*map(str, range(300))))
    for row in await read_rows(store, events):
        await change_row(store, events, row, payload="{}")
    found = await verify(store, SHOP)
    # And the head row, whose state nobody can tell any more.
    assert (len(found.problems), found.problem_count >= 301) == (MAX_PROBLEMS, True)
    assert _list_codes(found)[0] == (1, "payload_differs")


async def test_long_session_valid_after_removals(store: SqlStore) -> None:
    state = await begin_session(store, SHOP)
    texts = [f"Question {number}" for number in range(1_200)]
    state = (await store.append(SHOP, state, draft_user_messages("Removed", *texts))).state
    assert await find_codes(store) == []
    for seqs in ((2,), tuple(range(3, 1_003))):
        removed = EventDraft(MessageRemoved(message_seq=seqs[0], seqs=seqs), None, "Triage")
        state = (await store.append(SHOP, state, [removed])).state
        assert await find_codes(store) == []
    assert state.message_count == 200


async def test_corrupt_text_or_json_found(store: SqlStore) -> None:
    await fill_store(store)
    rows = await read_rows(store, events, session_id=SHOP.id)
    for payload in ("", "{", "null", "[]", '"text"', "7", '{"message":7}', "\ufffd"):
        await change_row(store, events, rows[3], payload=payload)
        assert (await find_codes(store))[0] == (4, "payload_differs")
    for agent in ('"', '"x', '"\\ud800"'):
        await change_row(store, events, rows[3], agent=agent)
        assert (4, "hash_differs") in await find_codes(store)


VALUES = ["x'00ff'", "x''", "'text'", "'\"'", "777", "-1.5", "cast(x'ff' as text)"]


@pytest.mark.long
async def test_wrongly_typed_column_value_found(sqlite_ready: str) -> None:
    store = open_store(sqlite_ready)
    await fill_with_file(store)
    for table in TABLES:
        names = [column.name for column in table.c if column.name not in ("tenant", "session_id", "id")]
        for name, value in some(list(itertools.product(names, VALUES))):
            where = "id = 'shop'" if table is sessions else "session_id = 'shop'"
            key = " AND seq = 3" if table is events else ""
            if table not in (events, sessions):
                last = list(table.primary_key)[-1].name
                key = f" AND {last} = (SELECT min({last}) FROM {table.name} WHERE session_id = 'shop')"
            await _execute(store, f"CREATE TEMP TABLE kept AS SELECT * FROM {table.name} WHERE {where}")
            await _execute(store, f"UPDATE {table.name} SET {name} = {value} WHERE {where}{key}")
            found = await find_codes(store)
            if (table.name, name) not in NOT_HISTORY | {("sessions", "lease_epoch"), ("idempotency", "digest")}:
                assert found, (table.name, name, value)
            # What there is can still be shown.
            await store.state(SHOP)
            await store.read(SHOP)
            await store.list_sessions(SessionFilter("default"))
            await _execute(store, f"DELETE FROM {table.name} WHERE {where}")
            await _execute(store, f"INSERT INTO {table.name} SELECT * FROM kept")
            await _execute(store, "DROP TABLE kept")
    assert await find_problems(store) == {}
    await store.close()


async def _execute(store: SqlStore, statement: str) -> None:
    await store.database.write(lambda connection: connection.execute(text(statement)) and None)


# What a server never writes, and an attacker who makes all hashes anew does.

CALLS = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
}
RESULT = MessageAdded(
    message={"role": "tool", "tool_call_id": "c1", "content": "done"}, tool=ToolRecord(name="f", status="ok")
)
START = ToolStarted(tool_call_id="c1", name="f", arguments="{}")
OTHER = ToolStarted(tool_call_id="c2", name="f", arguments="{}")


def _make_calls_message() -> MessageAdded:
    from swarmkeep.events.records import CompletionRecord

    return MessageAdded(message=CALLS, completion=CompletionRecord())


@pytest.mark.parametrize(
    ("story", "expected"),
    [
        ([_make_calls_message(), START, RESULT], []),
        ([_make_calls_message(), START, START, RESULT], []),
        ([_make_calls_message(), RESULT, RESULT], [(6, "result_twice")]),
        ([RESULT], [(4, "result_without_call")]),
        ([_make_calls_message(), START, RESULT, START], [(7, "start_after_result")]),
        ([_make_calls_message(), OTHER], [(5, "start_without_call")]),
        ([_make_calls_message(), START, RunCompleted(stop_reason="end_turn")], [(6, "call_without_result")]),
    ],
)
async def test_calls_and_results_belong_together(
    store: SqlStore, story: list[Any], expected: list[tuple[int, str]]
) -> None:
    state = await begin_session(store, SHOP)
    state = (await store.append(SHOP, state, draft_run_start(state))).state
    await store.append(SHOP, state, draft_events("Triage", story, "r1"))
    assert await find_codes(store) == expected


async def test_runs_follow_one_another(store: SqlStore) -> None:
    from swarmkeep.events.records import RunOptions

    state = await begin_session(store, SHOP)
    state = (await store.append(SHOP, state, draft_run_start(state))).state
    await store.append(SHOP, state, [EventDraft(RunStarted(options=RunOptions()), "r2", "Triage")])
    assert (4, "run_overlaps") in await find_codes(store)


async def test_false_redaction_found(store: SqlStore) -> None:
    state = await begin_session(store, SHOP)
    state = (await store.append(SHOP, state, draft_user_messages("text"))).state
    await store.append(SHOP, state, [EventDraft(SessionRedacted(seqs=(2,), reason="x", kept=("y",)), None, "Triage")])
    assert await find_codes(store) == [(2, "redaction_undone")]


async def test_backward_clock_is_no_change(ready_url: str) -> None:
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    times = [noon - timedelta(minutes=minutes) for minutes in (0, 0, 60, 120, 30)]
    store = open_store(ready_url, clock=lambda: times[0])
    try:
        state = await begin_session(store, SHOP)
        while len(times) > 1:
            del times[0]
            state = (await store.append(SHOP, state, draft_user_messages("Hello."))).state
            assert await find_problems(store) == {}
        (head,) = await read_rows(store, sessions, id=SHOP.id)
        for wrong in ("2026-01-01T12:00:00.000001Z", "2026-01-01T09:59:59.999999Z"):
            await change_row(store, sessions, head, active_at=wrong)
            assert await find_problems(store) == {SHOP.id: [(None, "head_differs")]}
    finally:
        await store.close()


# What is read is a table of rows, and nothing that only looks like one.

# What searches read can be made anew from the log at any time, and proves nothing. The log of heads is compared
# with what others keep.
_BESIDE = {
    *(
        "api_keys",
        "trail",
        "totals",
        "log_leaves",
        "log_checkpoints",
        "feed",
        "feed_positions",
        "automations",
        "invocations",
        "made_agents",
        "made_agent_versions",
        "archives",
        "person_keys",
        "webhooks",
        "webhook_deliveries",
    ),
    *(table.name for table in SEARCH_TABLES),
}
CHECKED = sorted(set(metadata.tables) - _BESIDE)


async def execute(store: SqlStore, *statements: str) -> None:
    for statement in statements:
        await store.database.write(lambda connection, statement=statement: connection.execute(text(statement)) and None)


async def list_codes(store: SqlStore) -> list[str]:
    return [problem.code for problem in (await verify(store, KEY)).problems]


def replace_with_view(table: str) -> list[str]:
    return [f"ALTER TABLE {table} RENAME TO real_{table}", f"CREATE VIEW {table} AS SELECT * FROM real_{table}"]


@asynccontextmanager
async def recorded(url: str) -> AsyncIterator[SqlStore]:
    """A session in a database of the test's own, whose schema it may change."""
    store = open_store(url)
    try:
        await record_calls(store, KEY, make_reply("m"))
        assert await list_codes(store) == []
        yield store
    finally:
        await store.close()


@pytest.mark.parametrize("table", CHECKED)
async def test_view_replacing_table_found(ready_url: str, table: str) -> None:
    async with recorded(ready_url) as store:
        await execute(store, *replace_with_view(table))
        assert await list_codes(store) == ["table_replaced"]


async def test_view_replacing_audit_log_found(ready_url: str) -> None:
    async with recorded(ready_url) as store:
        await store.delete(KEY)
        assert (await verify_audit_log(store, "default")).valid
        await execute(store, *replace_with_view("trail"))
        found = await verify_audit_log(store, "default")
        assert [problem.code for problem in found.problems] == ["table_replaced"]


async def test_computed_column_found(sqlite_ready: str) -> None:
    async with recorded(sqlite_ready) as store:
        change = "ALTER TABLE session_labels ADD COLUMN more TEXT GENERATED ALWAYS AS (upper(session_id)) VIRTUAL"
        await execute(store, change)
        assert await list_codes(store) == ["table_replaced"]


@pytest.mark.parametrize(
    "change",
    [
        "CREATE TABLE more_events () INHERITS (events)",
        "ALTER TABLE events ADD COLUMN more text GENERATED ALWAYS AS (payload) STORED",
    ],
)
async def test_row_altering_rules_found_on_server(postgres_ready: str, change: str) -> None:
    async with recorded(postgres_ready) as store:
        await execute(store, change)
        assert await list_codes(store) == ["table_replaced"]
