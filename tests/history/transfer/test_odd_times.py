"""A file with a time that is none is refused: nothing of it is left to be due for ever."""

from __future__ import annotations

import io

import pytest

from swarmkeep.decide.drafts import draft_events
from swarmkeep.events.errors import InvalidImport
from swarmkeep.events.facts import ApprovalRequested, EventDraft, PendingCall, RunWaiting, SessionCreated, SessionEvent
from swarmkeep.events.state import State
from swarmkeep.history.export import ExportStart, write_event_line
from swarmkeep.history.import_export import import_export, verify_export
from swarmkeep.store.hashing import seal
from swarmkeep.store.opening import SqlStore


def read_refusal(text: bytes) -> InvalidImport:
    with pytest.raises(InvalidImport) as error:
        list(verify_export(io.BytesIO(text)))
    return error.value


def write_session(*facts: SessionEvent, at: str = "2026-01-01T00:00:00.000000Z") -> bytes:
    """An export of a session that nobody recorded, its hashes all right."""
    drafts = [EventDraft(SessionCreated(agent="A"), None, "A"), *draft_events("A", facts, "run_1")]
    sealed = seal("s", State(), drafts, at=at)
    begin = ExportStart(seq=len(sealed), hash=sealed[-1].event.hash, alone=True)
    return b"".join(write_event_line(one, {}, begin if one.event.seq == 1 else None) for one in sealed)


def test_session_with_valid_times_is_export() -> None:
    ask = ApprovalRequested(tool_call_id="c", name="pay", arguments="{}", expires_at="2026-01-01T00:00:00.000000Z")
    assert [place.begin.seq for place in verify_export(io.BytesIO(write_session(ask)))] == [2]


@pytest.mark.parametrize("at", ["2026-02-30T00:00:00.000000Z", "9999-99-99T99:99:99.999999Z"])
def test_invalid_event_time_refused(at: str) -> None:
    error = read_refusal(write_session(at=at))
    assert (error.line, at in str(error)) == (1, True)


@pytest.mark.parametrize("end", ["soon", "2026-01-01T00:00:00+02:00", "2026-01-01", ""])
def test_invalid_end_time_refused(end: str) -> None:
    pending = PendingCall(tool_call_id="c", name="pay", arguments="{}", reason="approval", expires_at=end)
    asked = ApprovalRequested(tool_call_id="c", name="pay", arguments="{}", expires_at=end)
    for fact in (asked, RunWaiting(pending=(pending,))):
        error = read_refusal(write_session(fact))
        assert (error.line, repr(end) in str(error)) == (2, True)


async def test_nothing_of_it_is_recorded(store: SqlStore) -> None:
    asked = ApprovalRequested(tool_call_id="c", name="pay", arguments="{}", expires_at="soon")
    with pytest.raises(InvalidImport):
        await import_export(store, "acme", io.BytesIO(write_session(asked)))
    assert (await store.list_sessions("acme")).sessions == []
