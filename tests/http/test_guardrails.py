"""Guardrails over HTTP and in OpenAI's API: what is refused is in no answer, and says by whom."""

from __future__ import annotations

import json

import pytest
from openai import AsyncOpenAI

from tests.http.server import RunningServer, serve_team
from tests.support.scripted import ScriptedModel

pytestmark = [pytest.mark.one_database, serve_team("guarded_team")]

SECRET = "swordfish"


async def test_an_agent_shows_its_guardrails(service: RunningServer) -> None:
    shown = (await service.get("/v1/agents/Guarded")).json()
    assert shown["input_guardrails"] == ["length_limit", "no_secrets"]
    assert (shown["output_guardrails"], shown["tool_guardrails"]) == (["no_secrets"], {"note": ["no_secrets"]})


async def test_guardrail_refusal_told_everywhere(service: RunningServer, model: ScriptedModel) -> None:
    session = await service.session()
    run = await service.run(session, f"It is {SECRET}.")
    assert (run["status"], run["stop_reason"], run["output_text"]) == ("completed", "guardrail", "Not here.")
    messages = (await service.get(f"{session}/messages")).json()["data"]
    assert [message["guardrail"] for message in messages] == ["no_secrets", "no_secrets"]
    model.say(["It is sword", "fish."])
    frames = await service.read_stream(f"{session}/runs", {"input": "What is it?", "stream": True}, method="POST")
    assert [frame.event for frame in frames if frame.event == "message.delta"] == []
    everything = json.dumps([await service.events(session), (await service.get(f"{session}/messages")).json()])
    assert "fish." not in everything.replace("swordfish.", "")
    transcript = await service.get(f"{session}/transcript")
    assert "refuses the answer: it is not shown to anybody" in transcript.text
    assert "refuses what was said" in transcript.text
    replayed = (await service.post(f"{session}/replay")).json()
    assert (replayed["matches"], replayed["divergences"]) == (True, [])
    assert (await service.get(f"{session}/verify")).json()["valid"] is True


async def test_guardrail_refusal_is_response_answer(service: RunningServer, model: ScriptedModel) -> None:
    async with AsyncOpenAI(base_url=f"{service.url}/openai/v1", api_key="none", max_retries=0) as openai:
        made = await openai.responses.create(model="Guarded", input=f"It is {SECRET}.")
        assert (made.status, made.output_text, made.incomplete_details) == ("completed", "Not here.", None)
        assert await openai.responses.retrieve(made.id) == made
        assert len((await openai.responses.input_items.list(made.id)).data) == 1
        model.say([f"It is {SECRET[:5]}", SECRET[5:]])
        stream = await openai.responses.create(
            model="Guarded", input="What is it?", stream=True, previous_response_id=made.id
        )
        events = [event async for event in stream]
        assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == "Not here."
        assert events[-1].type == "response.completed"
        assert [message["content"] for message in model.requests[0]["messages"][1:]] == ["What is it?"]


async def test_callers_attach_nothing_for_models(service: RunningServer, model: ScriptedModel) -> None:
    attached = {"model": "gpt-4o", "message": {"reasoning_content": SECRET}}
    said = [{"role": "user", "content": "Hi."}, {"role": "assistant", "content": "Hm.", "provider": attached}]
    session = await service.session(messages=said)
    model.say("Yes?")
    assert (await service.run(session, [*said, {"role": "user", "content": "So?"}]))["output_text"] == "Yes?"
    assert model.requests[0]["model"] == attached["model"]
    assert SECRET not in json.dumps([model.requests, await service.events(session)])
