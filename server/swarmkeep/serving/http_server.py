"""One process's HTTP server: it takes a socket, answers on it, and stops in two steps."""

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

from litestar import Litestar
from uvicorn import Config, Server
from uvicorn.server import HANDLED_SIGNALS

from swarmkeep.api.limits import ServerLimits
from swarmkeep.api.service import Service
from swarmkeep.app import LIMITS, ServeError, bracket_host
from swarmkeep.engine.models.provider import load_in_background
from swarmkeep.serving.connections import BoundedConnection, BoundedWebSocket, UnsentLimit
from swarmkeep.serving.starts import StartRecord
from swarmkeep.settings import Settings

log = logging.getLogger(__name__)

# How long answers may take to reach their clients once the last run has ended.
_CLOSING_SECONDS = 5


def build_http_config(app: Litestar, settings: Settings, limits: ServerLimits = LIMITS) -> Config:
    """How the application is served over HTTP."""
    unsent, seconds = UnsentLimit(limits.unsent_bytes), limits.stalled_seconds
    connection = partial(BoundedConnection, head_seconds=limits.head_seconds, stalled_seconds=seconds, unsent=unsent)
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
    # That stays for good, and whatever runs would wait each time that the collector goes through it: a long session
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
