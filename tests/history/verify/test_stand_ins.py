"""Where a payload is missing, only what redaction leaves of that event stands in its place."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from swarmkeep.events.codec import digest
from swarmkeep.events.errors import InvalidImport
from swarmkeep.events.facts import EventDraft, SessionRedacted
from swarmkeep.history.export import iterate_keys, write_export
from swarmkeep.history.import_export import import_export
from swarmkeep.history.redact import redact
from swarmkeep.history.verify import MAX_REDACTED, Head, Verification, verify
from swarmkeep.runs.sessions import fork_session
from swarmkeep.store.hashing import commitment_of, header_of, link
from swarmkeep.store.opening import SqlStore
from swarmkeep.store.records import SessionKey
from swarmkeep.store.tables import events
from tests.golden.make import SHOP, fill_store
from tests.history.verify.forging import mend_rows_beside_the_events, read_event_rows
from tests.history.verify.rows import change_row
from tests.store.sessions import KEY, begin_session, draft_run_completion, draft_run_start, draft_user_messages

pytestmark = pytest.mark.one_database

STAND_IN = '{"message":{"role":"user","content":"[redacted]"},"redacted":true}'
REPLACEMENTS = [
    '{"message":{"role":"user","content":"You owe me 100."}}',
    '{"message":{"role":"user","content":"You owe me 100."},"redacted":true}',
    '{"message":{"role":"user","content":"[redacted]","note":"You owe me 100."},"redacted":true}',
    '{"message":{"role":"user","content":"[redacted]"},"note":"You owe me 100.","redacted":true}',
    '{"message":{"content":"You owe me 100."},"message":{"role":"user","content":"[redacted]"},"redacted":true}',
    '{"message":{"role":"You owe me 100.","content":"[redacted]"},"redacted":true}',
    '{"message":{"role":"user","content":"[redacted]"}}',
    '{"message":{"role":"user","content":"[redacted]"}, "redacted":true}',
    '{"message":{"role":"user","content":"[redacted]"},"redacted":1}',
    '{"redacted":true}',
    '"You owe me 100."',
]


async def record_talk(store: SqlStore) -> Head:
    state = await begin_session(store)
    state = (await store.append(KEY, state, draft_user_messages("I owe you 100.", "I owe you 50."))).state
    return Head(seq=state.seq, hash=state.hash)


async def find_codes(store: SqlStore, noted: Head) -> set[tuple[int | None, str]]:
    return {(problem.seq, problem.code) for problem in (await verify(store, KEY, noted=noted)).problems}


async def vouch_for(store: SqlStore, seq: int, payload: str) -> None:
    """Put a text in the place of a payload, and record that it was redacted."""
    row = (await read_event_rows(store, KEY))[seq - 1]
    await change_row(store, events, row, salt=None, payload=payload)
    fact = SessionRedacted(seqs=(seq,), reason="asked for", kept=(digest(payload),))
    await store.append(KEY, await store.state(KEY), [EventDraft(fact, None, "Triage")])
    await mend_rows_beside_the_events(store, KEY)


@pytest.mark.parametrize("payload", REPLACEMENTS)
async def test_changed_text_found_despite_voucher(store: SqlStore, payload: str) -> None:
    noted = await record_talk(store)
    await vouch_for(store, 2, payload)
    assert (2, "stand_in_differs") in await find_codes(store, noted)


async def test_what_redaction_leaves_is_taken(store: SqlStore) -> None:
    noted = await record_talk(store)
    await vouch_for(store, 2, STAND_IN)
    assert await find_codes(store, noted) == set()


async def test_every_event_and_redaction_redactable(store: SqlStore) -> None:
    await fill_store(store)
    for _ in range(2):
        state = await store.state(SHOP)
        await redact(store, SHOP, range(1, state.seq + 1), "asked for")
        assert (await verify(store, SHOP)).problems == []


async def test_older_stand_in_with_fewer_fields_accepted(store: SqlStore) -> None:
    state = await begin_session(store)
    state = (await store.append(KEY, state, draft_run_start(state))).state
    state = (await store.append(KEY, state, draft_run_completion(state))).state
    await vouch_for(store, 2, '{"options":{"max_turns":null},"redacted":true}')
    assert await find_codes(store, Head(seq=state.seq, hash=state.hash)) == set()


async def export_session(store: SqlStore) -> list[dict[str, Any]]:
    pieces = [piece async for piece in write_export(store, iterate_keys([KEY]), alone=True)]
    return [json.loads(line) for line in b"".join(pieces).splitlines()]


def append_redaction(lines: list[dict[str, Any]], seq: int, payload: str) -> None:
    """Add the event that vouches for a text, with all of its hashes."""
    data = {"seqs": [seq], "reason": "asked for", "by": None, "kept": [digest(payload)]}
    line = {**lines[-1], "seq": len(lines) + 1, "type": "session.redacted", "data": data, "salt": "00" * 16}
    commitment = commitment_of(bytes(16), json.dumps(data, separators=(",", ":")))
    header = header_of(line["seq"], line["type"], 1, None, line["agent"], line["at"])
    line["hash"] = link(bytes.fromhex(lines[-1]["hash"]), header, commitment).hex()
    line["commitment"] = commitment.hex()
    lines.append(line)
    lines[0]["export"] = {**lines[0]["export"], "seq": line["seq"], "hash": line["hash"]}


@pytest.mark.parametrize("payload", [REPLACEMENTS[1], STAND_IN])
async def test_export_text_cannot_be_swapped_either(store: SqlStore, payload: str) -> None:
    """As somebody does who has a key for writing, and nothing else."""
    noted = await record_talk(store)
    lines = await export_session(store)
    lines[1] |= {"data": json.loads(payload), "salt": None}
    append_redaction(lines, 2, payload)
    file = b"".join(json.dumps(line, separators=(",", ":")).encode() + b"\n" for line in lines)
    await store.delete(KEY)
    if payload == STAND_IN:
        await import_export(store, KEY.tenant, io.BytesIO(file))
        assert (await verify(store, KEY, noted=noted)).redacted == [2]
        return
    with pytest.raises(InvalidImport, match="what redaction leaves"):
        await import_export(store, KEY.tenant, io.BytesIO(file))


async def list_redacted(store: SqlStore, key: SessionKey, noted: Head | None = None) -> list[int]:
    found: Verification = await verify(store, key, noted=noted)
    assert found.problems == []
    assert found.redacted_count == len(found.redacted)
    return found.redacted


async def test_redactions_since_noted_head_listed(store: SqlStore) -> None:
    first = await record_talk(store)
    assert await list_redacted(store, KEY, first) == []
    await redact(store, KEY, [3], "asked for")
    state = (await store.append(KEY, await store.state(KEY), draft_user_messages("later"))).state
    second = Head(seq=state.seq, hash=state.hash)
    await redact(store, KEY, [2, 5], "asked for")
    await store.append(KEY, await store.state(KEY), draft_user_messages("latest"))
    await redact(store, KEY, [7], "asked for")
    assert await list_redacted(store, KEY) == [2, 3, 5, 7]
    assert await list_redacted(store, KEY, first) == [2, 3]
    assert await list_redacted(store, KEY, second) == [2, 5]


async def test_redacted_redaction_vouches_for_nothing_earlier(store: SqlStore) -> None:
    await record_talk(store)
    await redact(store, KEY, [3], "asked for")
    state = await store.state(KEY)
    noted = Head(seq=state.seq, hash=state.hash)
    # The fourth event now says that the second one was gone already when the head was noted down.
    row = (await read_event_rows(store, KEY))[1]
    await change_row(store, events, row, salt=None, payload=STAND_IN)
    kept = f'"{digest(STAND_IN)}"'
    told = f'{{"seqs":[2,3],"reason":"[redacted]","by":null,"kept":[{kept},{kept}],"redacted":true}}'
    await vouch_for(store, 4, told)
    assert await list_redacted(store, KEY, noted) == [2, 3, 4]


async def test_redacted_fork_copies_are_listed(store: SqlStore) -> None:
    await record_talk(store)
    await redact(store, KEY, [2], "asked for")
    await fork_session(store, KEY, session_id="fork", at=3)
    assert await list_redacted(store, SessionKey(KEY.tenant, "fork")) == [2]


@pytest.mark.long
async def test_a_bounded_number_is_listed(store: SqlStore) -> None:
    state = await begin_session(store)
    state = (await store.append(KEY, state, draft_user_messages(*["x"] * (MAX_REDACTED + 1)))).state
    await redact(store, KEY, range(1, MAX_REDACTED + 1), "asked for")
    await redact(store, KEY, [MAX_REDACTED + 1], "asked for")
    found = await verify(store, KEY)
    assert (found.valid, len(found.redacted), found.redacted_count) == (True, MAX_REDACTED, MAX_REDACTED + 1)
