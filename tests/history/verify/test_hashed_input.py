"""One hash stands for one event: no other contents of its row pass for it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec.structs import replace
from sqlalchemy import text

from swarmkeep.events.state import State
from swarmkeep.history.checkpoints import verify_audit_log
from swarmkeep.history.verify import Head, verify
from swarmkeep.store.opening import SqlStore, open_store
from swarmkeep.store.tables import audit_log, events, session_labels, sessions, usage
from tests.history.verify.forging import (
    commit_in_first_format,
    mend_rows_beside_the_events,
    read_event_rows,
    rehash_in_first_format,
)
from tests.history.verify.rows import change_row, read_rows
from tests.store.calls import make_reply, record_calls
from tests.store.sessions import KEY, begin_session, draft_user_messages


async def record_talk(store: SqlStore) -> State:
    state = await begin_session(store, metadata={"team": "blue"})
    return (await store.append(KEY, state, draft_user_messages("one", "I owe you 100.", "three"))).state


async def find_codes(store: SqlStore, noted: Head | None = None) -> list[tuple[int | None, str]]:
    return [(problem.seq, problem.code) for problem in (await verify(store, KEY, noted=noted)).problems]


async def note_head(store: SqlStore) -> Head:
    head = (await verify(store, KEY)).head
    assert head is not None
    return head


@pytest.mark.parametrize("size", [0, 1, 20, 40])
@pytest.mark.parametrize("first_format", [True, False])
async def test_payload_text_moved_into_salt_found(store: SqlStore, size: int, first_format: bool) -> None:
    await record_talk(store)
    if first_format:
        await rehash_in_first_format(store, KEY)
    noted = await note_head(store)
    assert await find_codes(store, noted) == []
    row = (await read_event_rows(store, KEY))[2]
    payload = row["payload"].encode()
    moved = row["salt"] + payload[: -size or len(payload)]
    await change_row(store, events, row, salt=moved, payload=payload[len(moved) - 16 :].decode())
    await mend_rows_beside_the_events(store, KEY)
    assert (3, "salt_invalid") in await find_codes(store, noted)


async def test_salt_moved_into_payload_found(store: SqlStore) -> None:
    await record_talk(store)
    row = (await read_event_rows(store, KEY))[2]
    salt = b"s" * 15 + b"{"
    await change_row(store, events, row, salt=salt, commitment=commit_in_first_format(salt, row["payload"]))
    await rehash_salted(store)
    noted = await note_head(store)
    for salted, payload in ((b"", salt.decode() + row["payload"]), (salt[:15], "{" + row["payload"])):
        row = (await read_event_rows(store, KEY))[2]
        await change_row(store, events, row, salt=salted, payload=payload)
        await mend_rows_beside_the_events(store, KEY)
        assert (3, "salt_invalid") in await find_codes(store, noted)


async def rehash_salted(store: SqlStore) -> None:
    await rehash_in_first_format(store, KEY)
    assert await find_codes(store) == []


@pytest.mark.parametrize("payload", ['{"message":7}', '{"completion":{}}', "{}", "7", "[]", "null", '"text"', "{", ""])
async def test_payload_not_of_its_type_found(store: SqlStore, payload: str) -> None:
    await record_talk(store)
    row = (await read_event_rows(store, KEY))[2]
    await change_row(store, events, row, payload=payload)
    await rehash_in_first_format(store, KEY)
    assert await find_codes(store) == [(3, "payload_invalid")]


async def test_later_release_event_allows_any_object(store: SqlStore) -> None:
    await record_talk(store)
    for payload, expected in (('{"any":"thing"}', []), ("{}", []), ("7", [(3, "payload_invalid")])):
        row = (await read_event_rows(store, KEY))[2]
        await change_row(store, events, row, type="weather.changed", payload=payload)
        await rehash_in_first_format(store, KEY)
        assert await find_codes(store) == expected


@pytest.mark.parametrize("column", ["type", "agent", "run_id"])
async def test_equivalent_differently_written_name_found(store: SqlStore, column: str) -> None:
    """A name in quotes is read as the name in them, but queries, and the fold, take it for another one."""
    state = await begin_session(store)
    run = "r1" if column == "run_id" else None
    drafts = [replace(draft, run_id=run) for draft in draft_user_messages("I owe you 100.", "two")]
    await store.append(KEY, state, drafts)
    noted = await note_head(store)
    change = text(f"UPDATE events SET {column} = :value WHERE seq = 2")
    row = (await read_event_rows(store, KEY))[1]
    change = change.bindparams(value=json.dumps(row[column]))
    await store.database.write(lambda connection: connection.execute(change).rowcount)
    await mend_rows_beside_the_events(store, KEY)
    assert (2, "row_differs") in await find_codes(store, noted)


@pytest.mark.parametrize(
    "change",
    [
        "payload = CAST(payload AS BLOB)",
        "type = CAST(type AS BLOB)",
        "agent = CAST(agent AS BLOB)",
        "recorded_at = CAST(recorded_at AS BLOB)",
        "version = 'x'",
    ],
)
async def test_equal_reading_value_kind_found(sqlite_ready: str, change: str) -> None:
    store = open_store(sqlite_ready)
    await record_talk(store)
    if "version" in change:
        # Anything that is no number is read as 0.
        row = (await read_event_rows(store, KEY))[2]
        await change_row(store, events, row, version=0, type="weather.changed")
        await rehash_in_first_format(store, KEY)
    noted = await note_head(store)
    await store.database.write(lambda db: db.execute(text(f"UPDATE events SET {change} WHERE seq = 3")) and None)
    await mend_rows_beside_the_events(store, KEY)
    assert (3, "row_differs") in await find_codes(store, noted)
    await store.close()


@pytest.mark.parametrize(
    ("table", "column", "code"),
    [(sessions, "agent", "head_differs"), (usage, "model", "usage_differs"), (usage, "agent", "usage_differs")],
    ids=str,
)
async def test_side_row_has_one_form(store: SqlStore, table: Any, column: str, code: str) -> None:
    await record_calls(store, KEY, make_reply("m", total_tokens=5))
    assert await find_codes(store) == []
    (row,) = await read_rows(store, table)
    change = text(f"UPDATE {table.name} SET {column} = :value").bindparams(value=json.dumps(row[column]))
    await store.database.write(lambda connection: connection.execute(change).rowcount)
    assert (await find_codes(store))[0][1] == code


async def test_label_of_another_kind_found(sqlite_ready: str) -> None:
    store = open_store(sqlite_ready)
    await record_talk(store)
    (row,) = await read_rows(store, session_labels)
    for value in (f"CAST(x'{row['label'].hex()}' AS TEXT)",):
        change = text(f"UPDATE session_labels SET label = {value}")
        await store.database.write(lambda connection, change=change: connection.execute(change).rowcount)
        assert await find_codes(store) == [(None, "labels_differ")]
    await store.close()


async def test_audit_entry_has_one_form(store: SqlStore) -> None:
    await record_talk(store)
    await store.delete(KEY, by="Lee", reason="asked for")
    found = await verify_audit_log(store, "default")
    assert found.valid
    (row,) = await read_rows(store, audit_log)
    payload = row["payload"].encode()
    forged = {"salt": row["salt"] + payload[:5], "payload": payload[5:].decode()}
    await change_row(store, audit_log, row, **forged)
    codes = [problem.code for problem in (await verify_audit_log(store, "default")).problems]
    assert "salt_invalid" in codes
    await change_row(store, audit_log, row, salt=row["salt"], payload=row["payload"])
    change = text("UPDATE trail SET actor = :value").bindparams(value='"Lee"')
    await store.database.write(lambda connection: connection.execute(change).rowcount)
    codes = [problem.code for problem in (await verify_audit_log(store, "default")).problems]
    assert codes == ["row_differs"]
