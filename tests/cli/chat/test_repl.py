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


@pytest.fixture
def client(model: ScriptedModel) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=model.url, api_key="none", max_retries=0) as connected:
        yield connected


@pytest.fixture
def type_in(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    return lambda text: monkeypatch.setattr(sys, "stdin", io.StringIO(text))


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_a_conversation_is_shown(
    model: ScriptedModel,
    client: openai.OpenAI,
    type_in: Callable[[str], None],
    capsys: pytest.CaptureFixture[str],
    stream: bool,
) -> None:
    model.call("transfer_to_sales")
    model.call("add_to_cart", {"item": "LAMP-1"})
    model.say("It is in the cart.")
    model.call("add_to_cart", {"item": "TENT-2"})
    model.say("That, too.")
    context = {"name": "Robin"}
    type_in("I want a lamp.\nAnd a tent.\n")
    run_demo_loop(triage, context_variables=context, stream=stream, client=client)
    assert capsys.readouterr().out == (
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
def test_words_and_several_calls_are_shown(
    model: ScriptedModel,
    client: openai.OpenAI,
    type_in: Callable[[str], None],
    capsys: pytest.CaptureFixture[str],
    stream: bool,
) -> None:
    calls = [("add_to_cart", {"item": "LAMP-1"}, "call_1"), ("add_to_cart", "no JSON", "call_2")]
    model.calls(calls, text="Both:")
    model.say("One of them.")
    type_in("A lamp and a tent.\n")
    run_demo_loop(sales, {"name": "Robin"}, stream=stream, client=client)
    out = capsys.readouterr().out
    assert "Sales: Both:\n" in out
    assert 'add_to_cart(item="LAMP-1")\n' in out
    assert "add_to_cart(no JSON)\n" in out
    assert "  → error: Error: add_to_cart was not called" in out
    assert out.endswith("Sales: One of them.\n")


def test_client_errors_shown_and_raised(
    model: ScriptedModel,
    client: openai.OpenAI,
    type_in: Callable[[str], None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    model.fail(401, headers={"x-should-retry": "false"})
    type_in("Hello?\nNobody hears this.\n")
    with pytest.raises(openai.AuthenticationError):
        run_demo_loop(sales, client=client)
    assert "the run failed: " in capsys.readouterr().out


def test_failed_run_is_raised_too(client: openai.OpenAI, type_in: Callable[[str], None], model: ScriptedModel) -> None:
    def instructions() -> str:
        raise LookupError("no such file")

    type_in("Hello?\n")
    with pytest.raises(RuntimeError, match="no such file"):
        run_demo_loop(Agent(name="Ann", instructions=instructions), client=client)


def test_unprintable_characters_replaced(
    model: ScriptedModel, client: openai.OpenAI, type_in: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    model.say("5 € 🐝")
    type_in("How much?\n")
    buffer = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(buffer, encoding="ascii"))
    run_demo_loop(sales, client=client)
    sys.stdout.flush()
    assert b"Sales: 5 \\u20ac \\U0001f41d\n" in buffer.getvalue()


@tool(requires_approval=True)
def pay(euros: int, context_variables: dict[str, Any]) -> str:
    """Pay somebody."""
    context_variables["paid"] = euros
    context_variables["where"] = threading.current_thread().name
    return f"paid {euros} euros"


till = Agent(name="Till", functions=[pay])


def test_approvals_inline_and_functions_in_callers_thread(
    model: ScriptedModel,
    client: openai.OpenAI,
    type_in: Callable[[str], None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    for euros in (5, 6):
        model.call("pay", {"euros": euros})
        model.say("I see.")
    type_in("Pay five.\nyes\nPay six.\nno, too much\n")
    run_demo_loop(till, client=client)
    shown = capsys.readouterr()
    here = threading.current_thread().name
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
    assert "Approve pay(euros=5)? [yes/no]" in shown.err


def test_commands_inspect_and_switch_session(
    model: ScriptedModel,
    client: openai.OpenAI,
    type_in: Callable[[str], None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    model.call("add_to_cart", {"item": "LAMP-1"})
    for text in ("It is in the cart.", "I know nothing of it.", "A path."):
        model.say(text)
    type_in("A lamp.\n/state\n/at 3\n/events 3\n/fork 1\nMy lamp?\n/state\n/resume\n//etc\n/quit\nNobody hears this.\n")
    run_demo_loop(sales, {"name": "Robin"}, client=client)
    shown = capsys.readouterr()
    assert 'context:     {"name": "Robin", "cart": ["LAMP-1"]}\n' in shown.out
    assert "    3  user: A lamp.\n" in shown.out
    seqs = [int(line.split()[0]) for line in shown.out.splitlines() if re.match(r" *\d+  \d\d:\d\d:\d\d", line)]
    assert seqs == [*range(4, 4 + len(seqs))]
    opened = [line.split()[1] for line in shown.err.splitlines() if line.startswith("session ")]
    assert len(opened) == 2
    assert f"forked from: {opened[0]} at 1\n" in shown.out
    assert "nothing to resume" in shown.err
    # The fork knows nothing of what came after its beginning, and what comes after /quit is not said.
    texts = [message["content"] for message in model.requests[-1]["messages"] if message["role"] == "user"]
    assert texts == ["My lamp?", "/etc"]


def test_a_session_is_gone_back_to(
    model: ScriptedModel, client: openai.OpenAI, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(3):
        model.say("I see.")

    class Typed(io.StringIO):
        """Goes back to the session whose id is shown first."""

        def readline(self, size: int | None = -1, /) -> str:
            line = super().readline()
            said.append(capsys.readouterr().err)
            return line.replace("FIRST", "".join(said).split()[1])

    said: list[str] = []
    monkeypatch.setattr(sys, "stdin", Typed("one\n/fork 1\ntwo\n/resume FIRST\nthree\n"))
    run_demo_loop(sales, client=client)
    texts = [message["content"] for message in model.requests[-1]["messages"] if message["role"] == "user"]
    assert texts == ["one", "three"]


@pytest.mark.parametrize("wrong", ["/stat", "/at", "/at 99", "/at 0", "/fork 99", "/resume nowhere"])
def test_a_program_is_refused_at_once(
    model: ScriptedModel, client: openai.OpenAI, type_in: Callable[[str], None], wrong: str
) -> None:
    type_in(f"{wrong}\nHello?\n")
    with pytest.raises(Exception) as refused:  # noqa: PT011 - of two kinds, both of which the command line explains
        run_demo_loop(sales, client=client)
    assert find_refusal(refused.value) is not None
    assert model.requests == []


def test_debug_prints_the_events(
    model: ScriptedModel,
    client: openai.OpenAI,
    type_in: Callable[[str], None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    model.say("Hello.")
    type_in("Hello?\n")
    run_demo_loop(sales, debug=True, client=client)
    out = capsys.readouterr().out
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


def test_person_sees_colours_approves_and_leaves(model: ScriptedModel, program: Terminal, tmp_path: Path) -> None:
    model.call("pay", {"euros": 5})
    model.say("Done.")
    program.type("Pay five.\r")
    program.wait_for("\x1b[35mpay(euros=5)\x1b[0m")
    program.wait_for("Approve ")
    program.wait_for("[yes/no]")
    program.type("yes\r")
    program.wait_for("paid 5 euros")
    program.wait_for("\x1b[1;34mAnn\x1b[0m: Done.")
    program.wait_for("User:")
    program.type(CTRL_D)
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
    program.wait_for("User:")
    program.type("/quit\r")
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
    program.wait_for("User:")
    program.type(CTRL_D)
    assert program.wait() == 0


def test_failure_told_and_person_continues(model: ScriptedModel, program: Terminal) -> None:
    model.fail(401, headers={"x-should-retry": "false"})
    model.say("Here I am again.")
    program.type("Hello?\r")
    program.wait_for("the run failed: ")
    program.wait_for("User:")
    program.type("Hello?\r")
    program.wait_for("Here I am again.")
    program.wait_for("User:")
    program.type("/nothing\r")
    program.wait_for("error: there is no command /nothing")
    program.wait_for("User:")
    program.type(CTRL_D)
    assert program.wait() == 0
