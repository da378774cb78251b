"""Runs on the command line."""

from __future__ import annotations

import csv
import io

from tests.cli.command_line import CommandLine
from tests.cli.conftest import RecordedSession


def test_runs_are_listed(cli: CommandLine, recorded: RecordedSession, place: list[str]) -> None:
    mine = ("runs", "--session", recorded.session_id)
    table = cli(*mine, *place)
    headings, *rows = table.lines
    assert headings.startswith("BEGAN")
    listed = cli(*mine, "--json", *place).json
    assert len(rows) == len(listed) > 0
    assert all(run["id"] in row for run, row in zip(listed, rows, strict=True))
    found = list(csv.DictReader(io.StringIO(cli(*mine, "--csv", *place).out)))
    assert [row["id"] for row in found] == [run["id"] for run in listed]
    slowest = cli(*mine, "--sort", "latency_ms", "--json", *place).json
    assert [run["latency_ms"] for run in slowest] == sorted((run["latency_ms"] for run in listed), reverse=True)
    one = cli(*mine, "--limit", "1", "--json", *place)
    assert one.json == listed[:1]
    assert ("--limit 0" in one.err) == (len(listed) > 1)


def test_runs_are_counted(cli: CommandLine, recorded: RecordedSession, place: list[str]) -> None:
    listed = cli("runs", "--limit", "0", "--json", *place).json
    days = cli("runs", "--by", "day", "--json", *place).json
    assert sum(row["runs"] for row in days) == len(listed)
    assert "agent" not in days[0]
    headings, *rows = cli("runs", "--by", "agent", "--by", "model", *place).lines
    assert headings.startswith("AGENT")
    assert len(rows) == len({(run["agent"], run["model"]) for run in listed})
    day = listed[0]["created_at"][:10]
    assert cli("runs", "--from", day, "--to", day, "--limit", "0", "--json", *place).json == [
        run for run in listed if run["created_at"].startswith(day)
    ]


def test_no_runs_and_wrong_use(cli: CommandLine, place: list[str]) -> None:
    for nothing in (["--to", "2001-01-01"], ["--by", "day", "--from", "2001-01-01", "--to", "2001-01-02"]):
        answer = cli("runs", *nothing, *place)
        assert (answer.code, answer.out) == (0, "")
        assert "no such runs" in answer.err
    wrong = (
        ["--by", "colour"], ["--from", "yesterday"], ["--status", "running"], ["--csv", "--json"],
        ["--csv", "--by", "day"], ["--by", "day", "--from", "2001-01-01", "--to", "2002-01-01"],
    )  # fmt: skip
    for options in wrong:
        assert cli("runs", *options, *place).code == 2, options


def test_runs_have_costs_if_priced(cli: CommandLine, recorded: RecordedSession) -> None:
    env = {"SWARMKEEP_PRICES": '{"*": {"input": 1, "output": 1000}}', "SWARMKEEP_CURRENCY": "EUR"}
    here = ("runs", "--session", recorded.session_id, *recorded.options)
    (total,) = cli(
        "usage", "--by", "session", "--session", recorded.session_id, "--json", *recorded.options, env=env
    ).json
    costs = [run["cost"]["amount"] for run in cli(*here, "--json", env=env).json if run["cost"]]
    assert 0 < sum(costs) <= total["cost"]["amount"] + 1e-9
    assert "EUR" in cli(*here, env=env).out
