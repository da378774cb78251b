"""What models and clients do that is not quite Chat Completions, on Swarm and on AsyncSwarm."""

from __future__ import annotations

import openai
import pytest

from swarmkeep import Agent
from tests.runs.swarm.runners import AsyncRunner, Runner, SyncRunner, list_tool_texts, make_answer
from tests.support.scripted import ScriptedModel


def test_calls_without_ids_get_some(swarm: Runner, model: ScriptedModel) -> None:
    def look() -> str:
        return "rain"

    calls = [{"type": "function", "function": {"name": "look", "arguments": {}}} for _ in range(2)]
    choice = {"index": 0, "message": {"role": "assistant", "tool_calls": calls}, "finish_reason": "tool_calls"}
    model.raw({"choices": [choice]})
    model.say("Rain.")
    response = swarm.run(Agent(functions=[look]), "Go")
    ids = [call["id"] for call in response.messages[0]["tool_calls"]]
    assert len(set(ids)) == 2
    assert all(ids)
    assert [message["tool_call_id"] for message in response.messages[1:3]] == ids


def test_reused_call_ids_are_replaced(swarm: Runner, model: ScriptedModel) -> None:
    def look(n: int) -> str:
        return str(n)

    model.call("look", {"n": 1}, id="0")
    model.call("look", {"n": 2}, id="0")
    model.say("Done.")
    response = swarm.run(Agent(functions=[look]), "Go")
    assert list_tool_texts(response) == ["1", "2"]
    first, second = (m["tool_calls"][0]["id"] for m in response.messages if m.get("tool_calls"))
    assert first == "0"
    assert second != "0"


def test_empty_reply_ends_the_run(swarm: Runner, model: ScriptedModel) -> None:
    model.raw({"choices": [{"index": 0, "message": {"role": "assistant", "content": None}, "finish_reason": "stop"}]})
    assert swarm.run(Agent(), "Hi").messages == [make_answer(sender="Agent")]


def test_more_than_text_is_kept(swarm: Runner, model: ScriptedModel) -> None:
    message = {"role": "assistant", "content": None, "refusal": "No.", "reasoning_content": "hm", "audio": None}
    model.raw({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]})
    [kept] = swarm.run(Agent(name="A"), "Hi").messages
    provider = {"model": "gpt-4o", "server": "127.0.0.1", "message": {"reasoning_content": "hm"}}
    assert kept == make_answer(refusal="No.", sender="A", provider=provider)


# What clients raise.


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (400, openai.BadRequestError),
        (401, openai.AuthenticationError),
        (403, openai.PermissionDeniedError),
        (404, openai.NotFoundError),
        (429, openai.RateLimitError),
        (500, openai.InternalServerError),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_client_exceptions_pass_unchanged(
    swarm: Runner, model: ScriptedModel, status: int, error: type[openai.APIStatusError], stream: bool
) -> None:
    model.fail(status, message="no such luck")
    with pytest.raises(error, match="no such luck") as raised:
        (swarm.stream if stream else swarm.run)(Agent(), "Hi")
    assert raised.value.status_code == status


def test_a_model_that_cannot_be_reached() -> None:
    import socket

    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{nobody.getsockname()[1]}/v1"
    with pytest.raises(openai.APIConnectionError):
        SyncRunner(url).run(Agent(), "Hi")
    with pytest.raises(openai.APIConnectionError):
        AsyncRunner(url).run(Agent(), "Hi")
