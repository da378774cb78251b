"""Approvals that a run waits for in other sessions, because its agent asks another one there: as items."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import UNSET

from swarmkeep.api.openai.items.ids import ItemPlace
from swarmkeep.domain.codec import Json
from swarmkeep.domain.events import AwaitedApproval, PendingCall


def list_requests_below(
    session_id: str, seq: int, pending: Sequence[PendingCall]
) -> Iterator[tuple[str, AwaitedApproval]]:
    """Each with its item's id; `seq` is the event from which on the run waits."""
    awaited = (each for call in pending if call.approvals is not UNSET for each in call.approvals)
    for index, approval in enumerate(awaited):
        yield ItemPlace(session_id, seq=seq).at_call(index).make_id("mcpr"), approval


def show_request_below(item_id: str, approval: AwaitedApproval) -> Json:
    return {
        "id": item_id,
        "type": "mcp_approval_request",
        "server_label": approval.agent,
        "name": approval.name,
        "arguments": approval.arguments,
    }
