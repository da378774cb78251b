"""A server of several processes on one port, and their parent, which starts them, again if they die, and stops them."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import logging
import os
import selectors
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, cast

import msgspec
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
from swarmkeep.store.records import SchemaBehind, StoreUnavailable
from swarmkeep.store.schema import upgrade
from swarmkeep.store.urls import BadDatabaseUrl, SqliteFile, locate

# Set how often a worker is started again, and how long it may take to end.


class RestartPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """Times in seconds; those that cannot be set, tests pass smaller.

    A worker that has lived for `steady_seconds` is replaced at once. Before, each death in a row doubles the pause,
    from `first_pause` to `longest_pause`. `stop_seconds` is how long all may take to end after they were asked to.
    """

    first_pause: float = 0.5
    longest_pause: float = 30.0
    steady_seconds: float = 60.0
    stop_seconds: float = 30.0

    def compute_pause(self, deaths: int) -> float:
        """Compute how long to wait after so many deaths in a row; the first costs no pause."""
        if deaths < 2:
            return 0.0
        return min(self.longest_pause, self.first_pause * 2.0 ** min(deaths - 2, 20))


# Connect a worker with the process that started it: one pipe each way.

_READY = b"ready\n"
_FAILED = b"failed "
# What a pipe takes in one piece.
_MAX_REASON_BYTES = 4000


class WorkerLink:
    """The worker's end. `stop_fd` becomes readable when it has to stop: on request, or because its parent is gone."""

    def __init__(self, number: int, stop_fd: int, report_fd: int) -> None:
        self.number = number
        self.stop_fd = stop_fd
        self._report_fd = report_fd

    def report_ready(self) -> None:
        self._report(_READY)

    def report_failure(self, reason: str) -> None:
        """Report why this worker cannot start, in a sentence for the operator."""
        self._report(_FAILED + " ".join(reason.split()).encode()[:_MAX_REASON_BYTES] + b"\n")

    def _report(self, line: bytes) -> None:
        # No process listens any more when the parent has been killed.
        with contextlib.suppress(OSError):
            os.write(self._report_fd, line)


class Reports:
    """The parent's end: what one worker has reported so far."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.is_open = True
        self._text = b""

    def read(self) -> None:
        """Take what has come, or nothing."""
        while self.is_open:
            try:
                piece = os.read(self.fd, 8192)
            except BlockingIOError:
                return
            self._text += piece
            self.is_open = bool(piece)

    def close(self) -> None:
        os.close(self.fd)

    @property
    def is_ready(self) -> bool:
        return self._text.startswith(_READY)

    @property
    def failure(self) -> str | None:
        text = self._text.removeprefix(_READY)
        return text.removeprefix(_FAILED).decode(errors="replace").strip() if text.startswith(_FAILED) else None


# Places for workers: in each stands one process, or there will again after a pause.

log = logging.getLogger(__name__)

RunWorker = Callable[[WorkerLink], None]
RESET_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD)


class Slot:
    """One place. `due` is when the next process begins; None while there is one."""

    def __init__(self, number: int, policy: RestartPolicy) -> None:
        self.number = number
        self.pid: int | None = None
        self.due: float | None = None
        self.reports: Reports | None = None
        self.deaths = 0
        self._policy = policy
        self._started_at = 0.0

    @property
    def is_ready(self) -> bool:
        return self.pid is not None and self.reports is not None and self.reports.is_ready

    @property
    def failure(self) -> str | None:
        """The reason why its last process could not start, in a sentence; None if it said nothing."""
        return None if self.reports is None else self.reports.failure

    def start(self, run: RunWorker, stop_fd: int, foreign_fds: Iterable[int]) -> None:
        """Fork a process. `foreign_fds` are those of the parent that it must not keep."""
        readable, writable = os.pipe()
        pid = os.fork()
        if pid == 0:
            _become_worker(run, WorkerLink(self.number, stop_fd, writable), [readable, *foreign_fds])
        os.close(writable)
        os.set_blocking(readable, False)
        self.reports = Reports(readable)
        self.pid, self.due, self._started_at = pid, None, time.monotonic()

    def reap(self) -> int | None:
        """Return how its process has ended, as `os.waitpid` tells it; None while it runs. It said what it had to by
        then."""
        if self.pid is None:
            return None
        ended, status = os.waitpid(self.pid, os.WNOHANG)
        if not ended:
            return None
        assert self.reports is not None
        self.reports.read()
        self.reports.close()
        return status

    def plan_restart(self) -> float:
        """Decide when the next process begins, and return the pause until then."""
        now = time.monotonic()
        was_steady = now - self._started_at >= self._policy.steady_seconds
        self.deaths = 1 if was_steady else self.deaths + 1
        pause = self._policy.compute_pause(self.deaths)
        self.pid, self.due = None, now + pause
        return pause

    def send(self, number: int) -> None:
        """Send its process a signal. It is not reaped yet, so the number is still its own."""
        if self.pid is not None:
            os.kill(self.pid, number)


def _become_worker(run: RunWorker, link: WorkerLink, foreign_fds: Iterable[int]) -> NoReturn:
    """The rest of a forked process's life. It never returns into what the parent was doing."""
    code = 1
    try:
        # The objects that the parent has loaded are shared with it for as long as neither writes to them.
        gc.freeze()
        signal.set_wakeup_fd(-1)
        for number in RESET_SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        for fd in foreign_fds:
            os.close(fd)
        run(link)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:
        log.critical("an unexpected error stopped worker %d", link.number, exc_info=True)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def describe_end(status: int) -> str:
    """Describe how a process has ended, in words."""
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class WorkersFailed(Exception):
    """The reason why the workers could not serve, or not stop in order, in a sentence for the operator."""


class Supervisor:
    """Runs `count` workers, each of which is `run` in a process forked off this one, which must have one thread.

    `on_ready` is called once, when all of them serve; `on_stop` when they are asked to stop, before they are. Workers
    are asked by the end of a pipe, which also ends with this process. So no signal reaches one twice where a terminal
    or a service manager sends it to all processes.
    """

    def __init__(
        self,
        count: int,
        run: RunWorker,
        *,
        on_ready: Callable[[], None],
        on_stop: Callable[[], None],
        policy: RestartPolicy | None = None,
    ) -> None:
        self._run_worker = run
        self._on_ready = on_ready
        self._on_stop = on_stop
        self._policy = policy or RestartPolicy()
        self._slots = [Slot(number, self._policy) for number in range(1, count + 1)]
        self._signals: list[int] = []
        self._stop_fd, self._stop_writer_fd = os.pipe()
        self._wake_reader, self._wake_writer = socket.socketpair()
        self._is_up = False
        self._stopping_until: float | None = None
        self._is_killed = False
        self._failure: str | None = None

    def run(self) -> None:
        """Run until a signal ends it. Raises WorkersFailed."""
        with self._catch_signals():
            # Alone at first: what keeps one from starting keeps all of them, and is said once.
            self._slots[0].due = time.monotonic()
            while self._stopping_until is None or any(slot.pid is not None for slot in self._slots):
                self._wait()
                self._obey_signals()
                self._reap()
                self._start_due()
                self._start_others()
                self._announce()
                self._kill_late_workers()
        if self._failure is not None:
            raise WorkersFailed(self._failure)

    @contextmanager
    def _catch_signals(self) -> Iterator[None]:
        for end in (self._wake_reader, self._wake_writer):
            end.setblocking(False)
        before = {number: signal.signal(number, self._note_signal) for number in RESET_SIGNALS}
        before_fd = signal.set_wakeup_fd(self._wake_writer.fileno(), warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(before_fd)
            for number, handler in before.items():
                signal.signal(number, handler)
            self._close()

    def _note_signal(self, number: int, frame: object) -> None:
        if number in _STOP_SIGNALS:
            self._signals.append(number)

    def _close(self) -> None:
        os.close(self._stop_fd)
        if self._stopping_until is None:
            os.close(self._stop_writer_fd)
        self._wake_reader.close()
        self._wake_writer.close()

    def _wait(self) -> None:
        """Until a signal, a report, or the next moment at which something is due."""
        moments = [slot.due for slot in self._slots if slot.due is not None]
        moments += [] if self._stopping_until is None or self._is_killed else [self._stopping_until]
        seconds = max(0.0, min(moments) - time.monotonic()) if moments else None
        with selectors.DefaultSelector() as selector:
            selector.register(self._wake_reader, selectors.EVENT_READ)
            open_reports = [slot.reports for slot in self._slots if slot.pid and slot.reports and slot.reports.is_open]
            for reports in open_reports:
                selector.register(reports.fd, selectors.EVENT_READ)
            selector.select(seconds)
        for reports in open_reports:
            reports.read()
        with suppress(BlockingIOError):
            while self._wake_reader.recv(4096):
                pass

    def _obey_signals(self) -> None:
        while self._signals:
            number = self._signals.pop(0)
            if self._stopping_until is not None:
                self._end_at_once(number)
            self._stop()

    def _stop(self) -> None:
        """Ask all workers to stop, and start none any more."""
        if self._stopping_until is not None:
            return
        self._stopping_until = time.monotonic() + self._policy.stop_seconds
        self._on_stop()
        os.close(self._stop_writer_fd)
        for slot in self._slots:
            slot.due = None
            if not slot.is_ready:
                # Nothing has begun in it, and it may not look at the pipe yet.
                slot.send(signal.SIGTERM)

    def _end_at_once(self, number: int) -> NoReturn:
        for slot in self._slots:
            slot.send(signal.SIGKILL)
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        # Where the signal is blocked.
        os._exit(1)

    def _reap(self) -> None:
        for slot in self._slots:
            status = slot.reap()
            if status is None:
                continue
            pid, was_ready = slot.pid, slot.is_ready
            how = f"worker {slot.number} (process {pid}) {describe_end(status)}"
            if self._stopping_until is not None:
                slot.pid = None
                if status != 0 and was_ready:
                    log.error("%s while the server was stopping", how)
                    self._failure = self._failure or f"{how} while the server was stopping"
            else:
                self._replace(slot, how, cannot_start=not was_ready and (os.WIFEXITED(status) or not self._is_up))

    def _replace(self, slot: Slot, how: str, *, cannot_start: bool) -> None:
        if not slot.is_ready:
            how += f" before it could serve: {slot.failure or 'see the log'}"
        reason = slot.failure or how
        pause = slot.plan_restart()
        if cannot_start and not (self._is_up and any(other.is_ready for other in self._slots)):
            # No worker serves, and what keeps this one from starting will keep the next from it.
            self._failure = reason
            self._stop()
        else:
            log.error("%s; a new one starts %s", how, f"in {pause:g} s" if pause else "now")

    def _start_due(self) -> None:
        for slot in self._slots:
            if slot.due is not None and slot.due <= time.monotonic():
                slot.start(self._run_worker, self._stop_fd, self._list_own_fds())

    def _list_own_fds(self) -> list[int]:
        """List the parent's own descriptors; if a worker held the end of the pipe, its end would not be seen."""
        reports = [slot.reports.fd for slot in self._slots if slot.pid is not None and slot.reports is not None]
        return [self._stop_writer_fd, self._wake_reader.fileno(), self._wake_writer.fileno(), *reports]

    def _start_others(self) -> None:
        """Once the first worker serves, start the rest."""
        if self._is_up or self._stopping_until is not None or not self._slots[0].is_ready:
            return
        for slot in self._slots:
            if slot.pid is None and slot.due is None:
                slot.due = time.monotonic()

    def _announce(self) -> None:
        if self._is_up or self._stopping_until is not None:
            return
        self._is_up = all(slot.is_ready for slot in self._slots)
        if self._is_up:
            self._on_ready()

    def _kill_late_workers(self) -> None:
        if self._stopping_until is not None and not self._is_killed and time.monotonic() >= self._stopping_until:
            self._is_killed = True
            for slot in self._slots:
                slot.send(signal.SIGKILL)


# A server of several processes on one port, each with its own event loop and engine.


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
    for noisy in ("uvicorn", "alembic", "httpx2", "httpcore2", "openai", "mcp"):
        logging.getLogger(noisy).setLevel(max(logging.getLogger().level, logging.WARNING))


def _explain_error(error: Exception, settings: Settings) -> Exception:
    """Explain the error in a sentence, if it is one that the operator can do something about."""
    if isinstance(error, AgentsError | BadDatabaseUrl | SchemaBehind | StoreUnavailable | WorkersFailed):
        return ServeError(str(error))
    if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
        # Two that start at once may both bind the port; one of them gets to listen.
        return make_listen_error(settings, error)
    return error
