"""Checks a whole request as a strict provider does: messages, tools, and the options that depend on them."""

from collections.abc import Callable
from typing import Any

from swarmkeep.engine.models.offline.message_rules import check_function_name, find_message_problems


def find_request_problems(body: object) -> list[str]:
    """Like `problems`, of a whole request body: also the model, the tools and the options that depend on them."""
    if not isinstance(body, dict):
        return ["body: must be an object"]
    found: list[str] = []
    if not isinstance(body.get("model"), str) or not body["model"]:
        found.append("model: must be a non-empty string")
    names = _check_tools(body["tools"], found) if body.get("tools") is not None else []
    _check_options(body, names, found)
    return found + find_message_problems(body.get("messages", []))


def _check_tools(tools: object, found: list[str]) -> list[str]:
    if not isinstance(tools, list) or not tools:
        found.append("tools: must be a list with at least one tool, or left out")
        return []
    names: list[str] = []
    for index, tool in enumerate(tools):
        function = tool.get("function") if isinstance(tool, dict) else None
        if not isinstance(tool, dict) or tool.get("type") != "function" or not isinstance(function, dict):
            found.append(f"tools[{index}]: must be an object with type 'function' and a function")
            continue
        check_function_name(f"tools[{index}].function", function.get("name"), found)
        for key, wanted, words in (("description", str, "a string"), ("parameters", dict, "an object")):
            if not isinstance(function.get(key, wanted()), wanted):
                found.append(f"tools[{index}].function.{key}: must be {words}")
        if function.get("name") in names:
            found.append(f"tools[{index}].function.name: {function['name']!r} is used twice")
        names.append(function.get("name", ""))
    return names


def _check_options(body: dict[str, Any], names: list[str], found: list[str]) -> None:
    for key in ("tool_choice", "parallel_tool_calls"):
        if body.get(key) is not None and not names and body.get("tools") is None:
            found.append(f"{key}: only allowed when tools are given")
    _check_tool_choice(body.get("tool_choice"), names, found)
    checks: tuple[tuple[str, Callable[[Any], bool], str], ...] = (
        ("stream", lambda value: isinstance(value, bool), "a boolean"),
        ("parallel_tool_calls", lambda value: isinstance(value, bool), "a boolean"),
        ("response_format", lambda value: isinstance(value, dict) and isinstance(value.get("type"), str), "an object"),
        ("stream_options", lambda value: isinstance(value, dict), "an object"),
    )
    for key, valid, words in checks:
        if body.get(key) is not None and not valid(body[key]):
            found.append(f"{key}: must be {words}")
    if body.get("stream_options") is not None and not body.get("stream"):
        found.append("stream_options: only allowed when stream is true")


def _check_tool_choice(choice: Any, names: list[str], found: list[str]) -> None:
    match choice:
        case None | "none" | "auto" | "required":
            return
        case {"type": "allowed_tools", "allowed_tools": {"mode": "auto" | "required", "tools": [_, *_] as allowed}}:
            if not all(_names_tool(tool, names) for tool in allowed):
                found.append("tool_choice.allowed_tools.tools: must name some of the tools")
        case dict():
            if not _names_tool(choice, names):
                found.append("tool_choice: must name one of the tools as {'type': 'function', 'function': {'name': …}}")
        case _:
            found.append("tool_choice: must be 'none', 'auto', 'required', a named function or allowed tools")


def _names_tool(choice: Any, names: list[str]) -> bool:
    match choice:
        case {"type": "function", "function": {"name": name}}:
            return name in names
        case _:
            return False
