"""The parent of workers: what it does when they die, cannot start, or do not stop. With real processes."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from swarmkeep.serve.workers import RestartPolicy
from tests.serve.test_serve import wait_until
from tests.support.processes import Process

# Each worker writes a line as it begins, and then does what its program says.
PROGRAM = """
import logging, os, signal, sys, time
from pathlib import Path
from swarmkeep.serve.workers import RestartPolicy
from swarmkeep.serve.workers import Supervisor, WorkersFailed

logging.basicConfig(level="INFO", stream=sys.stderr, format="%(message)s")
FOLDER = Path({folder!r})

def exists(name):
    return (FOLDER / name).exists()

def run(link):
    print("worker", link.number, "begins", flush=True)
{body}

def wait_for_stop(link):
    os.read(link.stop_fd, 1)

policy = RestartPolicy(first_pause=0.05, longest_pause=0.4, steady_seconds=60.0, stop_seconds={stop_seconds})
parent = Supervisor(
    2, run, on_ready=lambda: print("all are ready", flush=True),
    on_stop=lambda: print("they are to stop", flush=True), policy=policy,
)
try:
    parent.run()
except WorkersFailed as failed:
    sys.exit(f"failed: {{failed}}")
print("all have ended", flush=True)
"""


class SupervisedProcess(Process):
    """A parent of two workers."""

    def __init__(self, folder: Path, body: str, *, stop_seconds: float = 20.0) -> None:
        indented = "\n".join(f"    {line}" for line in body.strip().splitlines())
        program = PROGRAM.format(folder=str(folder), body=indented, stop_seconds=stop_seconds)
        super().__init__([sys.executable, "-W", "error", "-c", program], folder=folder)

    def wait_for(self, text: str, count: int = 1) -> None:
        wait_until(lambda: self.output().count(text) >= count or self.returncode is not None)
        assert self.output().count(text) >= count, self.output()


SERVE = "link.report_ready()\nwait_for_stop(link)"


def test_restart_delays_grow_after_the_first() -> None:
    policy = RestartPolicy(first_pause=0.5, longest_pause=30.0)
    assert [policy.compute_pause(deaths) for deaths in range(1, 10)] == [0, 0.5, 1, 2, 4, 8, 16, 30, 30]
    assert policy.compute_pause(10**6) == 30


def test_workers_report_ready_and_end_together(tmp_path: Path) -> None:
    with SupervisedProcess(tmp_path, SERVE) as parent:
        parent.wait_for("all are ready")
        assert parent.stop() == 0
        lines = parent.output().splitlines()
        assert lines == ["worker 1 begins", "worker 2 begins", "all are ready", "they are to stop", "all have ended"]


def test_group_signal_stops_like_parent_signal(tmp_path: Path) -> None:
    """Service managers and terminals send it to every process; then none may take it for the second one."""
    body = "signal.signal(signal.SIGTERM, lambda *_: print('once', flush=True))\n" + SERVE
    with SupervisedProcess(tmp_path, body) as parent:
        parent.wait_for("all are ready")
        parent.signal(signal.SIGTERM)
        assert parent.wait() == 0
        assert parent.output().count("once") == 2


def test_dead_worker_is_replaced_and_reported(tmp_path: Path) -> None:
    body = """
link.report_ready()
if link.number == 2 and not exists("died"):
    (FOLDER / "died").touch()
    os.kill(os.getpid(), signal.SIGKILL)
wait_for_stop(link)
"""
    with SupervisedProcess(tmp_path, body) as parent:
        parent.wait_for("worker 2 begins", 2)
        assert ") was killed by SIGKILL; a new one starts now" in parent.output()
        # The one that died may have said so first, or the new one.
        parent.wait_for("all are ready")
        assert parent.stop() == 0
        assert parent.output().count("all are ready") == 1


def test_repeatedly_dying_worker_restarts_with_pauses(tmp_path: Path) -> None:
    body = """
link.report_ready()
if link.number == 2:
    sys.exit(7)
wait_for_stop(link)
"""
    with SupervisedProcess(tmp_path, body) as parent:
        parent.wait_for("a new one starts in 0.4 s", 2)
        pauses = [line.rpartition("starts ")[2] for line in parent.output().splitlines() if "starts" in line]
        assert pauses[:6] == ["now", "in 0.05 s", "in 0.1 s", "in 0.2 s", "in 0.4 s", "in 0.4 s"]
        assert "worker 2 (process " in parent.output()
        assert "ended with exit code 7" in parent.output()
        assert parent.stop() == 0


def test_first_start_obstacle_is_said_once(tmp_path: Path) -> None:
    with SupervisedProcess(tmp_path, "link.report_failure('the\\nreason')\nsys.exit(1)") as parent:
        assert parent.wait() == 1
        assert parent.output().splitlines() == ["worker 1 begins", "they are to stop", "failed: the reason"]


def test_supervisor_gives_up_without_any_worker(tmp_path: Path) -> None:
    body = """
if exists("broken"):
    link.report_failure("the database is gone")
    sys.exit(1)
link.report_ready()
while not exists("broken"):
    time.sleep(0.01)
sys.exit(3)
"""
    with SupervisedProcess(tmp_path, body) as parent:
        parent.wait_for("all are ready")
        (tmp_path / "broken").touch()
        assert parent.wait() == 1
        assert parent.output().splitlines()[-1] == "failed: the database is gone"


def test_supervisor_retries_while_another_serves(tmp_path: Path) -> None:
    body = """
if link.number == 2 and exists("broken"):
    link.report_failure("the database is gone")
    sys.exit(1)
link.report_ready()
while link.number == 2 and not (exists("broken") or exists("mended")):
    time.sleep(0.01)
wait_for_stop(link) if link.number == 1 or exists("mended") else sys.exit(3)
"""
    with SupervisedProcess(tmp_path, body) as parent:
        parent.wait_for("all are ready")
        (tmp_path / "broken").touch()
        parent.wait_for("before it could serve: the database is gone; a new one starts in", 3)
        (tmp_path / "mended").touch()
        (tmp_path / "broken").unlink()
        begun = parent.output().count("worker 2 begins")
        parent.wait_for("worker 2 begins", begun + 1)
        assert parent.stop() == 0


def test_starting_death_does_not_mark_next(tmp_path: Path) -> None:
    body = """
if exists("broken") and not exists(f"killed-{link.number}"):
    (FOLDER / f"killed-{link.number}").touch()
    os.kill(os.getpid(), signal.SIGKILL)
link.report_ready()
while not exists("broken"):
    time.sleep(0.01)
wait_for_stop(link) if exists(f"killed-{link.number}") else sys.exit(3)
"""
    with SupervisedProcess(tmp_path, body) as parent:
        parent.wait_for("all are ready")
        (tmp_path / "broken").touch()
        parent.wait_for("was killed by SIGKILL before it could serve: see the log; a new one starts in", 2)
        parent.wait_for("begins", 6)
        assert parent.stop() == 0


def test_unstopping_worker_is_finally_killed(tmp_path: Path) -> None:
    body = "link.report_ready()\nwait_for_stop(link)\nwhile link.number == 1:\n    time.sleep(1)"
    with SupervisedProcess(tmp_path, body, stop_seconds=0.5) as parent:
        parent.wait_for("all are ready")
        assert parent.stop() == 1
        last = parent.output().splitlines()[-1]
        assert last.startswith("failed: worker 1 (process ")
        assert last.endswith(" was killed by SIGKILL while the server was stopping")


@pytest.mark.parametrize("second", [signal.SIGINT, signal.SIGTERM])
def test_second_signal_ends_all_at_once(tmp_path: Path, second: int) -> None:
    body = "link.report_ready()\nwait_for_stop(link)\nprint('stopping', flush=True)\ntime.sleep(600)"
    with SupervisedProcess(tmp_path, body) as parent:
        parent.wait_for("all are ready")
        os.kill(parent.pid, signal.SIGTERM)
        parent.wait_for("stopping", 2)
        os.kill(parent.pid, second)
        assert parent.wait() == -second


def test_workers_end_with_killed_parent(tmp_path: Path) -> None:
    body = SERVE + "\n(FOLDER / f'ended-{link.number}').touch()"
    with SupervisedProcess(tmp_path, body) as parent:
        parent.wait_for("all are ready")
        os.kill(parent.pid, signal.SIGKILL)
        wait_until(lambda: len(list(tmp_path.glob("ended-*"))) == 2)
