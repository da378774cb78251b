"""An agent that is asked waits for an approval: OpenAI's clients are told what for, and decide."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from openai import AsyncOpenAI, BadRequestError, ConflictError

from tests.http.server import RunningServer, scripted, start_server
from tests.support.scripted import Call, ScriptedModel


@pytest.fixture
async def service(sqlite_ready: str, model: ScriptedModel) -> AsyncIterator[RunningServer]:
    async with start_server(scripted(sqlite_ready, model, agents=["tests.http.asking_team"])) as running:
        yield running


def ask_for_payment(model: ScriptedModel, *amounts: int) -> None:
    model.call("ask_clerk", {"input": "Pay it."}, id="c1")
    model.calls([("pay", {"amount": amount}, f"p{amount}") for amount in amounts])


def last_says(text: str) -> Callable[[Any], bool]:
    return lambda request: request["messages"][-1]["content"] == text


def approve(request: Any, approve: bool = True) -> Any:
    return {"type": "mcp_approval_response", "approval_request_id": request.id, "approve": approve}


async def test_decision_counts_for_shown_arguments(
    service: RunningServer, openai: AsyncOpenAI, model: ScriptedModel
) -> None:
    ask_for_payment(model, 7)
    waiting = await openai.responses.create(model="Desk", input="Pay 7.")
    [request] = waiting.output
    following: Any = {"model": "Desk", "previous_response_id": waiting.id}
    shown = hashlib.sha256(request.arguments.encode()).hexdigest()  # type: ignore[union-attr]
    others: Any = [("0" * 64, ConflictError, "arguments_changed"), ("0", BadRequestError, "invalid_request")]
    for digest, refusal, code in others:
        with pytest.raises(refusal) as refused:
            await openai.responses.create(input=[{**approve(request), "arguments_digest": digest}], **following)
        assert refused.value.code == code
    model.say("Paid.")
    model.say("Seven are paid.")
    done = await openai.responses.create(input=[{**approve(request), "arguments_digest": shown.upper()}], **following)
    assert done.output_text == "Seven are paid."


async def test_caller_decides_for_asked_agent(
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


async def test_chat_completion_names_waiting_call(
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


async def test_simultaneous_decisions_wanted_together(
    service: RunningServer, openai: AsyncOpenAI, model: ScriptedModel
) -> None:
    amounts = (7, 9)
    model.calls([Call("ask_clerk", {"input": f"Pay {amount}."}, id=f"c{amount}") for amount in amounts])
    for amount in amounts:
        model.call("pay", {"amount": amount}, id=f"p{amount}", when=last_says(f"Pay {amount}."))
        model.say(f"{amount} are paid.", when=last_says(f"paid {amount}"))
    waiting: Any = await openai.responses.create(model="Office", input="Pay 7 and 9.")
    assert [item.arguments for item in waiting.output] == ['{"amount": 7}', '{"amount": 9}']
    session = waiting.id.partition(".")[2]
    run = (await service.get(f"/v1/sessions/{session}/runs")).json()["data"][0]
    below = {call["session_id"] for call in run["pending"]}
    assert len(below) == 2
    chat: Any = {"model": "Office", "messages": [{"role": "user", "content": "Well?"}]}
    with pytest.raises(BadRequestError) as refused:
        await openai.chat.completions.create(**chat, extra_headers={"X-Session-Id": session})
    assert all(f"/v1/sessions/{child}/runs/" in refused.value.message for child in below)
    model.say("All is paid.")
    decided = [approve(request) for request in waiting.output]
    answer = await openai.responses.create(model="Office", previous_response_id=waiting.id, input=decided)
    assert answer.output_text == "All is paid."
    results = [message["content"] for message in model.requests[-1]["messages"] if message["role"] == "tool"]
    assert results == ["7 are paid.", "9 are paid."]


async def test_own_and_nested_requests_answered_together(
    service: RunningServer, openai: AsyncOpenAI, model: ScriptedModel
) -> None:
    model.calls([Call("ask_clerk", {"input": "Pay 7."}, id="c1"), Call("pay", {"amount": 9}, id="p9")])
    model.call("pay", {"amount": 7}, id="p7")
    waiting: Any = await openai.responses.create(model="Boss", input="Pay 7 and 9.")
    requests = {item.arguments: item for item in waiting.output if item.type == "mcp_approval_request"}
    own, below = requests['{"amount": 9}'], requests['{"amount": 7}']
    for wrong in ([approve(own)], [approve(below)], [approve(own), approve(own), approve(below)]):
        with pytest.raises(BadRequestError):
            await openai.responses.create(model="Boss", previous_response_id=waiting.id, input=wrong)
    session = waiting.id.partition(".")[2]
    chat: Any = {"model": "Boss", "messages": [{"role": "user", "content": "Well?"}]}
    with pytest.raises(BadRequestError, match=f"(?s)p7|pay in .*p9.*sessions/{session}/"):
        await openai.chat.completions.create(**chat, extra_headers={"X-Session-Id": session})
    model.say("7 are paid.")
    model.say("All is paid.")
    decided = [approve(own), approve(below)]
    answer = await openai.responses.create(model="Boss", previous_response_id=waiting.id, input=decided)
    assert answer.output_text == "All is paid."
    results = [message["content"] for message in model.requests[-1]["messages"] if message["role"] == "tool"]
    assert results == ["7 are paid.", "paid 9"]
