"""Makes items of messages and calls, with the same ids in streams, lists and responses."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import msgspec

from swarmkeep.api.openai.items.content import show_input_content, show_output_text, show_refusal
from swarmkeep.api.openai.items.ids import ItemPlace
from swarmkeep.domain.codec import Json
from swarmkeep.domain.messages import Entry, read_tool_calls
from swarmkeep.domain.run_options import RunOptions
from swarmkeep.domain.wording import join_text

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
        """Where the next reply of a run will stand."""
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
    """Whether it is a model's reply, so that its place is that of a run's turn."""
    return entry.role == "assistant" and entry.completion is not None and entry.run_id is not None


def is_callers(name: str, options: RunOptions) -> bool:
    """Whether a call of this function is the caller's to carry out."""
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
