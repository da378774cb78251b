"""Chatting: on a server or in this process, with lines from a pipe or a person at a terminal."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from swarmkeep.cli.sources import SourceOptions, describe_options
from tests.cli.command_line import ACME, CommandLine
from tests.cli.conftest import TALK, RecordedSession
from tests.cli.pseudo_terminal import CTRL_C, CTRL_D, Terminal
from tests.support.processes import ServerProcess
from tests.support.scripted import Call, ScriptedModel

pytestmark = pytest.mark.long

CHAT = [sys.executable, "-m", "swarmkeep", "chat"]
OFFLINE = ["--offline", "--agents", ACME]

ALT_ENTER, UP = "\x1b\r", "\x1b[A"
PASTED_FROM, PASTED_TO = "\x1b[200~", "\x1b[201~"

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


def read_session_id(result_err: str) -> str:
    return next(line.split()[1] for line in result_err.splitlines() if line.startswith("session "))


def test_piped_lines_answered_in_order(cli: CommandLine, here: list[str]) -> None:
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


def test_existing_session_can_continue(cli: CommandLine, here: list[str], place: list[str]) -> None:
    session_id = read_session_id(cli("chat", *here, text="Hello, I'd like to buy a lantern.\n").err)
    again = cli("chat", *here, "--session", session_id, text="Yes, please place the order.\nyes\n")
    assert "place_order" in again.out
    kept = cli("sessions", "show", session_id, "--json", *place).json
    assert [message["content"] for message in kept["messages"] if message["role"] == "user"] == [
        "Hello, I'd like to buy a lantern.",
        "Yes, please place the order.",
    ]


def test_another_agent_can_be_spoken_with(cli: CommandLine, here: list[str], recorded: RecordedSession) -> None:
    talk = cli("chat", *here, "--agent", "Escalation Agent", text="Hello!\n")
    assert talk.out.startswith("Escalation Agent: ")
    refused = cli("chat", *here, "--agent", "Nobody", text="Hello!\n")
    assert refused.code == 1
    assert "'Nobody'" in refused.err


def test_silent_chat_leaves_no_session(cli: CommandLine, here: list[str], place: list[str]) -> None:
    def sessions() -> list[str]:
        return [session["id"] for session in cli("sessions", "list", "--json", "--limit", "0", *place).json]

    cli("chat", *here, text="/state\n")
    before = sessions()
    assert cli("chat", *here, text="/help\n/resume\n").code == 0
    assert cli("chat", *here, "--agent", "Nobody", text="").code == 1
    assert sessions() == before


def test_no_lines_are_no_messages(cli: CommandLine, here: list[str]) -> None:
    assert (lambda talk: (talk.code, talk.out))(cli("chat", *here, text="\n   \n")) == (0, "")


def test_offline_model_introduces_itself(cli: CommandLine) -> None:
    assert "not an LLM" in cli("chat", *OFFLINE).err


def test_approval_call_is_asked_about(cli: CommandLine, model: ScriptedModel, scripted: dict[str, str]) -> None:
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


def test_pending_waits_asked_on_resuming(cli: CommandLine, model: ScriptedModel, scripted: dict[str, str]) -> None:
    model.call("delete_account", {"name": "Robin"})
    session_id = read_session_id(cli("chat", text="Delete Robin.\n", env=scripted).err)
    assert cli("sessions", "show", session_id, "--json").json["status"] == "waiting"
    model.say("Done.")
    talk = cli("chat", "--session", session_id, text="yes\n", env=scripted)
    assert talk.lines == ["  → deleted Robin", "Clerk: Done."]


def test_failed_run_told_and_chat_continues(cli: CommandLine, model: ScriptedModel, scripted: dict[str, str]) -> None:
    model.fail(401, message="no such key", headers={"x-should-retry": "false"})
    model.say("Here I am again.")
    talk = cli("chat", text="Hello?\nHello?\n", env=scripted)
    assert talk.code == 0
    assert talk.lines[0].startswith("  the run failed: ")
    assert talk.lines[1] == "Clerk: Here I am again."


def test_terminal_control_text_is_escaped(cli: CommandLine, model: ScriptedModel, scripted: dict[str, str]) -> None:
    model.say("Look: \x1b[2J\x07 gone")
    assert cli("chat", text="Hello?\n", env=scripted).out == "Clerk: Look: \\x1b[2J\\x07 gone\n"


def test_person_prompted_and_leaves_with_ctrl_d(cli: CommandLine) -> None:
    with Terminal([*CHAT, *OFFLINE], folder=cli.folder, cold=True) as terminal:
        terminal.reply("User:", "Hello, I'd like to buy a lantern.\n")
        # The line that is typed is drawn more than once, so that another prompt alone tells nothing.
        answer = terminal.wait_for("Here is what")
        terminal.wait_for("User:")
        assert "\x1b[1;34mTriage Agent\x1b[0m: " in answer
        assert "\x1b[35mtransfer_to_sales()\x1b[0m" in answer
        terminal.type(CTRL_D)
        # Without what it was begun with it would not go on.
        terminal.wait_for(f" {' '.join(OFFLINE)}\r\n")
        assert terminal.wait() == 0


def test_a_secret_is_not_given_again() -> None:
    def describe(**where: str) -> str:
        return describe_options(SourceOptions(**where), ["a shop.py", "b"], offline=False, model=None)

    assert describe(url="http://h", api_key="k") == " --agents 'a shop.py' --agents b --url http://h"
    assert describe(database_url="postgresql://u:p@h/d", tenant="t") == " --agents 'a shop.py' --agents b --tenant t"


def test_no_color_means_none(cli: CommandLine) -> None:
    with Terminal([*CHAT, *OFFLINE], folder=cli.folder, env={"NO_COLOR": "1"}) as terminal:
        terminal.reply("User:", "Hello, I'd like to buy a lantern.\n")
        shown = terminal.wait_for("Here is what")
        # What moves the cursor of the line editor is no colour.
        assert set(re.findall(r"\x1b\[[0-9;]*m", shown)) <= {"\x1b[0m"}
        terminal.reply("User:", CTRL_D)
        assert terminal.wait() == 0


def test_ctrl_c_cancels_answer_chat_continues(cli: CommandLine, model: ScriptedModel, scripted: dict[str, str]) -> None:
    model.hang("Let me think")
    model.say("I am listening.")
    with Terminal(CHAT, folder=cli.folder, env=scripted) as terminal:
        terminal.reply("User:", "How are you?\n")
        terminal.wait_for("Let me think")
        terminal.interrupt(until="cancelled")
        terminal.reply("User:", "Hello?\n")
        terminal.wait_for("I am listening.")
        terminal.reply("User:", CTRL_D)
        assert terminal.wait() == 0
    (session,) = cli("sessions", "list", "--json").json
    runs = [event["type"] for event in cli("events", session["id"], "--json").json if event["type"].startswith("run.")]
    assert runs == ["run.started", "run.cancelled", "run.started", "run.completed"]


def test_commands_inspect_session_without_change(cli: CommandLine, here: list[str], place: list[str]) -> None:
    talk = cli(
        "chat", *here, text="I want to buy a lantern.\n/state\n/events 3\n/at 3\n/help\n/resume\n/quit\nHello?\n"
    )
    assert talk.code == 0, talk
    session_id = read_session_id(talk.err)
    state = talk.lines.index(f"id:          {session_id}")
    assert talk.lines[state + 2] == "agent:       Sales Agent"
    seqs = [int(line.split()[0]) for line in talk.lines if re.match(r" *\d+  \d\d:\d\d:\d\d", line)]
    events = cli("events", session_id, "--json", *place).json
    assert seqs == [event["seq"] for event in events if event["seq"] > 3]
    (then,) = [index for index, line in enumerate(talk.lines) if line.startswith("events:      3,")]
    assert "agent:       Triage Agent" in talk.lines[then - 3 : then]
    assert "    3  user: I want to buy a lantern." in talk.lines[then:]
    for name in ("state", "at SEQ", "events [SEQ]", "fork [SEQ]", "resume [ID]", "help", "quit"):
        assert any(line.startswith(f"/{name} ") for line in talk.lines)
    assert "nothing to resume" in talk.err
    # What comes after /quit is not said.
    assert [event["type"] for event in events].count("run.started") == 1


def test_fork_continued_with_way_back(cli: CommandLine, here: list[str], place: list[str]) -> None:
    first = read_session_id(cli("chat", *here, text="I want to buy a lantern.\n").err)
    text = f"/fork 1\nIs anybody there?\n/resume {first}\nThanks!\n"
    talk = cli("chat", *here, "--session", first, text=text)
    assert talk.code == 0, talk
    opened = [line.split()[1] for line in talk.err.splitlines() if line.startswith("session ")]
    assert (len(opened), opened[0], opened[2]) == (3, first, first)

    def texts(session_id: str) -> list[str]:
        messages = cli("sessions", "show", session_id, "--json", *place).json["messages"]
        return [message["content"] for message in messages if message["role"] == "user"]

    assert texts(opened[1]) == ["Is anybody there?"]
    assert texts(first) == ["I want to buy a lantern.", "Thanks!"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("/stat\nHello?\n", "no command /stat; /help lists them"),
        ("/at\nHello?\n", "/at needs an event number"),
        ("/at x\nHello?\n", "'x' is not the number of an event"),
        ("/at 99\nHello?\n", "99"),
        ("/resume nowhere\nHello?\n", "nowhere"),
    ],
)
def test_a_program_is_refused_at_once(cli: CommandLine, text: str, said: str) -> None:
    talk = cli("chat", *OFFLINE, text=text)
    assert talk.code == 1
    assert said in talk.err.splitlines()[-1]
    assert talk.out == ""


def test_two_slashes_say_one(cli: CommandLine, model: ScriptedModel, scripted: dict[str, str]) -> None:
    model.say("That is a file.")
    cli("chat", text="//etc/hosts\n", env=scripted)
    assert model.requests[-1]["messages"][-1]["content"] == "/etc/hosts"


def test_a_denial_may_give_its_reason(cli: CommandLine, model: ScriptedModel, scripted: dict[str, str]) -> None:
    model.call("delete_account", {"name": "Robin"})
    model.say("As you wish.")
    talk = cli("chat", text="Delete Robin.\nNo, she still pays.\n", env=scripted)
    assert "Reason: she still pays." in talk.lines[-2]


@dataclass(frozen=True)
class ClerkChat:
    """A chat with the clerk at a terminal."""

    cli: CommandLine
    env: dict[str, str]

    def open(self, *arguments: str) -> Terminal:
        return Terminal([*CHAT, *arguments], folder=self.cli.folder, env=self.env)

    def events(self) -> list[str]:
        (session,) = self.cli("sessions", "list", "--json").json
        return [event["type"] for event in self.cli("events", session["id"], "--json").json]


@pytest.fixture
def chatting(cli: CommandLine, scripted: dict[str, str]) -> ClerkChat:
    return ClerkChat(cli, scripted)


def test_multiline_message_recalled_by_arrow(chatting: ClerkChat, model: ScriptedModel) -> None:
    for _ in range(3):
        model.say("I see.")
    with chatting.open() as terminal:
        terminal.reply("User:", f"one{ALT_ENTER}two\r")
        terminal.wait_for("I see.")
        terminal.reply("User:", f"{PASTED_FROM}three\rfour{PASTED_TO}\r")
        terminal.wait_for("I see.")
        terminal.reply("User:", CTRL_D)
        session_id = terminal.wait_for("--session ").split() and terminal.wait_for("\r\n").strip()
        assert terminal.wait() == 0
    # A session that is gone on with brings its history along.
    with chatting.open("--session", session_id) as terminal:
        terminal.reply("User:", f"{UP}{UP}{UP}{UP}\r")
        terminal.wait_for("I see.")
        terminal.reply("User:", CTRL_D)
        assert terminal.wait() == 0
    said = [message["content"] for message in model.requests[-1]["messages"] if message["role"] == "user"]
    assert said == ["one\ntwo", "three\nfour", "one\ntwo"]


def test_a_person_approves_on_the_spot(chatting: ClerkChat, model: ScriptedModel) -> None:
    model.call("delete_account", {"name": "Robin"})
    model.say("Gone.")
    with chatting.open() as terminal:
        terminal.reply("User:", "Delete Robin.\r")
        terminal.wait_for("Approve ")
        terminal.reply("[yes/no]", "perhaps\r")
        terminal.wait_for("please answer yes or no")
        terminal.reply("[yes/no]", "yes\r")
        terminal.wait_for("deleted Robin", "Gone.")
        terminal.reply("User:", "/nothing\r")
        terminal.wait_for("error: there is no command /nothing")
        terminal.reply("User:", "/quit\r")
        assert terminal.wait() == 0
    assert chatting.events().count("approval.decided") == 1


def test_session_viewable_before_approving(chatting: ClerkChat, model: ScriptedModel) -> None:
    model.call("delete_account", {"name": "Robin"})
    model.say("Gone.")
    with chatting.open() as terminal:
        terminal.reply("User:", "Delete Robin.\r")
        terminal.reply("[yes/no]", "/state\r")
        terminal.wait_for("status:      waiting")
        terminal.reply("[yes/no]", "/fork\r")
        terminal.wait_for("error: /fork has to wait for the answer")
        terminal.reply("[yes/no]", "yes\r")
        terminal.wait_for("Gone.")
        terminal.reply("User:", CTRL_D)
        assert terminal.wait() == 0


def test_lost_server_told_and_wait_interruptible(cli: CommandLine) -> None:
    with (
        ServerProcess(cli.folder, agents=[ACME]) as server,
        Terminal([*CHAT, "--url", server.url], folder=cli.folder) as terminal,
    ):
        terminal.reply("User:", "Hello!\r")
        terminal.wait_for("Triage Agent", "User:")
        server.kill()
        terminal.type("Is anybody there?\r")
        terminal.wait_for("no answer from the server, trying again")
        terminal.interrupt(until="stopped waiting for the server")
        terminal.reply("User:", CTRL_D)
        assert terminal.wait() == 0


def test_ctrl_c_cancels_ctrl_d_leaves_approval(chatting: ClerkChat, model: ScriptedModel) -> None:
    model.call("delete_account", {"name": "Robin"})
    model.call("delete_account", {"name": "Ana"})
    with chatting.open() as terminal:
        terminal.reply("User:", "Delete Robin.\r")
        terminal.reply("[yes/no]", CTRL_C)
        terminal.wait_for("cancelled")
        terminal.reply("User:", f"nothing{CTRL_C}")
        terminal.wait_for("press Ctrl-D to leave")
        terminal.reply("User:", "Delete Ana.\r")
        terminal.reply("[yes/no]", CTRL_D)
        assert terminal.wait() == 0
    ends = [name for name in chatting.events() if name in ("run.cancelled", "run.waiting")]
    assert ends == ["run.waiting", "run.cancelled", "run.waiting"]


DESK = (
    CLERK
    + """
desk = Agent(name="Desk", functions=[clerk.as_tool("ask_clerk", "Ask the clerk.")])
"""
)
AT_ONCE = (
    CLERK
    + """
ask = clerk.as_tool("ask_clerk", "Ask the clerk.", concurrent=True)
desk = Agent(name="Desk", functions=[ask], concurrent_tools=True)
"""
)


def last_says(text: str) -> Callable[[Any], bool]:
    return lambda request: request["messages"][-1]["content"] == text


def test_several_child_waits_asked_in_order(cli: CommandLine, model: ScriptedModel, scripted: dict[str, str]) -> None:
    (cli.folder / "clerk.py").write_text(AT_ONCE)
    names = ("Ada", "Robin")
    model.calls([Call("ask_clerk", {"input": f"Delete {name}."}) for name in names])
    for name in names:
        model.call("delete_account", {"name": name}, when=last_says(f"Delete {name}."))
        model.say(f"{name} is gone.", when=last_says(f"deleted {name}"))
    model.say("Both are gone.")
    talk = cli("chat", "--agent", "Desk", text="Delete both.\nyes\nyes\n", env=scripted)
    assert talk.code == 0, talk
    assert talk.err.count("in which another agent is asked") == 2
    assert talk.lines[-1] == "Desk: Both are gone."


def test_child_session_wait_asked_here(cli: CommandLine, model: ScriptedModel, scripted: dict[str, str]) -> None:
    (cli.folder / "clerk.py").write_text(DESK)
    model.call("ask_clerk", {"input": "Delete Robin."})
    model.call("delete_account", {"name": "Robin"})
    model.say("Deleted.")
    model.say("The clerk has deleted Robin.")
    talk = cli("chat", "--agent", "Desk", text="Delete Robin.\nyes\n", env=scripted)
    assert talk.code == 0, talk
    assert talk.lines[0] == 'Desk: ask_clerk(input="Delete Robin.")'
    assert "waits for an approval in session subsess_" in talk.lines[1]
    assert "in which another agent is asked" in talk.err
    assert talk.lines[-1] == "Desk: The clerk has deleted Robin."
    listed = cli("sessions", "list", "--json").json
    below = cli("sessions", "list", "--children", "--json").json
    assert (len(listed), len(below)) == (1, 2)
    (child,) = [session for session in below if session["parent"]]
    assert child["parent"]["session_id"] == listed[0]["id"]
    assert "asked by:" in cli("sessions", "show", child["id"]).out
    shown = cli("sessions", "show", listed[0]["id"])
    result = next(place for place, line in enumerate(shown.lines) if f"asked in session {child['id']}" in line)
    below = [line for line in cli("sessions", "show", child["id"]).lines if line[:5].strip().isdigit()]
    assert shown.lines[result + 1 : result + 1 + len(below)] == [f"      {line}" for line in below]
    assert f"in session {child['id']}" in cli("events", listed[0]["id"]).out
