"""`sessions redact`, `sessions delete`, `prune` and `audit`, in a database and on a server."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx2
import pytest

from swarmkeep.cli.commands.prune import find_cutoff
from swarmkeep.cli.opening import open_source
from swarmkeep.cli.sources import SourceOptions
from tests.cli.command_line import ACME, CommandLine
from tests.cli.conftest import RecordedSession
from tests.support.processes import ServerProcess


def fork(cli: CommandLine, recorded: RecordedSession, place: list[str], name: str, *labels: str) -> str:
    assert cli("sessions", "fork", recorded.session_id, "--id", name, *labels, *place).code == 0
    return name


def test_what_events_say_is_removed(cli: CommandLine, recorded: RecordedSession, place: list[str]) -> None:
    name = fork(cli, recorded, place, "redacted")
    assert "lantern" in cli("events", name, *place).out
    tried = cli("sessions", "redact", name, "--seq", "3", "--reason", "asked for", "--dry-run", *place)
    assert (tried.code, tried.out) == (0, f"would remove the content of 1 event of {name}: 3\n")
    assert f"session {recorded.session_id} also holds event 3: unchanged by a dry run" in tried.err
    done = cli("sessions", "redact", name, "--seq", "3", "--reason", "asked for", *place)
    # The session that it was forked from still holds it.
    assert done.code == 1
    assert done.out == f"removed the content of 1 event of {name}: 3\n"
    assert f"session {recorded.session_id} also holds event 3: STILL THERE" in done.err
    shown = cli("events", name, *place)
    assert "a lantern for a hut trip" not in "".join(line for line in shown.lines if "user" in line)
    assert "asked for" in shown.out
    assert shown.err == ""
    assert cli("verify", name, *place).code == 0
    again = cli("sessions", "redact", name, "--seq", "3", "--reason", "x", "--json", *place)
    assert (again.json["seqs"], again.json["seq"]) == ([], None)


def test_a_range_of_events_is_removed(cli: CommandLine, recorded: RecordedSession, place: list[str]) -> None:
    name = fork(cli, recorded, place, "redacted-range")
    done = cli("sessions", "redact", name, "--seq", "2", "--seq", "2-4", "--reason", "asked", "--dry-run", *place)
    assert done.out == f"would remove the content of 4 events of {name}: 2, 3, 4, 5\n", (
        "with the start of the call of 4"
    )


def test_what_cannot_be_redacted_is_refused(cli: CommandLine, recorded: RecordedSession, place: list[str]) -> None:
    why = ("--reason", "x")
    assert "no event 999" in cli.expect_refusal("sessions", "redact", recorded.session_id, "--seq", "999", *why, *place)
    assert "nobody" in cli.expect_refusal("sessions", "redact", "nobody", "--seq", "1", *why, *place)
    assert "--reason" in cli.expect_usage_error("sessions", "redact", "one", "--seq", "1", *place)
    assert "--seq" in cli.expect_usage_error("sessions", "redact", "one", *why, *place)
    for wrong, said in (
        ("0", "count from 1"), ("0-4", "count from 1"), ("5-3", "a range goes up"), ("x", "5-9, not 'x'"),
        ("3-", "not '3-'"), ("1-99999", "at most 1000"),
    ):  # fmt: skip
        assert said in cli.expect_usage_error("sessions", "redact", "one", "--seq", wrong, *why, *place)


def test_audit_log_names_the_agents_that_clients_made(cli: CommandLine, tmp_path: Path) -> None:
    with ServerProcess(tmp_path, agents=[ACME]) as server:
        agents = f"{server.url}/openai/v1/agents"
        [first, *_] = httpx2.get(agents).json()["data"]
        made = httpx2.post(agents, json={"model": first["id"]}).json()["id"]
        httpx2.delete(f"{agents}/{made}")
        told = [line.split()[2:] for line in cli("audit", "--url", server.url).lines if " agent." in line]
    assert told == [["agent.created", made, "version", "1"], ["agent.deleted", made, "version", "1"]]


def test_deletions_shown_in_audit_log(cli: CommandLine, recorded: RecordedSession, place: list[str]) -> None:
    name = fork(cli, recorded, place, "deleted")
    assert cli("sessions", "delete", name, "--reason", "asked for", *place).code == 0
    entry = cli("audit", "--json", *place).json[-1]
    assert (entry["type"], entry["data"]["session_id"], entry["data"]["reason"]) == (
        "session.deleted",
        name,
        "asked for",
    )
    headings, *rows = cli("audit", *place).lines
    assert headings.split() == ["SEQ", "AT", "TYPE", "ABOUT", "WHAT", "BY", "REASON"]
    assert rows[-1].endswith("asked for")
    assert " event 26 " in rows[-1]
    if "--database-url" in place:
        assert entry["by"].startswith("cli")
    assert "(audit log" in cli("verify", "--all", *place).out


@pytest.mark.parametrize("days", [365, -365])
def test_wrong_clock_makes_prune_keep_more(days: int) -> None:
    right = datetime(2026, 3, 1, tzinfo=UTC)
    assert find_cutoff(timedelta(days=90), right + timedelta(days=days), right) <= right - timedelta(days=90)
    assert find_cutoff(timedelta(days=90), right, None) == right - timedelta(days=90)


def test_clock_read_at_session_location(recorded: RecordedSession, place: list[str]) -> None:
    option, value = place
    with open_source(SourceOptions(**{option[2:].replace("-", "_"): value}), writes=False) as source:
        found = source.read_clock()
    assert found is not None
    assert abs(datetime.now(UTC) - found) < timedelta(minutes=5)


def test_old_sessions_are_pruned(cli: CommandLine, recorded: RecordedSession, place: list[str]) -> None:
    for name in ("old", "young", "held"):
        fork(cli, recorded, place, name, "--metadata", "kind=pruned")
    assert cli("sessions", "hold", "held", "--reason", "case 12", *place).code == 0
    assert "case 12" in cli("sessions", "show", "held", *place).out
    assert "case 12" in cli.expect_refusal("sessions", "delete", "held", *place)
    chosen = ("--metadata", "kind=pruned", *place)
    assert cli("prune", "--older-than", "1m", *chosen).out == ""
    file = _find_file(cli, place)
    if file is None:
        return
    with closing(sqlite3.connect(file)) as connection, connection:
        change = "UPDATE sessions SET view = replace(view, updated_at, ?), updated_at = ? WHERE id IN ('old', 'held')"
        connection.execute(change, ["2020-01-01T00:00:00.000000Z"] * 2)
    tried = cli("prune", "--older-than", "90d", "--dry-run", *chosen)
    assert tried.lines == ["old  unchanged since 2020-01-01T00:00:00.000000Z"]
    assert "would be deleted" in tried.err
    assert cli("sessions", "show", "old", *place).code == 0
    assert cli("prune", "--older-than", "90d", "--json", *chosen).json == {
        "deleted": ["old"],
        "kept": [],
        "on_hold": ["held"],
        "dry_run": False,
    }
    assert cli("sessions", "show", "old", *place).code == 1
    assert cli("sessions", "show", "young", *place).code == 0
    assert cli("sessions", "show", "held", *place).code == 0
    assert cli("audit", "--json", *place).json[-1]["data"]["reason"] == "pruned: untouched for 90d"


def test_prune_deletes_asked_sessions_left_alone(cli: CommandLine, recorded: RecordedSession, place: list[str]) -> None:
    file = _find_file(cli, place)
    if file is None:
        return
    for name, parent in (("orphan", "gone"), ("asked", recorded.session_id)):
        fork(cli, recorded, place, name, "--metadata", "kind=asked")
        with closing(sqlite3.connect(file)) as connection, connection:
            link = f'{{"session_id":"{parent}","run_id":"r","tool_call_id":"c","depth":1}}'
            change = (
                "UPDATE sessions SET view = json_set(replace(view, updated_at, ?), '$.parent', json(?)),"
                " updated_at = ? WHERE id = ?"
            )
            connection.execute(change, ["2020-01-01T00:00:00.000000Z", link, "2020-01-01T00:00:00.000000Z", name])
    pruned = cli("prune", "--older-than", "90d", "--json", "--metadata", "kind=asked", *place).json
    assert (pruned["deleted"], pruned["kept"]) == (["orphan"], [])


def _find_file(cli: CommandLine, place: list[str]) -> Path | None:
    return Path(place[1].removeprefix("sqlite:///")) if place[0] == "--database-url" else None


def test_wrong_ages_are_told(cli: CommandLine) -> None:
    for age in ("90", "d", "0d", "-1d", "1.5d", "90 d", "9999999d", "1y"):
        assert "--older-than" in cli.expect_usage_error("prune", "--older-than", age)
    assert "--older-than" in cli.expect_usage_error("prune")
