"""The parent of a server's workers: starts them, starts those again that die, and stops all of them in order.

uvicorn's own supervisor starts a worker again without a pause, whatever it died of, kills one that does not answer for
some seconds, and knows neither of a grace time nor of a second signal.
"""

from __future__ import annotations

import logging
import os
import selectors
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import NoReturn

from swarmkeep.processes.policy import RestartPolicy
from swarmkeep.processes.slots import RESET_SIGNALS, RunWorker, Slot, describe_end

log = logging.getLogger(__name__)

_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class WorkersFailed(Exception):
    """Why the workers could not serve, or not stop in order, in a sentence for whoever started them."""


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
            # Nobody serves, and what keeps this one from starting will keep the next from it.
            self._failure = reason
            self._stop()
        else:
            log.error("%s; a new one starts %s", how, f"in {pause:g} s" if pause else "now")

    def _start_due(self) -> None:
        for slot in self._slots:
            if slot.due is not None and slot.due <= time.monotonic():
                slot.start(self._run_worker, self._stop_fd, self._list_own_fds())

    def _list_own_fds(self) -> list[int]:
        """What is the parent's alone; as long as a worker held the end of the pipe, nobody would see it end."""
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
