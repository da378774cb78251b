"""A forked child turns into the process that an interpreter with the same arguments would be."""

from __future__ import annotations

import codecs
import contextlib
import fcntl
import importlib
import io
import os
import runpy
import signal
import sys
import termios
import time
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from tests.support.source import ROOT
from tests.support.warm.requests import Request

# Python ignores these at its start, and what it starts gets them back as they were.
IGNORED = {signal.SIGPIPE, signal.SIGXFSZ}

_code: int | None = None


def become(request: Request, files: Sequence[int]) -> None:
    os.setsid()
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    if request.terminal:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    _reset_signals()
    os.chdir(request.folder)
    os.environ.clear()
    os.environ.update(request.env)
    time.tzset()
    _open_standard_files()
    _forget_the_tests()
    # Where it is to die is read from the environment as this module is loaded.
    if failpoints := sys.modules.get("swarmkeep.runs.identifiers"):
        importlib.reload(failpoints)


def run(arguments: Sequence[str]) -> None:
    """Do what `python ARGUMENTS` does."""
    global _code
    try:
        _interpret(arguments)
    except SystemExit as end:
        if not isinstance(end.code, int | None):
            raise
        _code = end.code or 0
    else:
        _code = 0


def _interpret(arguments: Sequence[str]) -> None:
    first, *others = arguments
    folder = os.getcwd() if first == "-m" else "" if first == "-c" else str(Path(first).parent)
    more = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    sys.path[:0] = [folder, *map(os.path.abspath, more)]
    sys.orig_argv = [sys.executable, *arguments]
    if first == "-m":
        sys.argv = ["-m", *others[1:]]
        runpy.run_module(others[0], run_name="__main__", alter_sys=True)
    elif first == "-c":
        sys.argv = ["-c", *others[1:]]
        sys.modules["__main__"] = main = ModuleType("__main__")
        exec(compile(others[0], "<string>", "exec"), main.__dict__)
    else:
        sys.argv = [*arguments]
        runpy.run_path(first, run_name="__main__")


def leave() -> None:
    """End a child that came to a plain end, once its threads have ended and what it registered has run.

    Registered first, so it runs last. What is spared is to take apart all that was loaded, module by module: a
    command spends as long on that as on its work.
    """
    if _code is None:
        return
    try:
        for file in (sys.stdout, sys.stderr):
            if not file.closed:
                file.flush()
    except (OSError, ValueError):
        # The interpreter has words and an exit code for that.
        return
    os._exit(_code)


def _reset_signals() -> None:
    """As at an interpreter's start, whatever this one's parents ignored: in the background, shells ignore Ctrl-C."""
    for number in signal.valid_signals() - IGNORED:
        # Some cannot be set, and need not be.
        with contextlib.suppress(OSError, ValueError):
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


def _open_standard_files() -> None:
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        file = _standard_file(number)
        setattr(sys, name, file)
        setattr(sys, f"__{name}__", file)


def _standard_file(number: int) -> io.TextIOWrapper:
    encoding, _, errors = os.environ.get("PYTHONIOENCODING", "").partition(":")
    errors = errors or ("strict" if encoding else sys.stdin.errors)
    unbuffered = bool(os.environ.get("PYTHONUNBUFFERED"))
    raw = io.FileIO(number, "wb" if number else "rb", closefd=False)
    buffered = io.BufferedReader(raw) if number == 0 else raw if unbuffered else io.BufferedWriter(raw)
    return io.TextIOWrapper(
        buffered,  # type: ignore[arg-type]
        codecs.lookup(encoding or sys.stdin.encoding).name,
        "backslashreplace" if number == 2 else errors,
        line_buffering=not unbuffered and (number == 2 or raw.isatty()),
        write_through=unbuffered,
    )


def _forget_the_tests() -> None:
    """No server can import what is in this repository and not installed, or a module called `tests` of another."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "tests"]:
        del sys.modules[name]
    sys.path[:] = [path for path in sys.path if path not in ("", str(ROOT))]
    importlib.invalidate_caches()
