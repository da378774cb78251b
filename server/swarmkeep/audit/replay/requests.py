"""The request behind an assistant message, put together again from the log."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import UNSET

from swarmkeep.audit.redacted import is_lost
from swarmkeep.domain.envelope import RecordedEvent
from swarmkeep.domain.errors import EventNotFound, RequestNotKept
from swarmkeep.domain.events import HandoffIgnored, MessageAdded, RequestRecord
from swarmkeep.domain.request import assemble_request
from swarmkeep.store.ports import EventStore, SessionKey

# What the messages of a state are made of.
_MESSAGE_TYPES = (MessageAdded.type, HandoffIgnored.type)


async def rebuild_request(store: EventStore, key: SessionKey, seq: int) -> bytes:
    """The exact bytes of the Chat Completions request that event `seq` was the answer to.

    Raises SessionNotFound, EventNotFound if that event is no recorded answer of a model, and RequestNotKept if
    something that was sent is not there any more.
    """
    state = await store.state(key, at=seq)
    _refuse_gaps(seq, await store.read(key, upto=seq, types=_MESSAGE_TYPES))
    answer = state.messages[-1] if state.messages and state.messages[-1].seq == seq else None
    record = answer.completion.request if answer is not None and answer.completion is not None else None
    if record is None:
        raise EventNotFound(seq, f"event {seq} is not a model's answer")
    texts = await store.read_blobs(key, [name for name in (record.instructions, record.tools) if name])
    for what, name in (("instructions", record.instructions), ("tool schemas", record.tools)):
        if name is not None and name not in texts:
            raise RequestNotKept(seq, f"the {what} that were sent are not kept any more")
    tools = None if record.tools is None else texts[record.tools]
    return assemble_request(
        state.messages[:-1], texts[record.instructions], tools, record.params, _find_history_start(record)
    ).body()


def _refuse_gaps(seq: int, said: Iterable[RecordedEvent]) -> None:
    for event in said:
        if is_lost(event):
            raise RequestNotKept(seq, f"event {event.seq} was redacted, or cannot be read")


def _find_history_start(record: RequestRecord) -> int | None:
    return None if record.history_from is UNSET else record.history_from
