"""Checks messages as a strict Chat Completions provider does; repairs nothing."""

import re
from collections.abc import Mapping
from typing import Any

MESSAGE_KEYS: Mapping[str, frozenset[str]] = {
    "system": frozenset({"role", "content", "name"}),
    "developer": frozenset({"role", "content", "name"}),
    "user": frozenset({"role", "content", "name"}),
    "assistant": frozenset({"role", "content", "name", "refusal", "audio", "function_call", "tool_calls"}),
    "tool": frozenset({"role", "content", "tool_call_id"}),
    "function": frozenset({"role", "content", "name"}),
}
PART_TYPES: Mapping[str, frozenset[str]] = {
    "system": frozenset({"text"}),
    "developer": frozenset({"text"}),
    "user": frozenset({"text", "image_url", "input_audio", "file"}),
    "assistant": frozenset({"text", "refusal"}),
    "tool": frozenset({"text"}),
    "function": frozenset(),
}
_CALL_KEYS = frozenset({"id", "type", "function"})
_FUNCTION_KEYS = frozenset({"name", "arguments"})
_FUNCTION_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_AUTHOR_NAME = re.compile(r"[^\s<|\\/>]{1,64}")


def find_message_problems(messages: list[dict[str, Any]]) -> list[str]:
    """Everything in a list of messages that a strict provider would refuse, in order; empty if it is valid.

    Checked: roles, the keys each role allows, the types of all values, the characters of names, and the order of tool
    calls and results: each call of an assistant message is followed by exactly one tool message with its id before any
    other message, and no tool message stands without its call. Never raises, whatever it is given.
    """
    if not isinstance(messages, list):
        return ["messages: must be a list"]
    if not messages:
        return ["messages: must hold at least one message"]
    found: list[str] = []
    waiting: dict[str, bool] = {}  # call id -> answered, of the assistant message that tool messages now answer
    calling = -1
    for index, message in enumerate(messages):
        if not waiting and _is_plain_text(message):
            continue
        role = message.get("role") if isinstance(message, dict) else None
        if role == "tool":
            _check_answer(index, message, waiting, found)
        elif waiting:
            _check_all_answered(calling, waiting, found)
            waiting = {}
        if not isinstance(message, dict) or not isinstance(role, str) or role not in MESSAGE_KEYS:
            found.append(_describe_unreadable(index, message, role))
            continue
        _check_message(index, role, message, found)
        if "tool_calls" in message and role == "assistant":
            calling, waiting = index, _check_calls(index, message["tool_calls"], found)
    _check_all_answered(calling, waiting, found)
    return found


# Long histories are mostly made of messages and calls in their simplest form: those two are recognised quickly.


def _is_plain_text(message: Any) -> bool:
    return (
        isinstance(message, dict)
        and len(message) == 2
        and message.get("role") in ("user", "assistant", "system", "developer")
        and isinstance(message.get("content"), str)
    )


def _is_plain_call(call: Any) -> bool:
    if not isinstance(call, dict) or len(call) != 3 or call.get("type") != "function" or not call.get("id"):
        return False
    function = call.get("function")
    return (
        isinstance(call["id"], str)
        and isinstance(function, dict)
        and len(function) == 2
        and isinstance(function.get("arguments"), str)
        and isinstance(function.get("name"), str)
        and _FUNCTION_NAME.fullmatch(function["name"]) is not None
    )


def _describe_unreadable(index: int, message: object, role: object) -> str:
    if not isinstance(message, dict):
        return f"messages[{index}]: must be an object"
    return f"messages[{index}].role: {role!r} is not one of {', '.join(MESSAGE_KEYS)}"


def _check_answer(index: int, message: dict[str, Any], waiting: dict[str, bool], found: list[str]) -> None:
    call_id = message.get("tool_call_id")
    if not isinstance(call_id, str) or not call_id:
        found.append(f"messages[{index}].tool_call_id: must be a non-empty string")
    elif call_id not in waiting:
        found.append(f"messages[{index}]: tool message for {call_id!r} answers no call of the preceding tool_calls")
    elif waiting[call_id]:
        found.append(f"messages[{index}]: a second tool message for {call_id!r}")
    else:
        waiting[call_id] = True


def _check_all_answered(calling: int, waiting: dict[str, bool], found: list[str]) -> None:
    for call_id, answered in waiting.items():
        if not answered:
            found.append(f"messages[{calling}]: tool call {call_id!r} is not followed by a tool message with its id")


def _check_message(index: int, role: str, message: dict[str, Any], found: list[str]) -> None:
    if not message.keys() <= MESSAGE_KEYS[role]:
        unknown = ", ".join(repr(key) for key in message if key not in MESSAGE_KEYS[role])
        found.append(f"messages[{index}]: unknown key {unknown} in a message of role {role!r}")
    if not isinstance(message.get("content"), str):
        _check_content(f"messages[{index}].content", role, message, found)
    if role == "assistant" and ("refusal" in message or "audio" in message or "function_call" in message):
        _check_extras(index, message, found)
    if "name" in message or role == "function":
        _check_author(index, message.get("name"), found)


def _check_author(index: int, name: object, found: list[str]) -> None:
    if not isinstance(name, str) or not _AUTHOR_NAME.fullmatch(name):
        found.append(f"messages[{index}].name: must be 1 to 64 characters without spaces or < | \\ / >")


def _check_content(where: str, role: str, message: dict[str, Any], found: list[str]) -> None:
    content = message.get("content")
    if content is None:
        _check_absence(where, role, message, found)
    elif not isinstance(content, list) or role == "function":
        found.append(f"{where}: must be a string{'' if role == 'function' else ' or a list of parts'}")
    elif not content:
        found.append(f"{where}: a list of parts must not be empty")
    else:
        for number, part in enumerate(content):
            _check_part(f"{where}[{number}]", role, part, found)


def _check_absence(where: str, role: str, message: dict[str, Any], found: list[str]) -> None:
    if role == "assistant":
        if not any(message.get(key) is not None for key in ("tool_calls", "function_call", "refusal", "audio")):
            found.append(f"{where}: an assistant message needs content or tool_calls")
    elif role != "function" or "content" not in message:
        found.append(f"{where}: must be a string, not {'null' if 'content' in message else 'absent'}")


def _check_part(where: str, role: str, part: object, found: list[str]) -> None:
    kind = part.get("type") if isinstance(part, dict) else None
    if not isinstance(part, dict) or not isinstance(kind, str) or kind not in PART_TYPES[role]:
        found.append(f"{where}: must be a part of type {', '.join(sorted(PART_TYPES[role]))}")
        return
    value = part.get(kind)
    wanted: type = str if kind in ("text", "refusal") else dict
    if not isinstance(value, wanted):
        found.append(f"{where}.{kind}: must be {'a string' if wanted is str else 'an object'}")


def _check_extras(index: int, message: dict[str, Any], found: list[str]) -> None:
    for key, wanted, words in (("refusal", str, "a string"), ("audio", dict, "an object")):
        value = message.get(key)
        if value is not None and not isinstance(value, wanted):
            found.append(f"messages[{index}].{key}: must be {words} or null")
    if message.get("function_call") is not None:
        _check_function(f"messages[{index}].function_call", message["function_call"], found)


def _check_calls(index: int, calls: object, found: list[str]) -> dict[str, bool]:
    """The ids that must be answered, none of them yet."""
    where = f"messages[{index}].tool_calls"
    if not isinstance(calls, list) or not calls:
        found.append(f"{where}: must be a list with at least one call, or left out")
        return {}
    waiting: dict[str, bool] = {}
    for number, call in enumerate(calls):
        if _is_plain_call(call) and call["id"] not in waiting:
            waiting[call["id"]] = False
            continue
        at = f"{where}[{number}]"
        if not isinstance(call, dict):
            found.append(f"{at}: must be an object")
            continue
        if call.keys() != _CALL_KEYS:
            found.append(f"{at}: must have exactly the keys id, type and function, has {', '.join(map(str, call))}")
        if call.get("type") != "function":
            found.append(f"{at}.type: must be 'function'")
        _check_function(f"{at}.function", call.get("function"), found)
        call_id = call.get("id")
        if not isinstance(call_id, str) or not call_id:
            found.append(f"{at}.id: must be a non-empty string")
        elif call_id in waiting:
            found.append(f"{at}.id: {call_id!r} is used twice in one message")
        else:
            waiting[call_id] = False
    return waiting


def _check_function(where: str, function: object, found: list[str]) -> None:
    if not isinstance(function, dict):
        found.append(f"{where}: must be an object")
        return
    if function.keys() != _FUNCTION_KEYS:
        found.append(f"{where}: must have exactly the keys name and arguments, has {', '.join(map(str, function))}")
    check_function_name(where, function.get("name"), found)
    if not isinstance(function.get("arguments"), str):
        found.append(f"{where}.arguments: must be a string")


def check_function_name(where: str, name: object, found: list[str]) -> None:
    if not isinstance(name, str) or not _FUNCTION_NAME.fullmatch(name):
        found.append(f"{where}.name: must be 1 to 64 letters, digits, underscores or dashes")
