"""A warm process is what a cold one would be, to whoever looks at it from within or without."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support import warm
from tests.support.processes import Process, clean_environment, popen
from tests.support.source import ROOT
from tests.support_tests.test_processes import has_ended, wait_until

# What can be seen of a process from within, except what is always another: pids, times, and what is loaded.
LOOK = """
import json, logging, os, signal, sys, threading, time, warnings
handlers = {number.name: str(signal.getsignal(number)).split(" at ")[0] for number in signal.valid_signals()
            if isinstance(number, signal.Signals)}
files = [[file.encoding, file.errors, file.line_buffering, file.write_through, file.isatty()]
         for file in (sys.stdin, sys.stdout, sys.stderr)]
print(json.dumps({
    "argv": sys.argv, "path": sys.path, "main": __name__, "mine": sys.modules["__main__"].__dict__ is globals(),
    "env": dict(os.environ), "folder": os.getcwd(), "zone": time.tzname, "files": files,
    "handlers": handlers, "blocked": [int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, [])],
    "leads": os.getsid(0) == os.getpgrp() == os.getpid(), "threads": threading.active_count(),
    "open": sorted(int(name) for name in os.listdir("/proc/self/fd"))[:3],
    "sockets": sum("socket:" in os.readlink(f"/proc/self/fd/{n}") for n in (3, 4, 5, 6, 7, 8, 9)
                   if os.path.exists(f"/proc/self/fd/{n}")),
    "logging": [logging.getLogger().level, logging.getLogger().handlers],
    "filters": len(warnings.filters), "umask": os.umask(0), "tests": "tests" in sys.modules, "input": sys.stdin.read(),
}))
"""


def cold_run(command: list[str], folder: Path, env: dict[str, str], text: str = "") -> subprocess.CompletedProcess[str]:
    process = popen(command, cwd=folder, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    out, err = process.communicate(text.encode())
    return subprocess.CompletedProcess(command, process.returncode, out.decode(), err.decode())


def arguments_of(how: str, folder: Path, code: str) -> list[str]:
    (folder / "looking.py").write_text(code)
    return {"code": ["-c", code], "module": ["-m", "looking"], "file": [str(folder / "looking.py")]}[how]


@pytest.mark.parametrize("how", ["code", "module", "file"])
@pytest.mark.parametrize(
    "more",
    [{}, {"PYTHONIOENCODING": "latin-1", "TZ": "Asia/Tokyo", "PYTHONPATH": "a:b"}, {"PYTHONUNBUFFERED": ""}],
    ids=["as it is", "set otherwise", "buffered"],
)
def test_warm_command_finds_everything_like_cold(how: str, more: dict[str, str], tmp_path: Path) -> None:
    command = [sys.executable, *arguments_of(how, tmp_path, LOOK), "one", "--two"]
    env = clean_environment({**more, "OWN": "1"})
    cold = cold_run(command, tmp_path, env, "text\n")
    found = warm.run(command, folder=tmp_path, env=env, text="text\n")
    assert seen(found) == seen(cold)


def seen(looked: subprocess.CompletedProcess[str]) -> Any:
    assert looked.returncode == 0, looked
    found = json.loads(looked.stdout)
    found["path"] = [str(Path(path).resolve()) if path else "" for path in found["path"]]
    return found


ENDS = {
    "nothing more": "print('done')",
    "a code": "import sys; print('done'); sys.exit(3)",
    "no code": "import sys; sys.exit()",
    "a sentence": "import sys; sys.exit('that is all')",
    "an error": "raise ValueError('mine')",
    "Ctrl-C": "raise KeyboardInterrupt",
    "at once": "import os; os._exit(4)",
    "a signal": "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
    "what it registered": "import atexit, sys; atexit.register(print, 'last'); sys.exit(5)",
    "a thread": "import threading, time; threading.Thread(target=lambda: (time.sleep(0.1), print('late'))).start()",
    "a full device": "import sys; sys.stdout = open('/dev/full', 'w'); print('lost')",
}


@pytest.mark.parametrize("end", ENDS)
def test_warm_command_ends_like_cold(end: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", ENDS[end]]
    env = clean_environment()
    cold, found = cold_run(command, tmp_path, env), warm.run(command, folder=tmp_path, env=env)
    assert (found.returncode, found.stdout) == (cold.returncode, cold.stdout)
    # The lines of a traceback that are the parent's come on top.
    assert found.stderr.splitlines()[-1:] == cold.stderr.splitlines()[-1:]


def test_awaited_command_leaves_nothing(tmp_path: Path) -> None:
    for _ in range(10):
        process = Process([sys.executable, "-c", "import time; time.sleep(600)"], folder=tmp_path)
        process.start()
        process.signal(signal.SIGKILL)
        assert process.wait(20) == -signal.SIGKILL
        assert not psutil.pid_exists(process.pid)


def test_cold_only_settings_start_cold() -> None:
    env = clean_environment()
    command = [sys.executable, "-m", "swarmkeep"]
    assert warm.suits(command, env)
    assert warm.suits(command, {**env, "PYTHONIOENCODING": "ascii", "PYTHONPATH": "here"})
    assert not warm.suits(command, {**env, "PYTHONHASHSEED": "1"})
    assert not warm.suits(command, {**env, "LC_ALL": "tlh_KL"})
    assert not warm.suits([sys.executable, "-W", "error", "-c", ""], env)
    assert not warm.suits(["swarmkeep"], env)


@pytest.mark.parametrize("cold", [False, True], ids=["warm", "cold"])
def test_ctrl_c_reaches_it_without_other_listeners(cold: bool, tmp_path: Path) -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        program = "import time; print('here'); time.sleep(600)"
        with Process([sys.executable, "-c", program], folder=tmp_path, cold=cold) as process:
            wait_until(lambda: "here" in process.output())
            process.signal(signal.SIGINT)
            assert process.wait() == -signal.SIGINT
            assert "KeyboardInterrupt" in process.output()
    finally:
        signal.signal(signal.SIGINT, before)


WITH_A_CHILD = """
import subprocess, sys, time
print("child", subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]).pid)
time.sleep(600)
"""


def test_orphaned_command_dies_with_its_children(tmp_path: Path) -> None:
    # Whoever starts it here is killed as it waits, and can end nothing himself.
    program = f"""
import os, sys
sys.path.insert(0, {str(ROOT)!r})
from tests.support.warm.processes import Parent, WarmProcess
from tests.support.warm.requests import Request
parent = Parent(loaded=False)
log = os.open("log", os.O_WRONLY | os.O_CREAT)
request = Request(["-c", {WITH_A_CHILD!r}], os.getcwd(), os.environ.copy())
process = WarmProcess(parent, request, [0, log, log])
print(parent.address, process.pid)
process.wait()
"""
    log = tmp_path / "log"
    with Process([sys.executable, "-c", program], folder=tmp_path, cold=True) as starter:
        wait_until(lambda: log.exists() and "child" in log.read_text() and starter.output())
        (parent,) = [
            child for child in psutil.Process(starter.pid).children() if "tests.support.warm.parent" in child.cmdline()
        ]
        address, pid = starter.output().split()
        pids = [parent.pid, int(pid), int(log.read_text().split()[-1])]
        assert not any(map(has_ended, pids))
        os.kill(starter.pid, signal.SIGKILL)
        wait_until(lambda: all(map(has_ended, pids)))
        assert not Path(address).parent.exists()


@pytest.fixture
def shell(tmp_path: Path) -> dict[str, str]:
    """The environment of a shell that has the warm command on its path."""
    commands = tmp_path / "commands"
    commands.mkdir()
    warm.shell_command(commands)
    return clean_environment({"PATH": f"{commands}{os.pathsep}{os.environ['PATH']}"})


def test_shell_uses_command_like_installed_one(shell: dict[str, str], tmp_path: Path) -> None:
    script = """
swarmkeep --help | head -n 1
V=$(swarmkeep --version) && echo "$V"
echo 'Hello!' | swarmkeep chat --offline 2>/dev/null | wc -l
swarmkeep nonsense; echo $?
"""
    shown = subprocess.run(["bash", "-c", script], cwd=tmp_path, env=shell, capture_output=True, text=True, check=True)
    usage, version, lines, code = shown.stdout.split("\n")[:4]
    assert usage.startswith("Usage: swarmkeep [OPTIONS]")
    assert version.startswith("swarmkeep ")
    assert (lines, code) == ("1", "2")
    assert "nonsense" in shown.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_command_end_ends_the_process(number: signal.Signals, shell: dict[str, str], tmp_path: Path) -> None:
    with Process(
        ["bash", "-c", "exec swarmkeep serve --offline --port 0"], folder=tmp_path, env={"PATH": shell["PATH"]}
    ) as process:
        wait_until(lambda: "listening" in process.output())
        port = int(process.output().split("127.0.0.1:")[1].split()[0])
        os.kill(process.pid, number)
        assert process.wait() == (0 if number == signal.SIGTERM else -number)
        wait_until(lambda: not [taken for taken in psutil.net_connections() if taken.laddr and taken.laddr[1] == port])
