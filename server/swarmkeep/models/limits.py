"""The chunks of a stream; those that carry a piece of text, nearly all there are, are read in one go."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from swarmkeep.events.codec import Json, has_more_values


class _TextDelta(msgspec.Struct, forbid_unknown_fields=True):
    """A delta that holds text and nothing else; some servers spell out what it does not hold."""

    content: str
    role: Any = None
    refusal: None = None
    tool_calls: None = None
    function_call: None = None
    reasoning: None = None
    reasoning_content: None = None


class _TextChoice(msgspec.Struct):
    delta: _TextDelta
    index: Literal[0] = 0
    finish_reason: None = None
    message: None = None
    error: None = None


class TextChunk(msgspec.Struct):
    """A chunk that is a piece of text in its only choice. Any other content is of no use."""

    choices: Annotated[list[_TextChoice], msgspec.Meta(min_length=1, max_length=1)]
    id: str | None = None
    model: str | None = None
    usage: None = None
    error: None = None


Chunk = TextChunk | Json
"""Any other chunk is the JSON object that it came as."""

_decoder = msgspec.json.Decoder(TextChunk)


def read_text_chunk(data: bytes) -> TextChunk | None:
    """The chunk, if it is nothing but a piece of text."""
    try:
        return _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None


# Bound the part of a model's answer that is read and kept: a provider may be broken, or not who it says.


class ReplyLimits(msgspec.Struct, frozen=True, kw_only=True):
    """`stream_bytes`: all that a stream sends until it is assembled; `bytes`: an answer that comes whole, one line of a
    stream, and what is kept of it, in characters; `calls`: tool calls in one reply; `values`: what JSON holds, in an
    answer, in a line, and in the arguments of a call, because each takes time."""

    stream_bytes: int = 64_000_000
    bytes: int = 8_000_000
    calls: int = 128
    values: int = 200_000


def has_excess_values(text: str | bytes, limits: ReplyLimits) -> bool:
    """Tell if JSON text is too large to be read."""
    # Nearly every text is shorter than that.
    if len(text) <= limits.values:
        return False
    return has_more_values(text.encode(errors="surrogatepass") if isinstance(text, str) else text, limits.values)
