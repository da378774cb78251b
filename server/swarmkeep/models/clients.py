"""Calls of the configured model over aiohttp itself, which cost a third of those through the official client.

Where a request goes, its headers and the names of errors stay the official client's: it is asked once what it would
send, and is shown each answer that is no success.
"""

from __future__ import annotations

import asyncio
import gc
import inspect
import io
import sys
import threading
import zlib
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager, suppress
from functools import partial
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import msgspec
from pydantic import SecretStr

from swarmkeep.events.codec import Json, decode
from swarmkeep.models.failures import (
    MalformedReply,
    OversizedReply,
    RedirectedReply,
    UnreadableReply,
    is_event_stream,
    may_be_stream,
)
from swarmkeep.models.replies import (
    CHAT_PATH,
    END_OF_STREAM,
    Chunk,
    EventReader,
    ReplyLimits,
    parse_completion,
    parse_stream,
)
from swarmkeep.request.request import ModelRequest

if TYPE_CHECKING:
    import ssl

    import aiohttp
    import httpx2
    from httpx2 import Response
    from openai import AsyncOpenAI


# Bound the part of an answer that the HTTP client reads: no redirect is followed, and no body becomes large by
# being inflated.

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
    """Tell if a body has to be inflated."""
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
    """The amount of a body that may be read; once `is_cut`, no more of it is wanted."""

    def __init__(self, headers: Mapping[str, str], limits: ReplyLimits, *, is_error: bool) -> None:
        self._most = limits.stream_bytes if is_event_stream(headers.get("content-type", "")) else limits.bytes
        self._room = _ERROR_BYTES if is_error else self._most
        self._is_error = is_error
        self._inflate = _Inflate() if _check_encoding(headers) else None
        self.is_cut = False

    def feed(self, data: bytes) -> Iterable[bytes]:
        """Return the received data, inflated. Raises OversizedReply."""
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


_SMALL_BODY_BYTES = 1_000_000


class _Template(msgspec.Struct, frozen=True):
    """The data that the official client sends beside the body."""

    url: Any
    headers: dict[str, str]


class DirectTransport:
    """Asks the server of an official client; `close` ends its connections.

    Raises what the client would: its errors for an answer that is no success and before one has begun, and those of its
    HTTP library in mid-answer.
    """

    def __init__(self, client: AsyncOpenAI, limits: ReplyLimits) -> None:
        self._client = client
        self._limits = limits
        self._templates: dict[bool, _Template] = {}
        self._session: aiohttp.ClientSession | None = None

    async def complete(self, request: ModelRequest) -> Json:
        import httpx2

        try:
            async with self._send(request, stream=False) as answer:
                body = await self._read_all(answer)
        except httpx2.HTTPError as error:
            raise _make_connection_error(error) from error
        return parse_completion(answer.headers.get("content-type", ""), body, self._limits)

    @asynccontextmanager
    async def open_stream(self, request: ModelRequest) -> AsyncIterator[AsyncGenerator[list[Chunk]]]:
        async with self._send(request, stream=True) as answer:
            kind = answer.headers.get("content-type", "")
            async with aclosing(parse_stream(kind, self._read(answer), self._limits)) as chunks:
                yield chunks

    async def close(self) -> None:
        if self._session is not None:
            session, self._session = self._session, None
            await session.close()

    @asynccontextmanager
    async def _send(self, request: ModelRequest, *, stream: bool) -> AsyncIterator[aiohttp.ClientResponse]:
        import httpx2

        template = self._templates.get(stream) or await self._make_template(stream)
        try:
            session = self._session or await self._open_session()
            with _translated_errors:
                answer = await session.post(
                    template.url, data=await _make_body(request), headers=template.headers, allow_redirects=False
                )
        except httpx2.HTTPError as error:
            raise _make_connection_error(error) from error
        async with answer:
            if answer.status >= 300:
                await self._refuse(answer)
            yield answer

    async def _read(self, answer: aiohttp.ClientResponse) -> AsyncGenerator[bytes]:
        bound = BodyBound(answer.headers, self._limits, is_error=answer.status >= 400)
        with _translated_errors:
            # One call for each piece less than to iterate over them.
            while not bound.is_cut and (data := await answer.content.readany()):
                for piece in bound.feed(data):
                    yield piece

    async def _read_all(self, answer: aiohttp.ClientResponse) -> bytes:
        return b"".join([piece async for piece in self._read(answer)])

    async def _refuse(self, answer: aiohttp.ClientResponse) -> None:
        """Raise the official client's error for an answer that is no success."""
        import httpx2

        refuse_redirect(answer.status, answer.headers)
        try:
            body = await self._read_all(answer)
        except httpx2.HTTPError as error:
            raise _make_connection_error(error) from error
        # It was read as it is, inflated and cut to what is kept of an error.
        dropped = (b"content-encoding", b"content-length", b"transfer-encoding")
        # As bytes: a server may put any into them.
        headers = [(name, value) for name, value in answer.raw_headers if name.lower() not in dropped]
        await self._ask_client(
            lambda asked: httpx2.Response(answer.status, headers=headers, content=body, request=asked), stream=False
        )

    async def _make_template(self, stream: bool) -> _Template:
        import httpx2
        from yarl import URL

        sent: list[httpx2.Request] = []

        def note(request: httpx2.Request) -> httpx2.Response:
            sent.append(request)
            return httpx2.Response(200, json={}, request=request)

        await self._ask_client(note, stream=stream)
        [request] = sent
        # These follow from the URL and the body of each request.
        headers = {name: value for name, value in request.headers.items() if name not in ("host", "content-length")}
        url = URL(str(request.url), encoded=True).with_user(None)
        template = self._templates[stream] = _Template(url, headers)
        return template

    async def _ask_client(self, answer: Callable[[httpx2.Request], httpx2.Response], *, stream: bool) -> None:
        """Have the official client make a request that goes nowhere, and take that answer as its server's."""
        import httpx2
        import openai

        nowhere = httpx2.AsyncClient(
            transport=httpx2.MockTransport(answer), headers={"Accept-Encoding": ENCODINGS}, trust_env=False
        )
        async with nowhere:
            await self._client.with_options(http_client=nowhere).post(
                CHAT_PATH,
                cast_to=httpx2.Response,
                content=b"{}",
                options={"headers": {"Content-Type": "application/json"}},
                stream=stream,
                stream_cls=openai.AsyncStream[object],
            )

    async def _open_session(self) -> aiohttp.ClientSession:
        # Every authority's certificate is read, which others need not wait for.
        context = await asyncio.to_thread(_make_ssl_context)
        if self._session is None:
            import aiohttp
            import httpx2

            timeout = self._client.timeout
            assert isinstance(timeout, httpx2.Timeout)
            self._session = aiohttp.ClientSession(
                # No limit, as the official client is given none.
                connector=aiohttp.TCPConnector(limit=0, ssl=context),
                # Of one conversation nothing is kept for the next.
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
                skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
                timeout=aiohttp.ClientTimeout(
                    sock_connect=timeout.connect, sock_read=timeout.read, connect=timeout.pool
                ),
            )
        return self._session


def _make_ssl_context() -> ssl.SSLContext:
    # Needed next, and slow to load.
    import aiohttp  # noqa: F401
    import httpx2

    return httpx2.create_ssl_context()


async def _make_body(request: ModelRequest) -> bytes | io.BytesIO:
    """The body; a large one is put together in a thread, and sent piece by piece."""
    if sum(map(len, request.sent_history)) <= _SMALL_BODY_BYTES:
        return request.body()
    return io.BytesIO(await asyncio.to_thread(request.body))


class _TranslatedErrors:
    """Raises what the official client's own HTTP library raises in the same case. One serves all."""

    def __enter__(self) -> None:
        return

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            return
        import aiohttp
        import httpx2

        # The first that fits: some of these are kinds of others.
        for raised, translated in (
            (aiohttp.ConnectionTimeoutError, httpx2.ConnectTimeout),
            (TimeoutError, httpx2.ReadTimeout),
            (aiohttp.ClientConnectorError, httpx2.ConnectError),
            (aiohttp.ClientError, httpx2.ReadError),
        ):
            if isinstance(error, raised):
                raise translated(str(error)) from error


_translated_errors = _TranslatedErrors()


def _make_connection_error(error: httpx2.HTTPError) -> Exception:
    import httpx2
    import openai

    request = httpx2.Request("POST", CHAT_PATH)
    if isinstance(error, httpx2.TimeoutException):
        return openai.APITimeoutError(request=request)
    return openai.APIConnectionError(request=request)


# Pass a request to a client: the official ones take bytes, any other object gets keyword arguments.

_HEADERS = {"headers": {"Content-Type": "application/json"}}


class Transport(Protocol):
    async def complete(self, request: ModelRequest) -> Json: ...

    def open_stream(self, request: ModelRequest) -> AbstractAsyncContextManager[AsyncGenerator[list[Chunk]]]:
        """The chunks of the answer, those that come at once together."""
        ...


def choose_transport(client: Any, limits: ReplyLimits) -> Transport:
    """Choose by the client's exact class: a subclass (Azure's, say) may build its requests in its own way."""
    if isinstance(own := getattr(client, "transport", None), DirectTransport):
        return own
    # A user of an official client has imported openai; no one else need load it.
    openai = sys.modules.get("openai")
    if openai is not None and type(client) is openai.AsyncOpenAI:
        return AsyncOpenAITransport(client, limits)
    if openai is not None and type(client) is openai.OpenAI:
        return SyncOpenAITransport(client, limits)
    return GenericTransport(client)


class AsyncOpenAITransport:
    """The official asynchronous client, with its retries, time-outs and errors, and without its walk over messages."""

    def __init__(self, client: Any, limits: ReplyLimits) -> None:
        self._client = client
        self._limits = limits

    async def complete(self, request: ModelRequest) -> Json:
        import httpx2

        response = await self._client.post(CHAT_PATH, cast_to=httpx2.Response, content=request.body(), options=_HEADERS)
        return parse_completion(_get_kind(response), response.content, self._limits)

    @asynccontextmanager
    async def open_stream(self, request: ModelRequest) -> AsyncGenerator[AsyncGenerator[list[Chunk]]]:
        import httpx2
        import openai

        response = await self._client.post(
            CHAT_PATH,
            cast_to=httpx2.Response,
            content=request.body(),
            options=_HEADERS,
            stream=True,
            stream_cls=openai.AsyncStream[object],
        )
        try:
            async with aclosing(parse_stream(_get_kind(response), response.aiter_bytes(), self._limits)) as chunks:
                yield chunks
        finally:
            await response.aclose()


class SyncOpenAITransport:
    """The official synchronous client. Its calls block, so it serves the synchronous loop only."""

    def __init__(self, client: Any, limits: ReplyLimits) -> None:
        self._client = client
        self._limits = limits

    async def complete(self, request: ModelRequest) -> Json:
        import httpx2

        response = self._client.post(CHAT_PATH, cast_to=httpx2.Response, content=request.body(), options=_HEADERS)
        return parse_completion(_get_kind(response), response.content, self._limits)

    def open_stream(self, request: ModelRequest) -> AbstractAsyncContextManager[AsyncGenerator[list[Chunk]]]:
        return aclosing(self._stream_chunks(request))

    async def _stream_chunks(self, request: ModelRequest) -> AsyncGenerator[list[Chunk]]:
        import httpx2
        import openai

        response = self._client.post(
            CHAT_PATH,
            cast_to=httpx2.Response,
            content=request.body(),
            options=_HEADERS,
            stream=True,
            stream_cls=openai.Stream[object],
        )
        try:
            if not may_be_stream(_get_kind(response)):
                yield [parse_completion(_get_kind(response), response.read(), self._limits), END_OF_STREAM]
                return
            events = EventReader(self._limits)
            for data in response.iter_bytes():
                for chunks in events.feed(data):
                    yield chunks
                    if chunks[-1] is END_OF_STREAM:
                        return
            for chunks in events.finish():
                yield chunks
        finally:
            response.close()


class GenericTransport:
    """Anything with `chat.completions.create`, synchronous or not: a subclass, a wrapper, a double."""

    def __init__(self, client: Any) -> None:
        self._client = client

    async def complete(self, request: ModelRequest) -> Json:
        return _convert_to_dict(await self._create(request))

    def open_stream(self, request: ModelRequest) -> AbstractAsyncContextManager[AsyncGenerator[list[Chunk]]]:
        return aclosing(self._stream_chunks(request))

    async def _stream_chunks(self, request: ModelRequest) -> AsyncGenerator[list[Chunk]]:
        stream = await self._create(request)
        if hasattr(stream, "__aiter__"):
            async for chunk in stream:
                yield [_convert_to_dict(chunk)]
        elif isinstance(stream, Iterable):
            for chunk in stream:
                yield [_convert_to_dict(chunk)]
        else:
            raise MalformedReply("the client gave no stream")

    async def _create(self, request: ModelRequest) -> Any:
        arguments: Json = {"messages": request.messages, **_name_arguments(self._client, request.params)}
        if request.tools is not None:
            arguments["tools"] = decode(request.tools)
        created = self._client.chat.completions.create(**arguments)
        return await created if inspect.isawaitable(created) else created


def _name_arguments(client: Any, params: Json) -> Json:
    """Return the parameters as `create` takes them: an official client's by name, and the rest in the body."""
    openai = sys.modules.get("openai")
    if openai is None or not isinstance(client, openai.OpenAI | openai.AsyncOpenAI):
        return params
    from openai.types.chat import completion_create_params

    known = completion_create_params.CompletionCreateParamsBase.__annotations__.keys() | {"stream"}
    extra = {name: value for name, value in params.items() if name not in known}
    named = {name: value for name, value in params.items() if name in known}
    return {**named, "extra_body": extra} if extra else named


def _get_kind(response: Any) -> str:
    kind: str = response.headers.get("content-type", "")
    return kind


def _convert_to_dict(value: Any) -> Json:
    if hasattr(value, "model_dump"):
        value = value.model_dump(mode="json")
    if not isinstance(value, dict):
        raise MalformedReply(f"the client gave a {type(value).__name__} where a completion was expected")
    return value


# The client of the configured model: of a provider, or the offline one.

# A host that answers at all does so within this time; a model may take much longer.
_CONNECT_SECONDS = 10.0


class ModelSettings(Protocol):
    """The settings of the model."""

    offline: bool
    openai_api_key: SecretStr | None
    openai_base_url: str | None
    model_timeout_seconds: float


def make_model_client(settings: ModelSettings) -> AsyncOpenAI:
    """An asynchronous client of the configured model; the caller closes it."""
    from swarmkeep.models.offline.server import make_offline_client

    if settings.offline:
        return make_offline_client()
    return make_provider_client(settings, timeout_seconds=settings.model_timeout_seconds)


def load_model_client(settings: ModelSettings) -> None:
    """Load what `make_model_client` and a first request need, and make nothing."""
    from openai import AsyncOpenAI, DefaultAioHttpClient  # noqa: F401

    if settings.offline:
        from swarmkeep.models.offline import server  # noqa: F401
    else:
        import aiohttp  # noqa: F401
        from httpx2 import AsyncHTTPTransport

        # The first of them loads what they are built on.
        AsyncHTTPTransport(verify=False)


def load_in_background(settings: ModelSettings) -> None:
    """Begin to load it in a thread, for a server that is ready: its first run would wait for seconds otherwise.

    The caller does not wait for the thread. What is wrong shows at the first request, which loads it again.
    """

    def load() -> None:
        with suppress(Exception):
            load_model_client(settings)
        # It stays for good, as what was loaded before: the garbage collector need not go through it again and again.
        gc.freeze()

    threading.Thread(target=load, name="swarmkeep-model-client", daemon=True).start()


def make_provider_client(
    settings: ModelSettings, *, timeout_seconds: float, limits: ReplyLimits | None = None
) -> AsyncOpenAI:
    """An asynchronous openai client, which asks once; the caller closes it. Servers of one's own often need no key."""
    from httpx2 import Limits, Timeout
    from openai import AsyncOpenAI, DefaultAioHttpClient

    class ProviderClient(AsyncOpenAI):
        """An official client, to which belongs a way of its own to the same server."""

        def __init__(self, **options: Any) -> None:
            super().__init__(**options)
            self.transport = None if _needs_proxy(str(self.base_url)) else DirectTransport(self, reply_limits)

        async def close(self) -> None:
            if self.transport is not None:
                await self.transport.close()
            await super().close()

    reply_limits = limits or ReplyLimits()
    key = settings.openai_api_key
    timeout = Timeout(timeout_seconds, connect=min(timeout_seconds, _CONNECT_SECONDS))
    http_client = DefaultAioHttpClient(
        headers={"Accept-Encoding": ENCODINGS},
        # As many connections as there are runs, which have limits of their own: one that waited for another's would
        # seem to hang.
        limits=Limits(max_connections=None, max_keepalive_connections=100),
        follow_redirects=False,
        # Of one conversation nothing is kept for the next, and none of what a server makes up.
        cookies=CookieJar(DefaultCookiePolicy(allowed_domains=())),
        event_hooks={"response": [partial(bound_response, limits=reply_limits)]},
    )
    return ProviderClient(
        api_key=(key.get_secret_value() if key is not None else None) or "none",
        base_url=settings.openai_base_url,
        timeout=timeout,
        max_retries=0,
        http_client=http_client,
    )


def _needs_proxy(url: str) -> bool:
    """Tell if the environment has a proxy between here and there, which the official client knows how to use."""
    parts = urlsplit(url)
    proxies = getproxies()
    return bool(proxies.get(parts.scheme) or proxies.get("all")) and not proxy_bypass(parts.hostname or "")
