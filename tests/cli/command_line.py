"""The command line as a person or a script runs it: its exit code and its two outputs."""

from __future__ import annotations

import io
import json
import os
import sqlite3
import sys
import time
from contextlib import closing
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer.main

from swarmkeep.cli.app import main
from tests.support import warm
from tests.support.processes import POLL_SECONDS, Process, clean_environment

# Generous: what these tests check is never how long something takes.
PATIENCE_SECONDS = 120.0
ACME = "swarmkeep_agents.acme"
SWARMKEEP = (sys.executable, "-m", "swarmkeep")


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()


@dataclass(frozen=True)
class CommandLine:
    """Runs `swarmkeep` as a process, in a folder of its own and with none of the settings around it."""

    folder: Path

    def __call__(self, *arguments: str, text: str = "", env: dict[str, str] | None = None) -> Result:
        return self.to(None, *arguments, text=text, env=env)

    def to(self, stdout: int | None, *arguments: str, text: str = "", env: dict[str, str] | None = None) -> Result:
        """Its output goes to this file, if there is one."""
        finished = warm.run(
            [*SWARMKEEP, *arguments],
            folder=self.folder,
            env=clean_environment({"PYTHONIOENCODING": "utf-8", **(env or {})}),
            text=text,
            stdout=stdout,
        )
        return Result(finished.returncode, finished.stdout, finished.stderr)

    def expect_refusal(self, *arguments: str, env: dict[str, str] | None = None, code: int = 1) -> str:
        """The one line in which a command says no."""
        return find_refusal(self(*arguments, env=env), code=code)

    def expect_usage_error(self, *arguments: str, env: dict[str, str] | None = None) -> str:
        """What a command says to wrong use."""
        result = self(*arguments, env=env)
        assert result.code == 2, result
        assert "Traceback" not in result.err
        return result.err

    def change_database(self, *statements: str) -> None:
        """What a person does who can write to the database in the folder."""
        with closing(sqlite3.connect(self.folder / "swarmkeep.db")) as database, database:
            for statement in statements:
                assert database.execute(statement).rowcount > 0, statement

    def running(self, *arguments: str, env: dict[str, str] | None = None) -> Process:
        return Process([*SWARMKEEP, *arguments], folder=self.folder, env=clean_environment(env))


def find_refusal(result: Result, out: str | None = "", *, code: int = 1) -> str:
    """The one line, the last one, in which the command says no; `out` is what it has given until then."""
    assert result.code == code, result
    assert out is None or result.out == out
    assert "Traceback" not in result.err
    errors = [line for line in result.err.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1, result.err
    assert result.err.endswith(f"{errors[0]}\n")
    return errors[0]


def wait_for_line(process: Process, number: int) -> str:
    """A line of what a running command says, as soon as it has said it."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while len(lines := process.output().splitlines(keepends=True)) <= number or not lines[number].endswith("\n"):
        if process.returncode is not None or time.monotonic() > deadline:
            raise process.failure(f"said no line {number}")
        time.sleep(POLL_SECONDS)
    return lines[number]


# To build all commands takes longer than most of them take, and nothing of a call is kept in them.
get_command = cache(typer.main.get_command)


@dataclass(frozen=True)
class InProcessCommandLine(CommandLine):
    """The same in this process: for commands that only ask and answer, without a second of start-up each."""

    def __call__(self, *arguments: str, text: str = "", env: dict[str, str] | None = None) -> Result:
        out, err = _Output(), _Output()
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(self.folder)
            wanted = clean_environment(env)
            for name in os.environ.keys() | wanted.keys():
                if name in wanted:
                    patch.setenv(name, wanted[name])
                else:
                    patch.delenv(name)
            # Agents are loaded from the folder; the next command finds none of them.
            patch.setattr(sys, "path", [*sys.path])
            patch.setattr(sys, "argv", ["swarmkeep", *arguments])
            patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode()), encoding="utf-8"))
            patch.setattr(sys, "stdout", out)
            patch.setattr(sys, "stderr", err)
            patch.setattr(typer.main, "get_command", get_command)
            try:
                main()
            except SystemExit as end:
                code = end.code if isinstance(end.code, int) else 0
            finally:
                self._forget_modules()
        return Result(code, out.text, err.text)

    def _forget_modules(self) -> None:
        for name, module in list(sys.modules.items()):
            if str(getattr(module, "__file__", None)).startswith(str(self.folder)):
                del sys.modules[name]


class _Output(io.TextIOWrapper):
    def __init__(self) -> None:
        super().__init__(io.BytesIO(), encoding="utf-8")

    @property
    def text(self) -> str:
        self.flush()
        buffer = self.buffer
        assert isinstance(buffer, io.BytesIO)
        return buffer.getvalue().decode()
