"""What a model's server answers, as bytes: a completion, or the chunks of a stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, Iterable, Iterator

import msgspec

from swarmkeep.domain.codec import Json, decode
from swarmkeep.engine.models.assembly import END_OF_STREAM
from swarmkeep.engine.models.chunks import Chunk, read_text_chunk
from swarmkeep.engine.models.failures import read_page_title
from swarmkeep.engine.models.media_types import is_web_page, may_be_stream
from swarmkeep.engine.models.reply_errors import (
    MalformedReply,
    NonJsonReply,
    OversizedReply,
    ReportedError,
    WebPageReply,
)
from swarmkeep.engine.models.reply_limits import ReplyLimits, has_excess_values

CHAT_PATH = "/chat/completions"
_CHUNKS_IN_A_ROW = 50


class LineSplitter:
    """Lines from bytes as they arrive, ended by a newline only: JSON text may hold U+2028 and the like as they are."""

    def __init__(self, line_bytes: int) -> None:
        self._line_bytes = line_bytes
        self._size = 0
        self._parts: list[bytes] = []

    @property
    def rest(self) -> bytes:
        """What follows the last newline."""
        return b"".join(self._parts)

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that `data` completes. Raises OversizedReply for one that does not end."""
        first, *others = data.split(b"\n")
        self._parts.append(first)
        self._size += len(first)
        if self._size > self._line_bytes:
            raise OversizedReply(f"the model sent more than {self._line_bytes:,} bytes in one line")
        if not others:
            return []
        rest = others.pop()
        ended = [b"".join(self._parts), *others]
        self._parts, self._size = [rest], len(rest)
        return ended


def parse_completion(kind: str, body: bytes, limits: ReplyLimits) -> Json:
    if is_web_page(kind):
        raise WebPageReply(f"the model's address gave {read_page_title(body.decode(errors='replace'))}")
    if has_excess_values(body, limits):
        whole, body = len(body), _drop_logprobs(body)
        # Not worth to be counted once more.
        if 2 * len(body) > whole:
            raise _make_excess_error(limits)
    return _parse_object(body, limits)


def _make_excess_error(limits: ReplyLimits) -> OversizedReply:
    return OversizedReply(f"the model's answer has more than {limits.values:,} values")


class _Choice(msgspec.Struct):
    logprobs: msgspec.Raw


class _Answer(msgspec.Struct):
    # More choices than one are not looked through: there is no end to how many a list may have.
    choices: tuple[_Choice]


_ANSWER = msgspec.json.Decoder(_Answer)


def _drop_logprobs(body: bytes) -> bytes:
    """The answer without the probabilities of its tokens, which nobody reads: with alternatives an ordinary answer that
    comes whole has hundreds of thousands of values in them."""
    try:
        [choice] = _ANSWER.decode(body).choices
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return body
    return body.replace(bytes(choice.logprobs), b"null", 1)


async def parse_stream(kind: str, pieces: AsyncIterable[bytes], limits: ReplyLimits) -> AsyncGenerator[list[Chunk]]:
    """The chunks of an answer to a request for a stream, those that come at once together; last END_OF_STREAM, where
    the server says that it is over."""
    if not may_be_stream(kind):
        yield [parse_completion(kind, b"".join([piece async for piece in pieces]), limits), END_OF_STREAM]
        return
    lines = LineSplitter(limits.bytes)
    async for data in pieces:
        for chunks in parse_lines(lines.feed(data), limits):
            yield chunks
            if chunks[-1] is END_OF_STREAM:
                return
            if len(chunks) == _CHUNKS_IN_A_ROW:
                # Thousands may come in one piece, and each goes all the way to its readers.
                await asyncio.sleep(0)
    for chunks in parse_lines([lines.rest], limits):
        yield chunks


def parse_lines(lines: Iterable[bytes], limits: ReplyLimits) -> Iterator[list[Chunk]]:
    """The chunks that lines of server-sent events hold, up to END_OF_STREAM, not too many together. Those before a line
    that cannot be read are given first."""
    chunks: list[Chunk] = []
    try:
        for line in lines:
            # Every other one is empty.
            if not line or (chunk := _parse_line(line, limits)) is None:
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


def _parse_line(line: bytes, limits: ReplyLimits) -> Chunk | None:
    if not line.startswith(b"data:"):
        return None
    return read_text_chunk(line[5:]) or _parse_data(line[5:].decode(errors="replace").strip(), limits)


def _parse_data(data: str, limits: ReplyLimits) -> Json | None:
    if not data:
        return None
    return END_OF_STREAM if data == "[DONE]" else _parse_object(data, limits)


def _parse_object(text: str | bytes, limits: ReplyLimits) -> Json:
    if has_excess_values(text, limits):
        raise _make_excess_error(limits)
    try:
        value = decode(text)
    except ValueError as error:
        raise NonJsonReply(f"the model's answer is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise MalformedReply("the model's answer is not a JSON object")
    if value.get("error"):
        raise ReportedError(value["error"])
    return value
