"""The demo loop of Swarm: what `swarmkeep chat` shows and takes, in a program of one's own, and kept nowhere."""

from __future__ import annotations

import io
import re
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from swarmkeep import Agent, Result, tool
from swarmkeep.cli.terminal import find_refusal
from swarmkeep.repl import run_demo_loop
from tests.cli.pseudo_terminal import CTRL_D, Terminal
from tests.support.scripted import ScriptedModel


def transfer_to_sales() -> Agent:
    """Hand over to sales."""
    return sales


def add_to_cart(item: str, context_variables: dict[str, Any]) -> Result:
    """Put an item into the cart."""
    cart = [*context_variables.get("cart", []), item]
    return Result(value=f"{len(cart)} items for {context_variables['name']}", context_variables={"cart": cart})


triage = Agent(name="Triage", functions=[transfer_to_sales])
sales = Agent(name="Sales", functions=[add_to_cart])


Talk = Callable[..., "pytest.CaptureResult[str]"]


@pytest.fixture
def talk(model: ScriptedModel, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Talk]:
    """Runs the loop with an agent on these lines of input; gives what it has written."""
    with openai.OpenAI(base_url=model.url, api_key="none", max_retries=0) as client:

        def run(agent: Agent, typed: str | io.StringIO, **options: Any) -> pytest.CaptureResult[str]:
            monkeypatch.setattr(sys, "stdin", io.StringIO(typed) if isinstance(typed, str) else typed)
            run_demo_loop(agent, client=client, **options)
            return capsys.readouterr()

        yield run


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_a_conversation_is_shown(model: ScriptedModel, talk: Talk, stream: bool) -> None:
    model.call("transfer_to_sales")
    model.call("add_to_cart", {"item": "LAMP-1"})
    model.say("It is in the cart.")
    model.call("add_to_cart", {"item": "TENT-2"})
    model.say("That, too.")
    context = {"name": "Robin"}
    assert talk(triage, "I want a lamp.\nAnd a tent.\n", context_variables=context, stream=stream).out == (
        "Starting Swarm CLI 🐝\n"
        "Triage: transfer_to_sales()\n"
        "  Triage hands over to Sales\n"
        'Sales: add_to_cart(item="LAMP-1")\n'
        "  → 1 items for Robin\n"
        '  context: {"cart": ["LAMP-1"]}\n'
        "Sales: It is in the cart.\n"
        'Sales: add_to_cart(item="TENT-2")\n'
        "  → 2 items for Robin\n"
        '  context: {"cart": ["LAMP-1", "TENT-2"]}\n'
        "Sales: That, too.\n"
    )
    results = [message["content"] for message in model.requests[-1]["messages"] if message["role"] == "tool"]
    # The context variables go on from one answer to the next, and the caller's own are left alone.
    assert results[1:] == ["1 items for Robin", "2 items for Robin"]
    assert context == {"name": "Robin"}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_words_and_several_calls_are_shown(model: ScriptedModel, talk: Talk, stream: bool) -> None:
    calls = [("add_to_cart", {"item": "LAMP-1"}, "call_1"), ("add_to_cart", "no JSON", "call_2")]
    model.calls(calls, text="Both:")
    model.say("One of them.")
    out = talk(sales, "A lamp and a tent.\n", context_variables={"name": "Robin"}, stream=stream).out
    assert "Sales: Both:\n" in out
    assert 'add_to_cart(item="LAMP-1")\n' in out
    assert "add_to_cart(no JSON)\n" in out
    assert "  → error: Error: add_to_cart was not called" in out
    assert out.endswith("Sales: One of them.\n")


def test_client_errors_shown_and_raised(model: ScriptedModel, talk: Talk, capsys: pytest.CaptureFixture[str]) -> None:
    model.fail(401, headers={"x-should-retry": "false"})
    with pytest.raises(openai.AuthenticationError):
        talk(sales, "Hello?\nNobody hears this.\n")
    assert "the run failed: " in capsys.readouterr().out


def test_failed_run_is_raised_too(talk: Talk) -> None:
    def instructions() -> str:
        raise LookupError("no such file")

    with pytest.raises(RuntimeError, match="no such file"):
        talk(Agent(name="Ann", instructions=instructions), "Hello?\n")


def test_unprintable_characters_replaced(model: ScriptedModel, talk: Talk, monkeypatch: pytest.MonkeyPatch) -> None:
    model.say("5 € 🐝")
    buffer = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(buffer, encoding="ascii"))
    talk(sales, "How much?\n")
    sys.stdout.flush()
    assert b"Sales: 5 \\u20ac \\U0001f41d\n" in buffer.getvalue()


@tool(requires_approval=True)
def pay(euros: int, context_variables: dict[str, Any]) -> str:
    """Pay somebody."""
    context_variables["paid"] = euros
    context_variables["where"] = threading.current_thread().name
    return f"paid {euros} euros"


till = Agent(name="Till", functions=[pay])


def test_approvals_inline_and_functions_in_callers_thread(model: ScriptedModel, talk: Talk) -> None:
    for euros in (5, 6):
        model.call("pay", {"euros": euros})
        model.say("I see.")
    shown = talk(till, "Pay five.\nyes\nPay six.\nno, too much\n")
    here = threading.current_thread().name
    assert "Approve pay(euros=5)? [yes/no]" in shown.err
    assert shown.out.splitlines()[1:] == [
        "Till: pay(euros=5)",
        "  pay(euros=5) waits for an approval",
        "  → paid 5 euros",
        f'  context: {{"paid": 5, "where": "{here}"}}',
        "Till: I see.",
        "Till: pay(euros=6)",
        "  pay(euros=6) waits for an approval",
        "  → denied: Denied: pay was not approved and did not run. Reason: too much",
        "Till: I see.",
    ]


def test_commands_inspect_and_switch_session(model: ScriptedModel, talk: Talk) -> None:
    model.call("add_to_cart", {"item": "LAMP-1"})
    for text in ("It is in the cart.", "I know nothing of it.", "A path."):
        model.say(text)
    out, err = talk(
        sales,
        "A lamp.\n/state\n/at 3\n/events 3\n/fork 1\nMy lamp?\n/state\n/resume\n//etc\n/quit\nNobody hears this.\n",
        context_variables={"name": "Robin"},
    )
    assert 'context:     {"name": "Robin", "cart": ["LAMP-1"]}\n' in out
    assert "    3  user: A lamp.\n" in out
    seqs = [int(line.split()[0]) for line in out.splitlines() if re.match(r" *\d+  \d\d:\d\d:\d\d", line)]
    assert seqs == [*range(4, 4 + len(seqs))]
    first, _ = [line.split()[1] for line in err.splitlines() if line.startswith("session ")]
    assert f"forked from: {first} at 1\n" in out
    assert "nothing to resume" in err
    # The fork knows nothing of what came after its beginning, and what comes after /quit is not said.
    assert read_said(model) == ["My lamp?", "/etc"]


def read_said(model: ScriptedModel) -> list[str]:
    return [message["content"] for message in model.requests[-1]["messages"] if message["role"] == "user"]


def test_a_session_is_gone_back_to(model: ScriptedModel, talk: Talk, capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(3):
        model.say("I see.")

    class Typed(io.StringIO):
        """Goes back to the session whose id is shown first."""

        def readline(self, size: int | None = -1, /) -> str:
            line = super().readline()
            said.append(capsys.readouterr().err)
            return line.replace("FIRST", "".join(said).split()[1])

    said: list[str] = []
    talk(sales, Typed("one\n/fork 1\ntwo\n/resume FIRST\nthree\n"))
    assert read_said(model) == ["one", "three"]


@pytest.mark.parametrize("wrong", ["/stat", "/at", "/at 99", "/at 0", "/fork 99", "/resume nowhere"])
def test_a_program_is_refused_at_once(model: ScriptedModel, talk: Talk, wrong: str) -> None:
    with pytest.raises(Exception) as refused:  # noqa: PT011 - of two kinds, both of which the command line explains
        talk(sales, f"{wrong}\nHello?\n")
    assert find_refusal(refused.value) is not None
    assert model.requests == []


def test_debug_prints_the_events(model: ScriptedModel, talk: Talk) -> None:
    model.say("Hello.")
    out = talk(sales, "Hello?\n", debug=True).out
    assert all(f"] {name} Sales: " in out for name in ("run.started", "message.added", "run.completed"))


PROGRAM = """
import sys
from openai import OpenAI
from swarmkeep import Agent, tool
from swarmkeep.repl import run_demo_loop

@tool(requires_approval=True)
def pay(euros: int) -> str:
    return f"paid {euros} euros"

def wait() -> str:
    print("waiting", flush=True)
    sys.stdin.buffer.read()

client = OpenAI(base_url=sys.argv[1], api_key="none", max_retries=0)
run_demo_loop(Agent(name="Ann", functions=[pay, wait]), stream=True, client=client)
print("the loop has ended")
"""


@pytest.fixture
def program(model: ScriptedModel, tmp_path: Path) -> Iterator[Terminal]:
    with Terminal([sys.executable, "-c", PROGRAM, model.url], folder=tmp_path) as terminal:
        terminal.wait_for("User:")
        yield terminal


def test_person_sees_failures_approves_and_leaves(model: ScriptedModel, program: Terminal, tmp_path: Path) -> None:
    model.fail(401, headers={"x-should-retry": "false"})
    program.type("Hello?\r")
    program.wait_for("the run failed: ")
    program.reply("User:", "/nothing\r")
    program.wait_for("error: there is no command /nothing", "User:")
    model.call("pay", {"euros": 5})
    model.say("Done.")
    program.type("Pay five.\r")
    program.wait_for("\x1b[35mpay(euros=5)\x1b[0m", "Approve ")
    program.reply("[yes/no]", "yes\r")
    program.wait_for("paid 5 euros", "\x1b[1;34mAnn\x1b[0m: Done.")
    program.reply("User:", CTRL_D)
    program.wait_for("the loop has ended")
    assert program.wait() == 0
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_cancels_answer_conversation_continues(model: ScriptedModel, program: Terminal) -> None:
    model.hang("Let me think")
    program.type("How are you?\r")
    program.wait_for("Let me think")
    program.interrupt(until="cancelled")
    program.wait_for("User:")
    model.release()
    model.say("I am listening.")
    program.type("Hello?\r")
    program.wait_for("I am listening.")
    # What was said stays.
    texts = [message["content"] for message in model.requests[-1]["messages"][1:]]
    assert (texts[0], texts[-1]) == ("How are you?", "Hello?")
    assert texts[1].startswith("Let me think")
    program.reply("User:", "/quit\r")
    program.wait_for("the loop has ended")
    assert program.wait() == 0


def test_ctrl_c_stops_function_with_true_outcome(model: ScriptedModel, program: Terminal) -> None:
    model.call("wait")
    program.type("Wait.\r")
    program.wait_for("waiting")
    program.interrupt(until="cancelled")
    program.wait_for("User:")
    model.say("I am listening.")
    program.type("Hello?\r")
    program.wait_for("I am listening.")
    (result,) = [message for message in model.requests[-1]["messages"] if message["role"] == "tool"]
    assert "nterrupted" in result["content"]
    program.reply("User:", CTRL_D)
    assert program.wait() == 0
