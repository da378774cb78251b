"""Today's agents against recorded conversations, at the command line."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.cli.command_line import ACME, CommandLine
from tests.cli.conftest import RecordedSession

OTHER = """
from swarmkeep import Agent

triage = Agent(name="Triage Agent", instructions="First line.\\nSecond line.")
"""


@pytest.fixture
def export(cli: CommandLine, recorded: RecordedSession) -> Path:
    file = cli.folder / "talk.jsonl"
    assert cli("export", recorded.session_id, *recorded.options, "--output", str(file)).code == 0
    return file


def test_the_same_agents_match(cli: CommandLine, recorded: RecordedSession, export: Path) -> None:
    for target in ([recorded.session_id], ["--all"], ["talk.jsonl"]):
        result = cli("check", *target, *recorded.options, "--agents", ACME)
        assert (result.code, result.err) == (0, "1 compared, 0 different\n"), result
        assert result.lines[0].startswith(f"{recorded.session_id}: the same, in ")


def test_server_compares_with_own_agents(cli: CommandLine, recorded: RecordedSession, place: list[str]) -> None:
    agents = [] if "--url" in place else ["--agents", ACME]
    result = cli("check", recorded.session_id, *place, *agents, "--json")
    assert (result.code, [found["matches"] for found in result.json]) == (0, [True])
    assert cli("check", "--all", *place, *agents).code == 0


def test_changed_agents_shown_and_set_exit_code(cli: CommandLine, recorded: RecordedSession, place: list[str]) -> None:
    (cli.folder / "other.py").write_text(OTHER)
    result = cli("check", recorded.session_id, *place, "--agents", "other.py")
    assert result.code == 1
    assert ": different, in " in result.lines[0]
    assert "    +Second line." in result.lines
    assert any(line.endswith(": missing_tool") for line in result.lines)
    assert any(line.endswith(": agent") for line in result.lines)
    ignored = [option for kind in ("instructions", "tool_schemas", "missing_tool", "agent", "parameters")
               for option in ("--ignore", kind)]  # fmt: skip
    assert cli("check", recorded.session_id, *place, "--agents", "other.py", *ignored).code == 0


def test_redactions_named_without_being_differences(
    cli: CommandLine, recorded: RecordedSession, place: list[str]
) -> None:
    fork = cli("sessions", "fork", recorded.session_id, *place).out.strip()
    events = cli("events", fork, *place, "--json").json
    asked = next(event["seq"] for event in events if event["data"].get("message", {}).get("tool_calls"))
    redact = cli("sessions", "redact", fork, *place, "--seq", str(asked), "--reason", "a name")
    assert redact.lines[0].startswith("removed")
    agents = [] if "--url" in place else ["--agents", ACME]
    result = cli("check", fork, *place, *agents)
    assert (result.code, result.err) == (0, "1 compared, 0 different\n"), result
    assert result.lines[1] == f"  not compared, because redacted: event {asked}"
    (found,) = cli("check", fork, *place, *agents, "--json").json
    assert (found["matches"], found["redacted"]) == (True, [asked])
    assert cli("sessions", "delete", fork, *place).code == 0


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE events SET payload = 'no JSON' WHERE seq = 3 AND session_id = 'damaged'",
        "DELETE FROM sessions WHERE id = 'damaged'",
    ],
)
def test_damaged_session_compared_beside_others(db: CommandLine, recorded: RecordedSession, damage: str) -> None:
    assert db("sessions", "fork", recorded.session_id, "--id", "damaged").code == 0
    db.change_database(damage)
    result = db("check", recorded.session_id, "damaged", "--agents", ACME)
    assert result.err == "2 compared, 0 different\n", result
    assert db("check", "--all", "--agents", ACME).code == 0


def test_compare_reads_server_sessions_and_files(cli: CommandLine, export: Path, place: list[str]) -> None:
    shutil.copy(export, cli.folder / "again.ndjson")
    result = cli("check", "talk.jsonl", "again.ndjson", *place, "--agents", ACME)
    assert (result.code, len(result.lines)) == (0, 2)


def test_plain_event_list_is_read(cli: CommandLine, recorded: RecordedSession) -> None:
    lines = cli("events", recorded.session_id, *recorded.options, "--json").json
    (cli.folder / "events.ndjson").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert cli("check", "events.ndjson", "--agents", ACME).code == 0


def test_what_makes_no_sense_is_refused(cli: CommandLine, recorded: RecordedSession) -> None:
    (cli.folder / "bad.jsonl").write_text('{"record": "session"\n')
    (cli.folder / "empty.jsonl").write_text("")
    agents = ["--agents", ACME]
    assert "line 1" in cli.expect_refusal("check", "bad.jsonl", *agents)
    assert "contains no conversations" in cli.expect_refusal("check", "empty.jsonl", *agents)
    assert "no.jsonl" in cli.expect_refusal("check", "no.jsonl", *agents)
    assert "nobody" in cli.expect_refusal("check", "nobody", *recorded.options, *agents)
    assert "gone.py" in cli.expect_refusal("check", recorded.session_id, *recorded.options, "--agents", "gone.py")
    assert "tool_schemas" in cli.expect_usage_error("check", "x", "--ignore", "colour")
    cli.expect_usage_error("check")
    cli.expect_usage_error("check", "x", "--all")
