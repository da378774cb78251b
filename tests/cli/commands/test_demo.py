"""The demo keeps its promise, to the end and for whoever watches."""

from __future__ import annotations

import re

import pytest

from swarmkeep.cli.terminal import INTERRUPTED
from tests.cli.command_line import SWARMKEEP, CommandLine
from tests.cli.pseudo_terminal import Terminal

pytestmark = pytest.mark.long


def test_a_conversation_outlives_its_server(process: CommandLine, cli: CommandLine) -> None:
    shown = process("demo", "--keep", "kept")
    assert shown.code == 0, shown
    assert "\x1b" not in shown.out
    assert "not an LLM" in shown.out
    (session_id,) = re.findall(r"timeline of session (\S+),", shown.out)
    kept = ["--database-url", f"sqlite:///{cli.folder / 'kept' / 'swarmkeep.db'}"]

    state = cli("sessions", "show", session_id, "--json", *kept).json
    assert state["status"] == "idle"
    assert state["agent"] == "Escalation Agent"
    assert {"order_id", "refund_id", "ticket_id"} <= state["context_variables"].keys()
    assert len(state["context_variables"]["refunds"]) == 1

    events = cli("events", session_id, "--json", *kept).json
    resumed = [event["data"]["reason"] for event in events if event["type"] == "run.resumed"]
    assert resumed == ["approval", "recovery"]
    assert [event["type"] for event in events].count("run.completed") == 5
    handoffs = [(event["data"]["from"], event["data"]["to"]) for event in events if event["type"] == "handoff.made"]
    assert handoffs == [
        ("Triage Agent", "Sales Agent"),
        ("Sales Agent", "Triage Agent"),
        ("Triage Agent", "Issues and Repairs Agent"),
        ("Issues and Repairs Agent", "Escalation Agent"),
    ]

    # What is printed is the conversation, the crash in its middle, every event, and the verdict.
    assert shown.out.count("User: ") == 5
    before, killed, after = shown.out.partition("kill -9")
    assert killed
    assert before.rstrip().splitlines()[-1] == "!!"
    assert "Issues and Repairs Agent: Here is what" in before
    assert "continues where it was cut off" in after
    timeline = [line for line in shown.lines if re.match(r" *\d+  \d\d:\d\d:\d\d\.\d{3}  ", line)]
    assert [int(line.split()[0]) for line in timeline] == [event["seq"] for event in events]
    assert f"✓ {len(events)} events, numbered 1 to {len(events)} without a gap" in shown.out
    assert "✓ 5 runs, all completed: " in shown.out
    assert "✓ recovered: run run_" in shown.out
    assert "execute_refund; started a second time: none" in shown.out


@pytest.mark.parametrize("moment", ["Starting a server", "It listens on"])
def test_ctrl_c_ends_demo_in_one_line(cli: CommandLine, moment: str) -> None:
    with Terminal([*SWARMKEEP, "demo", "--keep", "kept"], folder=cli.folder) as terminal:
        terminal.wait_for(moment)
        terminal.interrupt(until="interrupted: ")
        assert terminal.wait() == INTERRUPTED
        assert terminal.shown == "the demo's server is stopped\r\n"


def test_failed_demo_start_shows_log(process: CommandLine) -> None:
    (process.folder / "swarmkeep.db").write_text("This is a shopping list.\n" * 200)
    shown = process("demo", "--keep", ".")
    assert shown.code == 1
    assert "file is not a database" in shown.err
    assert shown.err.splitlines()[-1].startswith("error: the demo's server ended")
    assert "Traceback" not in shown.err


def test_uncreatable_folder_is_named(cli: CommandLine) -> None:
    (cli.folder / "file").write_text("in the way")
    assert "file" in cli.expect_refusal("demo", "--keep", "file/folder")
