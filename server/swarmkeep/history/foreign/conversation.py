"""The one shape that conversations of every foreign format are read into, and what readers share to make it."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from swarmkeep.events.codec import Json, MalformedJson, decode, encode, encode_text, to_timestamp
from swarmkeep.events.errors import InvalidImport

# What is not taken from a file, by the words that a report has for it.
HIDDEN = "hidden messages"
REASONING = "reasoning"
FILES = "files that the export only names"
EMPTY = "conversations without messages"
CITATIONS = "sources of answers"
STRAY_NODES = "messages outside of the tree"
MORE_BRANCHES = "further branches"
OTHER_ITEMS = "items of other types"
OTHER_STATE = "values of state that are not JSON"

_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}", re.ASCII)
_ODD_NAME = re.compile(r"[^A-Za-z0-9_-]", re.ASCII)
_MAX_NAME = 64
_MAX_SECONDS = 2**52


class Branch(msgspec.Struct, frozen=True, kw_only=True):
    """Another end of a conversation, which becomes a fork: `shared` messages of the trunk, and then its own."""

    name: str
    shared: int
    messages: list[Json]


class ForeignConversation(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation that is to be a session. `place` is where in its file it stands, as a JSON pointer.

    `id` and `agent` are as far as the file names them; `origin` is what of it has no place in a session. `left_out`
    counts what is not taken. A conversation that is `empty` becomes no session.
    """

    messages: list[Json]
    place: str = ""
    line: int | None = None
    id: str | None = None
    agent: str | None = None
    context_variables: Json = {}
    metadata: Json = {}
    origin: Json = {}
    branches: Sequence[Branch] = ()
    left_out: Mapping[str, int] = {}
    empty: bool = False

    def make_error(self, why: str, pointer: str = "") -> InvalidImport:
        where = f"{self.place}{pointer}"
        return InvalidImport(f"{where}: {why}" if where else why, line=self.line)

    @property
    def derived_id(self) -> str:
        """The id for one that names none: the same for the same content, so that it is not imported twice."""
        content = [self.messages, self.context_variables, self.metadata, self.origin]
        return f"import_{hashlib.sha256(encode(content)).hexdigest()[:32]}"


def choose_id(*names: object) -> str | None:
    """Return the id that a session gets from the names that its program has for it; None if it has none.

    A name that is no id of a session is digested, so that a second import finds the same session.
    """
    known = [str(name) for name in names if isinstance(name, str | int) and name != ""]
    if not known:
        return None
    joined = ":".join(known)
    if _ID.fullmatch(joined) and (len(known) == 1 or joined.count(":") == len(known) - 1):
        return joined
    return f"import_{hashlib.sha256(encode(known)).hexdigest()[:32]}"


def as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def as_dict(value: Any) -> Json:
    return value if isinstance(value, dict) else {}


def as_text(value: Any) -> str:
    """A text as it is, nothing for null, and anything else as JSON."""
    if value is None:
        return ""
    return value if isinstance(value, str) else encode_text(value)


def read_seconds(value: Any) -> float:
    """A time in seconds since 1970; 0 for what is none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return 0.0
    return float(max(-_MAX_SECONDS, min(value, _MAX_SECONDS)))


def format_seconds(value: Any) -> str | None:
    """A time in seconds since 1970 as text; None for what is none."""
    seconds = read_seconds(value)
    try:
        return to_timestamp(datetime.fromtimestamp(seconds, UTC), timespec="auto") if seconds else None
    except (OverflowError, OSError, ValueError):
        return None


def format_time(value: Any) -> str | None:
    """A time in any of the forms that exports have: seconds or milliseconds since 1970, or ISO 8601 (UTC if it does
    not say otherwise)."""
    if not isinstance(value, str):
        seconds = read_seconds(value)
        return format_seconds(seconds / 1000 if seconds > 100_000_000_000 else value)
    try:
        found = datetime.fromisoformat(value)
        return to_timestamp(found if found.tzinfo else found.replace(tzinfo=UTC), timespec="auto")
    except (ValueError, OverflowError):
        return None


def keep(**values: Any) -> Json:
    """The values that say something."""
    return {name: value for name, value in values.items() if value not in (None, "", [], {})}


def mark(message: Json, **kept: Any) -> Json:
    """The message with what has no place in it under `imported`."""
    found = keep(**kept)
    return {**message, "imported": found} if found else message


# Calls, as Chat Completions has them.


def make_call(call_id: str, name: Any, arguments: Any) -> Json:
    """A call of a function. Names are made such that providers take them, arguments become a JSON object."""
    chosen = _ODD_NAME.sub("_", name)[:_MAX_NAME] if isinstance(name, str) else ""
    function = {"name": chosen or "function", "arguments": _write_arguments(arguments)}
    return {"id": call_id, "type": "function", "function": function}


def _write_arguments(arguments: Any) -> str:
    if isinstance(arguments, dict):
        return encode_text(arguments)
    if isinstance(arguments, str):
        try:
            if isinstance(decode(arguments), dict):
                return arguments
        except MalformedJson:
            pass
    return "{}" if arguments in (None, "") else encode_text({"input": arguments})


def ask(calls: Sequence[Json], text: str | None = None) -> Json:
    return {"role": "assistant", "content": text or None, "tool_calls": list(calls)}


def answer(call_id: str, name: Any, content: str) -> Json:
    named = {"tool_name": name} if isinstance(name, str) and name else {}
    return {"role": "tool", "tool_call_id": call_id, **named, "content": content}


# Parts of messages, in the words of all the interfaces whose messages are exported.

_TEXTS = ("text", "input_text", "output_text", "summary_text")
_THOUGHTS = ("thinking", "redacted_thinking", "reasoning", "reasoning_content", "think", "thought", "thoughts")
_INLINE_IMAGES = ("data:image/png;", "data:image/jpeg;", "data:image/gif;", "data:image/webp;")
_CALLS = ("tool_use", "tool_call", "input_json_delta", "function_call")


def name_file(kind: str, name: Any) -> Json:
    """The text that stands for a file which is not in the export."""
    return {"type": "text", "text": f"[{kind}: {as_text(name) or '?'}]"}


def convert_parts(content: Any, role: Any, left_out: Counter[str]) -> str | list[Json]:
    """The parts of a message as its role may have them: a text if they are nothing else.

    Pictures of users stay; a file that is elsewhere is named. Calls are left to the reader.
    """
    if not isinstance(content, list):
        return as_text(content)
    parts = [told for part in content if (told := _convert_part(part, role, left_out)) is not None]
    if all(part["type"] == "text" for part in parts):
        return "\n".join(part["text"] for part in parts)
    return parts


def _convert_part(part: Any, role: Any, left_out: Counter[str]) -> Json | None:
    if not isinstance(part, dict):
        return {"type": "text", "text": as_text(part)}
    kind = part.get("type")
    if kind in _THOUGHTS:
        left_out[REASONING] += 1
        return None
    if kind in _CALLS:
        return None
    if kind in _TEXTS or (kind is None and "text" in part):
        text = part.get("text")
        # Assistants have a text in an object.
        return {"type": "text", "text": as_text(text.get("value") if isinstance(text, dict) else text)}
    if kind == "refusal":
        return {"type": "text", "text": as_text(part.get("refusal"))}
    return _convert_file(part, str(kind), role, left_out)


def _convert_file(part: Json, kind: str, role: Any, left_out: Counter[str]) -> Json:
    held = part.get(kind)
    details = {**part, **held} if isinstance(held, dict) else {**part, "url": held if isinstance(held, str) else None}
    url = details.get("image_url") if isinstance(details.get("image_url"), str) else details.get("url")
    name = details.get("filename") or details.get("file_id") or details.get("filepath") or url
    if "image" in kind:
        if role == "user" and isinstance(url, str) and url.startswith(("https://", "http://", *_INLINE_IMAGES)):
            return {"type": "image_url", "image_url": {"url": url}}
        left_out[FILES] += 1
        return name_file("image", "inline" if isinstance(name, str) and name.startswith("data:") else name)
    data = details.get("file_data")
    if role == "user" and isinstance(data, str) and data.startswith("data:application/pdf;"):
        return {"type": "file", "file": keep(file_data=data, filename=details.get("filename"))}
    left_out[FILES] += 1
    return name_file("audio" if "audio" in kind else "file" if "file" in kind else kind, name)


def join_parts(content: str | list[Json]) -> str:
    """What parts say as one text, where a message may have nothing else."""
    if isinstance(content, str):
        return content
    return "\n".join(part["text"] if part["type"] == "text" else f"[{part['type']}]" for part in content)


def name_files(files: Iterable[Any], left_out: Counter[str]) -> list[Json]:
    """The texts that stand for files beside a message."""
    named = []
    for file in files:
        if isinstance(file, dict):
            kind = str(file.get("type") or file.get("mimeType") or file.get("mime_type") or "")
            name = file.get("filename") or file.get("name") or file.get("file_id") or file.get("id") or file.get("url")
            named.append(name_file("image" if kind.startswith("image") else "file", name))
            left_out[FILES] += 1
    return named


def add_parts(content: str | list[Json], more: list[Json]) -> str | list[Json]:
    """The content with further parts at its end."""
    if not more:
        return content
    first = [{"type": "text", "text": content}] if isinstance(content, str) and content else content or []
    parts = [*(first if isinstance(first, list) else []), *more]
    if all(part["type"] == "text" for part in parts):
        return "\n".join(part["text"] for part in parts)
    return parts
