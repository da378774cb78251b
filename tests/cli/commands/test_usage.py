"""Usage on the command line."""

from __future__ import annotations

from tests.cli.command_line import CommandLine
from tests.cli.conftest import RecordedSession


def test_usage_is_a_table_with_a_sum(cli: CommandLine, recorded: RecordedSession, place: list[str]) -> None:
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


def test_no_usage_and_wrong_use(cli: CommandLine, place: list[str]) -> None:
    nothing = cli("usage", "--to", "2001-01-01", *place)
    assert (nothing.code, nothing.out) == (0, "")
    assert "no calls" in nothing.err
    for wrong in (["--by", "colour"], ["--from", "yesterday"]):
        assert cli("usage", *wrong, *place).code == 2
