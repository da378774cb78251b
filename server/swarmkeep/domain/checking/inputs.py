"""Checking what callers send: session ids, messages, JSON objects."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

import msgspec

from swarmkeep.agent import NotJsonError
from swarmkeep.agent.values import copy_plain_object
from swarmkeep.domain.checking.refusals import ID_RULE, make_invalid_request
from swarmkeep.domain.codec import Json
from swarmkeep.domain.errors import InvalidRequest, TooLarge
from swarmkeep.domain.messages import Entry, find_stray_result
from swarmkeep.domain.parts import convert_message
from swarmkeep.domain.wording import pluralize

# Not "." or "..": clients take these out of a URL's path, so that such a session could never be reached.
_SESSION_ID = re.compile(r"(?!\.{1,2}\Z)[A-Za-z0-9._:-]{1,128}", re.ASCII)
# Of the sessions in which agents are asked by others. Nobody else gives such ids.
CHILD_PREFIX = "subsess"


class _Function(msgspec.Struct):
    name: str
    arguments: str


class _ToolCall(msgspec.Struct):
    id: str
    function: _Function
    type: Literal["function"] = "function"


class _Message(msgspec.Struct):
    """The shape of a Chat Completions message, so far as this server relies on it; other keys are kept as they are."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[Json] | None = None
    name: str | None = None
    sender: str | None = None
    tool_calls: list[_ToolCall] | None = None
    tool_call_id: str | None = None


def check_id(session_id: str, pointer: str = "/id") -> str:
    if not _SESSION_ID.fullmatch(session_id):
        raise InvalidRequest(ID_RULE, pointer)
    return session_id


def check_new_id(session_id: str, pointer: str = "/id") -> str:
    """An id that a caller may give to a session."""
    if session_id.startswith(f"{CHILD_PREFIX}_"):
        raise InvalidRequest(
            f"ids that begin with {CHILD_PREFIX}_ are reserved for sessions that agents begin", pointer
        )
    return check_id(session_id, pointer)


def check_object(value: Json, pointer: str) -> Json:
    """The object itself, if it is JSON of bearable depth."""
    try:
        return copy_plain_object(value, pointer)
    except NotJsonError as error:
        raise InvalidRequest(str(error), pointer) from error


def check_messages(value: str | list[Json], pointer: str, max_messages: int | None = None) -> tuple[Json, ...]:
    """Return messages as they are kept, with parts of Chat Completions only; a string is one message of the user.

    Raises InvalidRequest and TooLarge.
    """
    if isinstance(value, str):
        return ({"role": "user", "content": value},)
    if max_messages is not None and len(value) > max_messages:
        raise TooLarge(f"{pointer} has more than {pluralize(max_messages, 'message')} (SWARMKEEP_MAX_MESSAGES)")
    return tuple(_check_message(message, f"{pointer}/{index}") for index, message in enumerate(value))


def _check_message(message: Json, pointer: str) -> Json:
    try:
        shape = msgspec.convert(message, _Message)
    except msgspec.ValidationError as error:
        raise make_invalid_request(error, _Message, pointer) from error
    if shape.role == "tool" and not shape.tool_call_id:
        raise InvalidRequest("a tool message needs a tool_call_id", f"{pointer}/tool_call_id")
    converted = convert_message(check_object(message, pointer), pointer)
    if shape.role in ("user", "system", "developer", "tool") and converted.get("content") is None:
        raise InvalidRequest(f"a {shape.role} message needs content", f"{pointer}/content")
    return converted


def refuse_stray_results(messages: Sequence[Json], pointer: str, history: Sequence[Entry] = ()) -> None:
    """Refuse a tool message that answers no open call of what comes before it: no model would be sent it."""
    place = find_stray_result(messages, history)
    if place is not None:
        call_id = messages[place].get("tool_call_id")
        raise InvalidRequest(
            f"there is no open call {call_id!r} that this tool message could answer", f"{pointer}/{place}"
        )
