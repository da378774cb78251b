"""The composition root: settings become a store, a model, agents, an engine and the API over them, and a server."""

from __future__ import annotations

import asyncio
import errno
import logging
import signal
import socket
import sys
from collections.abc import AsyncGenerator, Coroutine
from contextlib import asynccontextmanager
from types import FrameType
from typing import Any, cast

import msgspec
from litestar import Litestar
from uvicorn import Config, Server
from uvicorn.server import HANDLED_SIGNALS

from swarmkeep.api.application import build_api
from swarmkeep.api.auth.context import Service
from swarmkeep.api.auth.keyring import Keyring
from swarmkeep.api.auth.rate_limits import RateLimiter
from swarmkeep.api.metrics import MeasuredStore, Metrics
from swarmkeep.connections import BoundedConnection
from swarmkeep.engine.agents.loading import load_registry
from swarmkeep.engine.agents.registry import AgentsError
from swarmkeep.engine.engine import Engine
from swarmkeep.engine.limits import Limits
from swarmkeep.engine.models.model import ChatModel
from swarmkeep.engine.models.pauses import Pauses
from swarmkeep.engine.models.provider import make_model_client
from swarmkeep.engine.models.retries import Retries
from swarmkeep.settings import Settings, is_loopback
from swarmkeep.store.api_keys import ApiKeyStore
from swarmkeep.store.archive import Archive
from swarmkeep.store.ports import SchemaBehind, StoreUnavailable
from swarmkeep.store.schema import upgrade
from swarmkeep.store.sql.store import SqlStore, open_store
from swarmkeep.store.urls import BadDatabaseUrl, SqliteFile, locate

log = logging.getLogger(__name__)

# How long answers may take to reach their clients once the last run has ended.
_CLOSING_SECONDS = 5
LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})


class ServeError(Exception):
    """Why the server does not start, in a sentence for whoever started it."""


def create_app(settings: Settings) -> Litestar:
    """The application for any ASGI server. What it opens, it opens when it starts.

    Raises AgentsError, BadDatabaseUrl, and ServeError if no model is configured.
    """
    if not settings.agents:
        raise ServeError("there are no agents to serve; name a file, folder or module that defines some with --agents")
    registry = load_registry(settings.agents, model=settings.model)
    location = locate(settings.database_url)
    if not (settings.offline or settings.openai_api_key or settings.openai_base_url):
        raise ServeError(
            "no model is configured: set OPENAI_API_KEY, or OPENAI_BASE_URL for a server that speaks Chat "
            "Completions, or use the built-in offline model with --offline"
        )

    @asynccontextmanager
    async def lifespan(app: Litestar) -> AsyncGenerator[None]:
        if settings.migrate or isinstance(location, SqliteFile):
            await asyncio.to_thread(upgrade, settings.database_url)
        client = make_model_client(settings)
        limits = msgspec.convert(settings, Limits, from_attributes=True)
        pauses = Pauses()
        model = ChatModel(client, Retries(count=settings.model_retries), pauses.wait)
        store = open_store(settings.database_url)
        metrics = _build_metrics(settings)
        engine = Engine(cast(Archive, MeasuredStore(store, metrics)), registry, model, limits, pauses)
        _register_gauges(metrics, engine, store)
        try:
            await store.ping()
            keyring = Keyring(ApiKeyStore(store.database))
            # Before the engine starts, which takes runs over that others have left.
            await _refuse_to_be_open(settings, keyring)
            await engine.start()
            app.state.service = _build_service(settings, engine, keyring)
            app.state.metrics = metrics
            yield
        finally:
            await engine.stop()
            await client.close()

    return build_api(
        lifespan=lifespan,
        max_body_bytes=settings.max_body_bytes,
        max_import_bytes=settings.max_import_bytes,
        cors_origins=settings.cors_origins,
    )


async def _refuse_to_be_open(settings: Settings, keyring: Keyring) -> None:
    if not (is_loopback(_resolve_address(settings)[0]) or await keyring.is_locked()):
        raise ServeError(
            f"without API keys the server is open to whoever reaches it, so it does not listen on {settings.host}; "
            "make a key with `swarmkeep keys create`, or listen on 127.0.0.1"
        )


def _build_service(settings: Settings, engine: Engine, keyring: Keyring) -> Service:
    own = {_bracket_host(settings.host), *settings.allowed_hosts}
    limit = settings.rate_limit_per_minute
    return Service(
        engine,
        keyring,
        hosts=LOOPBACK_NAMES | {name.lower() for name in own},
        origins=frozenset(settings.cors_origins),
        rates=None if limit is None else RateLimiter(limit),
    )


def _build_metrics(settings: Settings) -> Metrics:
    token = settings.metrics_token
    return Metrics(None if token is None else token.get_secret_value())


def _register_gauges(metrics: Metrics, engine: Engine, store: SqlStore) -> None:
    engine.hub.add_observer(metrics.event)
    metrics.add_gauge(
        "swarmkeep_sessions_driven", "Sessions that this server has the lease of.", engine.active_session_count
    )
    metrics.add_gauge("swarmkeep_stream_readers", "Open streams.", lambda: engine.hub.reader_count)
    metrics.add_gauge("swarmkeep_writes_waiting", "Writes that wait for the database.", lambda: store.database.waiting)


def serve(settings: Settings) -> None:
    """Run the server until it is told to stop (SIGTERM, SIGINT), and return once it has.

    Prints one line when it accepts connections. Raises ServeError when it cannot start.
    """
    logging.basicConfig(
        level=settings.log_level.upper(), stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    for noisy in ("uvicorn", "alembic", "httpx2", "httpcore2", "openai"):
        logging.getLogger(noisy).setLevel(max(logging.getLogger().level, logging.WARNING))
    address = _resolve_address(settings)
    try:
        app = create_app(settings)
        with _bind_socket(settings, address) as listener:
            config = build_http_config(app, settings)
            _run_loop(config, _serve_app(app, StoppableServer(config, app, settings.host), listener))
    except Exception as error:
        raise _explain_error(error, settings) from error


def build_http_config(app: Litestar, settings: Settings) -> Config:
    """How the application is served over HTTP."""
    return Config(
        app,
        http=BoundedConnection,
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        # Clients keep connections; one that closes just as a request is sent would make that request fail.
        timeout_keep_alive=75,
        timeout_graceful_shutdown=_CLOSING_SECONDS,
        # A larger frame ends the connection; one between the two is refused by name, and it goes on.
        ws_max_size=2 * settings.max_body_bytes,
        ws_ping_interval=15,
    )


def _explain_error(error: Exception, settings: Settings) -> Exception:
    """The error in a sentence, if it is one that whoever starts the server can do something about."""
    if isinstance(error, AgentsError | BadDatabaseUrl | SchemaBehind | StoreUnavailable):
        return ServeError(str(error))
    if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
        # Two that start at once may both bind the port; one of them gets to listen.
        return _make_listen_error(settings, error)
    return error


def _make_listen_error(settings: Settings, error: OSError) -> ServeError:
    hint = "; stop what listens there, or choose another --port" if error.errno == errno.EADDRINUSE else ""
    return ServeError(
        f"cannot listen on {_bracket_host(settings.host)}:{settings.port}: {error.strerror or error}{hint}"
    )


def _run_loop(config: Config, main: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
        runner.run(main)


async def _serve_app(app: Litestar, server: StoppableServer, listener: socket.socket) -> None:
    # Opened here rather than by the server, which would turn an error into a log of its own and exit code 3.
    async with app.lifespan():
        await server.serve(sockets=[listener])


class StoppableServer(Server):
    """Stops in two steps: while running runs have their grace time it still answers, so that a load balancer sees
    that it is not ready and callers get their results; then it closes. Asked twice, it ends at once."""

    def __init__(self, config: Config, app: Litestar, host: str) -> None:
        super().__init__(config)
        self._app = app
        self._host = host
        self._loop: asyncio.AbstractEventLoop | None = None
        self._draining: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)
        assert sockets
        port = sockets[0].getsockname()[1]
        print(f"Swarmkeep is listening on http://{_bracket_host(self._host)}:{port}", flush=True)

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
        try:
            await self._app.state.service.drain()
        except Exception:
            log.exception("running runs could not be brought to an end; another server takes them over")
        finally:
            self.should_exit = True


def _resolve_address(settings: Settings) -> tuple[str, int]:
    try:
        return settings.resolve_address()
    except (OSError, UnicodeError) as error:
        raise ServeError(f"there is no address to listen on called {settings.host!r}: {error}") from error


def _bind_socket(settings: Settings, address: tuple[str, int]) -> socket.socket:
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        # A port that an ended server's connections still linger on may be taken, one that is listened on may not.
        if sys.platform != "win32":
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise _make_listen_error(settings, error) from error
    return listener


def _bracket_host(host: str) -> str:
    return f"[{host}]" if ":" in host else host
