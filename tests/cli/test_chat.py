"""Chatting: on a server or in this process, with lines from a pipe or a person at a terminal."""

from __future__ import annotations

import sys

import pytest

from tests.cli.commands import ACME, CommandLine
from tests.cli.conftest import TALK, Recorded
from tests.cli.pseudo_terminal import CTRL_D, Terminal
from tests.support.scripted import ScriptedModel

CHAT = [sys.executable, "-m", "swarmkeep", "chat"]
OFFLINE = ["--offline", "--agents", ACME]

CLERK = '''
from swarmkeep import Agent, tool

@tool(requires_approval=True)
def delete_account(name: str) -> str:
    """Delete a customer's account."""
    return f"deleted {name}"

clerk = Agent(name="Clerk", functions=[delete_account])
porter = Agent(name="Porter")
'''


@pytest.fixture
def here(place: list[str]) -> list[str]:
    """How to chat at a place: a server has its own agents and model."""
    return place if place[0] == "--url" else [*place, *OFFLINE]


@pytest.fixture
def scripted(cli: CommandLine, model: ScriptedModel) -> dict[str, str]:
    """The environment of a chat with the clerk, whose model says what the test has written."""
    (cli.folder / "clerk.py").write_text(CLERK)
    return {"OPENAI_BASE_URL": model.url, "SWARMKEEP_AGENTS": "clerk.py"}


def session_of(result_err: str) -> str:
    return next(line.split()[1] for line in result_err.splitlines() if line.startswith("session "))


def test_piped_lines_are_answered_one_after_the_other(cli: CommandLine, here: list[str]) -> None:
    talk = cli("chat", *here, text=TALK)
    assert talk.code == 0
    assert talk.lines[0] == "Triage Agent: transfer_to_sales()"
    assert talk.lines[1] == "  Triage Agent hands over to Sales Agent"
    assert talk.lines[2].startswith("Sales Agent: quote_price(product=")
    assert talk.lines[3].startswith("  → 1 x Hut lantern: 24.50 euros.")
    assert talk.lines[4].startswith('  context: {"cart": [{')
    assert talk.lines[5].startswith("Sales Agent: Here is what quote price returned: 1 x Hut lantern")
    assert talk.lines[6:8] == ["Sales Agent: place_order()", "  place_order() waits for an approval"]
    assert talk.lines[-1].startswith("Sales Agent: Here is what place order returned: Order ORD-")
    assert len(talk.lines) == 11
    assert "\x1b" not in talk.out


def test_a_session_can_be_gone_on_with(cli: CommandLine, here: list[str], place: list[str]) -> None:
    session_id = session_of(cli("chat", *here, text="Hello, I'd like to buy a lantern.\n").err)
    again = cli("chat", *here, "--session", session_id, text="Yes, please place the order.\nyes\n")
    assert "place_order" in again.out
    kept = cli("sessions", "show", session_id, "--json", *place).json
    assert [message["content"] for message in kept["messages"] if message["role"] == "user"] == [
        "Hello, I'd like to buy a lantern.",
        "Yes, please place the order.",
    ]


def test_another_agent_can_be_spoken_with(cli: CommandLine, here: list[str], recorded: Recorded) -> None:
    talk = cli("chat", *here, "--agent", "Escalation Agent", text="Hello!\n")
    assert talk.out.startswith("Escalation Agent: ")
    refused = cli("chat", *here, "--agent", "Nobody", text="Hello!\n")
    assert refused.code == 1
    assert "'Nobody'" in refused.err


def test_no_lines_are_no_messages(cli: CommandLine, here: list[str]) -> None:
    assert (lambda talk: (talk.code, talk.out))(cli("chat", *here, text="\n   \n")) == (0, "")


def test_the_offline_model_says_what_it_is(cli: CommandLine) -> None:
    assert "no LLM" in cli("chat", *OFFLINE).err


def test_a_call_that_needs_an_approval_is_asked_about(
    cli: CommandLine, model: ScriptedModel, scripted: dict[str, str]
) -> None:
    for answer in ("yes", "no"):
        model.call("delete_account", {"name": "Robin"})
        model.say(f"You said {answer}.")
    talk = cli("chat", text="Delete Robin.\nperhaps\nyes\nDelete Robin.\nno\n", env=scripted)
    assert talk.code == 0, talk
    assert talk.lines[:4] == [
        'Clerk: delete_account(name="Robin")',
        '  delete_account(name="Robin") waits for an approval',
        "  → deleted Robin",
        "Clerk: You said yes.",
    ]
    assert talk.lines[-1] == "Clerk: You said no."
    assert "denied: " in talk.lines[-2]
    assert "please answer yes or no" in talk.err


def test_what_waits_is_asked_about_when_the_session_is_gone_on_with(
    cli: CommandLine, model: ScriptedModel, scripted: dict[str, str]
) -> None:
    model.call("delete_account", {"name": "Robin"})
    session_id = session_of(cli("chat", text="Delete Robin.\n", env=scripted).err)
    assert cli("sessions", "show", session_id, "--json").json["status"] == "waiting"
    model.say("Done.")
    talk = cli("chat", "--session", session_id, text="yes\n", env=scripted)
    assert talk.lines == ["  → deleted Robin", "Clerk: Done."]


def test_a_failed_run_is_told_and_the_chat_goes_on(
    cli: CommandLine, model: ScriptedModel, scripted: dict[str, str]
) -> None:
    model.fail(401, message="no such key", headers={"x-should-retry": "false"})
    model.say("Here I am again.")
    talk = cli("chat", text="Hello?\nHello?\n", env=scripted)
    assert talk.code == 0
    assert talk.lines[0].startswith("  the run failed: ")
    assert talk.lines[1] == "Clerk: Here I am again."


def test_what_a_terminal_would_obey_is_shown_instead(
    cli: CommandLine, model: ScriptedModel, scripted: dict[str, str]
) -> None:
    model.say("Look: \x1b[2J\x07 gone")
    assert cli("chat", text="Hello?\n", env=scripted).out == "Clerk: Look: \\x1b[2J\\x07 gone\n"


def test_a_person_is_prompted_and_ends_with_ctrl_d(cli: CommandLine) -> None:
    with Terminal([*CHAT, *OFFLINE], folder=cli.folder) as terminal:
        terminal.wait_for("User: ")
        terminal.type("Hello, I'd like to buy a lantern.\n")
        answer = terminal.wait_for("User: ")
        assert "\x1b[1;34mTriage Agent\x1b[0m: " in answer
        assert "\x1b[35mtransfer_to_sales()\x1b[0m" in answer
        terminal.type(CTRL_D)
        assert terminal.wait() == 0


def test_no_color_means_none(cli: CommandLine) -> None:
    with Terminal([*CHAT, *OFFLINE], folder=cli.folder, env={"NO_COLOR": "1"}) as terminal:
        terminal.wait_for("User: ")
        terminal.type("Hello, I'd like to buy a lantern.\n")
        assert "\x1b[" not in terminal.wait_for("User: ").replace("\x1b[?2004h", "").replace("\x1b[?2004l", "")
        terminal.type(CTRL_D)
        assert terminal.wait() == 0


def test_ctrl_c_cancels_an_answer_and_the_chat_goes_on(
    cli: CommandLine, model: ScriptedModel, scripted: dict[str, str]
) -> None:
    model.hang("Let me think")
    model.say("I am listening.")
    with Terminal(CHAT, folder=cli.folder, env=scripted) as terminal:
        terminal.wait_for("User: ")
        terminal.type("How are you?\n")
        terminal.wait_for("Let me think")
        terminal.interrupt(until="cancelled")
        terminal.wait_for("User: ")
        terminal.type("Hello?\n")
        terminal.wait_for("I am listening.")
        terminal.wait_for("User: ")
        terminal.type(CTRL_D)
        assert terminal.wait() == 0
    (session,) = cli("sessions", "list", "--json").json
    runs = [event["type"] for event in cli("events", session["id"], "--json").json if event["type"].startswith("run.")]
    assert runs == ["run.started", "run.cancelled", "run.started", "run.completed"]
