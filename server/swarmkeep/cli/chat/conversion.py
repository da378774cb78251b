"""Convert between the engine's objects and the types of the client, for chats in this process."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from swarmkeep.cli.sources.conversion import to_client_event
from swarmkeep.domain.decisions.commands import StartRun
from swarmkeep.domain.envelope import RecordedEvent
from swarmkeep.domain.run_options import RunOptions
from swarmkeep.domain.views import RunView
from swarmkeep.engine.ids import make_id
from swarmkeep.engine.streams import items
from swarmkeep_client import Message, MessageDelta, MessageStarted, Run, StreamItem
from swarmkeep_client import RunOptions as Asked


def to_client_item(item: items.Item) -> StreamItem:
    match item:
        case RecordedEvent():
            return to_client_event(item)
        case items.MessageStarted():
            return MessageStarted(run_id=item.run_id, agent=item.agent)
        case items.MessageDeltas():
            return MessageDelta(run_id=item.run_id, agent=item.agent, content=items.join_text(item.deltas))


def to_client_run(view: RunView) -> Run:
    # Through plain JSON values, which leave out what does not apply.
    return msgspec.convert(msgspec.to_builtins(view), Run)


def to_start_run(said: str | Sequence[Message], asked: Asked | None, *, stream: bool) -> StartRun:
    asked = asked or {}
    given = {name: value for name in RunOptions.__struct_fields__ if (value := asked.get(name)) not in (None, {}, "")}
    return StartRun(
        run_id=make_id("run"),
        messages=({"role": "user", "content": said},) if isinstance(said, str) else tuple(said),
        options=msgspec.convert({**given, "stream": stream}, RunOptions),
        agent=asked.get("agent"),
        context_variables=asked.get("context_variables") or {},
    )
