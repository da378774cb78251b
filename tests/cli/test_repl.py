"""The demo loop of Swarm: the same to look at, and with a clean end."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from swarmkeep import Agent, Result, tool
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
        "User: Triage: transfer_to_sales()\n"
        'Sales: add_to_cart(item="LAMP-1")\n'
        "Sales: It is in the cart.\n"
        'User: Sales: add_to_cart(item="TENT-2")\n'
        "Sales: That, too.\n"
        "User: \n"
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
    assert out.endswith("Sales: One of them.\nUser: \n")


def test_what_the_client_raises_is_the_callers(
    model: ScriptedModel, client: openai.OpenAI, type_in: Callable[[str], None]
) -> None:
    model.fail(401, headers={"x-should-retry": "false"})
    type_in("Hello?\n")
    with pytest.raises(openai.AuthenticationError):
        run_demo_loop(sales, client=client)


def test_what_the_terminal_cannot_show_is_replaced(
    model: ScriptedModel, client: openai.OpenAI, type_in: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    model.say("5 € 🐝")
    type_in("How much?\n")
    buffer = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(buffer, encoding="ascii"))
    run_demo_loop(sales, client=client)
    sys.stdout.flush()
    assert b"Sales: 5 ? ?\n" in buffer.getvalue()


PROGRAM = """
import sys
from openai import OpenAI
from swarmkeep import Agent
from swarmkeep.repl import run_demo_loop
run_demo_loop(Agent(name="Ann"), stream=True, client=OpenAI(base_url=sys.argv[1], api_key="none", max_retries=0))
print("the loop has ended")
"""


@pytest.mark.parametrize("end", ["ctrl-c", "ctrl-d"])
def test_the_loop_ends_at_a_key(model: ScriptedModel, tmp_path: Path, end: str) -> None:
    model.say("Hello.")
    with Terminal([sys.executable, "-c", PROGRAM, model.url], folder=tmp_path) as terminal:
        terminal.wait_for("User:")
        terminal.type("Hello?\n")
        terminal.wait_for("\x1b[94mAnn\x1b[0m: Hello.")
        terminal.wait_for("User")
        if end == "ctrl-c":
            terminal.interrupt(until="the loop has ended")
        else:
            terminal.type(CTRL_D)
            terminal.wait_for("the loop has ended")
        assert terminal.wait() == 0


def test_the_loop_ends_at_ctrl_c_in_an_answer(model: ScriptedModel, tmp_path: Path) -> None:
    model.hang("Let me think")
    with Terminal([sys.executable, "-c", PROGRAM, model.url], folder=tmp_path, env={"NO_COLOR": "1"}) as terminal:
        terminal.wait_for("User:")
        terminal.type("How are you?\n")
        terminal.wait_for("Ann: Let me think")
        terminal.interrupt(until="the loop has ended")
        assert terminal.wait() == 0
    model.release()


@tool(requires_approval=True)
def pay(euros: int) -> str:
    """Pay somebody."""
    raise AssertionError("nobody has approved it")


def test_commands_are_obeyed_and_nothing_runs_without_its_approval(
    model: ScriptedModel,
    client: openai.OpenAI,
    type_in: Callable[[str], None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    model.call("pay", {"euros": 5})
    model.say("A path.")
    type_in("/state\n/help\n/fork\nPay five euros.\n//etc\n/quit\nNobody hears this.\n")
    run_demo_loop(Agent(name="Till", functions=[pay]), {"name": "Robin"}, client=client)
    out = capsys.readouterr().out
    assert 'agent: Till\ncontext: {"name": "Robin"}\n' in out
    assert "/quit   leave" in out
    assert "there is no command /fork here" in out
    assert "pay(euros=5) requires an approval, and did not run" in out
    assert len(model.requests) == 2
    assert model.requests[-1]["messages"][-1]["content"] == "/etc"
