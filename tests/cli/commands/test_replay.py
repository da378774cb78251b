"""A conversation retold at the command line, from a file or a server, on a terminal or not."""

from __future__ import annotations

import re
import shutil
import socket
import sqlite3
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.command_line import CommandLine
from tests.cli.conftest import RecordedSession
from tests.cli.pseudo_terminal import Terminal


def test_replay_tells_speakers_calls_and_changes(cli: CommandLine, recorded: RecordedSession, place: list[str]) -> None:
    result = cli("replay", recorded.session_id, *place)
    assert (result.code, result.err) == (0, "")
    # The day and the zone are told once, and again where another day begins.
    assert re.fullmatch(r" {7}\d{4}-\d\d-\d\d UTC", result.lines[0])
    assert result.lines[1].endswith("the conversation begins with Triage Agent")
    assert "user: Hello, I'd like to buy a lantern for a hut trip." in result.out
    assert "Triage Agent hands over to Sales Agent" in result.out
    assert "Sales Agent asks for" in result.out
    assert "tokens" in result.out
    assert "the run is completed" in result.out
    assert "\x1b" not in result.out


def test_json_replay_lists_scenes(cli: CommandLine, recorded: RecordedSession, place: list[str]) -> None:
    scenes = cli("replay", recorded.session_id, *place, "--json").json
    events = cli("events", recorded.session_id, *place, "--json").json
    assert [scene["seq"] for scene in scenes] == [event["seq"] for event in events]
    handoff = next(scene for scene in scenes if scene["type"] == "handoff.made")
    assert (handoff["speaker"], handoff["headline"]) == ("Triage Agent", "hands over to Sales Agent")


def test_replay_ends_at_named_event(cli: CommandLine, recorded: RecordedSession, place: list[str]) -> None:
    assert [scene["seq"] for scene in cli("replay", recorded.session_id, *place, "--at", "3", "--json").json] == [
        1,
        2,
        3,
    ]
    assert "999" in cli.expect_refusal("replay", recorded.session_id, *place, "--at", "999")
    assert "nobody" in cli.expect_refusal("replay", "nobody", *place)
    assert "--step" in cli.expect_usage_error("replay", recorded.session_id, *place, "--step", "--json")


def test_piped_stepping_advances_by_line(cli: CommandLine, recorded: RecordedSession) -> None:
    shown = cli("replay", recorded.session_id, *recorded.options, "--step", text="\n\n").lines
    assert shown[-1].lstrip().startswith("3 ")
    assert (
        cli("replay", recorded.session_id, *recorded.options, "--step", text="q\n").lines[-1].lstrip().startswith("1 ")
    )


def test_terminal_has_colours_and_key_advances(cli: CommandLine, recorded: RecordedSession) -> None:
    command = [sys.executable, "-m", "swarmkeep", "replay", recorded.session_id, *recorded.options, "--step"]
    with Terminal(command, folder=cli.folder) as terminal:
        assert "\x1b[" in terminal.wait_for("the conversation begins")
        terminal.type(" ")
        terminal.reply("a run starts", " ")
        terminal.reply("Hello, I'd like to buy", "q")
        assert terminal.wait() == 0
    assert "hands over" not in terminal.shown


def test_replay_needs_nothing_and_writes_nothing(
    cli: CommandLine, recorded: RecordedSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    def blocked(self: socket.socket, address: Any) -> None:
        raise AssertionError(f"the network was used: {address}")

    monkeypatch.setattr(socket.socket, "connect", blocked)
    file = cli.folder / "kept.db"
    shutil.copy(recorded.file, file)
    file.chmod(0o400)
    before = file.read_bytes()
    result = cli(
        "replay", recorded.session_id, "--database-url", f"sqlite:///{file}", env={"SWARMKEEP_AGENTS": "gone.py"}
    )
    assert result.code == 0
    assert file.read_bytes() == before


def test_unreadable_events_warned_rest_told(cli: CommandLine, recorded: RecordedSession) -> None:
    file = _copy_damaged(cli.folder, recorded, "UPDATE events SET payload = 'null' WHERE seq = 3")
    result = cli("replay", recorded.session_id, "--database-url", f"sqlite:///{file}")
    assert result.code == 0
    assert "! message.added: its content is gone" in result.out
    assert "the run is completed" in result.out
    assert "does not verify" in result.err
    assert "warning: 1 of" in result.err


def test_a_gap_is_warned_of(cli: CommandLine, recorded: RecordedSession) -> None:
    file = _copy_damaged(cli.folder, recorded, "DELETE FROM events WHERE seq = 4")
    result = cli("replay", recorded.session_id, "--database-url", f"sqlite:///{file}")
    assert "the log goes from event 3 to event 5" in result.out
    assert "warning: 1 of" in result.err


def _copy_damaged(folder: Path, recorded: RecordedSession, statement: str) -> Path:
    file = folder / "damaged.db"
    shutil.copy(recorded.file, file)
    connection = sqlite3.connect(file)
    connection.execute(statement)
    connection.commit()
    connection.close()
    return file
