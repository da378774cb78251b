"""Checking what callers send: session ids, messages, JSON objects."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Literal

import msgspec
from msgspec import inspect

from swarmkeep.agent import NotJsonError
from swarmkeep.agent.output import OutputTypeError, check_schema
from swarmkeep.agent.values import (
    ModelProfileError,
    ModelSettingsError,
    check_model_profile,
    check_model_settings,
    check_response_format,
    copy_plain_object,
)
from swarmkeep.events.codec import Json, encode
from swarmkeep.events.errors import InvalidRequest, TooLarge, quote
from swarmkeep.events.messages import Entry, find_stray_result
from swarmkeep.events.model_profiles import hide_attached
from swarmkeep.events.parts import convert_message
from swarmkeep.events.records import CallerTool
from swarmkeep.events.state import CHILD_PREFIX
from swarmkeep.events.wording import pluralize

# Words for values that do not have the shape they should have: where they are, and what may stand there.

ID_RULE = "an id must have 1 to 128 of the characters A-Z a-z 0-9 . _ : - and must not be '.' or '..'"

_WRONG_CHOICE = "Invalid enum value"
_QUOTED_FIELD = re.compile(r" field `([^`]*)`")
_PATH_STEP = re.compile(r"\.(\w+)|\[(\d+)\]")


def make_invalid_request(error: msgspec.ValidationError, type_: Any, pointer: str = "") -> InvalidRequest:
    """The refusal of a value, below `pointer`, that does not have the shape of `type_`."""
    detail, _, place = str(error).partition(" - at `")
    # `$.path`, or of one of an object's keys: `key` in `$.path`.
    is_key = place.startswith("key` in `")
    known, is_deeper, _ = place.partition("$")[2].partition("[...]")
    steps = [name or index for name, index in _PATH_STEP.findall(known)]
    pointer += "".join(f"/{step}" for step in steps)
    where = pointer
    if (named := _QUOTED_FIELD.search(detail)) is not None:
        pointer += f"/{named[1]}"
    if pointer == "/id" and "matching regex" in detail:
        return InvalidRequest(ID_RULE, pointer)
    if detail.startswith("Expected `null`, got"):
        return InvalidRequest(f"'{pointer.rpartition('/')[2]}' is not supported here; leave it out", pointer)
    if is_key:
        detail = f"a key: {detail}"
    elif detail.startswith(_WRONG_CHOICE) and not is_deeper:
        detail = add_choices(detail, type_, steps)
    return InvalidRequest(detail.replace("`", "'"), pointer, place=_name_place(where))


def add_choices(detail: str, type_: Any, steps: Sequence[str] = ()) -> str:
    """Describe the fault of a value, and if it is none of several known ones, list these."""
    choices = _list_choices(inspect.type_info(type_), steps) if detail.startswith(_WRONG_CHOICE) else []
    return f"{detail}; known: {', '.join(choices)}" if choices else detail


def _list_choices(shape: inspect.Type, steps: Sequence[str]) -> list[str]:
    """The values that may stand at a place in a value of this shape, if they are a few known ones."""
    match shape:
        case inspect.UnionType(types=types):
            return [choice for each in types for choice in _list_choices(each, steps)]
        case inspect.LiteralType(values=values) if not steps:
            return [str(value) for value in values]
        case inspect.ListType(item_type=item) | inspect.VarTupleType(item_type=item) if steps:
            return _list_choices(item, steps[1:])
        case inspect.StructType(fields=fields) if steps:
            found = (field.type for field in fields if field.encode_name == steps[0])
            return [choice for each in found for choice in _list_choices(each, steps[1:])]
        case _:
            return []


def _name_place(pointer: str) -> str:
    """`/input/0/role` as people write it: `input[0].role`."""
    steps = pointer.removeprefix("/").split("/")
    return "".join(f"[{step}]" if step.isdecimal() else f".{step}" for step in steps).removeprefix(".")


# Not "." or "..": clients take these out of a URL's path, so that such a session could never be reached.
_SESSION_ID = re.compile(r"(?!\.{1,2}\Z)[A-Za-z0-9._:-]{1,128}", re.ASCII)


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
    # Models alone attach something to their messages: it is sent back to them, and no guardrail looks at it.
    converted = convert_message(hide_attached(check_object(message, pointer)), pointer)
    if shape.role in ("user", "system", "developer", "tool") and converted.get("content") is None:
        raise InvalidRequest(f"a {shape.role} message needs content", f"{pointer}/content")
    return converted


def refuse_stray_results(messages: Sequence[Json], pointer: str, history: Sequence[Entry] = ()) -> None:
    """Refuse a tool message that answers no open call of what comes before it: no model would be sent it."""
    place = find_stray_result(messages, history)
    if place is not None:
        call_id = messages[place].get("tool_call_id")
        said = f"there is no open call {quote(call_id)} that this tool message could answer"
        raise InvalidRequest(said, f"{pointer}/{place}")


# Checking the functions that a caller brings to a run.

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}", re.ASCII)
# As many as providers take in one request.
_MAX_TOOLS = 128
# They are recorded with the run, and sent with each of its model calls.
_MAX_BYTES = 262_144

MAX_CHOSEN = 1_000
"""Names in a choice between some: the agents' own, those of their servers and the caller's together are fewer."""
_CHOICES = ("auto", "none", "required")


def check_tools(tools: Sequence[Json], pointer: str = "/tools") -> tuple[CallerTool, ...]:
    """The functions, in the form of Chat Completions. Raises InvalidRequest and TooLarge."""
    if len(tools) > _MAX_TOOLS:
        raise TooLarge(f"{pointer} has more than {_MAX_TOOLS} functions")
    checked: dict[str, CallerTool] = {}
    for place, tool in enumerate(tools):
        here = f"{pointer}/{place}"
        found = _check_tool(check_object(tool, here), here)
        if checked.setdefault(found.function.name, found) is not found:
            raise InvalidRequest(f"two functions are called {found.function.name!r}", f"{here}/function/name")
    if len(encode(list(checked.values()))) > _MAX_BYTES:
        raise TooLarge(f"{pointer} would have more than {_MAX_BYTES} bytes as JSON")
    return tuple(checked.values())


def _check_tool(tool: Json, pointer: str) -> CallerTool:
    try:
        found = msgspec.convert(tool, CallerTool)
    except msgspec.ValidationError as error:
        raise make_invalid_request(error, CallerTool, pointer) from error
    if not _NAME.fullmatch(found.function.name):
        detail = "a function's name must have 1 to 64 of the characters a-z A-Z 0-9 _ -"
        raise InvalidRequest(detail, f"{pointer}/function/name")
    return found


def check_tool_choice(choice: str | Json, pointer: str = "/tool_choice") -> str | Json:
    """`auto`, `none`, `required`, or an object that names a function. Raises InvalidRequest."""
    if isinstance(choice, str):
        if choice not in _CHOICES:
            raise InvalidRequest(f"`tool_choice` must be one of {', '.join(_CHOICES)}, or name a function", pointer)
        return choice
    if not isinstance(choice.get("type"), str):
        raise InvalidRequest("`tool_choice` needs a `type`", pointer)
    allowed = choice.get("allowed_tools")
    tools = allowed.get("tools") if isinstance(allowed, dict) else None
    if isinstance(tools, list) and len(tools) > MAX_CHOSEN:
        raise InvalidRequest(f"a choice may name at most {MAX_CHOSEN} tools", f"{pointer}/allowed_tools/tools")
    return check_object(choice, pointer)


# Checking what a run asks of its model: parameters of the request, and the form of the answer.


def check_settings(settings: Json, pointer: str = "/model_settings") -> Json:
    """Raises InvalidRequest."""
    try:
        return check_model_settings(settings)
    except ModelSettingsError as error:
        raise InvalidRequest(str(error), f"{pointer}/{error.name}".rstrip("/")) from error


def check_profile(profile: Json, pointer: str = "/model_profile") -> Json:
    """Raises InvalidRequest."""
    try:
        return check_model_profile(profile)
    except ModelProfileError as error:
        raise InvalidRequest(str(error), f"{pointer}/{error.name}".rstrip("/")) from error


def check_format(response_format: Json, pointer: str = "/response_format") -> Json:
    """Raises InvalidRequest; also for a schema that is none, or is too large once its references are followed."""
    try:
        checked = check_response_format(response_format)
    except ModelSettingsError as error:
        raise InvalidRequest(str(error), f"{pointer}/{error.name}".rstrip("/")) from error
    schema = checked.get("json_schema", {}).get("schema")
    try:
        if schema is not None:
            check_schema(schema, "the schema")
    except OutputTypeError as error:
        raise InvalidRequest(str(error), f"{pointer}/json_schema/schema") from error
    return checked
