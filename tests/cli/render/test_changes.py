"""Changes at a terminal: what was beside what is, where there is room for it."""

from __future__ import annotations

import re

import pytest

from tests.cli.command_line import SWARMKEEP, CommandLine
from tests.cli.conftest import RecordedSession
from tests.cli.pseudo_terminal import Terminal

COLOURS = re.compile(r"\x1b\[[0-9;]*m")
RED, GREEN = "\x1b[31m", "\x1b[32m"


def show(recorded: RecordedSession, cli: CommandLine, **env: str) -> str:
    command = [*SWARMKEEP, "diff", recorded.session_id, "2", "25", *recorded.options]
    with Terminal(command, folder=cli.folder, env=env) as terminal:
        assert terminal.wait() == 0
        return terminal.shown


def test_wide_terminal_has_coloured_columns(recorded: RecordedSession, cli: CommandLine) -> None:
    shown = show(recorded, cli, COLUMNS="160")
    (agent,) = [line for line in shown.splitlines() if COLOURS.sub("", line).startswith("agent ")]
    assert f'{RED}- "Triage Agent"' in agent
    assert f'{GREEN}+ "Sales Agent"' in agent
    assert "~ " not in shown


def test_name_on_one_line_if_room(recorded: RecordedSession, cli: CommandLine) -> None:
    shown = COLOURS.sub("", show(recorded, cli, COLUMNS="120"))
    assert any(line.startswith("usage/completion_tokens  - ") for line in shown.splitlines())


@pytest.mark.parametrize("env", [{"COLUMNS": "160", "NO_COLOR": "1"}, {"COLUMNS": "80"}], ids=["no colour", "narrow"])
def test_plain_without_colour_or_room(recorded: RecordedSession, cli: CommandLine, env: dict[str, str]) -> None:
    assert "\x1b[3" not in show(recorded, cli, **env)


def test_narrow_terminal_and_pipe_separate_lines(recorded: RecordedSession, cli: CommandLine) -> None:
    piped = cli("diff", recorded.session_id, "2", "25", *recorded.options).lines
    assert [line for line in show(recorded, cli, COLUMNS="80").splitlines() if line] == [line for line in piped if line]
