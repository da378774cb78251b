"""Exports with sound hashes that no server wrote: too large, too deep, too many, or with times that are none."""

from __future__ import annotations

import asyncio
import gc
import io
import threading
import tracemalloc
from contextlib import aclosing

import pytest

from swarmkeep.decide.drafts import draft_events
from swarmkeep.events.codec import Json, encode
from swarmkeep.events.errors import InvalidImport, TooLarge
from swarmkeep.events.facts import (
    ApprovalRequested,
    ContextUpdated,
    EventDraft,
    MessageAdded,
    PendingCall,
    RunQueued,
    RunStarted,
    RunWaiting,
    SessionCreated,
)
from swarmkeep.events.records import CompletionRecord, RunOptions
from swarmkeep.events.sizes import SizeLimits
from swarmkeep.events.state import State
from swarmkeep.history.conversations import import_conversations
from swarmkeep.history.export import MAX_NULLS, iterate_keys, write_export
from swarmkeep.history.import_export import import_export, verify_export
from swarmkeep.store.hashing import MAX_PAYLOAD_DEPTH
from swarmkeep.store.index import SessionFilter
from swarmkeep.store.opening import SqlStore
from swarmkeep.store.records import SessionKey
from tests.history.exports import count_sessions, export_sessions, forge_events, forge_export, read_refusal
from tests.store.sessions import begin_session, draft_user_messages

_PATIENCE_SECONDS = 20


# Times and nulls.


def ask_until(end: str) -> ApprovalRequested:
    return ApprovalRequested(tool_call_id="c", name="pay", arguments="{}", expires_at=end)


def test_valid_times_are_accepted() -> None:
    assert count_sessions(forge_export(ask_until("2026-01-01T00:00:00.000000Z"))) == 1


@pytest.mark.parametrize("at", ["2026-02-30T00:00:00.000000Z", "9999-99-99T99:99:99.999999Z"])
def test_invalid_event_time_refused(at: str) -> None:
    error = read_refusal(forge_export(at=at))
    assert (error.line, at in str(error)) == (1, True)


@pytest.mark.parametrize("end", ["soon", "2026-01-01T00:00:00+02:00", "2026-01-01", ""])
def test_invalid_end_time_refused(end: str) -> None:
    pending = PendingCall(tool_call_id="c", name="pay", arguments="{}", reason="approval", expires_at=end)
    for fact in (ask_until(end), RunWaiting(pending=(pending,))):
        error = read_refusal(forge_export(fact))
        assert (error.line, repr(end) in str(error)) == (2, True)


def set_nulls(*pointers: str) -> bytes:
    return forge_export(ContextUpdated(patch={}, nulls=pointers))


def test_maximum_nulls_accepted() -> None:
    assert count_sessions(set_nulls(*(f"/{number}" for number in range(MAX_NULLS)))) == 1
    assert count_sessions(set_nulls("/" * MAX_PAYLOAD_DEPTH)) == 1


@pytest.mark.parametrize(
    ("pointers", "why"),
    [
        (["/a"] * (MAX_NULLS + 1), f"more than {MAX_NULLS} values"),
        (["/a", "/" * (MAX_PAYLOAD_DEPTH + 1)], f"deeper than {MAX_PAYLOAD_DEPTH} levels"),
        (["/" * 400_000], f"deeper than {MAX_PAYLOAD_DEPTH} levels"),
    ],
    ids=["too many", "too deep", "far too deep"],
)
def test_excess_or_deeper_nulls_refused_by_line(pointers: list[str], why: str) -> None:
    error = read_refusal(set_nulls(*pointers))
    assert (error.line, why in str(error)) == (2, True)


# Sizes, which are checked before anything is recorded.


async def test_oversized_session_found_before_recording(store: SqlStore) -> None:
    keys = [SessionKey("from", name) for name in ("small", "large")]
    for key, text in zip(keys, ("hi", "x" * 5000), strict=True):
        await store.append(key, await begin_session(store, key), draft_user_messages(text))
    text = await export_sessions(store, *keys)
    sizes = SizeLimits(max_message_bytes=1000)
    for dry_run in (False, True):
        with pytest.raises(TooLarge, match="session 'large': the message at seq 2 would have"):
            await import_export(store, "to", io.BytesIO(text), sizes=sizes, dry_run=dry_run)
        assert (await store.list_sessions(SessionFilter("to"))).sessions == []
        assert await store.read_audit_log("to") == []
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
    assert (await store.list_sessions(SessionFilter("to"))).sessions == []


async def test_impossible_queue_refused_at_excess_run(store: SqlStore) -> None:
    queued = RunQueued(options=RunOptions(), messages=({"role": "user", "content": "x"},))
    begun = EventDraft(RunStarted(options=RunOptions()), "r", "A")
    text = forge_events([begun, *(EventDraft(queued, f"q{number}", "A") for number in range(20))])
    with pytest.raises(InvalidImport, match="SWARMKEEP_MAX_QUEUED_RUNS") as refused:
        await import_export(store, "to", io.BytesIO(text), max_queued_runs=19)
    assert refused.value.line == 22
    assert (await store.list_sessions(SessionFilter("to"))).sessions == []
    assert (await import_export(store, "to", io.BytesIO(text), max_queued_runs=20)).imported == 1


def forge_reply(count: int) -> bytes:
    """A reply that asks for so many calls."""
    function = {"name": "f", "arguments": "{}"}
    calls = [{"id": f"c{number}", "type": "function", "function": function} for number in range(count)]
    said = MessageAdded(message={"role": "assistant", "tool_calls": calls}, completion=CompletionRecord())
    return forge_export(RunStarted(options=RunOptions()), said)


def test_reply_with_too_many_calls_refused() -> None:
    error = read_refusal(forge_reply(1001))
    assert (error.line, "more than 1000 calls" in str(error)) == (3, True)
    assert count_sessions(forge_reply(1000)) == 1


async def test_unread_export_holds_only_sent_data(store: SqlStore) -> None:
    key = SessionKey("from", "large")
    await store.append(key, await begin_session(store, key), draft_user_messages("x" * 4_000_000))
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


# A large import keeps nobody waiting: it is read, verified and folded before its transaction, and off the loop.


def forge_messages(count: int) -> bytes:
    return forge_export(*[MessageAdded(message={"role": "user", "content": "x" * 200})] * count)


class HeldFile(io.BytesIO):
    """A file that stops in the middle of being read for the second time, which is when it is recorded."""

    def __init__(self, text: bytes) -> None:
        super().__init__(text)
        self._starts = self._lines = 0
        self.reached = threading.Event()
        self.released = threading.Event()
        self.threads: set[int] = set()

    def seek(self, offset: int, whence: int = 0) -> int:
        self._starts += offset == 0
        self._lines = 0
        return super().seek(offset, whence)

    def readline(self, size: int | None = -1) -> bytes:
        self.threads.add(threading.get_ident())
        self._lines += 1
        if self._lines == 300 and self._starts > 1 and not self.reached.is_set():
            self.reached.set()
            assert self.released.wait(_PATIENCE_SECONDS), "nobody else was let in"
        return super().readline(size)


async def test_others_record_during_import(store: SqlStore) -> None:
    file = HeldFile(forge_messages(500))
    importing = asyncio.create_task(import_export(store, "acme", file))
    assert await asyncio.to_thread(file.reached.wait, _PATIENCE_SECONDS)
    created = draft_events("Ann", [SessionCreated(agent="Ann")], None)
    appended = asyncio.create_task(store.append(SessionKey("other", "mine"), State(), created))
    await asyncio.wait([appended, importing], return_when=asyncio.FIRST_COMPLETED)
    # The other tenant's was first; nothing of the import can be seen, though half of it was read.
    assert (appended.done(), importing.done()) == (True, False)
    assert await store.read_head(SessionKey("acme", "s")) is None
    assert await store.read(SessionKey("acme", "s")) == []
    file.released.set()
    assert (await importing).imported == 1
    assert len(await store.read(SessionKey("acme", "s"))) == 502
    assert (await appended).state.seq == 1
    writing = await store.database.write(lambda connection: threading.get_ident())
    assert file.threads
    assert not file.threads & {threading.get_ident(), writing}


def test_session_exceeding_transaction_refused_by_line() -> None:
    text = forge_messages(20)
    size = len(text)
    assert len(list(verify_export(io.BytesIO(text), max_session_bytes=size))) == 1
    with pytest.raises(InvalidImport, match=f"more than {size - 1} bytes") as error:
        list(verify_export(io.BytesIO(text), max_session_bytes=size - 1))
    assert error.value.line == 21


@pytest.mark.parametrize("values", [b"[" + b",".join([b"[]"] * 300_000) + b"]", b"{" + b'"a":{' * 150 + b"}" * 151])
def test_line_with_too_many_values_refused(values: bytes) -> None:
    first, line, _ = forge_messages(2).splitlines(keepends=True)
    start = line.index(b'"data":') + len(b'"data":')
    hostile = first + line[:start] + values + line[line.index(b',"hash":') :]
    with pytest.raises(InvalidImport, match="more than 100 JSON values") as error:
        list(verify_export(io.BytesIO(hostile), max_line_values=100))
    assert error.value.line == 2
    assert read_refusal(hostile).line == 2


async def test_server_limit_applies(store: SqlStore) -> None:
    text = forge_messages(2)
    with pytest.raises(InvalidImport, match="more than 2 JSON values"):
        await import_export(store, "acme", io.BytesIO(text), max_line_values=2)
    assert (await import_export(store, "acme", io.BytesIO(text), max_line_values=100)).imported == 1
