"""What was said, as attributes of spans: only where the operator asks for it, without secrets, and bounded.

The shape is that of the GenAI conventions: messages of parts, as JSON text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from swarmkeep.domain.codec import Json, MalformedJson, decode, encode, encode_text
from swarmkeep.domain.messages import Entry, read_tool_calls
from swarmkeep.engine.models.secrets import Secrets

CAPTURE_VARIABLE = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
_CAPTURING = {"true", "1", "span_only", "span_and_event"}

MAX_TEXT_CHARACTERS = 8_192
MAX_TOTAL_CHARACTERS = 32_768
_CUT = "… (cut off)"


def is_content_wanted(environment: Mapping[str, str]) -> bool:
    return environment.get(CAPTURE_VARIABLE, "").strip().lower() in _CAPTURING


def describe_text(text: str, secrets: Secrets) -> str:
    """A text as an attribute: masked before it is cut, lest half a secret stay."""
    # Encoded, and so that half a character, which a model may send, does not reach an exporter.
    return _shorten(secrets.mask(text)).encode("utf-8", "backslashreplace").decode()


def describe_instructions(text: str, secrets: Secrets) -> str:
    return encode_text([_make_text_part(text, secrets)])


def describe_input(entries: Sequence[Entry], secrets: Secrets) -> str:
    """The last messages of a request, as many as fit; the last one is always there, if shortened."""
    kept: list[str] = []
    left = MAX_TOTAL_CHARACTERS
    for entry in reversed(entries):
        text = encode_text(_describe_message(entry.chat_message, secrets))
        left -= len(text)
        if kept and left < 0:
            break
        kept.append(text)
    return f"[{','.join(reversed(kept))}]"


def describe_output(message: Json, finish_reason: str | None, secrets: Secrets) -> str:
    described = _describe_message({**message, "role": "assistant"}, secrets)
    return encode_text([{**described, "finish_reason": finish_reason or ""}])


def _describe_message(message: Json, secrets: Secrets) -> Json:
    if message["role"] == "tool":
        response = _shorten(secrets.mask(_find_text(message.get("content"))))
        part = {"type": "tool_call_response", "id": message.get("tool_call_id"), "response": response}
        return {"role": "tool", "parts": [part]}
    return {"role": message["role"], "parts": _fit_parts(_list_parts(message, secrets))}


def _list_parts(message: Json, secrets: Secrets) -> list[Json]:
    content = message.get("content")
    parts = [_describe_part(part, secrets) for part in content] if isinstance(content, list) else []
    if isinstance(content, str) and content:
        parts.append(_make_text_part(content, secrets))
    for call_id, name, arguments in read_tool_calls(message):
        given = _describe_arguments(secrets.mask(arguments))
        parts.append({"type": "tool_call", "id": call_id, "name": name, "arguments": given})
    return parts


def _describe_arguments(text: str) -> str | msgspec.Raw:
    """As they are in JSON, or as text if they are none or too long."""
    if len(text) > MAX_TEXT_CHARACTERS:
        return _shorten(text)
    try:
        decode(text)
        return msgspec.Raw(text.encode())
    except (MalformedJson, UnicodeEncodeError):
        return text


def _describe_part(part: object, secrets: Secrets) -> Json:
    kind = part.get("type") if isinstance(part, dict) else None
    if isinstance(part, dict) and kind == "text":
        return _make_text_part(_find_text(part.get("text")), secrets)
    # Pictures and files: that there was one.
    return {"type": kind if isinstance(kind, str) else "other"}


def _fit_parts(parts: list[Json]) -> list[Json]:
    """As many as fit."""
    fitting: list[Json] = []
    left = MAX_TOTAL_CHARACTERS
    for part in parts:
        left -= len(encode(part))
        if fitting and left < 0:
            break
        fitting.append(part)
    return fitting


def _make_text_part(text: str, secrets: Secrets) -> Json:
    return {"type": "text", "content": _shorten(secrets.mask(text))}


def _find_text(content: Any) -> str:
    return content if isinstance(content, str) else ("" if content is None else encode_text(content))


def _shorten(text: str) -> str:
    return text if len(text) <= MAX_TEXT_CHARACTERS else text[:MAX_TEXT_CHARACTERS] + _CUT
