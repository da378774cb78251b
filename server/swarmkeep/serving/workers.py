"""A server of several processes on one port, each with its own event loop and engine."""

from __future__ import annotations

import asyncio
import logging
import shutil
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, cast

from litestar import Litestar
from uvicorn import Config

from swarmkeep.app import ServeError, create_app
from swarmkeep.engine.models.provider import load_in_background, load_model_client
from swarmkeep.processes.link import WorkerLink
from swarmkeep.processes.listener import ConnectionCounts, SharedListener
from swarmkeep.processes.metrics import WorkerMetrics
from swarmkeep.processes.policy import RestartPolicy
from swarmkeep.processes.supervisor import Supervisor
from swarmkeep.serving.http_server import (
    StoppableServer,
    announce_address,
    bind_socket,
    build_http_config,
    run_loop,
    serve_app,
)
from swarmkeep.settings import Settings
from swarmkeep.store.schema import upgrade

log = logging.getLogger(__name__)

# How long a worker may take to stop beyond the grace time, for its last answers and records, before it is killed.
_STOPPING_SECONDS = 30

Explain = Callable[[Exception], Exception]


class _Shared(NamedTuple):
    """What the parent has made for all workers."""

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
    """Where the workers ask one another for their metrics; None where there is no place for it."""
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
