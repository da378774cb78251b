"""What an import may hold is checked before anything of it is recorded, and costs no more than its size."""

from __future__ import annotations

import gc
import io
import tracemalloc
from contextlib import aclosing
from typing import Any

import pytest

from swarmkeep.decide.drafts import draft_events
from swarmkeep.events.codec import Json, encode
from swarmkeep.events.errors import InvalidImport, TooLarge
from swarmkeep.events.facts import EventDraft, MessageAdded, RunQueued, RunStarted, SessionCreated, SessionEvent
from swarmkeep.events.records import CompletionRecord, RunOptions
from swarmkeep.events.sizes import SizeLimits
from swarmkeep.events.state import State
from swarmkeep.history.conversations import import_conversations
from swarmkeep.history.export import ExportStart, iterate_keys, write_event_line, write_export
from swarmkeep.history.import_export import import_export, verify_export
from swarmkeep.store.hashing import seal
from swarmkeep.store.opening import SqlStore, open_store
from swarmkeep.store.records import SessionKey

AT = "2026-01-01T00:00:00.000000Z"


@pytest.fixture
async def store(ready_url: str) -> Any:
    opened = open_store(ready_url)
    yield opened
    await opened.close()


async def record(store: SqlStore, name: str, *facts: SessionEvent) -> SessionKey:
    key = SessionKey("from", name)
    drafts = [EventDraft(SessionCreated(agent="Ann"), None, "Ann"), *draft_events("Ann", facts, None)]
    await store.append(key, State(), drafts)
    return key


async def export(store: SqlStore, *keys: SessionKey) -> bytes:
    return b"".join([line async for line in write_export(store, iterate_keys(keys))])


async def test_oversized_session_found_before_recording(store: SqlStore) -> None:
    small = await record(store, "small", MessageAdded(message={"role": "user", "content": "hi"}))
    large = await record(store, "large", MessageAdded(message={"role": "user", "content": "x" * 5000}))
    text = await export(store, small, large)
    with pytest.raises(TooLarge, match="session 'large': the message at seq 2 would have"):
        await import_export(store, "to", io.BytesIO(text), sizes=SizeLimits(max_message_bytes=1000))
    assert (await store.list_sessions("to")).sessions == []
    assert await store.read_audit_log("to") == []
    with pytest.raises(TooLarge):
        await import_export(store, "to", io.BytesIO(text), sizes=SizeLimits(max_message_bytes=1000), dry_run=True)
    assert (await import_export(store, "to", io.BytesIO(text))).imported == 2


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"messages": [{"role": "user", "content": "x" * 5000}]}, "line 2: /messages: message/0 would have 5"),
        ({"tools": ["x" * 5000]}, "line 2: /messages: metadata would have 5"),
        ({"context_variables": {"a": "x" * 5000}}, "line 2: /messages: context_variables would have 5"),
    ],
)
async def test_oversized_conversation_is_named(store: SqlStore, change: Json, why: str) -> None:
    small: Json = {"messages": [{"role": "user", "content": "hi"}]}
    file = io.BytesIO(b"\n".join(map(encode, (small, {**small, **change}))))
    limits = SizeLimits(max_message_bytes=1000, max_metadata_bytes=1000, max_context_bytes=1000)
    with pytest.raises(TooLarge, match=why):
        await import_conversations(store, "to", file, "chat", agent="Ann", sizes=limits)
    assert (await store.list_sessions("to")).sessions == []


def write_queue(count: int) -> bytes:
    """A forged export: a run that goes on, and so many that wait for it."""
    drafts = [EventDraft(SessionCreated(agent="A"), None, "A"), EventDraft(RunStarted(options=RunOptions()), "r", "A")]
    queued = RunQueued(options=RunOptions(), messages=({"role": "user", "content": "x"},))
    return write_session([*drafts, *(EventDraft(queued, f"q{number}", "A") for number in range(count))])


def write_session(drafts: list[EventDraft]) -> bytes:
    sealed = seal("s", State(), drafts, at=AT)
    begin = ExportStart(seq=len(sealed), hash=sealed[-1].event.hash, alone=True)
    return b"".join(write_event_line(one, {}, begin if one.event.seq == 1 else None) for one in sealed)


async def test_impossible_queue_refused_at_excess_run(store: SqlStore) -> None:
    text = write_queue(20)
    with pytest.raises(InvalidImport, match="SWARMKEEP_MAX_QUEUED_RUNS") as refused:
        await import_export(store, "to", io.BytesIO(text), max_queued_runs=19)
    assert refused.value.line == 22
    assert (await store.list_sessions("to")).sessions == []
    assert (await import_export(store, "to", io.BytesIO(text), max_queued_runs=20)).imported == 1


def test_forged_queue_reading_is_bounded() -> None:
    text = write_queue(3000)
    with pytest.raises(InvalidImport) as refused:
        list(verify_export(io.BytesIO(text), max_queued_runs=100))
    assert refused.value.line == 103
    assert len(list(verify_export(io.BytesIO(text)))) == 1


def write_reply(count: int) -> bytes:
    """A forged export: a reply that asks for so many calls."""
    calls = [
        {"id": f"c{number}", "type": "function", "function": {"name": "f", "arguments": "{}"}}
        for number in range(count)
    ]
    said = MessageAdded(message={"role": "assistant", "tool_calls": calls}, completion=CompletionRecord())
    facts = [SessionCreated(agent="A"), RunStarted(options=RunOptions()), said]
    return write_session([EventDraft(fact, "r", "A") for fact in facts])


def test_reply_with_too_many_calls_refused() -> None:
    with pytest.raises(InvalidImport, match="more than 1000 calls") as refused:
        list(verify_export(io.BytesIO(write_reply(1001))))
    assert refused.value.line == 3
    assert len(list(verify_export(io.BytesIO(write_reply(1000))))) == 1


async def test_unread_export_holds_only_sent_data(store: SqlStore) -> None:
    key = await record(store, "large", MessageAdded(message={"role": "user", "content": "x" * 4_000_000}))
    tracemalloc.start()
    try:
        async with aclosing(write_export(store, iterate_keys([key]), alone=True)) as pieces:
            size = len(await anext(pieces))
            gc.collect()
            held = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    # A driver may keep the last row that it read, and its thread the values that it made it from.
    assert 4_000_000 < size < held < 3.5 * size
