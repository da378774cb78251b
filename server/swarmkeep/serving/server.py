"""The process that serves the application over HTTP, or starts those that do, and says why it cannot."""

from __future__ import annotations

import errno
import logging
import os
import sys
import time
from collections.abc import Callable, Iterable
from functools import partial

from swarmkeep.app import ServeError, create_app, resolve_address
from swarmkeep.engine.agents.registry import AgentsError
from swarmkeep.engine.build import list_secrets
from swarmkeep.logs.formatters import JsonFormatter, TextFormatter
from swarmkeep.processes.open_files import raise_open_files
from swarmkeep.processes.supervisor import WorkersFailed
from swarmkeep.serving.http_server import (
    StoppableServer,
    bind_socket,
    build_http_config,
    make_listen_error,
    run_loop,
    serve_app,
)
from swarmkeep.serving.workers import serve_with_workers
from swarmkeep.settings import Settings
from swarmkeep.store.ports import SchemaBehind, StoreUnavailable
from swarmkeep.store.urls import BadDatabaseUrl, SqliteFile, locate

log = logging.getLogger(__name__)

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
    """Why there cannot be several workers here, in a sentence for whoever asked for them."""


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
    # Whatever breaks an answer off logs why, once for many.
    logging.getLogger("uvicorn.error").addFilter(lambda record: record.msg != _INCOMPLETE_ANSWER)
    # Anyone can have these written, without a key: by requests that are no HTTP.
    logging.getLogger("uvicorn.error").addFilter(LineLimit())
    for noisy in ("uvicorn", "alembic", "httpx2", "httpcore2", "openai"):
        logging.getLogger(noisy).setLevel(max(logging.getLogger().level, logging.WARNING))


def _explain_error(error: Exception, settings: Settings) -> Exception:
    """The error in a sentence, if it is one that whoever starts the server can do something about."""
    if isinstance(error, AgentsError | BadDatabaseUrl | SchemaBehind | StoreUnavailable | WorkersFailed):
        return ServeError(str(error))
    if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
        # Two that start at once may both bind the port; one of them gets to listen.
        return make_listen_error(settings, error)
    return error
