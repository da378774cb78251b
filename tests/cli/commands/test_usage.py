"""Usage on the command line."""

from __future__ import annotations

import pytest

from tests.cli.command_line import CommandLine
from tests.cli.conftest import RecordedSession


def test_usage_is_table_with_sum(cli: CommandLine, recorded: RecordedSession, place: list[str]) -> None:
    by_agent = cli("usage", "--by", "agent", "--session", recorded.session_id, *place)
    headings, *rows = by_agent.lines
    assert headings.startswith("AGENT")
    assert {row.split("  ")[0] for row in rows} >= {"Triage Agent", "Sales Agent", "total"}
    shown = cli("sessions", "show", recorded.session_id, "--json", *place).json
    (sum_,) = cli("usage", "--by", "session", "--session", recorded.session_id, "--json", *place).json
    assert sum_["session_id"] == recorded.session_id
    assert "agent" not in sum_
    assert {name: sum_[name] for name in shown["usage"]} == shown["usage"]
    days = cli("usage", "--session", recorded.session_id, "--json", *place).json
    assert all(day["day"][:3] == "202" for day in days)
    (run, *_) = cli("usage", "--by", "run", "--agent", "Sales Agent", "--json", *place).json
    assert run["run_id"].startswith("run_")


def test_usage_has_cost_if_priced(cli: CommandLine, recorded: RecordedSession) -> None:
    env = {"SWARMKEEP_PRICES": '{"*": {"input": 1, "output": 1000}}', "SWARMKEEP_CURRENCY": "EUR"}
    here = ("usage", "--by", "agent", "--session", recorded.session_id, *recorded.options)
    headings, *rows = cli(*here, env=env).lines
    assert headings.endswith("EUR")
    costs = [float(row.split()[-1]) for row in rows]
    assert costs[-1] == pytest.approx(sum(costs[:-1]), abs=0.001)
    assert costs[-1] > 0
    assert cli(*here, "--json", env=env).json[0]["cost"]["currency"] == "EUR"
    wrong = cli(*here, env={"SWARMKEEP_PRICES": "{"})
    assert (wrong.code, wrong.out) == (1, "")
    assert "SWARMKEEP_PRICES" in wrong.err


def test_no_usage_and_wrong_use(cli: CommandLine, place: list[str]) -> None:
    nothing = cli("usage", "--to", "2001-01-01", *place)
    assert (nothing.code, nothing.out) == (0, "")
    assert "no calls" in nothing.err
    for wrong in (["--by", "colour"], ["--from", "yesterday"]):
        assert cli("usage", *wrong, *place).code == 2


def test_usage_is_drawn_as_bars(cli: CommandLine, recorded: RecordedSession, place: list[str]) -> None:
    rows = cli("usage", "--by", "agent", "--session", recorded.session_id, "--json", *place).json
    drawn = cli("usage", "--by", "agent", "--session", recorded.session_id, "--plot", *place)
    assert [line.split("  ")[0].strip() for line in drawn.lines] == [row["agent"] for row in rows]
    largest = max(rows, key=lambda row: row["total_tokens"])
    (longest,) = [line for line in drawn.lines if line.startswith(largest["agent"])]
    assert f"{largest['total_tokens']:,}" in longest
    assert len(longest) == max(map(len, drawn.lines)) <= 80
    assert longest.endswith("█")
    assert f"{sum(row['total_tokens'] for row in rows):,} in total" in drawn.err
    assert cli("usage", "--plot", "--json", *place).code == 2


def test_bars_plain_without_block_characters(process: CommandLine, recorded: RecordedSession) -> None:
    drawn = process("usage", "--plot", *recorded.options, env={"PYTHONIOENCODING": "ascii"})
    assert drawn.code == 0, drawn
    assert drawn.out.endswith("#\n")
