"""Messages and calls as people read them."""

from __future__ import annotations

import json
from typing import Any

from swarmkeep.domain.codec import Json
from swarmkeep.domain.messages import read_tool_calls


def join_content(content: Any) -> str:
    """The text of a message's content, which may come in parts."""
    if isinstance(content, list):
        return "".join(str(part.get("text") or f"[{part.get('type')}]") for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""


def format_calls(message: Json) -> list[str]:
    """The calls that a message asks for, as Python writes calls."""
    return [format_call(name, arguments) for _, name, arguments in read_tool_calls(message)]


def format_call(name: str, arguments: str) -> str:
    """A call as Python writes one."""
    return f"{name}({format_arguments(arguments)})"


def format_arguments(arguments: str) -> str:
    """A call's JSON arguments as Python writes them in a call; text that is not a JSON object as it is."""
    try:
        values = json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        return arguments
    if not isinstance(values, dict):
        return arguments
    return ", ".join(f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in values.items())
