"""Exports to import again: of sessions in a store, and forged ones that no server wrote."""

from __future__ import annotations

import io

import pytest

from swarmkeep.decide.drafts import draft_events
from swarmkeep.events.errors import InvalidImport
from swarmkeep.events.facts import EventDraft, SessionCreated, SessionEvent
from swarmkeep.events.state import State
from swarmkeep.history.export import ExportStart, filter_sessions, iterate_keys, write_event_line, write_export
from swarmkeep.history.import_export import verify_export
from swarmkeep.store.hashing import seal
from swarmkeep.store.opening import SqlStore
from swarmkeep.store.records import SessionKey


async def export_sessions(store: SqlStore, *keys: SessionKey, tenant: str = "", alone: bool = False) -> bytes:
    """These sessions, or all of a tenant."""
    chosen = iterate_keys(keys) if keys else filter_sessions(store, tenant)
    return b"".join([piece async for piece in write_export(store, chosen, alone=alone)])


def forge_export(*facts: SessionEvent, at: str = "2026-01-01T00:00:00.000000Z") -> bytes:
    """An export of a session that nobody recorded, its hashes all right."""
    return forge_events(draft_events("A", facts, "run_1"), at=at)


def forge_events(drafts: list[EventDraft], *, at: str = "2026-01-01T00:00:00.000000Z") -> bytes:
    sealed = seal("s", State(), [EventDraft(SessionCreated(agent="A"), None, "A"), *drafts], at=at)
    begin = ExportStart(seq=len(sealed), hash=sealed[-1].event.hash, alone=True)
    return b"".join(write_event_line(one, {}, begin if one.event.seq == 1 else None) for one in sealed)


def count_sessions(text: bytes) -> int:
    return len(list(verify_export(io.BytesIO(text))))


def read_refusal(text: bytes) -> InvalidImport:
    with pytest.raises(InvalidImport) as error:
        count_sessions(text)
    return error.value
