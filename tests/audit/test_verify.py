"""Whatever is changed in the rows of a session, `verify` finds it, and names the event."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from sqlalchemy import Column, Table, text

from swarmkeep.audit.findings import CODES, MAX_PROBLEMS, Head, Verification
from swarmkeep.audit.verify import verify, verify_all
from swarmkeep.domain.drafts import drafted
from swarmkeep.domain.envelope import Draft
from swarmkeep.domain.errors import SessionNotFound
from swarmkeep.domain.events import (
    MessageAdded,
    RunCompleted,
    RunStarted,
    SessionRedacted,
    ToolRecord,
    ToolStarted,
)
from swarmkeep.store.hashing import GENESIS, commitment_of, header_of, link
from swarmkeep.store.port import Mark, SessionKey
from swarmkeep.store.sql import SqlStore
from swarmkeep.store.tables import blobs, events, idempotency, session_labels, sessions
from tests.audit.rows import TABLES, another, change, put, remove, rows_of
from tests.golden.make import FORK, SHOP, fill
from tests.store.sessions import begun, run_started, said

MISSING = SessionKey("default", "nobody")

# What the events say nothing about: which lease comes next, and under which names requests were sent.
NOT_HISTORY = {("sessions", "lease_epoch"), ("idempotency", "key")}


@pytest.fixture
async def shop(store: SqlStore) -> SqlStore:
    """Two sessions with every type of event, one forked from the other."""
    await fill(store)
    assert await problems(store) == {}
    return store


async def problems(store: SqlStore) -> dict[str, list[tuple[int | None, str]]]:
    """What is wrong, by session."""
    found = {key.id: verification async for key, verification in verify_all(store)}
    assert all(found[name].valid is not bool(found[name].problems) for name in found)
    return {name: _codes(verification) for name, verification in found.items() if not verification.valid}


def _codes(verification: Verification) -> list[tuple[int | None, str]]:
    assert {problem.code for problem in verification.problems} <= set(CODES)
    assert all(problem.detail for problem in verification.problems)
    return [(problem.seq, problem.code) for problem in verification.problems]


async def codes(store: SqlStore, noted: Head | None = None) -> list[tuple[int | None, str]]:
    return _codes(await verify(store, SHOP, noted=noted))


async def test_an_untouched_session_is_valid(shop: SqlStore) -> None:
    found = await verify(shop, SHOP)
    state = await shop.state(SHOP)
    assert (found.valid, found.problems, found.problem_count) == (True, [], 0)
    assert (found.events, found.head) == (state.seq, Head(seq=state.seq, hash=state.hash))
    assert (await verify(shop, FORK)).valid


async def test_a_session_that_is_not_there_cannot_be_checked(shop: SqlStore) -> None:
    with pytest.raises(SessionNotFound):
        await verify(shop, MISSING)


COLUMNS = [(table, column) for table in TABLES for column in table.c]


@pytest.mark.parametrize(("table", "column"), COLUMNS, ids=[f"{table}.{column.name}" for table, column in COLUMNS])
async def test_a_change_of_any_column_of_any_row_is_found(shop: SqlStore, table: Table, column: Column[Any]) -> None:
    rows = await rows_of(shop, table)
    assert rows
    for row in rows:
        changed = {**row, column.name: another(column, row[column.name])}
        await change(shop, table, row, **{column.name: changed[column.name]})
        found = await problems(shop)
        if (table.name, column.name) in NOT_HISTORY:
            assert found == {}
        else:
            assert found, row
        if table is events and column.name not in ("tenant", "session_id"):
            # Named: the first thing that is wrong is this event, or what it says was removed.
            first, *others = [seq for seq, _ in found[row["session_id"]]]
            assert first == row["seq"] or (row["type"] == "session.redacted" and row["seq"] in others)
        await change(shop, table, changed, **{column.name: row[column.name]})
    assert await problems(shop) == {}


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
async def test_a_row_that_is_gone_is_missed(shop: SqlStore, table: Table) -> None:
    for row in await rows_of(shop, table):
        await remove(shop, table, row)
        found = await problems(shop)
        if table is idempotency:
            assert found == {}
        else:
            assert found, row
        if table is events:
            assert (row["seq"], "event_missing") in found[row["session_id"]][:2]
        await put(shop, table, row)


@pytest.mark.parametrize("table", [session_labels, blobs], ids=lambda table: table.name)
async def test_a_row_that_was_put_in_beside_the_events_is_found(shop: SqlStore, table: Table) -> None:
    row = (await rows_of(shop, table))[0]
    name = "label" if table is session_labels else "hash"
    await put(shop, table, {**row, name: another(table.c[name], row[name])})
    assert (await codes(shop))[0][1] in ("labels_differ", "blob_stray")


async def test_rows_of_a_session_that_has_no_head_row_are_found(shop: SqlStore) -> None:
    for table in TABLES[1:]:
        row = {**(await rows_of(shop, table))[0], "session_id": "stray"}
        await put(shop, table, row)
        assert (await problems(shop))["stray"][-1] == (None, "head_missing")
        await remove(shop, table, row)


async def test_a_mark_that_leads_nowhere_is_found(shop: SqlStore) -> None:
    row = (await rows_of(shop, idempotency))[0]
    for wrong in ({"seq": 0}, {"seq": 1000}, {"run_id": "run_x"}):
        await put(shop, idempotency, {**row, "key": "another", **wrong})
        assert await codes(shop) == [(None, "mark_dangling")]
        await remove(shop, idempotency, {**row, "key": "another"})


async def test_swapped_events_are_found(shop: SqlStore) -> None:
    rows = await rows_of(shop, events, session_id=SHOP.id)
    for first, second in itertools.pairwise(rows):
        await change(shop, events, first, seq=-1)
        await change(shop, events, second, seq=first["seq"])
        await change(shop, events, {**first, "seq": -1}, seq=second["seq"])
        found = await codes(shop)
        assert found[0][0] == first["seq"]
        assert (second["seq"], "hash_differs") in found
        await change(shop, events, {**second, "seq": first["seq"]}, seq=-1)
        await change(shop, events, {**first, "seq": second["seq"]}, seq=first["seq"])
        await change(shop, events, {**second, "seq": -1}, seq=second["seq"])
    assert await codes(shop) == []


async def test_inserted_events_are_found(shop: SqlStore) -> None:
    rows = await rows_of(shop, events, session_id=SHOP.id)
    last = rows[-1]
    for seq in (0, -1):
        await put(shop, events, {**rows[0], "seq": seq})
        assert (seq, "event_unreadable") in await codes(shop)
        await remove(shop, events, {**rows[0], "seq": seq})
    await put(shop, events, {**last, "seq": last["seq"] + 1})
    assert await codes(shop) == [(last["seq"] + 1, "event_beyond_head")]
    await remove(shop, events, {**last, "seq": last["seq"] + 1})
    # In the middle, with everything behind it moved on.
    for row in reversed(rows[4:]):
        await change(shop, events, row, seq=row["seq"] + 100)
    for row in rows[4:]:
        await change(shop, events, {**row, "seq": row["seq"] + 100}, seq=row["seq"] + 1)
    await put(shop, events, {**rows[3], "seq": 5})
    assert (await codes(shop))[0] == (5, "hash_differs")


async def test_a_log_without_its_end_is_found(shop: SqlStore) -> None:
    rows = await rows_of(shop, events, session_id=SHOP.id)
    await remove(shop, events, rows[-1])
    await remove(shop, events, rows[-2])
    assert (await codes(shop))[0] == (rows[-2]["seq"], "event_missing")


async def test_a_log_cut_off_with_its_head_row_needs_a_head_that_was_noted_down(shop: SqlStore) -> None:
    """Like any that is made anew from some event on: nothing in the rows tells."""
    state = await shop.state(SHOP)
    noted = Head(seq=state.seq, hash=state.hash)
    assert await codes(shop, noted) == []
    await _cut(shop, 1)
    assert await codes(shop) == []
    assert await codes(shop, noted) == [(state.seq, "truncated")]


async def _cut(store: SqlStore, count: int) -> None:
    """Cut off events at the end, and mend the head row."""
    rows = await rows_of(store, events, session_id=SHOP.id)
    before = await store.state(SHOP, at=len(rows) - count)
    for row in rows[len(rows) - count :]:
        await remove(store, events, row)
    (head,) = await rows_of(store, sessions, id=SHOP.id)
    from swarmkeep.domain.codec import encode_text
    from swarmkeep.domain.views import session_view

    await change(
        store,
        sessions,
        head,
        head_seq=before.seq,
        head_hash=bytes.fromhex(before.hash),
        agent=before.agent,
        status=before.status,
        updated_at=before.updated_at,
        due_at=before.due_at,
        view=encode_text(session_view(SHOP.id, before)),
        lease_owner="x" if before.status == "running" else None,
        lease_expires_at=1.0 if before.status == "running" else None,
    )


async def test_a_history_that_was_made_anew_needs_a_head_that_was_noted_down(shop: SqlStore) -> None:
    state = await shop.state(SHOP)
    noted = Head(seq=state.seq, hash=state.hash)
    rows = await rows_of(shop, events, session_id=SHOP.id)
    rows[3]["payload"] = '{"message":{"role":"user","content":"Another message.","sender":"user"}}'
    rows[3]["commitment"] = commitment_of(rows[3]["salt"], rows[3]["payload"])
    previous = GENESIS
    for row in rows:
        names = ("seq", "type", "version", "run_id", "agent", "recorded_at")
        previous = link(previous, header_of(*(row[name] for name in names)), row["commitment"])
        values = {"payload": row["payload"], "commitment": row["commitment"], "hash": previous}
        await change(shop, events, row, **values)
    (head,) = await rows_of(shop, sessions, id=SHOP.id)
    view = head["view"].replace(state.hash, previous.hex())
    await change(shop, sessions, head, head_hash=previous, view=view)
    assert await codes(shop) == []
    assert await codes(shop, noted) == [(noted.seq, "rewritten")]
    # Here there is another trace: the fork was made before, and still has what they shared.
    assert await problems(shop) == {FORK.id: [(12, "fork_differs")]}


async def test_a_fork_whose_origin_has_another_history_is_found(shop: SqlStore) -> None:
    rows = await rows_of(shop, events, session_id=SHOP.id)
    await change(shop, events, rows[11], hash=b"x" * 32)
    assert (await problems(shop))[FORK.id] == [(12, "fork_differs")]


async def test_a_fork_outlives_the_session_that_it_is_from(shop: SqlStore) -> None:
    await shop.delete(SHOP)
    assert await problems(shop) == {}
    await begun(shop, SHOP)
    assert await problems(shop) == {}


async def test_problems_are_listed_up_to_a_bound(store: SqlStore) -> None:
    state = await begun(store, SHOP)
    await store.append(SHOP, state, said(*map(str, range(300))))
    for row in await rows_of(store, events):
        await change(store, events, row, payload="{}")
    found = await verify(store, SHOP)
    # And the head row, whose state nobody can tell any more.
    assert (len(found.problems), found.problem_count >= 301) == (MAX_PROBLEMS, True)
    assert _codes(found)[0] == (1, "payload_differs")


async def test_what_is_no_text_and_no_json_any_more_is_found(store: SqlStore) -> None:
    await fill(store)
    rows = await rows_of(store, events, session_id=SHOP.id)
    for payload in ("", "{", "null", "[]", '"text"', "7", '{"message":7}', "\ufffd"):
        await change(store, events, rows[3], payload=payload)
        assert (await codes(store))[0] == (4, "payload_differs")
    for agent in ('"', '"x', '"\\ud800"'):
        await change(store, events, rows[3], agent=agent)
        assert (4, "hash_differs") in await codes(store)


VALUES = ["x'00ff'", "x''", "'text'", "'\"'", "777", "-1.5", "cast(x'ff' as text)"]


async def test_a_value_of_any_type_in_any_column_of_a_file_is_found(sqlite_ready: str) -> None:
    from swarmkeep.store.sql import open_store

    store = open_store(sqlite_ready)
    await fill(store)
    for table in TABLES:
        names = [column.name for column in table.c if column.name not in ("tenant", "session_id", "id")]
        for name, value in itertools.product(names, VALUES):
            where = "id = 'shop'" if table is sessions else "session_id = 'shop'"
            key = " AND seq = 3" if table is events else ""
            if table not in (events, sessions):
                key = f" AND rowid = (SELECT min(rowid) FROM {table.name} WHERE session_id = 'shop')"
            await _attempt(store, f"CREATE TEMP TABLE kept AS SELECT * FROM {table.name} WHERE {where}")
            await _attempt(store, f"UPDATE {table.name} SET {name} = {value} WHERE {where}{key}")
            found = await problems(store)
            if (table.name, name) not in NOT_HISTORY | {("sessions", "lease_epoch"), ("idempotency", "digest")}:
                assert found, (table.name, name, value)
            # What there is can still be shown.
            await store.state(SHOP)
            await store.read(SHOP)
            await store.sessions("default")
            await _attempt(store, f"DELETE FROM {table.name} WHERE {where}")
            await _attempt(store, f"INSERT INTO {table.name} SELECT * FROM kept")
            await _attempt(store, "DROP TABLE kept")
    assert await problems(store) == {}
    await store.close()


async def _attempt(store: SqlStore, statement: str) -> None:
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


def _asked() -> MessageAdded:
    from swarmkeep.domain.events import CompletionRecord

    return MessageAdded(message=CALLS, completion=CompletionRecord())


@pytest.mark.parametrize(
    ("story", "expected"),
    [
        ([_asked(), START, RESULT], []),
        ([_asked(), START, START, RESULT], []),
        ([_asked(), RESULT, RESULT], [(6, "result_twice")]),
        ([RESULT], [(4, "result_without_call")]),
        ([_asked(), START, RESULT, START], [(7, "start_after_result")]),
        ([_asked(), OTHER], [(5, "start_without_call")]),
        ([_asked(), START, RunCompleted(stop_reason="end_turn")], [(6, "call_without_result")]),
    ],
)
async def test_calls_and_results_belong_together(
    store: SqlStore, story: list[Any], expected: list[tuple[int, str]]
) -> None:
    state = await begun(store, SHOP)
    state = (await store.append(SHOP, state, run_started(state))).state
    await store.append(SHOP, state, drafted("Triage", story, "r1"))
    assert await codes(store) == expected


async def test_runs_follow_one_another(store: SqlStore) -> None:
    from swarmkeep.domain.events import RunOptions

    state = await begun(store, SHOP)
    state = (await store.append(SHOP, state, run_started(state))).state
    await store.append(SHOP, state, [Draft(RunStarted(options=RunOptions()), "r2", "Triage")])
    assert (4, "run_overlaps") in await codes(store)


async def test_a_redaction_that_was_none_is_found(store: SqlStore) -> None:
    state = await begun(store, SHOP)
    state = (await store.append(SHOP, state, said("text"))).state
    await store.append(SHOP, state, [Draft(SessionRedacted(seqs=(2,), reason="x", kept=("y",)), None, "Triage")])
    assert await codes(store) == [(2, "redaction_undone")]


async def test_a_session_that_goes_on_meanwhile_is_valid(store: SqlStore, monkeypatch: pytest.MonkeyPatch) -> None:
    state = await begun(store, SHOP)
    state = (await store.append(SHOP, state, said("one", "two"))).state
    read, appended = SqlStore.sealed, []

    async def busy(self: SqlStore, *given: Any, **options: Any) -> Any:
        nonlocal state
        if len(appended) < 2:
            appended.append(1)
            state = (await store.append(SHOP, state, said("three"), mark=Mark(key=str(state.seq), digest=""))).state
        return await read(self, *given, **options)

    monkeypatch.setattr(SqlStore, "sealed", busy)
    found = await verify(store, SHOP)
    assert (found.valid, found.problems) == (True, [])
