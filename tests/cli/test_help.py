"""Every command explains itself, and does so at once."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from swarmkeep import __version__
from swarmkeep.cli.app import app
from tests.cli.command_line import CommandLine
from tests.support.processes import clean_environment

runner = CliRunner()


def commands(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, (*path, name))
        else:
            yield (*path, name)


COMMANDS = sorted(commands(typer.main.get_command(app)))


def test_all_commands_are_there() -> None:
    assert {" ".join(path) for path in COMMANDS} >= {
        "serve", "demo", "chat", "events", "doctor",
        "sessions list", "sessions show", "sessions fork", "sessions delete",
        "db upgrade", "db downgrade", "db current", "db check",
    }  # fmt: skip


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_a_command_explains_itself_with_examples(path: tuple[str, ...]) -> None:
    shown = runner.invoke(app, [*path, "--help"], env={"COLUMNS": "200"})
    assert shown.exit_code == 0
    assert "Examples:" in shown.output
    assert f"\n    swarmkeep {' '.join(path)}" in shown.output or f"swarmkeep {' '.join(path)}\n" in shown.output
    usage, description = shown.output.split("\n\n")[:2]
    assert " ".join(path) in usage
    assert len(description.strip()) > 20


@pytest.mark.parametrize("group", [[], ["sessions"], ["db"]], ids=["swarmkeep", "sessions", "db"])
def test_a_group_lists_its_commands(group: list[str]) -> None:
    asked = runner.invoke(app, [*group, "--help"])
    assert asked.exit_code == 0
    bare = runner.invoke(app, group)
    # Wrong use, but not a riddle.
    assert bare.exit_code == 2
    for path in COMMANDS:
        if list(path[:-1]) == group:
            assert f"\n  {path[-1]} " in asked.output
            assert f"\n  {path[-1]} " in bare.output


def test_help_loads_nothing_heavy() -> None:
    program = """
import sys
sys.argv = ["swarmkeep", "--help"]
from swarmkeep.cli.app import main
try:
    main()
except SystemExit as end:
    assert not end.code
heavy = {"litestar", "openai", "sqlalchemy", "alembic", "uvicorn", "httpx2", "pydantic", "swarmkeep_client"}
heavy &= set(sys.modules)
sys.exit(f"loaded: {sorted(heavy)}" if heavy else 0)
"""
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert shown.returncode == 0, shown.stderr


@pytest.mark.parametrize(
    "interrupt",
    ["raise KeyboardInterrupt", "setattr(Lost, '__del__', lambda self: raise_signal(SIGINT)); Lost(); pause()"],
    ids=["raised", "lost"],
)
def test_ctrl_c_during_loading_shows_no_traceback(interrupt: str) -> None:
    program = f"""
import sys
from importlib.abc import MetaPathFinder
from signal import SIGINT, pause, raise_signal

class Lost:
    pass

class Impatient(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "typer":
            {interrupt}

sys.meta_path.insert(0, Impatient())
from swarmkeep.__main__ import main
main()
"""
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert (shown.returncode, shown.stdout, shown.stderr) == (130, "", "interrupted\n")


@pytest.mark.parametrize("command", [["swarmkeep"], ["python", "-m", "swarmkeep"]], ids=" ".join)
def test_what_is_installed_starts_cold(command: list[str], tmp_path: Path) -> None:
    folder = Path(sys.executable).parent
    shown = subprocess.run(
        [folder / command[0], *command[1:], "--version"],
        cwd=tmp_path,
        env=clean_environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (shown.returncode, shown.stdout, shown.stderr) == (0, f"swarmkeep {__version__}\n", "")


def test_the_version_is_told(cli: CommandLine) -> None:
    assert cli("--version").out == f"swarmkeep {__version__}\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ["nonsense"],
        ["sessions", "nonsense"],
        ["sessions", "show"],
        ["sessions", "list", "--nonsense"],
        ["sessions", "list", "--status", "sleepy"],
        ["sessions", "list", "--metadata", "no equals sign"],
        ["sessions", "show", "one", "--at", "0"],
        ["sessions", "show", "one", "--url", "http://127.0.0.1:1", "--database-url", "sqlite:///x.db"],
        ["sessions", "list", "--url", "http://127.0.0.1:1", "--tenant", "other"],
        ["sessions", "list", "--url", "nonsense"],
        ["events"],
        ["events", "one", "--after", "-1"],
        ["serve", "--port", "99999"],
        ["chat", "--url", "http://127.0.0.1:1", "--offline"],
        ["db", "downgrade"],
    ],
    ids=" ".join,
)
def test_wrong_use_is_exit_code_2(arguments: list[str]) -> None:
    misused = runner.invoke(app, arguments)
    assert misused.exit_code == 2
    assert misused.stdout == ""
    assert "Error: " in misused.stderr
