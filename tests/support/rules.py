"""The rules of a strict Chat Completions server, written down again without the server's own code."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from typing import Any, NoReturn

from swarmkeep.events.codec import Json

_KEYS = {
    "system": {"role", "content", "name"},
    "developer": {"role", "content", "name"},
    "user": {"role", "content", "name"},
    "assistant": {"role", "content", "name", "refusal", "tool_calls"},
    "tool": {"role", "content", "tool_call_id"},
}
_BODY_KEYS = {
    "messages",
    "tools",
    "model",
    "tool_choice",
    "parallel_tool_calls",
    "stream",
    "stream_options",
    "response_format",
    "temperature",
    "top_p",
    "seed",
    "stop",
    "max_tokens",
    "max_completion_tokens",
    "reasoning_effort",
    "logit_bias",
}
_FUNCTION_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_AUTHOR_NAME = re.compile(r"[^\s<|\\/>]{1,64}")


def find_faults(messages: object) -> list[str]:
    """Whatever is wrong with the messages of a request; empty if a strict server would take them."""
    return list(_check_messages(messages))


def find_body_faults(body: bytes) -> list[str]:
    """Whatever is wrong with the bytes of a request."""
    try:
        request = parse_strict_json(body.decode("utf-8"))
    except (UnicodeDecodeError, ValueError) as error:
        return [f"the body is not JSON in UTF-8: {error}"]
    if not isinstance(request, dict):
        return ["the body is not an object"]
    return [*_check_body(request), *find_faults(request.get("messages"))]


def parse_strict_json(text: str) -> Any:
    """Parse JSON as it is defined: each key of an object once, no NaN, no number that a double cannot hold."""
    return json.loads(
        text, parse_constant=_reject_constant, parse_float=_parse_finite, object_pairs_hook=_check_unique_keys
    )


def is_same(left: object, right: object) -> bool:
    """Equal, and of the same types all the way down: 1, 1.0 and True differ, and so do 0.0 and -0.0."""
    if type(left) is not type(right):
        return False
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(is_same(left[key], right[key]) for key in left)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(is_same, left, right))
    return repr(left) == repr(right)


def _reject_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _parse_finite(text: str) -> float:
    if math.isinf(number := float(text)):
        raise ValueError(f"{text} is out of range")
    return number


def _check_unique_keys(pairs: list[tuple[str, Any]]) -> Json:
    if len({key for key, _ in pairs}) < len(pairs):
        raise ValueError("a key is there twice")
    return dict(pairs)


def _check_body(request: Json) -> Iterator[str]:
    if unknown := request.keys() - _BODY_KEYS:
        yield f"the body has keys that no server knows: {sorted(unknown)}"
    if not isinstance(request.get("model"), str) or not request["model"]:
        yield "the body names no model"
    tools = request.get("tools")
    if "tools" in request and not (isinstance(tools, list) and tools):
        yield "tools are neither a list with an item nor left out"
    if "tools" not in request and request.keys() & {"tool_choice", "parallel_tool_calls"}:
        yield "an option about tools without tools"
    if "stream_options" in request and request.get("stream") is not True:
        yield "stream_options without stream"


def _check_messages(messages: object) -> Iterator[str]:
    if not isinstance(messages, list) or not messages:
        yield "no list of messages"
        return
    owed: list[str] = []
    for index, message in enumerate(messages):
        if not isinstance(message, dict) or message.get("role") not in _KEYS:
            yield f"message {index} has no known role: {message!r}"
            continue
        yield from (f"message {index} ({message['role']}): {fault}" for fault in _check_message(message))
        if message["role"] == "tool":
            answered = message.get("tool_call_id")
            if not owed or owed[0] != answered:
                yield f"message {index}: the result of {answered!r} where {owed[:1] or 'no result'} is due"
            owed = owed[1:]
            continue
        if owed:
            yield f"message {index} comes before the results of {owed}"
        owed = [call.get("id") for call in message.get("tool_calls", ()) if isinstance(call, dict)]
    if owed:
        yield f"the messages end before the results of {owed}"


def _check_message(message: Json) -> Iterator[str]:
    role = message["role"]
    if unknown := message.keys() - _KEYS[role]:
        yield f"keys that are not allowed: {sorted(unknown)}"
    yield from _check_content(role, message)
    if "name" in message and not _matches(_AUTHOR_NAME, message["name"]):
        yield f"the name {message['name']!r}"
    if "refusal" in message and not isinstance(message["refusal"], str):
        yield "a refusal that is not text"
    if role == "tool" and not isinstance(message.get("tool_call_id"), str):
        yield "a result without the id of its call"
    if "tool_calls" in message:
        yield from _check_calls(message["tool_calls"])
    yield from (f"a lone surrogate in {text!r}" for text in _iterate_texts(message) if _has_surrogate(text))


def _check_content(role: str, message: Json) -> Iterator[str]:
    content = message.get("content")
    if content is None:
        if role != "assistant" or not message.get("tool_calls") or "content" not in message:
            yield "no content"
    elif isinstance(content, list):
        if not content:
            yield "an empty list as content"
        yield from (f"the part {part!r}" for part in content if not _is_part(role, part))
    elif not isinstance(content, str):
        yield f"content of type {type(content).__name__}"


def _is_part(role: str, part: object) -> bool:
    """Whether it has exactly what the type of a part has, and the type is one that the role may have."""
    match part:
        case {"type": "text", "text": str(), **rest}:
            return not rest
        case {"type": "refusal", "refusal": str(), **rest}:
            return not rest and role == "assistant"
        case {"type": "image_url", "image_url": {"url": str(), **more}, **rest}:
            return not rest and role == "user" and set(more) <= {"detail"}
        case {"type": "input_audio", "input_audio": {"data": str(), "format": str(), **more}, **rest}:
            return not rest and not more and role == "user"
        case {"type": "file", "file": {"file_data": str(), **more}, **rest}:
            return not rest and role == "user" and set(more) <= {"filename"}
        case {"type": "file", "file": {"file_id": str(), **more}, **rest}:
            return not rest and role == "user" and set(more) <= {"filename"}
        case _:
            return False


def _check_calls(calls: object) -> Iterator[str]:
    if not isinstance(calls, list) or not calls:
        yield "tool_calls without a call"
        return
    ids = [call.get("id") if isinstance(call, dict) else None for call in calls]
    if len(set(map(repr, ids))) < len(ids):
        yield f"a call's id is there twice: {ids}"
    for call in calls:
        yield from (f"call {call!r}: {fault}" for fault in _check_call(call))


def _check_call(call: object) -> Iterator[str]:
    if not isinstance(call, dict) or call.keys() != {"id", "type", "function"} or call["type"] != "function":
        yield "not id, type and function"
        return
    if not isinstance(call["id"], str):
        yield "an id that is not text"
    function = call["function"]
    if not isinstance(function, dict) or function.keys() != {"name", "arguments"}:
        yield "not name and arguments"
        return
    if not _matches(_FUNCTION_NAME, function["name"]):
        yield f"the name {function['name']!r}"
    try:
        arguments = json.loads(function["arguments"], parse_constant=_reject_constant, parse_float=_parse_finite)
    except (TypeError, ValueError, RecursionError) as error:
        yield f"arguments that are not JSON: {error}"
    else:
        if not isinstance(arguments, dict):
            yield "arguments that are not an object"


def _matches(pattern: re.Pattern[str], name: object) -> bool:
    return isinstance(name, str) and pattern.fullmatch(name) is not None


def _iterate_texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _iterate_texts(key)
            yield from _iterate_texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from _iterate_texts(item)


def _has_surrogate(text: str) -> bool:
    return any("\ud800" <= character <= "\udfff" for character in text)
