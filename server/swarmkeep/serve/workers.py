"""A server of several processes on one port, each with its own event loop and engine."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, cast

from litestar import Litestar
from uvicorn import Config

from swarmkeep.http.metrics import WorkerMetrics
from swarmkeep.logs import JsonFormatter, TextFormatter
from swarmkeep.models.clients import load_in_background, load_model_client
from swarmkeep.runs.agents import AgentsError
from swarmkeep.runs.engine import list_secrets
from swarmkeep.serve.app import ServeError, create_app, resolve_address
from swarmkeep.serve.listener import ConnectionCounts, SharedListener, raise_open_files
from swarmkeep.serve.server import (
    StoppableServer,
    announce_address,
    bind_socket,
    build_http_config,
    make_listen_error,
    run_loop,
    serve_app,
)
from swarmkeep.serve.settings import Settings
from swarmkeep.serve.supervisor import RestartPolicy, Supervisor, WorkerLink, WorkersFailed
from swarmkeep.store.records import SchemaBehind, StoreUnavailable
from swarmkeep.store.schema import upgrade
from swarmkeep.store.urls import BadDatabaseUrl, SqliteFile, locate

log = logging.getLogger(__name__)

# How long a worker may take to stop beyond the grace time, for its last answers and records, before it is killed.
_STOPPING_SECONDS = 30

Explain = Callable[[Exception], Exception]


class _Shared(NamedTuple):
    """The resources that the parent has made for all workers."""

    listener: socket.socket
    counts: ConnectionCounts
    folder: Path | None


def serve_with_workers(settings: Settings, address: tuple[str, int], explain: Explain) -> None:
    """Serve until a signal ends it. `explain` makes a ServeError of what keeps a worker from starting, if it can.

    Raises WorkersFailed, ServeError, and what the migration raises.
    """
    if settings.migrate:
        upgrade(settings.database_url)
    with bind_socket(settings, address) as listener, _make_metrics_folder() as folder:
        # Else each worker would load it; loaded here, it is there once. Offline it is not worth a later start.
        if not settings.offline:
            load_model_client(settings)
        shared = _Shared(listener, ConnectionCounts(settings.workers), folder)
        Supervisor(
            settings.workers,
            partial(_serve_as_worker, settings, shared, explain),
            on_ready=partial(announce_address, settings.host, listener),
            on_stop=listener.close,
            policy=RestartPolicy(stop_seconds=settings.grace_seconds + _STOPPING_SECONDS),
        ).run()


@contextmanager
def _make_metrics_folder() -> Iterator[Path | None]:
    """Make the folder where the workers ask one another for their metrics; None where there is no place for it."""
    try:
        # A socket's path is at most 107 bytes long.
        place = None if len(tempfile.gettempdir()) < 60 else "/tmp"
        folder = Path(tempfile.mkdtemp(prefix="swarmkeep-workers-", dir=place))
    except OSError as error:
        log.warning("/metrics shows only the worker that answers, because there is no temporary folder: %s", error)
        yield None
        return
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _serve_as_worker(settings: Settings, shared: _Shared, explain: Explain, link: WorkerLink) -> None:
    """One worker's life. Its parent has migrated the database."""
    try:
        metrics = None if shared.folder is None else WorkerMetrics(shared.folder, link.number)
        app = create_app(settings.model_copy(update={"migrate": False}), worker_metrics=metrics)
        config = build_http_config(app, settings)
        server = WorkerServer(config, app, settings, link, shared.counts)
        run_loop(config, serve_app(app, settings, server, shared.listener, link.number))
    except Exception as error:
        explained = explain(error)
        if not isinstance(explained, ServeError):
            raise
        link.report_failure(str(explained))
        sys.exit(1)


class WorkerServer(StoppableServer):
    """One of several that share a socket. It begins to stop when its link says so, too."""

    def __init__(
        self, config: Config, app: Litestar, settings: Settings, link: WorkerLink, counts: ConnectionCounts
    ) -> None:
        super().__init__(config, app, settings)
        self._link = link
        self._counts = counts
        self._listener: SharedListener | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        assert sockets
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._link.stop_fd, self._obey_stop_request)
        protocol = cast(Any, self.config.http_protocol_class)
        make_protocol = partial(protocol, config=self.config, server_state=self.server_state, app_state={})
        self._listener = SharedListener(self._loop, sockets[0], make_protocol, self._has_fewest)
        self.servers = [cast(Any, self._listener)]
        self.started = True
        self._link.report_ready()
        load_in_background(self._settings)

    async def on_tick(self, counter: int) -> bool:
        # Ten times a second; connections that have closed are noticed here.
        self._publish_count()
        return await super().on_tick(counter)

    def _has_fewest(self) -> bool:
        self._publish_count()
        return self._counts.has_fewest(self._link.number)

    def _publish_count(self) -> None:
        opening = 0 if self._listener is None else self._listener.opening_count
        self._counts.set(self._link.number, len(self.server_state.connections) + opening)

    def _obey_stop_request(self) -> None:
        assert self._loop is not None
        self._loop.remove_reader(self._link.stop_fd)
        self.drain()


# The process that serves the application over HTTP, or starts those that do, and says why it cannot.

_PERIOD_SECONDS = 60.0
_MOST_TEXTS = 1_000
_INCOMPLETE_ANSWER = "ASGI callable returned without completing response."


class LineLimit(logging.Filter):
    """Lets each warning through up to `lines` times a minute; how many were left out is said with its next line."""

    def __init__(self, lines: int = 10, *, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._lines = lines
        self._clock = clock
        # By their texts, which the server's own code has: when the minute began, and how many there were in it.
        self._counts: dict[str, tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno != logging.WARNING or record.args or not isinstance(record.msg, str):
            return True
        now, text = self._clock(), record.msg
        began, count = self._counts.get(text, (now, 0))
        left_out = 0
        if now - began >= _PERIOD_SECONDS:
            began, count, left_out = now, 0, max(0, count - self._lines)
        if text in self._counts or len(self._counts) < _MOST_TEXTS:
            self._counts[text] = began, count + 1
        if left_out:
            record.msg = f"{text} ({left_out} more since the last such line)"
        return count < self._lines


class WorkersRefused(Exception):
    """The reason why there cannot be several workers here, in a sentence for the operator."""


def serve(settings: Settings, notes: Iterable[str] = ()) -> None:
    """Run the server until it is told to stop (SIGTERM, SIGINT), and return once it has.

    `notes` are the first lines of its log. Prints one line when it accepts connections. Raises ServeError when it
    cannot start, and WorkersRefused for several workers where there can be one only.
    """
    if settings.workers > 1:
        _refuse_workers(settings)
    raise_open_files()
    _configure_logging(settings)
    for note in notes:
        log.info("%s", note)
    address = resolve_address(settings)
    try:
        if settings.workers > 1:
            serve_with_workers(settings, address, partial(_explain_error, settings=settings))
        else:
            _serve_alone(settings, address)
    except Exception as error:
        raise _explain_error(error, settings) from error


def _refuse_workers(settings: Settings) -> None:
    if isinstance(locate(settings.database_url), SqliteFile):
        raise WorkersRefused(
            "several workers need PostgreSQL: a SQLite file takes one writer at a time, so that more processes gain "
            "next to nothing; leave --workers out, or name a PostgreSQL database with --database-url"
        )
    if not hasattr(os, "fork"):
        raise WorkersRefused("several workers need a system that can fork; leave --workers out")


def _serve_alone(settings: Settings, address: tuple[str, int]) -> None:
    app = create_app(settings)
    with bind_socket(settings, address) as listener:
        config = build_http_config(app, settings)
        run_loop(config, serve_app(app, settings, StoppableServer(config, app, settings), listener))


def _configure_logging(settings: Settings) -> None:
    formatters = {"text": TextFormatter, "json": JsonFormatter}
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatters[settings.log_format](list_secrets(settings).mask))
    logging.basicConfig(level=settings.log_level.upper(), handlers=[handler])
    # Python writes warnings past every handler.
    logging.captureWarnings(True)
    # The code that breaks an answer off logs why, once for many.
    logging.getLogger("uvicorn.error").addFilter(lambda record: record.msg != _INCOMPLETE_ANSWER)
    # Anyone can have these written, without a key: by requests that are no HTTP.
    logging.getLogger("uvicorn.error").addFilter(LineLimit())
    for noisy in ("uvicorn", "alembic", "httpx2", "httpcore2", "openai"):
        logging.getLogger(noisy).setLevel(max(logging.getLogger().level, logging.WARNING))


def _explain_error(error: Exception, settings: Settings) -> Exception:
    """Explain the error in a sentence, if it is one that the operator can do something about."""
    if isinstance(error, AgentsError | BadDatabaseUrl | SchemaBehind | StoreUnavailable | WorkersFailed):
        return ServeError(str(error))
    if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
        # Two that start at once may both bind the port; one of them gets to listen.
        return make_listen_error(settings, error)
    return error
