"""Read the answer of a model's server, as bytes: a completion, or the chunks of a stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, Iterator
from typing import Annotated, Any, Literal

import msgspec

from swarmkeep.events.codec import Json, decode, has_more_values
from swarmkeep.models import failures

# The chunks of a stream; those that carry a piece of text, nearly all there are, are read in one go.


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

# What a stream says where it ends on purpose.
END_OF_STREAM: Json = {"object": "done"}

_decoder = msgspec.json.Decoder(TextChunk)


def read_text_chunk(data: bytes) -> TextChunk | None:
    """The chunk, if it is nothing but a piece of text."""
    try:
        return _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None


# Bounds of the part of a model's answer that is read and kept: a provider may be broken, or not who it says.


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


CHAT_PATH = "/chat/completions"
_CHUNKS_IN_A_ROW = 50
# More than any event's name has.
_EVENT_BYTES = 100


class EventReader:
    """Chunks from the bytes of server-sent events as they arrive.

    Lines end with a newline, a carriage return, or both: JSON text may hold U+2028 and the like as they are. A line of
    data that is JSON by itself is a chunk, even where no empty line follows; others are read together, as one event.
    """

    def __init__(self, limits: ReplyLimits) -> None:
        self._limits = limits
        self._parts: list[bytes] = []
        self._parts_size = 0
        self._ends_in_return = False
        self._event = b""
        self._lines: list[bytes] = []
        self._lines_size = 0

    def feed(self, data: bytes, *, is_last: bool = False) -> Iterator[list[Chunk]]:
        """The chunks that `data` completes, up to END_OF_STREAM, not too many together. Those before a line that cannot
        be read are given first. Raises OversizedReply for a line or an event that does not end."""
        chunks: list[Chunk] = []
        try:
            for line in [b"".join(self._parts), b""] if is_last else self._split(data):
                if line.startswith(b"data:"):
                    chunk = self._add_data(line[5:])
                else:
                    # Every other one is empty.
                    chunk = self._read_other(line) if line or self._lines or self._event else None
                if chunk is None:
                    continue
                chunks.append(chunk)
                if chunk is END_OF_STREAM:
                    return
                if len(chunks) == _CHUNKS_IN_A_ROW:
                    full, chunks = chunks, []
                    yield full
        finally:
            if chunks:
                yield chunks

    def finish(self) -> Iterator[list[Chunk]]:
        """The chunks in what follows the last newline."""
        return self.feed(b"", is_last=True)

    def _split(self, data: bytes) -> list[bytes]:
        if self._ends_in_return and data:
            data = data.removeprefix(b"\n")
            self._ends_in_return = False
        if b"\r" in data:
            self._ends_in_return = data.endswith(b"\r")
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        first, *others = data.split(b"\n")
        self._parts.append(first)
        self._parts_size += len(first)
        if self._parts_size + self._lines_size > self._limits.bytes:
            raise self._make_size_error()
        if not others:
            return []
        rest = others.pop()
        ended = [b"".join(self._parts), *others]
        self._parts, self._parts_size = [rest], len(rest)
        return ended

    def _make_size_error(self) -> failures.OversizedReply:
        return failures.OversizedReply(f"the model sent more than {self._limits.bytes:,} bytes in one line")

    def _read_other(self, line: bytes) -> Chunk | None:
        if not line:
            return self._end_event()
        # A mark of the bytes' order may come first.
        line = line.removeprefix(b"\xef\xbb\xbf")
        if line.startswith(b"event:"):
            self._event = line[6:].strip()[:_EVENT_BYTES]
        return self._add_data(line[5:]) if line.startswith(b"data:") else None

    def _add_data(self, data: bytes) -> Chunk | None:
        if not self._lines:
            if (chunk := read_text_chunk(data)) is not None:
                return chunk
            text = data.strip()
            if not text:
                return None
            if text == b"[DONE]":
                return END_OF_STREAM
            if text[-1:] in (b"}", b"]") or text[:1] not in (b"{", b"["):
                try:
                    return self._read_object(data)
                except failures.NonJsonReply:
                    pass
        self._lines.append(data)
        self._lines_size += len(data)
        if self._parts_size + self._lines_size > self._limits.bytes:
            raise self._make_size_error()
        return None

    def _end_event(self) -> Chunk | None:
        lines, self._lines, self._lines_size = self._lines, [], 0
        try:
            return self._read_object(b"\n".join(lines)) if lines else None
        finally:
            self._event = b""

    def _read_object(self, data: bytes) -> Json:
        value = _parse_object(data.decode(errors="replace").strip(), self._limits)
        if self._event == b"error" and not value.get("choices"):
            raise failures.ReportedError(value)
        return value


def parse_completion(kind: str, body: bytes, limits: ReplyLimits) -> Json:
    if failures.is_web_page(kind):
        raise failures.WebPageReply(
            f"the model's address gave {failures.read_page_title(body.decode(errors='replace'))}"
        )
    if has_excess_values(body, limits):
        whole, body = len(body), _drop_logprobs(body)
        # Not worth to be counted once more.
        if 2 * len(body) > whole:
            raise _make_excess_error(limits)
    return _parse_object(body, limits)


def _make_excess_error(limits: ReplyLimits) -> failures.OversizedReply:
    return failures.OversizedReply(f"the model's answer has more than {limits.values:,} values")


class _Choice(msgspec.Struct):
    logprobs: msgspec.Raw


class _Answer(msgspec.Struct):
    # More choices than one are not looked through: there is no end to how many a list may have.
    choices: tuple[_Choice]


_ANSWER = msgspec.json.Decoder(_Answer)


def _drop_logprobs(body: bytes) -> bytes:
    """Return the answer without the probabilities of its tokens, which are not used: with alternatives an ordinary
    answer that comes whole has hundreds of thousands of values in them."""
    try:
        [choice] = _ANSWER.decode(body).choices
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return body
    return body.replace(bytes(choice.logprobs), b"null", 1)


async def parse_stream(kind: str, pieces: AsyncIterable[bytes], limits: ReplyLimits) -> AsyncGenerator[list[Chunk]]:
    """The chunks of an answer to a request for a stream, those that come at once together; last END_OF_STREAM, where
    the server says that it is over."""
    if not failures.may_be_stream(kind):
        yield [parse_completion(kind, b"".join([piece async for piece in pieces]), limits), END_OF_STREAM]
        return
    events = EventReader(limits)
    async for data in pieces:
        for chunks in events.feed(data):
            yield chunks
            if chunks[-1] is END_OF_STREAM:
                return
            if len(chunks) == _CHUNKS_IN_A_ROW:
                # Thousands may come in one piece, and each goes all the way to its readers.
                await asyncio.sleep(0)
    for chunks in events.finish():
        yield chunks


def _parse_object(text: str | bytes, limits: ReplyLimits) -> Json:
    if has_excess_values(text, limits):
        raise _make_excess_error(limits)
    try:
        value = decode(text)
    except ValueError as error:
        raise failures.NonJsonReply(f"the model's answer is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise failures.MalformedReply("the model's answer is not a JSON object")
    if (reported := failures.find_reported_error(value)) is not None:
        raise failures.ReportedError(reported)
    return value
