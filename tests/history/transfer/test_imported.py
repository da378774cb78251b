"""What came by import is marked as such, decides nothing, approves nothing, and starts nothing by itself."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Sequence
from typing import Any

import pytest

from swarmkeep.decide.drafts import draft_events
from swarmkeep.events.codec import encode
from swarmkeep.events.facts import (
    ApprovalDecided,
    ApprovalRequested,
    EventDraft,
    MessageAdded,
    PendingCall,
    RunInterrupted,
    RunStarted,
    RunWaiting,
    SessionCreated,
    SessionEvent,
    SessionImported,
    ToolStarted,
)
from swarmkeep.events.records import CompletionRecord, RunOptions
from swarmkeep.events.state import State
from swarmkeep.history.checkpoints import verify_audit_log
from swarmkeep.history.conversations import import_conversations
from swarmkeep.history.import_export import import_export
from swarmkeep.history.verify import Head
from swarmkeep.history.verify import verify as verify_session
from swarmkeep.runs.sessions import fork_session
from swarmkeep.store.opening import SqlStore
from swarmkeep.store.records import SessionKey
from tests.history.exports import export_sessions

pytestmark = pytest.mark.one_database

TENANT = "acme"
KEY = SessionKey(TENANT, "s")
RUN = "run_1"
CALLS = [
    {"id": f"c{number}", "type": "function", "function": {"name": "pay", "arguments": f'{{"to": {number}}}'}}
    for number in (1, 2)
]
ASKED = MessageAdded(
    message={"role": "assistant", "content": None, "tool_calls": CALLS, "sender": "Ann"}, completion=CompletionRecord()
)
LATER = "2030-01-01T00:00:00.000000Z"


def request(number: int) -> ApprovalRequested:
    arguments = f'{{"to": {number}}}'
    return ApprovalRequested(tool_call_id=f"c{number}", name="pay", arguments=arguments, expires_at=LATER)


def forged_pending() -> RunWaiting:
    """What a person would be shown is not what would be run."""
    harmless = PendingCall(tool_call_id="c1", name="look", arguments="{}", reason="approval", expires_at=LATER)
    return RunWaiting(pending=(harmless,))


WAITING: list[SessionEvent] = [
    RunStarted(options=RunOptions()),
    ASKED,
    request(1),
    request(2),
    ApprovalDecided(tool_call_id="c2", decision="approve", by="the CFO"),
    forged_pending(),
]


async def record(store: SqlStore, facts: Sequence[SessionEvent], key: SessionKey = KEY) -> State:
    drafts: list[EventDraft] = [EventDraft(SessionCreated(agent="Ann"), None, "Ann")]
    drafts += draft_events("Ann", facts, RUN)
    return (await store.append(key, State(), drafts)).state


async def carry_over(store: SqlStore, other: SqlStore, facts: Sequence[SessionEvent], **options: Any) -> State:
    """Record a session in one store, and import it into the other."""
    await record(store, facts)
    await import_export(other, TENANT, io.BytesIO(await export_sessions(store, KEY, alone=True)), **options)
    return await other.state(KEY)


async def test_import_recorded_in_session_and_audit(store: SqlStore, other: SqlStore) -> None:
    state = await record(store, [])
    text = await export_sessions(store, KEY, alone=True)
    await import_export(other, TENANT, io.BytesIO(text), by="Lee")
    log = await other.read(KEY)
    assert log[-1].fact == SessionImported(
        source="export", digest=hashlib.sha256(text).hexdigest(), last_seq=state.seq, by="Lee"
    )
    [entry] = await other.read_audit_log(TENANT)
    assert (entry.type, entry.by) == ("session.imported", "Lee")
    for told in (KEY.id, log[-1].hash, hashlib.sha256(text).hexdigest(), '"source":"export"'):
        assert told in entry.payload
    assert (await verify_audit_log(other, TENANT)).valid
    assert (await verify_session(other, KEY)).valid
    assert (await verify_session(other, KEY, noted=Head(seq=state.seq, hash=state.hash))).valid


async def test_conversations_from_elsewhere_say_so_too(store: SqlStore) -> None:
    text = encode([{"messages": [{"role": "user", "content": "hello"}]}])
    report = await import_conversations(store, TENANT, io.BytesIO(text), "chat", agent="Ann", as_id="c", by="Lee")
    [session] = report.sessions
    log = await store.read(SessionKey(TENANT, "c"))
    assert [event.type for event in log] == ["session.created", "message.added", "session.imported"]
    assert log[-1].fact == SessionImported(source="chat", digest=hashlib.sha256(text).hexdigest(), last_seq=2, by="Lee")
    assert (session.seq, session.hash) == (log[-1].seq, log[-1].hash)
    assert [entry.type for entry in await store.read_audit_log(TENANT)] == ["session.imported"]
    again = await import_conversations(store, TENANT, io.BytesIO(text), "chat", agent="Ann", as_id="c")
    assert (again.imported, again.present) == (0, 1)


async def test_dry_or_existing_is_no_import(store: SqlStore, other: SqlStore) -> None:
    await carry_over(store, other, [], dry_run=False)
    text = await export_sessions(store, KEY, alone=True)
    assert (await import_export(other, TENANT, io.BytesIO(text))).present == 1
    assert len(await other.read_audit_log(TENANT)) == 1
    await other.delete(KEY)
    await import_export(other, TENANT, io.BytesIO(text), dry_run=True)
    assert [entry.type for entry in await other.read_audit_log(TENANT)] == ["session.imported", "session.deleted"]


async def test_import_leftovers_asked_again(store: SqlStore, other: SqlStore) -> None:
    state = await carry_over(store, other, WAITING)
    assert state.run is not None
    assert state.run.status == "waiting"
    assert [(call.tool_call_id, call.name, call.arguments, call.expires_at) for call in state.run.pending] == [
        ("c1", "pay", '{"to": 1}', None),
        ("c2", "pay", '{"to": 2}', None),
    ]
    assert [call.approval for call in state.run.calls] == ["requested", "requested"]
    assert state.due_at is None
    assert [event.type for event in await other.read(KEY, after=7)] == [
        "session.imported",
        "approval.requested",
        "approval.requested",
        "run.waiting",
    ]
    assert (await verify_session(other, KEY)).valid


async def test_run_waiting_for_nothing_is_interrupted(store: SqlStore, other: SqlStore) -> None:
    state = await carry_over(store, other, [RunStarted(options=RunOptions()), forged_pending()])
    assert (state.status, state.finished[-1].status) == ("idle", "interrupted")


async def test_outside_results_are_still_awaited(store: SqlStore, other: SqlStore) -> None:
    facts = [RunStarted(options=RunOptions(execute_tools=False)), ASKED, forged_pending()]
    state = await carry_over(store, other, facts)
    assert state.run is not None
    assert [(call.tool_call_id, call.name, call.reason) for call in state.run.pending] == [
        ("c1", "pay", "tool_results"),
        ("c2", "pay", "tool_results"),
    ]


@pytest.mark.parametrize("started", [False, True])
async def test_calls_in_imported_fork_are_marked(store: SqlStore, other: SqlStore, started: bool) -> None:
    begun = [ToolStarted(tool_call_id="c1", name="pay", arguments="{}")] if started else []
    decided = ApprovalDecided(tool_call_id="c2", decision="approve", by="the CFO")
    facts = [RunStarted(options=RunOptions()), ASKED, request(2), decided, *begun]
    state = await carry_over(store, other, facts)
    [call, approved] = state.finished[-1].calls
    assert (call.imported, approved.imported, approved.approval) == (True, True, None)
    for at in (len(facts), len(facts) + 1, state.seq):
        fork = SessionKey(TENANT, f"fork-{at}")
        await fork_session(other, KEY, at=at, session_id=fork.id)
        state = await other.state(fork)
        assert [call.imported for call in state.finished[-1].calls] == [True, True]
        notices = [event.fact for event in await other.read(fork) if isinstance(event.fact, SessionImported)]
        assert [notice.last_seq for notice in notices] == [min(at, len(facts) + 1)]
        assert (await verify_session(other, fork)).valid


async def test_reexported_imports_nest(store: SqlStore, other: SqlStore) -> None:
    await carry_over(store, other, WAITING, by="Lee")
    text = await export_sessions(other, KEY, alone=True)
    await other.delete(KEY)
    await import_export(other, TENANT, io.BytesIO(text), by="Kim")
    told = [event.fact for event in await other.read(KEY, types=["session.imported"])]
    assert [(fact.by, fact.last_seq) for fact in told if isinstance(fact, SessionImported)] == [("Lee", 7), ("Kim", 11)]
    assert (await verify_session(other, KEY)).valid


async def test_older_import_known_by_its_ending(store: SqlStore, other: SqlStore) -> None:
    facts = [RunStarted(options=RunOptions()), ASKED]
    state = await carry_over(store, other, facts)
    ended = [event.fact for event in await other.read(KEY) if isinstance(event.fact, RunInterrupted)]
    assert len(ended) == 1
    older = SessionKey(TENANT, "older")
    await record(other, [*facts, *ended], older)
    assert [call.imported for call in (await other.state(older)).finished[-1].calls] == [True, True]
    assert [call.imported for call in state.finished[-1].calls] == [True, True]
