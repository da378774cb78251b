"""A program at a terminal: what it shows is read, and keys are pressed."""

from __future__ import annotations

import io
import os
import pty
import select
import termios
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.cli.command_line import PATIENCE_SECONDS
from tests.support.processes import clean_environment, start

CTRL_C, CTRL_D = "\x03", "\x04"
AGAIN_SECONDS = 5.0


class TtyText(io.StringIO):
    """What is written to a terminal, for code in this process."""

    def isatty(self) -> bool:
        return True


class Terminal:
    """Runs a program at a pseudo-terminal of its own; killed at the end if it still runs."""

    def __init__(
        self, command: Sequence[str], *, folder: Path, env: Mapping[str, str] | None = None, cold: bool = False
    ) -> None:
        self.shown = ""
        self._cold = cold
        self._command = list(command)
        self._folder = folder
        self._env = clean_environment({"TERM": "xterm-256color", "COLUMNS": "200", **(env or {})})

    def __enter__(self) -> Self:
        self._ours, theirs = pty.openpty()
        self._process = start(
            self._command,
            folder=self._folder,
            env=self._env,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            # Without a controlling terminal, Ctrl-C would be a character like any other.
            take_terminal=True,
            cold=self._cold,
        )
        os.close(theirs)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            error.add_note(f"the terminal showed:\n{self.shown}")
        self._process.kill()
        self._process.wait()
        os.close(self._ours)

    def resize(self, lines: int, columns: int) -> None:
        """What a person does who makes the window larger."""
        termios.tcsetwinsize(self._ours, (lines, columns))

    def signal(self, number: int) -> None:
        os.kill(self._process.pid, number)

    def settings(self) -> list[Any]:
        """How the terminal passes on what is typed."""
        return termios.tcgetattr(self._ours)

    def type(self, text: str) -> None:
        os.write(self._ours, text.encode())

    def interrupt(self, until: str) -> None:
        """Press Ctrl-C, and again if nothing comes of it: Python may miss one just as it begins to wait for a line."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while until not in self.shown:
            self.type(CTRL_C)
            pressed = time.monotonic()
            while until not in self.shown and self._ready(pressed + AGAIN_SECONDS):
                assert self._read(deadline), f"{until!r} was not shown, but {self.shown!r}"
            assert time.monotonic() < deadline, f"{until!r} was not shown, but {self.shown!r}"
        self.wait_for(until)

    def wait_for(self, *texts: str) -> str:
        """Read until the texts are shown, one after the other; gives what was shown up to the last, and forgets it."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        before = ""
        for text in texts:
            while text not in self.shown:
                if not self._read(deadline):
                    raise AssertionError(f"{text!r} was not shown, but {self.shown!r}")
            passed, _, self.shown = self.shown.partition(text)
            before += passed + text
        return before

    def reply(self, shown: str, typed: str) -> None:
        """Type once this is shown."""
        self.wait_for(shown)
        self.type(typed)

    def wait(self) -> int:
        """Read to the end; the exit code."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while self._read(deadline):
            pass
        return self._process.wait(max(1.0, deadline - time.monotonic()))

    def _ready(self, deadline: float) -> bool:
        return bool(select.select([self._ours], [], [], max(0.0, deadline - time.monotonic()))[0])

    def _read(self, deadline: float) -> bool:
        if not self._ready(deadline):
            raise AssertionError(f"nothing came; shown so far: {self.shown!r}")
        try:
            data = os.read(self._ours, 65536)
        except OSError:
            # How Linux says that nobody has the other end open any more.
            return False
        self.shown += data.decode(errors="replace")
        return bool(data)
