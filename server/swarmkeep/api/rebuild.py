"""The request behind an assistant message, put together again from the log."""

from __future__ import annotations

from msgspec import UNSET

from swarmkeep.domain.errors import EventNotFound
from swarmkeep.domain.request import build
from swarmkeep.engine.engine import Engine
from swarmkeep.store.port import SessionKey


async def rebuilt_request(engine: Engine, key: SessionKey, seq: int) -> bytes:
    """The exact bytes of the Chat Completions request that event `seq` was the answer to.

    Raises SessionNotFound, and EventNotFound if that event is no recorded answer of a model.
    """
    state = await engine.sessions.state(key, at=seq)
    answer = state.messages[-1] if state.messages and state.messages[-1].seq == seq else None
    record = answer.completion.request if answer is not None and answer.completion is not None else None
    if record is None:
        raise EventNotFound(seq, f"event {seq} is no answer of a model")
    hashes = [record.instructions] if record.tools is None else [record.instructions, record.tools]
    texts = await engine.store.blobs(key, hashes)
    if any(name not in texts for name in hashes):
        raise EventNotFound(seq, f"the request behind event {seq} is not kept any more")
    tools = None if record.tools is None else texts[record.tools]
    history_from = None if record.history_from is UNSET else record.history_from
    return build(state.messages[:-1], texts[record.instructions], tools, record.params, history_from).body()
