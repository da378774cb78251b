"""The settings and instructions of a run over HTTP and WebSocket."""

from __future__ import annotations

from typing import Any

import pytest

from tests.http.server import RunningServer, check_problem, scripted, start_server
from tests.http.websocket.client import connect_session
from tests.support.scripted import ScriptedModel

MINE: dict[str, Any] = {"model_settings": {"temperature": None, "seed": 4}, "instructions": "Answer in French."}


async def test_a_run_brings_settings_and_instructions(service: RunningServer, model: ScriptedModel) -> None:
    model.say("Bien.", finish_reason="length")
    session = await service.session(context_variables={"name": "Ann"})
    await service.run(session, **MINE)
    [request] = model.requests
    assert (request["seed"], "temperature" in request) == (4, False)
    assert request["messages"][0]["content"] == "Help Ann.\n\nAnswer in French."
    events = await service.events(session)
    started = next(event for event in events if event["type"] == "run.started")
    assert MINE.items() <= started["data"]["options"].items()
    answer = next(event for event in events if event["data"].get("completion"))
    assert answer["data"]["completion"]["finish_reason"] == "length"
    rebuilt = await service.get(f"{session}/events/{answer['seq']}/request")
    assert rebuilt.content == model.raw_requests[0]


async def test_a_websocket_takes_them_too(service: RunningServer, model: ScriptedModel) -> None:
    model.say("Bien.")
    session = await service.session()
    async with connect_session(service, session) as viewer:
        await viewer.answer("run.create", input="hi", **MINE)
        await viewer.until("done")
    assert model.requests[0]["seed"] == 4


@pytest.mark.parametrize(
    ("settings", "pointer"),
    [
        ({"messages": []}, "/model_settings/messages"),
        ({"extra_body": {"n": 2}}, "/model_settings/n"),
        ({"x" * 65: 1}, "/model_settings"),
        ([], "/model_settings"),
    ],
)
async def test_unsettable_run_options_refused(plain: RunningServer, settings: Any, pointer: str) -> None:
    session = await plain.session()
    answer = await plain.post(f"{session}/runs", {"input": "hi", "model_settings": settings})
    problem = check_problem(answer, 400, "invalid_request")
    assert problem["errors"][0]["pointer"] == pointer
    assert len(await plain.events(session)) == 1


@pytest.mark.parametrize(
    ("profile", "pointer"),
    [
        ({"attachments": "maybe"}, "/model_profile/attachments"),
        ({"attachments": ["omit"]}, "/model_profile/attachments"),
        ({"nonsense": "omit"}, "/model_profile"),
        ({"max_tokens": 1, "max_completion_tokens": 2}, "/model_settings/max_tokens"),
    ],
)
async def test_a_wrong_model_profile_is_refused(plain: RunningServer, profile: Any, pointer: str) -> None:
    session = await plain.session()
    answer = await plain.post(f"{session}/runs", {"input": "hi", pointer.split("/")[1]: profile})
    assert check_problem(answer, 400, "invalid_request")["errors"][0]["pointer"] == pointer


async def test_callers_say_how_models_are_asked(service: RunningServer, model: ScriptedModel) -> None:
    for _ in range(6):
        model.say("Hello.")
    session = await service.session()
    await service.run(session)
    await service.run(session, parallel_tool_calls=None)
    await service.run(session, model_profile={"parallel_tool_calls": "omit"})
    said = [{"role": "user", "content": "hi"}]
    for field in ({"parallel_tool_calls": None}, {"model_profile": {"parallel_tool_calls": "omit"}}):
        answer = await service.post("/openai/v1/chat/completions", {"messages": said, **field})
        assert answer.status_code == 200, answer.text
    answer = await service.post("/openai/v1/responses", {"input": "hi", "parallel_tool_calls": None})
    assert (answer.status_code, answer.json()["parallel_tool_calls"]) == (200, True)
    assert ["parallel_tool_calls" in request for request in model.requests] == [True, *[False] * 5]


FORMAT: dict[str, Any] = {
    "type": "json_schema",
    "json_schema": {"name": "weather", "schema": {"type": "object", "properties": {}}, "strict": False},
}


async def test_run_brings_its_answer_format(service: RunningServer, model: ScriptedModel) -> None:
    model.say('{"city": "Rome", "degrees": [30, 1.5]}')
    session = await service.session()
    run = await service.run(session, response_format=FORMAT)
    assert run["output"] == {"city": "Rome", "degrees": [30, 1.5]}
    assert run["output_text"] == '{"city": "Rome", "degrees": [30, 1.5]}'
    assert model.requests[0]["response_format"] == FORMAT
    assert (await service.get(f"{session}/runs/{run['id']}")).json() == run
    model.say("Hello.")
    assert (await service.run(session))["output"] is None


async def test_a_websocket_takes_a_form_too(service: RunningServer, model: ScriptedModel) -> None:
    model.say('["hi"]')
    session = await service.session()
    async with connect_session(service, session) as viewer:
        await viewer.answer("run.create", input="hi", response_format={"type": "json_object"})
        frames = await viewer.until("done")
    assert frames[-1].data["output"] == ["hi"]


@pytest.mark.parametrize("answer", ['{"a":' * 5000 + "1" + "}" * 5000, "[" + "1," * 20_000 + "1]"])
async def test_deep_and_large_answers_not_parsed(service: RunningServer, model: ScriptedModel, answer: str) -> None:
    model.say(answer)
    run = await service.run(await service.session(), response_format={"type": "json_object"})
    assert (run["status"], run["output"]) == ("completed", None)


@pytest.mark.parametrize(
    ("wanted", "pointer"),
    [
        ({"type": "xml"}, "/response_format/type"),
        ({"type": "json_schema", "json_schema": {"name": "a b"}}, "/response_format/json_schema/name"),
        ("json", "/response_format"),
    ],
)
async def test_unknown_output_format_refused(plain: RunningServer, wanted: Any, pointer: str) -> None:
    session = await plain.session()
    answer = await plain.post(f"{session}/runs", {"input": "hi", "response_format": wanted})
    assert check_problem(answer, 400, "invalid_request")["errors"][0]["pointer"] == pointer


async def test_agent_shows_its_output_type(sqlite_ready: str, model: ScriptedModel) -> None:
    async with start_server(scripted(sqlite_ready, model, agents=["tests.http.output_team"])) as service:
        shown = (await service.get("/v1/agents/Clerk")).json()
        assert shown["output_schema"]["required"] == ["sku"]
        assert shown["output_mode"] == "tool"
        model.call("final_output", {"sku": 1})
        model.call("final_output", {"sku": "A"})
        session = await service.session()
        run = await service.run(session)
        assert run["output"] == {"sku": "A"}
        corrected = [event for event in await service.events(session) if event["data"].get("correction")]
        assert [event["data"]["correction"] for event in corrected] == [1]
