"""Facts about what models are sent of a history, and lists show of it. None of them changes what the log holds."""

from __future__ import annotations

from typing import ClassVar

from msgspec import UNSET, UnsetType

from swarmkeep.domain.facts.fact import Fact


class MessageRemoved(Fact, frozen=True, kw_only=True):
    """From here on a message, or one call of it with its result, is not sent to models and not listed.

    `tool_call_id`: only this call of `message_seq`. `content`: only what it says, and none of its calls. `seqs`: all
    messages that are gone as a whole.
    """

    type: ClassVar[str] = "message.removed"
    message_seq: int
    tool_call_id: str | None = None
    seqs: tuple[int, ...] = ()
    by: str | None = None
    content: bool | UnsetType = UNSET
