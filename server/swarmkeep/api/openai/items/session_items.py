"""A session's items in order: messages, calls, and what was decided about them."""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from itertools import islice
from typing import Literal, NamedTuple

import msgspec

from swarmkeep.api.openai.items.call_index import CallIndex
from swarmkeep.api.openai.items.ids import ItemKind, ItemPlace, parse_item_id
from swarmkeep.api.openai.items.output_items import (
    PlacedCall,
    find_answered_call,
    is_callers,
    is_reply,
    list_calls,
    show_approval_request,
    show_approval_response,
    show_assistant,
    show_message,
    show_result,
)
from swarmkeep.domain.chain import Chain
from swarmkeep.domain.codec import Json
from swarmkeep.domain.history.window import find_first_shown
from swarmkeep.domain.messages import Entry, find_message
from swarmkeep.domain.state import ApprovalNote, Run, State
from swarmkeep.domain.views import find_begun_run

APPROVALS = ("mcp_approval_request", "mcp_approval_response")
ItemOrder = Literal["asc", "desc"]


class ListedItem(msgspec.Struct, frozen=True):
    """An item with the message that it comes from: for an approval, the one that asks for its call.

    `place`: the event that it comes from, and which of its items it is. `is_gone`: it was taken out, and keeps its
    place.
    """

    entry: Entry
    item: Json
    place: tuple[int, int]
    is_gone: bool


class _Source(NamedTuple):
    """An event that items come from: a message or an approval, at that place among the state's."""

    seq: int
    at: int
    is_note: bool


class SessionItems:
    """A session's items, made as they are asked for: each costs about the same, however many there are."""

    def __init__(self, session_id: str, state: State) -> None:
        self._session_id = session_id
        self._state = state
        self._index = CallIndex(state)
        # A message may ask for thousands of calls, and each of them may be asked for.
        self._calls: dict[int, dict[str, PlacedCall]] = {}
        self._found: dict[_Source, dict[str, ListedItem]] = {}

    def walk(
        self, order: ItemOrder = "asc", after: ListedItem | None = None, *, first_seq: int | None = None
    ) -> Iterator[ListedItem]:
        """The items that were not taken out: those behind `after`, or from an event on, or all."""
        for source in self._list_sources(order, first_seq if after is None else after.place[0]):
            found = self._read(source)
            for listed in found if order == "asc" else reversed(found):
                if not listed.is_gone and (after is None or _is_behind(listed, after, order)):
                    yield listed

    def find(self, item_id: str) -> ListedItem | None:
        """The item of that id, even if it was taken out; None if there has been none."""
        named = parse_item_id(item_id)
        source = None if named is None or named[1].session_id != self._session_id else self._find_source(*named)
        if source is None:
            return None
        if source not in self._found:
            self._found[source] = {listed.item["id"]: listed for listed in self._read(source)}
        return self._found[source].get(item_id)

    def _list_sources(self, order: ItemOrder, seq: int | None) -> Iterator[_Source]:
        """The sources of items that lists show, from an event on."""
        messages, notes = self._state.messages, self._state.approvals
        spoken = (
            _Source(messages[at].seq, at, is_note=False)
            for at in _list_places(messages, order, seq, find_first_shown(messages))
            if not messages[at].removed
        )
        noted = (_Source(notes[at].seq, at, is_note=True) for at in _list_places(notes, order, seq))
        return heapq.merge(spoken, noted, reverse=order == "desc")

    def _find_source(self, kind: ItemKind, place: ItemPlace) -> _Source | None:
        messages = self._state.messages
        at = self._find_message(place)
        if at is not None and place.index is not None and kind != "fc":
            call = next(islice(self._list_calls(at).values(), place.index, None), None)
            if call is None:
                return None
            if kind in ("mcpr", "mcpa"):
                notes = self._index.list_notes(call.id, at, asks=kind == "mcpr")
                return _Source(self._state.approvals[notes[0]].seq, notes[0], is_note=True) if notes else None
            at = next(iter(self._index.list_results(call.id, at)), None)
        return None if at is None else _Source(messages[at].seq, at, is_note=False)

    def _find_message(self, place: ItemPlace) -> int | None:
        """The message that stands there, or that asks for a call which does."""
        if place.seq is not None:
            return find_message(self._state.messages, place.seq)
        return None if place.run_id is None else self._index.find_reply(place.run_id, place.turn)

    def _read(self, source: _Source) -> list[ListedItem]:
        return self._read_note(source) if source.is_note else self._read_message(source)

    def _read_message(self, source: _Source) -> list[ListedItem]:
        entry = self._state.messages[source.at]
        match entry.role:
            case "assistant":
                calls = list(self._list_calls(source.at).values())
                items = show_assistant(entry, self._make_place(source.at), calls)
            case "tool":
                items = [self._show_result(entry, source.at)]
            case _:
                items = [show_message(self._session_id, entry)]
        return [
            ListedItem(entry, item, (source.seq, number), entry.removed or _is_gone(entry, item))
            for number, item in enumerate(items)
        ]

    def _read_note(self, source: _Source) -> list[ListedItem]:
        notes = self._state.approvals
        note = notes[source.at]
        call_at = self._index.find_call_before_event(note.call_id, note.seq)
        if call_at is None:
            return []
        same = self._index.list_notes(note.call_id, call_at, asks=note.approve is None)
        # A call that came out of a file may be asked about and decided again here: then that counts.
        first, last = same[0], notes[same[-1]]
        if first != source.at:
            return []
        entry, call = self._state.messages[call_at], self._list_calls(call_at)[note.call_id]
        if last.approve is None:
            item = show_approval_request(call)
        else:
            item = show_approval_response(call, last.approve, last.reason)
        return [ListedItem(entry, item, (source.seq, 0), entry.removed or call.id in entry.removed_calls)]

    def _make_place(self, at: int) -> ItemPlace:
        entry = self._state.messages[at]
        if not is_reply(entry):
            return ItemPlace(self._session_id, seq=entry.seq)
        return ItemPlace(self._session_id, run_id=entry.run_id, turn=self._index.count_turns(at))

    def _list_calls(self, at: int) -> dict[str, PlacedCall]:
        """The calls of a message."""
        if at not in self._calls:
            entry = self._state.messages[at]
            run = None if entry.run_id is None else find_begun_run(self._state, entry.run_id)
            bare = () if run is None else run.options.bare_tool_names
            calls = list_calls(entry, self._make_place(at), lambda *call: self._is_outside(run, at, *call), bare)
            self._calls[at] = {call.id: call for call in calls}
        return self._calls[at]

    def _is_outside(self, run: Run | None, call_at: int, call_id: str, name: str) -> bool:
        """Whether a call is the caller's. A run may have gone on with other functions than those it began with."""
        if run is None or is_callers(name, run.options):
            return True
        results = (self._state.messages[at].tool for at in self._index.list_results(call_id, call_at))
        return any(tool is not None and tool.status == "external" for tool in results)

    def _show_result(self, entry: Entry, at: int) -> Json:
        call_id = find_answered_call(entry)
        call_at = None if call_id is None else self._index.find_call(call_id, at)
        # Of several results models are sent the first.
        if call_id is None or call_at is None or self._index.list_results(call_id, call_at)[0] != at:
            return show_result(self._session_id, entry, None)
        requests = self._index.list_notes(call_id, call_at, asks=True)
        with_approval = bool(requests) and self._state.approvals[requests[0]].seq < entry.seq
        return show_result(self._session_id, entry, self._list_calls(call_at)[call_id], with_approval=with_approval)


def _list_places(items: Chain[Entry] | Chain[ApprovalNote], order: ItemOrder, seq: int | None, first: int = 0) -> range:
    """Where they are, in order, from that event on; those before the `first` are left out."""
    if order == "asc":
        return range(max(first, 0 if seq is None else bisect_left(items, seq, key=_get_seq)), len(items))
    end = len(items) if seq is None else bisect_right(items, seq, key=_get_seq)
    return range(end - 1, first - 1, -1)


def _get_seq(source: Entry | ApprovalNote) -> int:
    return source.seq


def _is_behind(listed: ListedItem, other: ListedItem, order: ItemOrder) -> bool:
    return listed.place > other.place if order == "asc" else listed.place < other.place


def _is_gone(entry: Entry, item: Json) -> bool:
    """Whether a part of a message was taken out of it."""
    if item["type"] == "message":
        return entry.removed_content and entry.role == "assistant"
    return item.get("call_id") in entry.removed_calls
