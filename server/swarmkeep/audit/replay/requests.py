"""The request behind an assistant message, put together again from the log."""

from __future__ import annotations

import asyncio
from collections.abc import Container, Iterable

from msgspec import UNSET
from msgspec.structs import replace

from swarmkeep.audit.redacted import is_lost
from swarmkeep.domain.compaction.requests import build_summary_request
from swarmkeep.domain.envelope import RecordedEvent
from swarmkeep.domain.errors import EventNotFound, RequestNotKept
from swarmkeep.domain.events import GuardrailTripped, HandoffIgnored, MessageAdded, RequestRecord
from swarmkeep.domain.facts.compaction import CompactionStarted, CompactionSummarised
from swarmkeep.domain.facts.history import MessageRemoved
from swarmkeep.domain.request import ModelRequest, assemble_request
from swarmkeep.domain.state import State
from swarmkeep.store.ports import EventStore, SessionKey

# What the messages of a state are made of.
_MESSAGE_TYPES = (
    MessageAdded.type, HandoffIgnored.type, GuardrailTripped.type, MessageRemoved.type,
    CompactionStarted.type, CompactionSummarised.type,
)  # fmt: skip


async def rebuild_request(store: EventStore, key: SessionKey, seq: int) -> bytes:
    """The exact bytes of the Chat Completions request that event `seq` was the answer to.

    Raises SessionNotFound, EventNotFound if that event is no recorded answer of a model, and RequestNotKept if
    something that was sent is not there any more.
    """
    await store.state(key, at=seq)
    event = (await store.read(key, after=seq - 1, upto=seq))[-1]
    if event.type in _MESSAGE_TYPES and is_lost(event):
        raise RequestNotKept(seq, f"event {seq} was redacted, or cannot be read")
    answer = event.fact
    completion = answer.completion if isinstance(answer, MessageAdded | CompactionSummarised) else None
    record = None if completion is None else completion.request
    if record is None:
        raise EventNotFound(seq, f"event {seq} is not a model's answer")
    upto = seq - 1 if record.history_upto is UNSET else record.history_upto
    before = await store.state(key, at=upto)
    said = await store.read(key, upto=upto, types=_MESSAGE_TYPES)
    if isinstance(answer, CompactionSummarised):
        request = _rebuild_summary_request(seq, answer, before, record, said)
    else:
        history_from = None if record.history_from is UNSET else record.history_from
        # Of what is kept with a state, nothing is used: this is put together from the log alone.
        rules = None if record.rules is UNSET else replace(record.rules, model=str(record.params.get("model", "")))
        request = assemble_request(list(before.messages), "", None, record.params, history_from, before.summary, rules)
        sent = {entry.seq for entry in (*request.history.leading, *request.entries)}
        _refuse_gaps(seq, said, before, sent)
    texts = await store.read_blobs(key, [name for name in (record.instructions, record.tools) if name])
    for what, name in (("instructions", record.instructions), ("tool schemas", record.tools)):
        if name is not None and name not in texts:
            raise RequestNotKept(seq, f"the {what} that were sent are not stored any more")
    tools = None if record.tools is None else texts[record.tools]
    files = await store.read_files(key, request.file_names)
    for name in request.file_names:
        if name not in files:
            raise RequestNotKept(seq, f"the file {name} that was sent is not stored any more")
    whole = replace(request, instructions=texts[record.instructions], tools=tools, files=files)
    return await asyncio.to_thread(whole.body) if files else whole.body()


def _rebuild_summary_request(
    seq: int, answer: CompactionSummarised, before: State, record: RequestRecord, said: Iterable[RecordedEvent]
) -> ModelRequest:
    if before.compaction is None:
        raise RequestNotKept(seq, "the log does not say what was summed up")
    request, piece = build_summary_request(before, str(record.params.get("model", "")), answer.characters)
    covered = 0 if before.summary is None else before.summary.last_seq
    _refuse_gaps(seq, said, before, set(range(covered + 1, piece.last_seq + 1)))
    return request


def _refuse_gaps(seq: int, said: Iterable[RecordedEvent], before: State, sent: Container[int]) -> None:
    """Raise RequestNotKept if something is lost that was sent, or may have been."""
    last_summary = 0 if before.summary is None else before.summary.seq
    for event in said:
        if not is_lost(event):
            continue
        match event.fact:
            case MessageAdded():
                is_missed = event.seq in sent
            case CompactionSummarised():
                is_missed = event.seq > last_summary
            case MessageRemoved() | CompactionStarted():
                # What is left of one says as much of messages as before.
                is_missed = False
            case _:
                is_missed = True
        if is_missed:
            raise RequestNotKept(seq, f"event {event.seq} was redacted, or cannot be read")
