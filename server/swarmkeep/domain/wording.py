"""Messages and calls as people read them."""

from __future__ import annotations

import json
from typing import Any

from swarmkeep.domain.messages import asked_calls

Json = dict[str, Any]


def text_of(content: Any) -> str:
    """The text of a message's content, which may come in parts."""
    if isinstance(content, list):
        return "".join(str(part.get("text") or f"[{part.get('type')}]") for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""


def calls_in(message: Json) -> list[str]:
    """The calls that a message asks for, as Python writes calls."""
    return [call_text(name, arguments) for _, name, arguments in asked_calls(message)]


def call_text(name: str, arguments: str) -> str:
    """A call as Python writes one."""
    return f"{name}({as_keywords(arguments)})"


def as_keywords(arguments: str) -> str:
    """A call's JSON arguments as Python writes them in a call; text that is no JSON object as it is."""
    try:
        values = json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        return arguments
    if not isinstance(values, dict):
        return arguments
    return ", ".join(f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in values.items())
