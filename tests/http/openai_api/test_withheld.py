"""Answers that are not simply passed on: cut calls, refused words, wrong forms, approvals of asked agents."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest
from openai import APIStatusError, AsyncOpenAI, BadRequestError, ConflictError

from tests.http.server import RunningServer, serve_team
from tests.runs.calls.test_cut_calls import PIECES, script_calls
from tests.support.scripted import Call, ScriptedModel

pytestmark = pytest.mark.one_database

PARAMETERS = {"type": "object", "properties": {"q": {"type": "string"}}}
TOOL: Any = {"type": "function", "name": "shop", "parameters": PARAMETERS}
CHAT_TOOL: Any = {"type": "function", "function": {"name": "shop", "parameters": PARAMETERS}}
ASKED: dict[str, Any] = {"model": "Front", "input": "Buy tea.", "tools": [TOOL]}
CHAT: dict[str, Any] = {"model": "Front", "messages": [{"role": "user", "content": "Buy tea."}], "tools": [CHAT_TOOL]}

STORE = pytest.mark.parametrize("store", [True, False])


async def respond(openai: AsyncOpenAI, how: str, **asked: Any) -> Any:
    """The response, whole or as the end of its stream."""
    if how == "length":
        return await openai.responses.create(**asked)
    async with await openai.responses.create(**asked, stream=True) as events:
        return [event async for event in events][-1].response  # type: ignore[union-attr]


@PIECES
@STORE
async def test_cut_call_is_incomplete_item(
    openai: AsyncOpenAI, model: ScriptedModel, how: str, arguments: str, store: bool
) -> None:
    script_calls(model, how, ("shop", arguments))
    response = await respond(openai, how, **ASKED, store=store)
    assert (response.status, response.incomplete_details.reason, response.error) == (
        "incomplete",
        "max_output_tokens",
        None,
    )
    [item] = response.output
    assert (item.type, item.status, item.name) == ("function_call", "incomplete", "shop")
    if not store:
        return
    assert await openai.responses.retrieve(response.id) == response
    assert [item.type for item in (await openai.responses.input_items.list(response.id)).data] == ["message"]
    output: Any = [{"type": "function_call_output", "call_id": item.call_id, "output": "tea"}]
    with pytest.raises(BadRequestError, match="no open call"):
        await openai.responses.create(**{**ASKED, "input": output}, previous_response_id=response.id)
    # The conversation goes on, and the model sees what became of the call.
    model.say("Sorry.")
    answer = await openai.responses.create(**{**ASKED, "input": "Well?"}, previous_response_id=response.id)
    assert answer.output_text == "Sorry."
    assert "shop was not run" in model.requests[-1]["messages"][-2]["content"]


@STORE
async def test_whole_calls_beside_cut_are_answerable(openai: AsyncOpenAI, model: ScriptedModel, store: bool) -> None:
    script_calls(model, "length", ("shop", '{"q": "tea"}'), ("shop", '{"q": "co'))
    response = await openai.responses.create(**ASKED, store=store)
    assert response.status == "incomplete"
    assert [item.status for item in response.output] == ["completed", "incomplete"]  # type: ignore[union-attr]
    if not store:
        return
    model.say("Here you are.")
    output: Any = [{"type": "function_call_output", "call_id": "c0", "output": "tea"}]
    answer = await openai.responses.create(**{**ASKED, "input": output}, previous_response_id=response.id)
    assert (answer.status, answer.output_text) == ("completed", "Here you are.")
    results = [message["content"] for message in model.requests[-1]["messages"][-2:]]
    assert results[0] == "tea"
    assert "shop was not run" in results[1]


@PIECES
@STORE
async def test_a_chat_has_no_half_call(
    openai: AsyncOpenAI, model: ScriptedModel, how: str, arguments: str, store: bool
) -> None:
    script_calls(model, how, ("shop", '{"q": "tea"}'), ("shop", arguments))
    if how == "length":
        [choice] = (await openai.chat.completions.create(**CHAT, store=store)).choices
        assert choice.message.tool_calls is not None
        calls = [call.function.arguments for call in choice.message.tool_calls]  # type: ignore[union-attr]
        reason: str | None = choice.finish_reason
    else:
        calls, reason = [], None
        async with await openai.chat.completions.create(**CHAT, store=store, stream=True) as chunks:
            async for chunk in chunks:
                for piece in chunk.choices[0].delta.tool_calls or ():
                    assert piece.function is not None
                    calls += [""] if piece.id else []
                    calls[piece.index] += piece.function.arguments or ""
                reason = chunk.choices[0].finish_reason or reason
    assert (calls, reason) == (['{"q": "tea"}'], "length")


async def test_own_cut_call_is_failed_item(openai: AsyncOpenAI, model: ScriptedModel) -> None:
    script_calls(model, "length", ("add", '{"a": 1'))
    model.say("Sorry.")
    response = await openai.responses.create(model="Front", input="Add.")
    assert response.status == "completed"
    assert [(item.type, item.status) for item in response.output] == [  # type: ignore[union-attr]
        ("mcp_call", "failed"),
        ("message", "completed"),
    ]


# Input guardrails, where a client sends what was said before once more.


SECRET = "The word is swordfish."


def user(text: str) -> Any:
    return {"role": "user", "content": text}


@serve_team("guarded_team")
@pytest.mark.parametrize("store", [True, False])
async def test_refused_input_never_sent_as_history(openai: AsyncOpenAI, model: ScriptedModel, store: bool) -> None:
    asked: Any = {"model": "Guarded", "store": store}
    messages: list[Any] = [{"role": "system", "content": "Be kind."}]
    model.say("Hello.")
    for text, answer in (("Hi.", "Hello."), (SECRET, "Not here.")):
        messages.append(user(text))
        made = await openai.chat.completions.create(messages=messages, **asked)
        assert made.choices[0].message.content == answer
        messages.append({"role": "assistant", "content": answer})
    model.say("Fine.")
    made = await openai.chat.completions.create(messages=[*messages, user("How are you?")], **asked)
    assert made.choices[0].message.content == "Fine."
    said = [message["content"] for message in model.requests[-1]["messages"]]
    assert said[-4:] == ["Be kind.", "Hi.", "Hello.", "How are you?"]
    assert "swordfish" not in str(model.requests)


@serve_team("guarded_team")
async def test_compaction_sends_no_refused_content(openai: AsyncOpenAI, model: ScriptedModel) -> None:
    with pytest.raises(BadRequestError, match="Not here") as refused:
        await openai.responses.compact(model="Guarded", input=SECRET)
    assert (refused.value.code, refused.value.param) == ("guardrail", "input")
    items: Any = [user(SECRET), {"role": "assistant", "content": "Not here."}, user("My name is Ann.")]
    model.say("Ann said her name.")
    made = await openai.responses.compact(model="Guarded", input=items)
    assert [item.type for item in made.output] == ["message", "compaction"]
    assert "swordfish" not in str(model.requests)


@serve_team("guarded_team")
async def test_calls_to_caller_functions_are_checked(openai: AsyncOpenAI, model: ScriptedModel) -> None:
    tell: Any = {"type": "function", "name": "tell", "parameters": {"type": "object", "properties": {}}}
    asked: Any = {"model": "Guarded", "input": "Hi.", "tools": [tell], "stream": True}
    for word, kind in (("herring", "function_call"), ("swordfish", "message")):
        model.call("tell", {"word": word})
        events = [event async for event in await openai.responses.create(**asked)]
        assert [item.type for item in events[-1].response.output] == [kind]
        assert "swordfish" not in str(events)
        if kind == "function_call":
            # What a run goes on with is measured as what it begins with.
            output: Any = {"type": "function_call_output", "call_id": events[-1].response.output[0].call_id}
            again = {**asked, "previous_response_id": events[-1].response.id, "instructions": "x" * 8_500_000}
            with pytest.raises(APIStatusError) as refused:
                await openai.responses.create(**{**again, "input": [{**output, "output": "ok"}]})
            assert refused.value.status_code == 413
    assert events[-1].response.output_text == "Not here."


@serve_team("guarded_team")
async def test_invalid_request_schema_refused(openai: AsyncOpenAI, model: ScriptedModel) -> None:
    wrong: Any = {"type": "json_schema", "name": "x", "schema": {"type": "strin"}}
    with pytest.raises(BadRequestError, match="not a JSON schema"):
        await openai.responses.create(model="Guarded", input="Hi.", text={"format": wrong})


# An answer of a wrong form is in the log, and in no response.


WRONG, RIGHT = '{"sku": 7}', '{"sku": "A-17"}'


def answer_twice(model: ScriptedModel, agent: str) -> None:
    for text in (WRONG, RIGHT):
        if agent == "Clerk":
            model.call("final_output", text)
        else:
            model.say(text)


@serve_team("output_team")
@pytest.mark.parametrize("agent", ["Clerk", "Typist"])
async def test_only_the_last_answer_counts(
    openai: AsyncOpenAI, service: RunningServer, model: ScriptedModel, agent: str
) -> None:
    answer_twice(model, agent)
    made = await openai.responses.create(model=agent, input="Which?")
    assert (json.loads(made.output_text), len(made.output)) == (json.loads(RIGHT), 1)
    assert await openai.responses.retrieve(made.id) == made
    assert [item.type for item in (await openai.responses.input_items.list(made.id)).data] == ["message"]
    events = await service.events(f"/v1/sessions/{made.id.partition('.')[2]}")
    assert "7" in json.dumps([event["data"] for event in events if event["type"] == "message.added"])
    events = await service.events(f"/v1/sessions/{made.id.partition('.')[2]}")
    assert "7" in json.dumps([event["data"] for event in events if event["type"] == "message.added"])
    answer_twice(model, agent)
    async with openai.responses.stream(model=agent, input="Which?") as stream:
        told = [event async for event in stream]
        last = await stream.get_final_response()
    numbers = [event.sequence_number for event in told]
    ended = [event.item for event in told if event.type == "response.output_item.done"]
    said = [(item.type, item.status) for item in ended]
    assert said == [("mcp_call", "failed") if agent == "Clerk" else ("message", "incomplete"), ("message", "completed")]
    assert numbers == sorted(set(numbers))
    assert (json.loads(last.output_text), len(last.output)) == (json.loads(RIGHT), 1)
    again = await openai.responses.retrieve(last.id, stream=True, starting_after=numbers[-3])
    assert [event.sequence_number async for event in again] == numbers[-2:]


@serve_team("output_team")
@pytest.mark.parametrize("agent", ["Clerk", "Typist"])
async def test_chat_completion_shows_only_last_answer(openai: AsyncOpenAI, model: ScriptedModel, agent: str) -> None:
    asked: Any = {"model": agent, "messages": [{"role": "user", "content": "Which?"}]}
    for more in ({}, {"store": False}):
        answer_twice(model, agent)
        made = await openai.chat.completions.create(**asked, **more)
        assert json.loads(made.choices[0].message.content or "") == json.loads(RIGHT)
        answer_twice(model, agent)
        stream = await openai.chat.completions.create(**asked, **more, stream=True)
        text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
        assert json.loads(text) == json.loads(RIGHT)


# An agent that is asked waits for an approval: clients are told what for, and decide.


def ask_for_payment(model: ScriptedModel, *amounts: int) -> None:
    model.call("ask_clerk", {"input": "Pay it."}, id="c1")
    model.calls([("pay", {"amount": amount}, f"p{amount}") for amount in amounts])


def approve(request: Any, approve: bool = True) -> Any:
    return {"type": "mcp_approval_response", "approval_request_id": request.id, "approve": approve}


@serve_team("asking_team")
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


@serve_team("asking_team")
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


@serve_team("asking_team")
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


@serve_team("asking_team")
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
