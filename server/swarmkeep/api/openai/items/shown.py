"""Messages and calls as items, with the same ids in streams, lists and responses."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from swarmkeep.api.openai.items.content import join_text, show_input_content, show_output_text, show_refusal
from swarmkeep.api.openai.items.ids import ItemPlace
from swarmkeep.domain.codec import Json
from swarmkeep.domain.messages import Entry, read_tool_calls
from swarmkeep.domain.state import Run

# How a call ended that has an output; any other end is an error.
_WITH_OUTPUT = ("ok", "superseded", "external")


class ShownCall(msgspec.Struct, frozen=True):
    """A call that a model asked for. One `outside` is carried out by the caller, any other is the agent's own."""

    place: ItemPlace
    call_id: str
    name: str
    arguments: str
    agent: str
    outside: bool


class ItemReader:
    """Makes items of a session's messages, which it is given in order, from those of a run's first on.

    `is_outside` tells the caller's functions by their names.
    """

    def __init__(self, session_id: str) -> None:
        self._session_id = session_id
        self._turns: dict[str, int] = {}
        self.calls: dict[str, ShownCall] = {}
        self.asked: set[str] = set()
        """The calls that an approval was asked for."""

    def read(self, entry: Entry, is_outside: Callable[[str, str], bool]) -> list[Json]:
        """`is_outside` is asked with the id and the name of a call."""
        match entry.role:
            case "assistant":
                return self._read_reply(entry, is_outside)
            case "tool":
                return self._read_result(entry)
            case _:
                return [self.make_message(entry)]

    def next_place(self, run_id: str) -> ItemPlace:
        """Where the next reply of a run will stand."""
        return ItemPlace(self._session_id, run_id=run_id, turn=self._turns.get(run_id, 0))

    def make_message(self, entry: Entry) -> Json:
        place = ItemPlace(self._session_id, seq=entry.seq)
        content = show_input_content(entry.message.get("content"))
        return {
            "id": place.make_id("msg"),
            "type": "message",
            "status": "completed",
            "role": entry.role or "user",
            "content": content,
        }

    def _read_reply(self, entry: Entry, is_outside: Callable[[str, str], bool]) -> list[Json]:
        if entry.completion is None or entry.run_id is None:
            place = ItemPlace(self._session_id, seq=entry.seq)
        else:
            place = self.next_place(entry.run_id)
            self._turns[entry.run_id] = place.turn + 1
        calls = read_tool_calls(entry.message)
        items = [show_reply(place, entry)] if show_reply_content(entry) or not calls else []
        sender = entry.message.get("sender")
        agent = sender if isinstance(sender, str) else ""
        for index, (call_id, name, arguments) in enumerate(calls):
            outside = entry.completion is None or is_outside(call_id, name)
            call = ShownCall(place.at_call(index), call_id, name, arguments, agent, outside)
            self.calls[call_id] = call
            if outside:
                items.append(show_function_call(call))
        return items

    def _read_result(self, entry: Entry) -> list[Json]:
        call_id = entry.message.get("tool_call_id")
        call = self.calls.get(call_id) if isinstance(call_id, str) else None
        if call is not None and entry.tool is not None and entry.tool.output is True:
            # The agent's answer is what this call was given.
            return [make_message_item(call.place.make_id("msg"), "completed", [show_output_text(call.arguments)])]
        if call is not None and not call.outside:
            return [show_mcp_call(call, entry, asked=call.call_id in self.asked)]
        place = ItemPlace(self._session_id, seq=entry.seq) if call is None else call.place
        return [
            {
                "id": place.make_id("fco"),
                "type": "function_call_output",
                "status": "completed",
                "call_id": str(call_id),
                "output": join_text(entry.message.get("content")),
            }
        ]


def show_reply_content(entry: Entry) -> list[Json]:
    text, refusal = join_text(entry.message.get("content")), entry.message.get("refusal")
    parts = [show_output_text(text)] if text else []
    return parts + ([show_refusal(refusal)] if isinstance(refusal, str) and refusal else [])


def show_reply(place: ItemPlace, entry: Entry) -> Json:
    """A model's words; cut off where the model was."""
    completion = entry.completion
    cut_off = completion is not None and (
        completion.partial is True or completion.finish_reason in ("length", "content_filter")
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


def show_function_call(call: ShownCall, *, status: str = "completed", arguments: str | None = None) -> Json:
    return {
        "id": call.place.make_id("fc"),
        "type": "function_call",
        "status": status,
        "call_id": call.call_id,
        "name": call.name,
        "arguments": call.arguments if arguments is None else arguments,
    }


def show_mcp_call(call: ShownCall, entry: Entry, *, asked: bool) -> Json:
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
        "approval_request_id": call.place.make_id("mcpr") if asked else None,
        "output": None if failed else text,
        "error": error,
    }


def show_approval_request(call: ShownCall) -> Json:
    return {
        "id": call.place.make_id("mcpr"),
        "type": "mcp_approval_request",
        "server_label": call.agent,
        "name": call.name,
        "arguments": call.arguments,
    }


def show_approval_response(call: ShownCall, approve: bool, reason: str | None) -> Json:
    return {
        "id": call.place.make_id("mcpa"),
        "type": "mcp_approval_response",
        "approval_request_id": call.place.make_id("mcpr"),
        "approve": approve,
        "reason": reason,
    }


def make_outside_test(run: Run | None, answered_outside: Iterable[str] = ()) -> Callable[[str, str], bool]:
    """Tells a run's calls that are the caller's to carry out."""
    if run is None:
        return lambda call_id, name: True
    if not run.options.execute_tools:
        return lambda call_id, name: True
    names, ids = run.options.caller_tool_names, frozenset(answered_outside)
    return lambda call_id, name: name in names or call_id in ids
