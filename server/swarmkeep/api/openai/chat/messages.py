"""Messages of a request: what may be in each, and which of them are new to a session."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import Any

import msgspec

from swarmkeep.api.openai.errors import Refused
from swarmkeep.api.openai.items.content import read_assistant_content, read_text, read_text_output
from swarmkeep.domain.codec import Json
from swarmkeep.domain.history.window import STANDING_ROLES, list_standing
from swarmkeep.domain.state import State
from swarmkeep.domain.wording import join_text

# Of an answer that is sent back, what no model is sent again.
_LEFT_OUT = (
    "annotations",
    "parsed",
    "provider_specific_fields",
    "reasoning",
    "reasoning_content",
    "reasoning_details",
    "thinking_blocks",
)


class NewMessages(msgspec.Struct, frozen=True):
    """The messages that are input, and the place that each has in the request."""

    messages: list[Json]
    places: list[int]


def read_messages(messages: Sequence[Json]) -> list[Json]:
    """Each message with what is used of it. Raises Refused."""
    return [_read_message(message, f"messages[{place}]") for place, message in enumerate(messages)]


def _read_message(message: Json, param: str) -> Json:
    role = message.get("role")
    reader = _READERS.get(role) if isinstance(role, str) else None
    if reader is None:
        raise Refused(f"a message's role must be one of {', '.join(_READERS)}", f"{param}.role")
    read, known = reader
    for name, value in message.items():
        if name not in known and value is not None:
            raise Refused(f"a message with the role {role} cannot have {name[:64]!r}", f"{param}.{name[:64]}")
    found = {"role": role, **read(message, param)}
    if message.get("name") is not None:
        found["name"] = read_text(message, "name", param)
    return found


def _read_said(message: Json, param: str) -> Json:
    found = {"content": _read_content(message.get("content"), f"{param}.content")}
    return {**found, "images": message["images"]} if message.get("images") is not None else found


def _read_assistant(message: Json, param: str) -> Json:
    found = read_assistant_content(message.get("content"), f"{param}.content")
    if message.get("refusal") is not None:
        found["refusal"] = read_text(message, "refusal", param)
    calls = message.get("tool_calls")
    if calls:
        if not isinstance(calls, list):
            raise Refused("`tool_calls` must be a list", f"{param}.tool_calls")
        found["tool_calls"] = [_read_call(call, f"{param}.tool_calls[{place}]") for place, call in enumerate(calls)]
        # Null, as models say it: an empty text beside calls would be another message.
        found["content"] = found["content"] or None
    return found


def _read_call(call: Any, param: str) -> Json:
    match call:
        case {"id": str(call_id), "function": {"name": str(name), "arguments": str(arguments)}} if (
            call_id and call.get("type", "function") == "function"
        ):
            return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
        case _:
            raise Refused(
                "a call must have an `id`, the type `function`, and a `function` with name and arguments", param
            )


def _read_result(message: Json, param: str) -> Json:
    content = read_text_output(message.get("content"), f"{param}.content")
    return {"tool_call_id": read_text(message, "tool_call_id", param), "content": content}


_READERS: dict[str, tuple[Callable[[Json, str], Json], tuple[str, ...]]] = {
    "system": (_read_said, ("role", "content", "name")),
    "developer": (_read_said, ("role", "content", "name")),
    "user": (_read_said, ("role", "content", "name", "images")),
    "assistant": (_read_assistant, ("role", "content", "name", "refusal", "tool_calls", *_LEFT_OUT)),
    "tool": (_read_result, ("role", "content", "name", "tool_call_id")),
}


def _read_content(content: object, param: str) -> object:
    """Content as it is: a text, or parts, which are checked where messages of any door are."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not content:
        raise Refused("content must be a text, or a list of parts", param)
    for place, part in enumerate(content):
        if not isinstance(part, dict):
            raise Refused("a part must be an object with a `type`", f"{param}[{place}].type")
        if isinstance(part.get("file"), dict) and part["file"].get("file_id") is not None:
            raise Refused("send files as data, not by the id of an upload", f"{param}[{place}].file.file_id")
    return content


def split_history(messages: Sequence[Json]) -> int:
    """The number of messages up to and with the last of an assistant: a new session begins with these."""
    places = (place for place in range(len(messages), 0, -1) if messages[place - 1]["role"] == "assistant")
    return next(places, 0)


def find_new(messages: Sequence[Json], state: State) -> NewMessages:
    """The messages that are new to a session: all after the last answer, and leading instructions that it lacks."""
    begin = split_history(messages)
    leading = _count_leading(messages)
    known, given = _list_instructions(state), _list_given_results(state)
    places = [place for place in range(leading) if join_text(messages[place].get("content")) not in known]
    places += [
        place for place in range(max(begin, leading), len(messages)) if _identify_result(messages[place]) not in given
    ]
    return NewMessages([messages[place] for place in places], places)


def _count_leading(messages: Sequence[Json]) -> int:
    places = (place for place, message in enumerate(messages) if message["role"] not in STANDING_ROLES)
    return next(places, len(messages))


def _list_instructions(state: State) -> set[str]:
    """The texts that a session's system and developer messages have, those of queued runs included."""
    queued = (message for queued in state.queue for message in queued.fact.messages)
    messages = (*(entry.message for entry in list_standing(state.messages)), *queued)
    return {join_text(message.get("content")) for message in messages if message.get("role") in STANDING_ROLES}


def _list_given_results(state: State) -> set[tuple[Any, str]]:
    """The results of calls that runs have been given since the last completed run. A client that tries again after a
    failure has to send them again.
    """
    failed = takewhile(lambda run: run.status != "completed", reversed(state.finished))
    entries = ((run.id, entry) for run in failed for entry in state.messages[run.first_message : run.last_message])
    return {
        _identify_result(entry.message) for run_id, entry in entries if (entry.role, entry.run_id) == ("tool", run_id)
    }


def _identify_result(message: Json) -> tuple[Any, str]:
    """Identifies a result. Other messages have no `tool_call_id`, so they equal none."""
    return message.get("tool_call_id"), join_text(message.get("content"))
