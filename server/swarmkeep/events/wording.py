"""Messages and calls as people read them."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from swarmkeep.events.codec import Json


# The sender of a message that sends an answer back.
CORRECTOR = "swarmkeep"
# Everything that a terminal would obey rather than show, and marks that reorder the text around them.
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
# As `ApiKey.label` writes it.
_KEY_LABEL = re.compile(r"\A(key_[0-9a-f]{16}) \((.+)\)\Z", re.DOTALL)
_LINE_ENDS = re.compile(r"[\t\n\u2028\u2029]")


def escape_controls(text: str) -> str:
    """Text that can be shown: what a terminal would take for a command becomes an escape. Lines and tabs stay."""
    return _CONTROLS.sub(_escape, text)


def escape_line(text: str) -> str:
    """Text that can be shown in a line, and stays in it."""
    return _LINE_ENDS.sub(_escape, escape_controls(text))


def escape_json(text: str) -> str:
    """JSON text with the same characters as JSON's own escapes: they can only stand in its strings."""
    return _CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _escape(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def put_name_first(actor: str) -> str:
    """Name an actor as people read it: an API key's name before its id, any other as it is."""
    return _KEY_LABEL.sub(r"\2 (\1)", actor)


def pluralize(count: int, noun: str, plural: str | None = None) -> str:
    """A count with its noun: `1 event`, `2 events`."""
    if plural is None:
        plural = f"{noun[:-1]}ies" if noun.endswith("ry") else f"{noun}s"
    return f"{count} {noun if count == 1 else plural}"


def join_text(content: object, separator: str = "") -> str:
    """The text of a message's content, and nothing for parts of other kinds."""
    if isinstance(content, list):
        texts = (part.get("text") for part in content if isinstance(part, dict))
        return separator.join(text for text in texts if isinstance(text, str))
    return content if isinstance(content, str) else ""


def join_content(content: Any) -> str:
    """The same for people to read, with a word for each part of another kind."""
    if isinstance(content, list):
        return "".join(str(part.get("text") or _describe_part(part)) for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""


def _describe_part(part: Json) -> str:
    if "blob" in part:
        # Here, for the reason below.
        from swarmkeep.events.files import describe_part

        if (described := describe_part(part)) is not None:
            return described
    return f"[{part.get('type')}]"


def format_calls(message: Json) -> list[str]:
    """The calls that a message asks for, as Python writes calls."""
    # Here, because a terminal needs the rest of this module before it needs anything else.
    from swarmkeep.events.messages import read_tool_calls

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


def format_json(value: object) -> str:
    """JSON in a line; of what is empty nothing."""
    return "" if value in (None, {}, []) else json.dumps(value, ensure_ascii=False)
