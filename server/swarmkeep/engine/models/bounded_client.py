"""What the HTTP client reads of an answer: no redirect is followed, and no body becomes large by being inflated."""

from __future__ import annotations

import zlib
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from swarmkeep.engine.models.media_types import is_event_stream
from swarmkeep.engine.models.reply_errors import OversizedReply, RedirectedReply, UnreadableReply
from swarmkeep.engine.models.reply_limits import ReplyLimits

if TYPE_CHECKING:
    from httpx2 import Response

ENCODINGS = "gzip, deflate"
# What is inflated in one go: less than the event loop would notice.
_PIECE_BYTES = 64 * 1024
# The longest description of an error that is read; the rest of it is left.
_ERROR_BYTES = 64 * 1024
# gzip or zlib, whichever the data begins with.
_GZIP_OR_ZLIB = 32 + zlib.MAX_WBITS


async def bound_response(response: Response, limits: ReplyLimits) -> None:
    """A hook for the HTTP client, called before anything of an answer's body is read."""
    from httpx2 import AsyncByteStream

    refuse_redirect(response.status_code, response.headers)
    assert isinstance(response.stream, AsyncByteStream)
    inner: AsyncByteStream = response.stream
    headers = dict(response.headers)
    # The client's own decoder would inflate each piece that arrives as a whole.
    response.headers.pop("content-encoding", None)
    _check_encoding(headers)

    class BoundedStream(AsyncByteStream):
        def __aiter__(self) -> AsyncIterator[bytes]:
            return bound_body(inner, headers, limits, is_error=response.is_error)

        async def aclose(self) -> None:
            await inner.aclose()

    response.stream = BoundedStream()


def refuse_redirect(status: int, headers: Mapping[str, str]) -> None:
    """Raise RedirectedReply for an answer that sends the request on to another address."""
    if 300 <= status < 400:
        place = headers.get("location", "")[:200]
        raise RedirectedReply(
            f"the model's address sends requests on to {place!r}; they are not sent there. If that is the right place, "
            "set OPENAI_BASE_URL to it"
        )


def _check_encoding(headers: Mapping[str, str]) -> bool:
    """Whether a body has to be inflated."""
    encoding = headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("identity", "gzip", "x-gzip", "deflate"):
        raise UnreadableReply(f"the model's answer is compressed as {encoding[:40]!r}, which was not asked for")
    return encoding != "identity"


async def bound_body(
    pieces: AsyncIterable[bytes], headers: Mapping[str, str], limits: ReplyLimits, *, is_error: bool
) -> AsyncGenerator[bytes]:
    """A body as it arrives, inflated, and no more of it than may be read: of an error's description, its beginning."""
    bound = BodyBound(headers, limits, is_error=is_error)
    async for data in pieces:
        for piece in bound.feed(data):
            yield piece
        if bound.is_cut:
            return


class BodyBound:
    """How much of a body may be read; once `is_cut`, no more of it is wanted."""

    def __init__(self, headers: Mapping[str, str], limits: ReplyLimits, *, is_error: bool) -> None:
        self._most = limits.stream_bytes if is_event_stream(headers.get("content-type", "")) else limits.bytes
        self._room = _ERROR_BYTES if is_error else self._most
        self._is_error = is_error
        self._inflate = _Inflate() if _check_encoding(headers) else None
        self.is_cut = False

    def feed(self, data: bytes) -> Iterable[bytes]:
        """What came, inflated. Raises OversizedReply."""
        if self._inflate is None and len(data) <= self._room:
            self._room -= len(data)
            return (data,)
        return self._count((data,) if self._inflate is None else self._inflate.feed(data))

    def _count(self, pieces: Iterable[bytes]) -> Iterator[bytes]:
        for piece in pieces:
            self._room -= len(piece)
            if self._room < 0 and self._is_error:
                self.is_cut = True
                return
            if self._room < 0:
                raise OversizedReply(f"the model sent more than {self._most:,} bytes for one answer")
            yield piece


class _Inflate:
    """Inflates in pieces, so that a small body cannot become a large one at once."""

    def __init__(self) -> None:
        self._decompress = zlib.decompressobj(_GZIP_OR_ZLIB)

    def feed(self, data: bytes) -> Iterator[bytes]:
        try:
            while data:
                yield self._decompress.decompress(data, _PIECE_BYTES)
                data = self._decompress.unconsumed_tail
        except zlib.error as error:
            raise UnreadableReply(f"the model's answer cannot be decompressed: {error}") from error
