"""The ids of a session's calls, which no new one may have: known without looking through all messages each time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from swarmkeep.domain.chain import Chain
from swarmkeep.domain.messages import Entry


class CallIds(msgspec.Struct, frozen=True):
    """The ids in the first `upto` messages, in a few sets, each at least twice as large as the next: so to add some
    costs about the same however many there are, and to look for one only a little more."""

    upto: int = 0
    parts: tuple[frozenset[str], ...] = ()

    def __contains__(self, call_id: object) -> bool:
        return any(call_id in part for part in self.parts)

    def extend(self, later: Sequence[Entry]) -> CallIds:
        """With those of the messages that follow."""
        added, parts = _list_call_ids(later), list(self.parts)
        while added and parts and len(parts[-1]) < 2 * len(added):
            added |= parts.pop()
        return CallIds(self.upto + len(later), (*parts, added) if added else self.parts)


def find_call_ids(messages: Sequence[Entry]) -> CallIds:
    """Every call that the messages ask for, or asked for until it was taken out. Kept with a session's own."""
    if not isinstance(messages, Chain):
        return CallIds().extend(messages)
    known = messages.recall(CallIds) or CallIds()
    if known.upto < len(messages):
        known = known.extend(messages[known.upto :])
        messages.remember(known, known.upto)
    return known


def _list_call_ids(entries: Iterable[Entry]) -> frozenset[str]:
    asking = (entry for entry in entries if entry.role == "assistant" and entry.message.get("tool_calls"))
    return frozenset(call_id for entry in asking for call_id in (*entry.call_ids, *entry.removed_calls))
