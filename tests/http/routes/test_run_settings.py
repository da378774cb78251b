"""Settings, instructions and functions of the caller for a run, over HTTP and WebSocket."""

from __future__ import annotations

from typing import Any

import pytest

from swarmkeep import Agent
from swarmkeep.decide.checks import check_tools
from swarmkeep.events.errors import InvalidRequest
from swarmkeep.events.records import RunOptions
from swarmkeep.runs.agents import Registry
from swarmkeep.runs.approvals import refuse_wrong_functions
from tests.http.server import RunningServer, check_problem, serve_team
from tests.http.websocket.client import connect_session
from tests.support.scripted import ScriptedModel

pytestmark = pytest.mark.one_database

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
    ("value", "pointer"),
    [
        ({"attachments": "maybe"}, "/model_profile/attachments"),
        ({"attachments": ["omit"]}, "/model_profile/attachments"),
        ({"nonsense": "omit"}, "/model_profile"),
        ({"max_tokens": 1, "max_completion_tokens": 2}, "/model_settings/max_tokens"),
        ({"type": "xml"}, "/response_format/type"),
        ({"type": "json_schema", "json_schema": {"name": "a b"}}, "/response_format/json_schema/name"),
        ("json", "/response_format"),
    ],
)
async def test_wrong_settings_of_models_are_refused(plain: RunningServer, value: Any, pointer: str) -> None:
    session = await plain.session()
    answer = await plain.post(f"{session}/runs", {"input": "hi", pointer.split("/")[1]: value})
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


@serve_team("output_team")
async def test_agent_shows_its_output_type(service: RunningServer) -> None:
    shown = (await service.get("/v1/agents/Clerk")).json()
    assert (shown["output_schema"]["required"], shown["output_mode"]) == (["sku"], "tool")


# Functions of the caller: offered with the agent's own, never run here; the run waits for their results.

OPEN_DOOR = {
    "type": "function",
    "function": {
        "name": "open_door",
        "description": "Open a door.",
        "parameters": {"type": "object", "properties": {"door": {"type": "string"}}, "required": ["door"]},
    },
}
DOOR_IS_OPEN = {"tool_call_id": "c2", "content": "open"}


async def test_caller_functions_offered_beside_agents_own(service: RunningServer, model: ScriptedModel) -> None:
    model.call("open_door", {"door": "1"}, id="c1")
    session = await service.session()
    choice = {"type": "function", "function": {"name": "open_door"}}
    run = await service.run(session, tools=[OPEN_DOOR], tool_choice=choice)
    request = model.requests[0]
    names = [tool["function"]["name"] for tool in request["tools"]]
    assert names == ["get_weather", "remember", "refund", "transfer_to_sales", "open_door"]
    assert (request["tools"][-1], request["tool_choice"]) == (OPEN_DOOR, choice)
    assert (run["status"], run["stop_reason"]) == ("waiting", "tool_calls")
    assert [(call["tool_call_id"], call["reason"]) for call in run["pending"]] == [("c1", "tool_results")]
    rebuilt = await service.get(f"{session}/events/{run['last_seq'] - 1}/request")
    assert rebuilt.json()["tools"] == request["tools"]
    started = (await service.events(session))[1]
    assert started["data"]["options"]["tools"] == [OPEN_DOOR]


async def test_approval_and_outside_call_awaited_together(service: RunningServer, model: ScriptedModel) -> None:
    model.calls([("refund", {"order": "1"}, "c1"), ("open_door", {"door": "1"}, "c2")])
    model.say("Done.")
    session = await service.session()
    run = await service.run(session, tools=[OPEN_DOOR])
    assert [(call["tool_call_id"], call["reason"]) for call in run["pending"]] == [
        ("c1", "approval"),
        ("c2", "tool_results"),
    ]
    assert run["stop_reason"] == "approval"
    resume = f"{session}/runs/{run['id']}/resume"
    half = await service.post(resume, {"tool_results": [DOOR_IS_OPEN]})
    assert [call["tool_call_id"] for call in half.json()["pending"]] == ["c1"]
    whole = await service.post(resume, {"approvals": [{"tool_call_id": "c1", "decision": "approve"}]})
    assert whole.json()["output_text"] == "Done."
    assert [message["content"] for message in whole.json()["messages"] if message["role"] == "tool"] == [
        "open",
        "refunded 1",
    ]


def _function(**changes: Any) -> dict[str, Any]:
    return {"type": "function", "function": {**OPEN_DOOR["function"], **changes}}  # type: ignore[dict-item]


@pytest.mark.parametrize(
    ("tools", "choice", "status", "code"),
    [
        ([_function(name="refund")], None, 400, "invalid_request"),
        ([_function(name="no spaces")], None, 400, "invalid_request"),
        ([_function(name="x" * 65)], None, 400, "invalid_request"),
        ([_function(), _function()], None, 400, "invalid_request"),
        ([{"type": "web_search"}], None, 400, "invalid_request"),
        ([{"function": {}}], None, 400, "invalid_request"),
        ([_function(parameters=[1])], None, 400, "invalid_request"),
        ([_function(name=f"f{number}") for number in range(129)], None, 413, "too_large"),
        ([_function(description="x" * 300_000)], None, 413, "too_large"),
        ([OPEN_DOOR], "sometimes", 400, "invalid_request"),
        ([OPEN_DOOR], {"name": "open_door"}, 400, "invalid_request"),
        ([OPEN_DOOR], {"type": "function", "function": {"name": "shut_door"}}, 400, "invalid_request"),
    ],
)
async def test_unofferable_tools_refused_without_record(
    plain: RunningServer, tools: list[Any], choice: Any, status: int, code: str
) -> None:
    session = await plain.session()
    answer = await plain.post(f"{session}/runs", {"input": "hi", "tools": tools, "tool_choice": choice})
    found = check_problem(answer, status, code)
    if status == 400:
        assert found["errors"][0]["pointer"].startswith(("/tools", "/tool_choice"))
    assert len(await plain.events(session)) == 1


def test_shared_function_names_all_agents() -> None:
    def look_up() -> None:
        """Look something up."""

    agents = [Agent(name=f"A{number}", functions=[look_up]) for number in range(7)]
    [given] = check_tools([_function(name="look_up")])
    for count, named in ((1, "the agent 'A0' has"), (7, "the agents 'A0', 'A1', 'A2', 'A3', 'A4' and 2 more have")):
        with pytest.raises(InvalidRequest, match=f"^{named} a function 'look_up' already"):
            refuse_wrong_functions(RunOptions(tools=(given,)), Registry(agents[:count]))
