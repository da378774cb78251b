"""Finds values in imported events that no server records: what reads as a fact may still be made up."""

from __future__ import annotations

from msgspec import UNSET

from swarmkeep.domain.events import ApprovalRequested, ContextUpdated, RunWaiting, SessionEvent
from swarmkeep.domain.timestamps import parse_timestamp
from swarmkeep.store.hashing import MAX_PAYLOAD_DEPTH

MAX_NULLS = 100_000


def find_odd_value(fact: SessionEvent) -> str | None:
    """What is wrong with the first such value; None if there is none."""
    match fact:
        case ApprovalRequested(expires_at=end):
            return _explain_times([end])
        case RunWaiting(pending=pending):
            return _explain_times([call.expires_at for call in pending])
        case ContextUpdated(nulls=nulls) if nulls is not UNSET:
            return _explain_nulls(nulls)
        case _:
            return None


def _explain_times(times: list[str | None]) -> str | None:
    odd = next((text for text in times if text is not None and parse_timestamp(text) is None), None)
    return None if odd is None else f"its data has a time that is not valid: {odd!r}"


def _explain_nulls(pointers: tuple[str, ...]) -> str | None:
    if len(pointers) > MAX_NULLS:
        return f"it sets more than {MAX_NULLS} values to null at once"
    if any(pointer.count("/") > MAX_PAYLOAD_DEPTH for pointer in pointers):
        return f"it sets a value to null that is nested deeper than {MAX_PAYLOAD_DEPTH} levels"
    return None
