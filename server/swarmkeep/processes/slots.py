"""Places for workers: in each stands one process, or there will again after a pause."""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable
from typing import NoReturn

from swarmkeep.processes.link import Reports, WorkerLink
from swarmkeep.processes.policy import RestartPolicy

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
        """Why its last process could not start, in a sentence; None if it said nothing."""
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
        """How its process has ended, as `os.waitpid` tells it; None while it runs. It said what it had to by then."""
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
        # What the parent has loaded is shared with it for as long as nobody writes to it.
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
    """How a process has ended, in words."""
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"
