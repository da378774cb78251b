"""Input guardrails, where a client sends what was said before once more."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from openai import APIStatusError, AsyncOpenAI, BadRequestError

from tests.http.server import scripted, start_server
from tests.support.scripted import ScriptedModel

pytestmark = pytest.mark.one_database

SECRET = "The word is swordfish."


@pytest.fixture
async def openai(ready_url: str, model: ScriptedModel) -> AsyncIterator[AsyncOpenAI]:
    settings = scripted(ready_url, model, agents=["tests.http.guarded_team"])
    async with (
        start_server(settings) as service,
        AsyncOpenAI(base_url=f"{service.url}/openai/v1", api_key="none", max_retries=0) as client,
    ):
        yield client


def user(text: str) -> Any:
    return {"role": "user", "content": text}


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


async def test_compaction_sends_no_refused_content(openai: AsyncOpenAI, model: ScriptedModel) -> None:
    with pytest.raises(BadRequestError, match="Not here") as refused:
        await openai.responses.compact(model="Guarded", input=SECRET)
    assert (refused.value.code, refused.value.param) == ("guardrail", "input")
    items: Any = [user(SECRET), {"role": "assistant", "content": "Not here."}, user("My name is Ann.")]
    model.say("Ann said her name.")
    made = await openai.responses.compact(model="Guarded", input=items)
    assert [item.type for item in made.output] == ["message", "compaction"]
    assert "swordfish" not in str(model.requests)


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


async def test_invalid_request_schema_refused(openai: AsyncOpenAI, model: ScriptedModel) -> None:
    wrong: Any = {"type": "json_schema", "name": "x", "schema": {"type": "strin"}}
    with pytest.raises(BadRequestError, match="not a JSON schema"):
        await openai.responses.create(model="Guarded", input="Hi.", text={"format": wrong})
