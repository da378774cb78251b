"""Bound the size of the stored parts of a session: its context, its metadata, each message; and what counts as large.

What is heavy takes long to encode, copy and check, and is not worked on where others wait, such as an event loop.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from swarmkeep.events.codec import Json, encode
from swarmkeep.events.errors import TooLarge
from swarmkeep.events.patch import merge
from swarmkeep.events.state import State

# Of either, what is encoded, copied and checked within a few milliseconds.
_LIGHT_VALUES = 2_000
_LIGHT_CHARACTERS = 200_000


class SizeLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes in bytes of JSON. Every append writes the whole context and the metadata again, so these are small.

    What was larger before a limit was lowered stays, and may shrink.
    """

    max_context_bytes: int = 1_000_000
    max_metadata_bytes: int = 65_536
    max_message_bytes: int = 8_000_000

    def check_context(self, context: Json, before: Json | None = None) -> None:
        """Raise TooLarge if this is to become the context, in place of a smaller one."""
        _refuse_larger("context_variables", context, self.max_context_bytes, "SWARMKEEP_MAX_CONTEXT_BYTES", before)

    def check_metadata(self, metadata: Json, before: Json | None = None) -> None:
        """Raise TooLarge if these are to become the metadata, in place of smaller ones."""
        _refuse_larger("metadata", metadata, self.max_metadata_bytes, "SWARMKEEP_MAX_METADATA_BYTES", before)

    def check_messages(self, messages: Sequence[Json], pointer: str) -> None:
        """Raise TooLarge for the first message that is too large. Encodes all of them."""
        for place, message in enumerate(messages):
            self.check_content(message, f"{pointer}/{place}")

    def check_content(self, content: Any, what: str) -> None:
        """Raise TooLarge for a message, or the content of one, that is too large."""
        _refuse_larger(what, content, self.max_message_bytes, "SWARMKEEP_MAX_MESSAGE_BYTES")

    def check_change(self, before: State, after: State) -> None:
        """Raise TooLarge if the context or the metadata of a session have grown too large."""
        if after.context_variables is not before.context_variables:
            self.check_context(after.context_variables, before.context_variables)
        if after.metadata is not before.metadata:
            self.check_metadata(after.metadata, before.metadata)

    def check_session(self, state: State) -> None:
        """Raise TooLarge for anything of a whole session that is too large. Encodes all of it."""
        self.check_context(state.context_variables)
        self.check_metadata(state.metadata)
        for entry in state.messages:
            message = entry.message
            # A model's are bounded where they are received, and a call's result as the text that it is.
            if entry.role == "tool":
                self.check_content(message.get("content") or "", f"the tool result at seq {entry.seq}")
            elif entry.role != "assistant":
                sent = {name: value for name, value in message.items() if name != "sender"}
                self.check_content(sent, f"the message at seq {entry.seq}")

    def check_run_context(self, state: State, patch: Json) -> None:
        """Raise TooLarge if the context would be too large once this run begins, after all that are in the queue."""
        if patch:
            before = _merge_all(state.context_variables, (queued.fact.context_variables for queued in state.queue))
            self.check_context(merge(before, patch), before)


# For what an operator does to a database, and for what lives in memory only.
UNBOUNDED = SizeLimits(max_context_bytes=sys.maxsize, max_metadata_bytes=sys.maxsize, max_message_bytes=sys.maxsize)


def _merge_all(context: Json, patches: Iterable[Json]) -> Json:
    for patch in patches:
        context = merge(context, patch)
    return context


def _refuse_larger(what: str, value: Any, limit: int, setting: str, before: Json | None = None) -> None:
    if limit == sys.maxsize:
        return
    # No text has fewer bytes than characters: one that is far too long is not encoded to find that out.
    size = len(value) if isinstance(value, str) and len(value) > limit else len(encode(value))
    if size > limit and (before is None or size > len(encode(before))):
        raise TooLarge(f"{what} would have {size} bytes as JSON; at most {limit} are allowed ({setting})")


def is_heavy(*values: object) -> bool:
    """Tell if JSON values, or facts that hold them, are large. Looks no further than to where that is known."""
    values_left, characters_left = _LIGHT_VALUES, _LIGHT_CHARACTERS
    # It grows as it is gone through.
    found: list[object] = list(values)
    for value in found:
        if value is None or value is msgspec.UNSET:
            continue
        if isinstance(value, str):
            characters_left -= len(value)
        elif isinstance(value, dict):
            values_left -= len(value)
            if values_left >= 0:
                found += value.values()
        elif isinstance(value, (list, tuple)):
            values_left -= len(value)
            if values_left >= 0:
                found += value
        elif isinstance(value, msgspec.Struct):
            found += msgspec.structs.astuple(value)
        if values_left < 0 or characters_left < 0:
            return True
    return False
