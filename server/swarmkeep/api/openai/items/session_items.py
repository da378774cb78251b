"""A session's items in order: messages, calls, and what was decided about them."""

from __future__ import annotations

from swarmkeep.api.openai.items.shown import (
    ItemReader,
    make_outside_test,
    show_approval_request,
    show_approval_response,
)
from swarmkeep.domain.codec import Json
from swarmkeep.domain.messages import Entry, read_tool_calls
from swarmkeep.domain.state import ApprovalNote, State

APPROVALS = ("mcp_approval_request", "mcp_approval_response")


def list_session_items(session_id: str, state: State) -> list[tuple[Entry, Json]]:
    """Each item with the message that it comes from: for an approval, the one that asks for its call."""
    return _read_state(session_id, state).items


def list_item_ids(session_id: str, state: State) -> list[str]:
    """The ids of all items in order, of those that were taken out, too."""
    return list(_read_state(session_id, state).ids)


def _read_state(session_id: str, state: State) -> _Listing:
    listing = _Listing(session_id, state)
    notes = iter(state.approvals)
    note = next(notes, None)
    for entry in state.messages:
        while note is not None and note.seq < entry.seq:
            listing.add_note(note)
            note = next(notes, None)
        listing.add_message(entry)
    while note is not None:
        listing.add_note(note)
        note = next(notes, None)
    return listing


class _Listing:
    def __init__(self, session_id: str, state: State) -> None:
        self.items: list[tuple[Entry, Json]] = []
        self.ids: dict[str, None] = {}
        runs = {run.id: run for run in (*state.finished, *([state.run] if state.run is not None else []))}
        outside = {
            str(entry.message.get("tool_call_id"))
            for entry in state.messages
            if entry.tool is not None and entry.tool.status == "external"
        }
        self._tests = {run_id: make_outside_test(run, outside) for run_id, run in runs.items()}
        self._unknown = make_outside_test(None)
        self._reader = ItemReader(session_id)
        self._asking: dict[str, Entry] = {}
        self._noted: dict[str, int] = {}

    def add_message(self, entry: Entry) -> None:
        test = self._unknown if entry.run_id is None else self._tests.get(entry.run_id, self._unknown)
        # What was taken out is read, too: the places of others do not change with it.
        found = self._reader.read(entry, test)
        if entry.role == "assistant":
            self._asking |= {call_id: entry for call_id, _, _ in read_tool_calls(entry.message)}
        self.ids |= dict.fromkeys(item["id"] for item in found)
        if not entry.removed:
            self.items += [(entry, item) for item in found if not _is_gone(entry, item)]

    def add_note(self, note: ApprovalNote) -> None:
        call, entry = self._reader.calls.get(note.call_id), self._asking.get(note.call_id)
        if note.approve is None:
            self._reader.asked.add(note.call_id)
        if call is None or entry is None:
            return
        if note.approve is None:
            item = show_approval_request(call)
        else:
            item = show_approval_response(call, note.approve, note.reason)
        self.ids.setdefault(item["id"])
        if entry.removed or note.call_id in entry.removed_calls:
            return
        # A call that came out of a file may be asked about and decided again here: then that counts.
        if item["id"] in self._noted:
            self.items[self._noted[item["id"]]] = (entry, item)
        else:
            self._noted[item["id"]] = len(self.items)
            self.items.append((entry, item))


def _is_gone(entry: Entry, item: Json) -> bool:
    """Whether a part of a message was taken out of it."""
    if item["type"] == "message":
        return entry.removed_content and entry.role == "assistant"
    return item.get("call_id") in entry.removed_calls
