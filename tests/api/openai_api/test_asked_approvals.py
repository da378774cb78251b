"""An agent that is asked waits for an approval: OpenAI's clients are told what for, and decide."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from openai import AsyncOpenAI, BadRequestError

from tests.api.server import RunningServer, scripted, start_server
from tests.support.scripted import ScriptedModel


@pytest.fixture
async def service(sqlite_ready: str, model: ScriptedModel) -> AsyncIterator[RunningServer]:
    async with start_server(scripted(sqlite_ready, model, agents=["tests.api.asking_team"])) as running:
        yield running


def ask_for_payment(model: ScriptedModel, *amounts: int) -> None:
    model.call("ask_clerk", {"input": "Pay it."}, id="c1")
    model.calls([("pay", {"amount": amount}, f"p{amount}") for amount in amounts])


def approve(request: Any, approve: bool = True) -> Any:
    return {"type": "mcp_approval_response", "approval_request_id": request.id, "approve": approve}


async def test_the_caller_decides_on_a_call_of_an_agent_that_is_asked(
    service: RunningServer, openai: AsyncOpenAI, model: ScriptedModel
) -> None:
    ask_for_payment(model, 7, 9)
    stream = await openai.responses.create(model="Desk", input="Pay 7 and 9.", stream=True)
    events: list[Any] = [event async for event in stream]
    waiting = events[-1].response
    first, second = waiting.output
    assert [(item.type, item.server_label, item.name) for item in waiting.output] == [
        ("mcp_approval_request", "Clerk", "pay")
    ] * 2
    assert (first.arguments, waiting.status, waiting.output_text) == ('{"amount": 7}', "completed", "")
    added = [event.item.id for event in events if event.type == "response.output_item.added"]
    assert added == [first.id, second.id]
    assert (await openai.responses.retrieve(waiting.id)).output == waiting.output

    following: Any = {"model": "Desk", "previous_response_id": waiting.id}
    for wrong in ("Well?", [approve(first)], [approve(first), approve(second), {"role": "user", "content": "Now!"}]):
        with pytest.raises(BadRequestError):
            await openai.responses.create(input=wrong, **following)
    model.say("Only the seven.")
    model.say("Seven are paid.")
    following |= {"input": [approve(first), approve(second, False)], "temperature": 0.5}
    following["extra_headers"] = {"Idempotency-Key": "once"}
    answer = await openai.responses.create(**following)
    assert answer.output_text == "Seven are paid."
    assert (answer.output[0].type, answer.output[0].status) == ("mcp_call", "completed")
    again = await openai.responses.create(**following)
    assert (again.id, again.output_text) == (answer.id, answer.output_text)
    results = [message["content"] for message in model.requests[-2]["messages"] if message["role"] == "tool"]
    assert results[0] == "paid 7"
    assert results[1].startswith("Denied: pay")
    assert model.requests[-1]["temperature"] == 0.5
    with pytest.raises(BadRequestError, match="no open request"):
        await openai.responses.create(model="Desk", previous_response_id=answer.id, input=[approve(first)])


async def test_a_chat_completion_says_whose_call_waits_and_where(
    service: RunningServer, openai: AsyncOpenAI, model: ScriptedModel
) -> None:
    ask_for_payment(model, 7)
    chat: Any = {"model": "Desk", "messages": [{"role": "user", "content": "Pay 7."}]}
    made = await openai.chat.completions.create(**chat, extra_headers={"X-Session-Id": "s"})
    text = made.choices[0].message.content or ""
    run = (await service.get("/v1/sessions/s/runs")).json()["data"][0]
    [approval] = run["pending"][0]["approvals"]
    path = f"/v1/sessions/{approval['session_id']}/runs/{approval['run_id']}/resume"
    assert text.startswith('The call pay({"amount": 7}) waits for an approval: it is Clerk\'s')
    assert path in text
    assert made.choices[0].finish_reason == "stop"
    with pytest.raises(BadRequestError) as refused:
        await openai.chat.completions.create(**chat, extra_headers={"X-Session-Id": "s"})
    assert (refused.value.code, path in refused.value.message) == ("approval_pending", True)
