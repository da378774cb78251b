"""Limits on connections that the HTTP server itself leaves open: slow heads, and readers that have stopped."""

from __future__ import annotations

import asyncio
import errno
import gc
import logging
import signal
import socket
import sys
from collections.abc import Coroutine
from functools import partial
from types import FrameType
from typing import Any, cast
from uuid import uuid4

from litestar import Litestar
from uvicorn import Config, Server
from uvicorn._types import ASGISendEvent
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import HANDLED_SIGNALS
from websockets.frames import Frame

from swarmkeep import __version__
from swarmkeep.http.auth import Service
from swarmkeep.http.metrics import ServerLimits
from swarmkeep.models.clients import load_in_background
from swarmkeep.serve.app import LIMITS, ServeError, bracket_host
from swarmkeep.serve.listener import REFUSAL, FileReserve
from swarmkeep.serve.settings import Settings
from swarmkeep.store.audit import SqlAuditLog
from swarmkeep.store.records import DEFAULT_TENANT, AuditAction
from swarmkeep.store.urls import locate


class UnsentLimit:
    """Bounds what all connections together hold for readers that are slow.

    Above the limit, the connections whose readers have taken nothing for the longest are aborted, which also frees what
    their answers are made of. A client that reconnects to a stream misses nothing.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._sizes: dict[asyncio.Transport, int] = {}
        self._total = 0

    def add(self, transport: asyncio.Transport) -> None:
        """Count a connection as it is now, and as one that has just taken something."""
        self._count(transport)
        if self._total > self._max_bytes:
            self._count_anew(transport)
        while self._total > self._max_bytes and len(self._sizes) > 1:
            longest = next(iter(self._sizes))
            self.remove(longest)
            longest.abort()

    def _count_anew(self, last: asyncio.Transport) -> None:
        """Count again the connections whose readers have taken something meanwhile, and `last` after them."""
        for transport, size in list(self._sizes.items()):
            if transport.get_write_buffer_size() < size:
                self._count(transport)
        self._count(last)

    def _count(self, transport: asyncio.Transport) -> None:
        self.remove(transport)
        size = self._sizes[transport] = transport.get_write_buffer_size()
        self._total += size

    def remove(self, transport: asyncio.Transport) -> None:
        self._total -= self._sizes.pop(transport, 0)


class StallLimit:
    """Ends a connection whose reader takes nothing of what is to be sent, or too slowly once it is to be closed."""

    def __init__(self, seconds: float, unsent: UnsentLimit) -> None:
        self._seconds = seconds
        self._unsent_limit = unsent
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._unsent = 0

    def watch(self, transport: asyncio.Transport) -> None:
        self.stop()
        self._transport = transport
        self._unsent_limit.add(transport)
        self._unsent = transport.get_write_buffer_size()
        self._timer = asyncio.get_running_loop().call_later(self._seconds, self._check, transport)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._transport is not None:
            self._unsent_limit.remove(self._transport)
            self._transport = None

    def _check(self, transport: asyncio.Transport) -> None:
        # Closing waits for the reader, who may take a byte now and then for ever.
        if transport.get_write_buffer_size() < self._unsent and not transport.is_closing():
            self.watch(transport)
        else:
            # After an upgrade nothing else tells that the connection is gone.
            self.stop()
            transport.abort()


class BoundedConnection(HttpToolsProtocol):
    """An HTTP connection with bounds: on the time and the size of a request's head, and on a reader that has stopped.

    Without them a client could keep a connection for ever by never finishing its head, fill memory with it, or hold an
    answer back by reading none of it.
    """

    head_bytes = 65_536

    def __init__(
        self,
        *args: Any,
        head_seconds: float,
        stalled_seconds: float,
        unsent: UnsentLimit,
        reserve: FileReserve,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self._reserve = reserve
        self._head_seconds = head_seconds
        self._stall = StallLimit(stalled_seconds, unsent)
        self._in_head = False
        self._head_size = 0
        self._head_limit: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if not self._reserve.has_room(transport):
            transport.write(REFUSAL)
            transport.close()
            return
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_head()
        self.resume_writing()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.cycle is None or self.cycle.response_complete:
            # The next request, or the rest of a body that was refused: both are given the same time.
            self._await_head()
        super().data_received(data)
        if self._in_head:
            self._head_size += len(data)
            if self._head_size > self.head_bytes:
                self.transport.abort()

    def on_message_begin(self) -> None:
        self._in_head, self._head_size = True, 0
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        # After a body in pieces come headers, too; they are not read, and have no end of their own.
        if self._in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._end_head()
        super().on_headers_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._in_head:
            # The next request has begun to come while this one was answered.
            self._await_head()

    def _await_head(self) -> None:
        if self._head_limit is None:
            self._head_limit = self.loop.call_later(self._head_seconds, self.transport.abort)

    def _end_head(self) -> None:
        self._in_head = False
        if self._head_limit is not None:
            self._head_limit.cancel()
            self._head_limit = None

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stall.watch(self.transport)

    def resume_writing(self) -> None:
        self._stall.stop()
        if self.flow is not None:
            super().resume_writing()


class BoundedWebSocket(WebSocketsSansIOProtocol):
    """A WebSocket with bounds: on what waits for a reader that has stopped, and for how long, and on unfinished frames.

    Without them a viewer that reads nothing would be kept for ever, and could fill memory with answers to its pings or
    with a message in pieces that never ends.
    """

    def __init__(self, *args: Any, stalled_seconds: float, unsent: UnsentLimit, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._stall = StallLimit(stalled_seconds, unsent)
        self._is_write_paused = False
        self._owed_pong = b""

    def connection_lost(self, exc: Exception | None) -> None:
        self._stall.stop()
        self._owed_pong = b""
        super().connection_lost(exc)

    async def send(self, message: ASGISendEvent) -> None:
        await super().send(message)
        # A refusal is an answer, too: uvicorn would take it for none, and log that as an error of the application.
        if self.close_sent:
            self.handshake_complete = True

    def pause_writing(self) -> None:
        super().pause_writing()
        self._is_write_paused = True
        self._stall.watch(self.transport)

    def resume_writing(self) -> None:
        self._is_write_paused = False
        if not self.transport.is_closing():
            self._stall.stop()
        pong, self._owed_pong = self._owed_pong, b""
        if pong and not (self.close_sent or self.transport.is_closing()):
            self.transport.write(pong)
        super().resume_writing()

    def handle_ping(self) -> None:
        if not self._is_write_paused:
            return super().handle_ping()
        # RFC 6455, 5.5.3: of several pings only the last one has to be answered.
        for part in self.conn.data_to_send():
            self._owed_pong = part or self._owed_pong
        return None

    def handle_cont(self, event: Frame) -> None:
        # One text that grows: a list of pieces takes many times their size where they are small.
        if not isinstance(self.frames[0], bytearray):
            self.frames[0] = bytearray(self.frames[0])  # type: ignore[call-overload]
        self.frames[0] += event.data
        if event.fin:
            self.send_receive_event_to_app()

    def keepalive_timeout(self) -> None:
        super().keepalive_timeout()
        self._limit_closing()

    def handle_close(self, event: Frame) -> None:
        super().handle_close(event)
        self._limit_closing()

    def handle_parser_exception(self) -> None:
        super().handle_parser_exception()
        self._limit_closing()

    def on_task_complete(self, task: asyncio.Task[None]) -> None:
        super().on_task_complete(task)
        self._limit_closing()

    def _limit_closing(self) -> None:
        """Limit the closed connections that wait until the rest was taken; not for ever."""
        if self.transport.is_closing() and not self.disconnected:
            self._stall.watch(self.transport)


# Tell of a server's start and end: a line of its log, and an entry of the audit log: under which settings it
# decided who may do what.

log = logging.getLogger(__name__)

# The time that the start may wait for a database that another process writes to, and the end for one that is gone.
_START_SECONDS = 5.0
_STOP_SECONDS = 2.0
# Settings that change who may do what, beside those for sizes and quotas, whose names begin alike. None is a secret.
_RECORDED = (
    "agents",
    "allowed_hosts",
    "approval_seconds",
    "cors_origins",
    "forwarded_allow_ips",
    "migrate",
    "offline",
    "rate_limit_per_minute",
    "run_seconds",
    "separate_approvers",
    "tool_seconds",
)


def describe_settings(settings: Settings) -> dict[str, Any]:
    """The effective settings that are recorded."""
    given = settings.model_dump(mode="json", include={name for name in type(settings).model_fields if _counts(name)})
    return {**given, "metrics_token": settings.metrics_token is not None}


def _counts(name: str) -> bool:
    return name in _RECORDED or name.startswith("max_")


class StartRecord:
    """One server's entries, or those of one of its workers, who is told by its number. They are in the log of the
    tenant `default`, whichever tenants there are.

    A server that cannot write them, as on a read-only database, works as it does without.
    """

    def __init__(self, audit_log: SqlAuditLog, worker: int | None = None) -> None:
        self._audit_log = audit_log
        self._name = f"swarmkeep {__version__}" if worker is None else f"worker {worker} of swarmkeep {__version__}"
        self._server = {"server": f"srv_{uuid4().hex}", "version": __version__}
        if worker is not None:
            self._server["worker"] = str(worker)

    async def record_start(self, settings: Settings, address: str, *, needs_keys: bool) -> None:
        described = {"address": address, "api_keys": needs_keys, "settings": describe_settings(settings)}
        await self._record("server.started", described, _START_SECONDS)
        database = locate(settings.database_url).display
        log.info("%s is up, with agents from %s and the database %s", self._name, ", ".join(settings.agents), database)

    async def record_stop(self) -> None:
        await self._record("server.stopped", {}, _STOP_SECONDS)
        log.info("%s has stopped", self._name)

    async def _record(self, type: str, details: dict[str, Any], seconds: float) -> None:
        action = AuditAction(type=type, details={**self._server, **details})
        try:
            async with asyncio.timeout(seconds):
                await self._audit_log.record_action(DEFAULT_TENANT, action)
        except TimeoutError:
            log.warning("the audit log may lack an entry %s: the database did not answer in time", type)
        except Exception as error:
            log.warning("the audit log has no entry %s: %s", type, error)


# One process's HTTP server: it takes a socket, answers on it, and stops in two steps.

# How long answers may take to reach their clients once the last run has ended.
_CLOSING_SECONDS = 5


def build_http_config(app: Litestar, settings: Settings, limits: ServerLimits = LIMITS) -> Config:
    """Build the configuration for serving the application over HTTP."""
    unsent, seconds = UnsentLimit(limits.unsent_bytes), limits.stalled_seconds
    connection = partial(
        BoundedConnection,
        head_seconds=limits.head_seconds,
        stalled_seconds=seconds,
        unsent=unsent,
        reserve=FileReserve(),
    )
    live = partial(BoundedWebSocket, stalled_seconds=seconds, unsent=unsent)
    return Config(
        app,
        host=settings.host,
        http=cast(type[BoundedConnection], connection),
        ws=cast(type[BoundedWebSocket], live),
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        # Who calls is told by the connection; by `X-Forwarded-For` only where a proxy is said to stand.
        proxy_headers=bool(settings.forwarded_allow_ips),
        forwarded_allow_ips=list(settings.forwarded_allow_ips),
        # Clients keep connections; one that closes just as a request is sent would make that request fail.
        timeout_keep_alive=75,
        timeout_graceful_shutdown=_CLOSING_SECONDS,
        # A larger frame ends the connection; one between the two is refused by name, and it goes on.
        ws_max_size=2 * settings.max_body_bytes,
        ws_ping_interval=15,
    )


def bind_socket(settings: Settings, address: tuple[str, int]) -> socket.socket:
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        # A port that an ended server's connections still linger on may be taken, one that is listened on may not.
        if sys.platform != "win32":
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise make_listen_error(settings, error) from error
    return listener


def make_listen_error(settings: Settings, error: OSError) -> ServeError:
    hint = "; stop what listens there, or choose another --port" if error.errno == errno.EADDRINUSE else ""
    return ServeError(
        f"cannot listen on {bracket_host(settings.host)}:{settings.port}: {error.strerror or error}{hint}"
    )


def announce_address(host: str, listener: socket.socket) -> None:
    print(f"Swarmkeep is listening on http://{bracket_host(host)}:{listener.getsockname()[1]}", flush=True)


def run_loop(config: Config, main: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
        runner.run(main)


def tune_garbage_collector() -> None:
    """Have the garbage collector look less often, and not at what is loaded by now."""
    # That stays for good, and every task would wait each time that the collector goes through it: a long session
    # that is read brings that about.
    gc.freeze()
    # A turn makes some hundreds of objects, nearly all of them in no cycle and gone by its end.
    gc.set_threshold(10_000, 20, 20)


async def serve_app(
    app: Litestar, settings: Settings, server: StoppableServer, listener: socket.socket, worker: int | None = None
) -> None:
    # Opened here rather than by the server, which would turn an error into a log of its own and exit code 3.
    async with app.lifespan():
        service: Service = app.state.service
        record = StartRecord(service.engine.store, worker)
        address = f"{bracket_host(settings.host)}:{listener.getsockname()[1]}"
        await record.record_start(settings, address, needs_keys=await service.keyring.is_locked())
        registry = service.engine.registry
        log.info("agents: %d; sessions that name none begin with %r", len(registry.names), registry.default)
        tune_garbage_collector()
        try:
            await server.serve(sockets=[listener])
        finally:
            await record.record_stop()


class StoppableServer(Server):
    """Loads the client of models once it listens, and stops in two steps: while running runs have their grace time it
    still answers, so that a load balancer sees that it is not ready and callers get their results; then it closes.
    Asked twice, it ends at once."""

    def __init__(self, config: Config, app: Litestar, settings: Settings) -> None:
        super().__init__(config)
        self._app = app
        self._settings = settings
        self._loop: asyncio.AbstractEventLoop | None = None
        self._draining: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)
        assert sockets
        announce_address(self.config.host, sockets[0])
        load_in_background(self._settings)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        # From now on signals do what they do by themselves. What was committed survives that, too.
        for number in HANDLED_SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        if self._loop is None:
            self.should_exit = True
        else:
            self._loop.call_soon_threadsafe(self.drain)

    def drain(self) -> None:
        """Begin to stop."""
        if self._draining is None:
            self._draining = asyncio.create_task(self._drain())

    async def _drain(self) -> None:
        service: Service = self._app.state.service
        log.info("stopping; active runs: %d", service.engine.active_session_count())
        try:
            await service.drain()
        except Exception:
            log.exception("active runs could not be ended; another server takes them over")
        finally:
            self.should_exit = True
