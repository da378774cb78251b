"""What somebody does who may write to the database, and mends whatever can be mended."""

from __future__ import annotations

import hashlib

from swarmkeep.events.codec import encode_text
from swarmkeep.events.fold import fold
from swarmkeep.events.views import find_last_run_status, view_stored_session
from swarmkeep.store.hashing import commitment_of, header_of, link
from swarmkeep.store.opening import SqlStore
from swarmkeep.store.records import SessionKey, labels_of
from swarmkeep.store.runs import make_run_rows
from swarmkeep.store.tables import events, runs, session_labels, sessions, usage
from swarmkeep.store.usage import make_usage_row
from tests.history.verify.rows import Row, change_row, insert_row, read_rows, remove_row


def commit_in_first_format(salt: bytes, payload: str) -> bytes:
    return hashlib.sha256(salt + payload.encode()).digest()


async def rehash_in_first_format(store: SqlStore, key: SessionKey, *, upto: int | None = None) -> None:
    """Make a session one that was recorded before hashes had sizes in them, up to some event or wholly."""
    previous = bytes(32)
    for row in (await read_event_rows(store, key))[:upto]:
        commitment = commit_in_first_format(row["salt"], row["payload"])
        previous = hashlib.sha256(previous + make_header(row) + commitment).digest()
        await change_row(store, events, row, commitment=commitment, hash=previous)
    if upto is None:
        await mend_rows_beside_the_events(store, key)


async def rewrite_history(store: SqlStore, key: SessionKey, old: str, new: str) -> None:
    """Change payloads, and make every hash from there on, and all that follows from it, anew."""
    previous = bytes(32)
    for row in await read_event_rows(store, key):
        payload = row["payload"].replace(old, new)
        commitment = commitment_of(row["salt"], payload)
        previous = link(previous, make_header(row), commitment)
        await change_row(store, events, row, payload=payload, commitment=commitment, hash=previous)
    await mend_rows_beside_the_events(store, key)


def make_header(row: Row) -> bytes:
    return header_of(*(row[name] for name in ("seq", "type", "version", "run_id", "agent", "recorded_at")))


async def read_event_rows(store: SqlStore, key: SessionKey) -> list[Row]:
    return await read_rows(store, events, tenant=key.tenant, session_id=key.id)


async def mend_rows_beside_the_events(store: SqlStore, key: SessionKey) -> None:
    """Make the head row, labels and usage what the events add up to now, whatever they say."""
    recorded = await store.read(key)
    state = fold(recorded)
    (head,) = await read_rows(store, sessions, tenant=key.tenant, id=key.id)
    mended = {
        "head_seq": state.seq,
        "head_hash": bytes.fromhex(state.hash),
        "agent": state.agent,
        "status": state.status,
        "updated_at": state.updated_at,
        "active_at": state.updated_at,
        "last_run": find_last_run_status(state),
        "due_at": state.due_at,
        "view": encode_text(view_stored_session(key.id, state)),
    }
    await change_row(store, sessions, head, **mended)
    mine = {"tenant": key.tenant, "session_id": key.id}
    index = {
        session_labels: [{"label": label, "created_at": state.created_at} for label in labels_of(state.metadata)],
        usage: [row for event in recorded if (row := make_usage_row(event)) is not None],
        runs: make_run_rows(state),
    }
    for table, rows in index.items():
        for row in await read_rows(store, table, **mine):
            await remove_row(store, table, row)
        for values in rows:
            await insert_row(store, table, {**mine, **values})
