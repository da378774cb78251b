"""Makes items of messages and calls, with the same ids in streams, lists and responses."""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import islice
from typing import Annotated, Literal, NamedTuple

import msgspec
from litestar.di import NamedDependency
from litestar.params import QueryParameter

from swarmkeep.events.chain import Chain
from swarmkeep.events.codec import Json
from swarmkeep.events.messages import Entry, find_message, read_tool_calls
from swarmkeep.events.records import RunOptions
from swarmkeep.events.state import ApprovalNote, KnownIds, Run, State, find_call_ids, find_ids
from swarmkeep.events.views import find_begun_run
from swarmkeep.events.wording import join_text
from swarmkeep.http.auth import Principal
from swarmkeep.openai.items import (
    ItemKind,
    ItemPlace,
    measure_item,
    parse_item_id,
    show_input_content,
    show_output_text,
    show_refusal,
)
from swarmkeep.openai.problems import make_not_found
from swarmkeep.request.request import find_first_shown

# How a call ended that has an output; any other end is an error.
_WITH_OUTPUT = ("ok", "superseded", "external")


class PlacedCall(msgspec.Struct, frozen=True):
    """A call that a model asked for. One `outside` is carried out by the caller, any other is the agent's own; one that
    was `cut` by the end of the model's reply is carried out by neither."""

    place: ItemPlace
    id: str
    name: str
    arguments: str
    agent: str
    outside: bool
    cut: bool = False


class ItemReader:
    """Makes items of a run's messages, which it reads in order, from the first on."""

    def __init__(self, session_id: str) -> None:
        self._session_id = session_id
        self._turns: dict[str, int] = {}
        self.calls: dict[str, PlacedCall] = {}
        self.with_approval: set[str] = set()
        """The calls that an approval was asked for."""

    def read(self, entry: Entry, options: RunOptions) -> list[Json]:
        match entry.role:
            case "assistant":
                return self._read_reply(entry, options)
            case "tool":
                call_id = find_answered_call(entry)
                call = None if call_id is None else self.calls.get(call_id)
                return [show_result(self._session_id, entry, call, with_approval=call_id in self.with_approval)]
            case _:
                return [show_message(self._session_id, entry)]

    def skip_turns(self, run_id: str, turns: int) -> None:
        """Begin behind so many replies of a run."""
        self._turns[run_id] = turns

    def next_place(self, run_id: str) -> ItemPlace:
        """Return the place of a run's next reply."""
        return ItemPlace(self._session_id, run_id=run_id, turn=self._turns.get(run_id, 0))

    def _read_reply(self, entry: Entry, options: RunOptions) -> list[Json]:
        if is_reply(entry):
            place = self.next_place(entry.run_id or "")
            self._turns[entry.run_id or ""] = place.turn + 1
        else:
            place = ItemPlace(self._session_id, seq=entry.seq)
        bare = options.bare_tool_names if entry.cut_calls else ()
        calls = list_calls(entry, place, lambda call_id, name: is_callers(name, options), bare)
        self.calls |= {call.id: call for call in calls}
        return show_assistant(entry, place, calls)


def is_reply(entry: Entry) -> bool:
    """Tell if it is a model's reply, so that its place is that of a run's turn."""
    return entry.role == "assistant" and entry.completion is not None and entry.run_id is not None


def is_callers(name: str, options: RunOptions) -> bool:
    """Tell if a call of this function is the caller's to carry out."""
    return not options.execute_tools or name in options.caller_tool_names


def find_answered_call(entry: Entry) -> str | None:
    """The id of the call that a result is of."""
    call_id = entry.message.get("tool_call_id")
    return call_id if isinstance(call_id, str) else None


def list_calls(
    entry: Entry, place: ItemPlace, is_outside: Callable[[str, str], bool], bare: Collection[str] = ()
) -> list[PlacedCall]:
    """The calls of a message. `is_outside` gets a call's id and name, and is asked about calls of models only. `bare`
    are the caller's functions without parameters."""
    sender = entry.message.get("sender")
    agent = sender if isinstance(sender, str) else ""
    found = []
    for index, (call_id, name, arguments) in enumerate(read_tool_calls(entry.message)):
        outside = entry.completion is None or is_outside(call_id, name)
        cut = call_id in entry.cut_calls and not (entry.cut_calls[call_id] and name in bare)
        found.append(PlacedCall(place.at_call(index), call_id, name, arguments, agent, outside, cut))
    return found


def show_message(session_id: str, entry: Entry) -> Json:
    """The item of a message that is neither a model's nor a function's."""
    return {
        "id": ItemPlace(session_id, seq=entry.seq).make_id("msg"),
        "type": "message",
        "status": "completed",
        "role": entry.role or "user",
        "content": show_input_content(entry.message.get("content")),
    }


def show_assistant(entry: Entry, place: ItemPlace, calls: Sequence[PlacedCall]) -> list[Json]:
    """An assistant's text, and its calls that the caller carries out; the others are shown with their results."""
    items = [show_reply(place, entry)] if show_reply_content(entry) or not calls else []
    return items + [show_function_call(call) for call in calls if call.outside]


def show_result(session_id: str, entry: Entry, call: PlacedCall | None, *, with_approval: bool = False) -> Json:
    """The result of a call, or of none. `with_approval`: an approval of the call was asked for."""
    if call is not None and entry.tool is not None and entry.tool.output is True:
        # The agent's answer is what this call was given.
        return make_message_item(call.place.make_id("msg"), "completed", [show_output_text(call.arguments)])
    if call is not None and not call.outside:
        return show_mcp_call(call, entry, with_approval=with_approval)
    place = ItemPlace(session_id, seq=entry.seq) if call is None else call.place
    return {
        "id": place.make_id("fco"),
        "type": "function_call_output",
        "status": "completed",
        "call_id": str(entry.message.get("tool_call_id")),
        "output": join_text(entry.message.get("content")),
    }


def show_reply_content(entry: Entry) -> list[Json]:
    text, refusal = join_text(entry.message.get("content")), entry.message.get("refusal")
    parts = [show_output_text(text)] if text else []
    return parts + ([show_refusal(refusal)] if isinstance(refusal, str) and refusal else [])


def show_reply(place: ItemPlace, entry: Entry) -> Json:
    """A model's words; cut off where the model was."""
    completion = entry.completion
    cut_off = completion is not None and (
        completion.partial is True or completion.ending in ("length", "content_filter")
    )
    content = show_reply_content(entry) or [show_output_text("")]
    return make_message_item(place.make_id("msg"), "incomplete" if cut_off else "completed", content)


def make_message_item(item_id: str, status: str, content: list[Json]) -> Json:
    return {
        "id": item_id,
        "type": "message",
        "status": status,
        "role": "assistant",
        "content": content,
    }


def show_function_call(call: PlacedCall, *, arguments: str | None = None) -> Json:
    return {
        "id": call.place.make_id("fc"),
        "type": "function_call",
        "status": "incomplete" if call.cut else "completed",
        "call_id": call.id,
        "name": call.name,
        "arguments": call.arguments if arguments is None else arguments,
    }


def is_cut_item(item: Json) -> bool:
    """Return whether it is a call for the caller that the end of the model's reply cut."""
    return (item["type"], item.get("status")) == ("function_call", "incomplete")


def show_mcp_call(call: PlacedCall, entry: Entry, *, with_approval: bool) -> Json:
    """A finished call of an agent's own function."""
    text = join_text(entry.message.get("content"))
    failed = entry.tool is not None and entry.tool.status not in _WITH_OUTPUT
    error = {"type": "mcp_tool_execution_error", "content": [{"type": "text", "text": text}]} if failed else None
    return {
        "id": call.place.make_id("mcp"),
        "type": "mcp_call",
        "status": "failed" if failed else "completed",
        "server_label": call.agent,
        "name": call.name,
        "arguments": call.arguments,
        "approval_request_id": call.place.make_id("mcpr") if with_approval else None,
        "output": None if failed else text,
        "error": error,
    }


def show_approval_request(call: PlacedCall) -> Json:
    return {
        "id": call.place.make_id("mcpr"),
        "type": "mcp_approval_request",
        "server_label": call.agent,
        "name": call.name,
        "arguments": call.arguments,
    }


def show_approval_response(call: PlacedCall, approve: bool, reason: str | None) -> Json:
    return {
        "id": call.place.make_id("mcpa"),
        "type": "mcp_approval_response",
        "approval_request_id": call.place.make_id("mcpr"),
        "approve": approve,
        "reason": reason,
    }


# Finds the replies, calls, results and approvals of a session, without looking through it.


class _ReplyIds(KnownIds, frozen=True):
    """Replies by their runs."""


class _ResultIds(KnownIds, frozen=True):
    """Results by their calls."""


class _RequestIds(KnownIds, frozen=True):
    """Requests for approvals by their calls."""


class _DecisionIds(KnownIds, frozen=True):
    """Decisions by their calls."""


class CallIndex:
    """Messages and approvals are given by their places in the state's lists. The first index of a session looks through
    all of them, later ones through what has been added since.

    In an imported history several calls may have the same id. A result or an approval then belongs to the last of
    them before it.
    """

    def __init__(self, state: State) -> None:
        self._messages = state.messages
        self._notes = state.approvals
        self._calls = find_call_ids(state.messages)
        self._replies = find_ids(state.messages, _ReplyIds, _list_runs)
        self._results = find_ids(state.messages, _ResultIds, _list_answered)
        self._requests = find_ids(state.approvals, _RequestIds, _list_requested)
        self._decisions = find_ids(state.approvals, _DecisionIds, _list_decided)

    def count_turns(self, at: int) -> int:
        """Count the replies of its run before this one."""
        return bisect_left(self._replies.find(self._messages[at].run_id or ""), at)

    def find_reply(self, run_id: str, turn: int) -> int | None:
        replies = self._replies.find(run_id)
        return replies[turn] if turn < len(replies) else None

    def find_call(self, call_id: str, before: int) -> int | None:
        """The last message before that place that asks for a call of this id."""
        places = self._calls.find(call_id)
        later = bisect_left(places, before)
        return places[later - 1] if later else None

    def find_call_before_event(self, call_id: str, seq: int) -> int | None:
        """The last message before that event that asks for a call of this id."""
        return self.find_call(call_id, bisect_left(self._messages, seq, key=lambda entry: entry.seq))

    def list_results(self, call_id: str, call_at: int) -> tuple[int, ...]:
        """The results of the call that the message at `call_at` asks for, in order."""
        results = self._results.find(call_id)
        end = self._find_next_call(call_id, call_at)
        return results[bisect_left(results, call_at) : None if end is None else bisect_left(results, end)]

    def list_notes(self, call_id: str, call_at: int, *, asks: bool) -> tuple[int, ...]:
        """The approval requests (`asks`) or decisions for the call that the message at `call_at` asks for, in order."""
        notes = (self._requests if asks else self._decisions).find(call_id)
        end = self._find_next_call(call_id, call_at)
        first = self._skip_notes(notes, call_at)
        last = None if end is None else self._skip_notes(notes, end)
        return notes[first:last]

    def _skip_notes(self, notes: tuple[int, ...], at: int) -> int:
        """Count those of them before that message."""
        return bisect_left(notes, self._messages[at].seq, key=lambda note: self._notes[note].seq)

    def _find_next_call(self, call_id: str, call_at: int) -> int | None:
        places = self._calls.find(call_id)
        later = bisect_right(places, call_at)
        return places[later] if later < len(places) else None


def _list_runs(entry: Entry) -> Iterable[str]:
    return (entry.run_id,) if is_reply(entry) and entry.run_id is not None else ()


def _list_answered(entry: Entry) -> Iterable[str]:
    call_id = find_answered_call(entry) if entry.role == "tool" else None
    return () if call_id is None else (call_id,)


def _list_requested(note: ApprovalNote) -> Iterable[str]:
    return (note.call_id,) if note.approve is None else ()


def _list_decided(note: ApprovalNote) -> Iterable[str]:
    return () if note.approve is None else (note.call_id,)


# A session's items in order: messages, calls, and what was decided about them.

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
        """Tell if a call is the caller's. A run may have gone on with other functions than those it began with."""
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
    """List their places, in order, from that event on; those before the `first` are left out."""
    if order == "asc":
        return range(max(first, 0 if seq is None else bisect_left(items, seq, key=_get_seq)), len(items))
    end = len(items) if seq is None else bisect_right(items, seq, key=_get_seq)
    return range(end - 1, first - 1, -1)


def _get_seq(source: Entry | ApprovalNote) -> int:
    return source.seq


def _is_behind(listed: ListedItem, other: ListedItem, order: ItemOrder) -> bool:
    return listed.place > other.place if order == "asc" else listed.place < other.place


def _is_gone(entry: Entry, item: Json) -> bool:
    """Tell if a part of a message was taken out of it."""
    if item["type"] == "message":
        return entry.removed_content and entry.role == "assistant"
    return item.get("call_id") in entry.removed_calls


# Lists in OpenAI's shape: `limit`, `order` and `after`, the id of an item.

Include = Annotated[list[str] | None, QueryParameter(name="include", description="Has no effect.")]
IncludeList = Annotated[list[str] | None, QueryParameter(name="include[]", description="Has no effect.")]


class PageQuery(msgspec.Struct, frozen=True):
    """The page of a list that a caller asks for; it has at most `max_bytes`."""

    limit: int
    order: ItemOrder
    after: str | None
    max_bytes: int

    def take(self, items: Iterable[Json]) -> Json:
        """Make the page of the items that it begins with."""
        return make_page(items, limit=self.limit, max_bytes=self.max_bytes)

    def select(self, items: Sequence[Json]) -> Json:
        """Make the page of items that are given from the oldest on. Raises Refused."""
        ordered = list(items) if self.order == "asc" else list(reversed(items))
        if self.after is not None:
            ids = [item["id"] for item in ordered]
            if self.after not in ids:
                raise make_not_found("item", self.after, "after")
            ordered = ordered[ids.index(self.after) + 1 :]
        return self.take(ordered)

    def find_before(self, items: SessionItems) -> ListedItem | None:
        """Find the item that it comes after, which may be gone: a client that deletes what is on a page goes on behind
        that. Raises Refused."""
        before = None if self.after is None else items.find(self.after)
        if self.after is not None and before is None:
            raise make_not_found("item", self.after, "after")
        return before

    def take_items(self, items: SessionItems) -> Json:
        """Make the page of a session's items. Raises Refused."""
        return self.take(listed.item for listed in items.walk(self.order, self.find_before(items)))


def read_page_query(
    principal: NamedDependency[Principal],
    limit: Annotated[int, QueryParameter(ge=1, le=100, description="How many items a page holds.")] = 20,
    order: Annotated[
        ItemOrder, QueryParameter(description="The order of the items, by when they were added.")
    ] = "desc",
    after: Annotated[str | None, QueryParameter(description="The id of the item that the page comes after.")] = None,
) -> PageQuery:
    return PageQuery(limit, order, after, principal.reader.page_bytes)


def make_page(items: Iterable[Json], *, limit: int, max_bytes: int) -> Json:
    """A page of the first items; shorter than its limit if it would be too large. One more than it has is asked for."""
    page: list[Json] = []
    size, has_more = 0, False
    for item in items:
        size += measure_item(item)
        has_more = len(page) == limit or (bool(page) and size > max_bytes)
        if has_more:
            break
        page.append(item)
    return {
        "object": "list",
        "data": page,
        "first_id": page[0]["id"] if page else "",
        "last_id": page[-1]["id"] if page else "",
        "has_more": has_more,
    }
