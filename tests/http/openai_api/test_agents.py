"""OpenAI's Agents API, asked by OpenAI's own client: every answer and event is checked against its types."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import openai as package
import pytest
from google.protobuf import json_format
from openai import APIStatusError, AsyncOpenAI, BadRequestError, NotFoundError, UnprocessableEntityError
from openai.lib.beta.agents._result import AgentTurnResultError
from openai.types.beta.agent_session_event import AgentSessionEvent
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from pydantic import BaseModel, TypeAdapter

from tests.http.auth.keys import create_key
from tests.http.openai_api.conftest import connect_strictly
from tests.http.openai_api.test_errors import check_error
from tests.http.server import RunningServer, scripted, serve_team, start_server
from tests.support.pictures import make_data_url, make_png
from tests.support.scripted import ScriptedModel

URL = "/openai/v1/agents/sessions"
NONE: Any = {"type": "none"}
EVENTS: TypeAdapter[Any] = TypeAdapter(AgentSessionEvent)
DOOR: Any = {
    "type": "function",
    "name": "open_door",
    "description": "Open a door.",
    "parameters": {"type": "object", "properties": {"which": {"type": "string"}}, "required": ["which"]},
}


def test_client_is_the_pinned_one() -> None:
    """The API is a beta: another version may know other shapes."""
    pins = (Path(__file__).parents[3] / "constraints.txt").read_text()
    pinned = re.search(r"^openai==(\S+)", pins, re.MULTILINE)
    assert pinned is not None
    assert package.__version__ == pinned[1]
    assert tuple(map(int, pinned[1].split("."))) >= (3, 54)


async def read_to_idle(stream: Any) -> list[Any]:
    """The events up to the end of a turn, each checked against its type."""
    seen: list[Any] = []
    async for event in stream:
        EVENTS.validate_python(event.model_dump(by_alias=True), strict=True)
        seen.append(event)
        if event.type == "agent.session.idle":
            break
    await stream.close()
    return seen


async def read_to_action(stream: Any) -> Any:
    """The session, once it waits for its caller."""
    async for event in stream:
        if event.type == "agent.session.requires_action":
            return event.session
    raise AssertionError("the stream has ended")


async def create(client: AsyncOpenAI, text: str = "Hi.", **more: Any) -> list[Any]:
    stream = await client.beta.agents.sessions.create(
        environment=NONE, input=text, stream=True, **{"agent_id": "Front", **more}
    )
    return await read_to_idle(stream)


async def follow(client: AsyncOpenAI, session_id: str, after: str) -> list[Any]:
    stream = await client.beta.agents.sessions.events.stream(session_id, extra_query={"after": after})
    return await read_to_idle(stream)


def names(events: list[Any]) -> list[str]:
    return [event.type.removeprefix("agent.session.") for event in events]


def message(text: str) -> Any:
    return {
        "type": "agent.session.input.message",
        "input": [{"role": "user", "content": [{"type": "input_text", "text": text}]}],
    }


async def test_agents_are_those_served(client: AsyncOpenAI, service: RunningServer) -> None:
    found = [agent async for agent in client.beta.agents.list(limit=1)]
    assert [agent.id for agent in found] == ["Front", "Sales / EU ☃"]
    sales = await client.beta.agents.retrieve("Sales / EU ☃")
    assert sales == found[1]
    assert (sales.instructions, sales.tools, sales.multi_agent.enabled) == ("Sell.", [], False)
    with pytest.raises(NotFoundError, match="there is no agent 'Nobody'"):
        await client.beta.agents.retrieve("Nobody")


async def test_turn_is_streamed_and_read_again(client: AsyncOpenAI, model: ScriptedModel) -> None:
    model.say(["Hel", "lo."])
    events = await create(client, metadata={"team": "a"})
    assert names([event for event in events if "delta" not in event.type]) == [
        "created",
        "turn.created",
        "in_progress",
        "turn.in_progress",
        "turn.item.added",
        "turn.item.added",
        "turn.content_part.added",
        "turn.output_text.done",
        "turn.content_part.done",
        "turn.item.done",
        "turn.completed",
        "idle",
    ]
    said, answered = [event.item for event in events if event.type == "agent.session.turn.item.added"]
    assert (said.role, said.content[0].text) == ("user", "Hi.")
    assert answered.role == "assistant"
    pieces = [event.delta for event in events if event.type == "agent.session.turn.output_text.delta"]
    assert "".join(pieces) == "Hello."
    done = next(event.item for event in events if event.type == "agent.session.turn.item.done")
    assert (done.status, done.phase, done.content[0].text) == ("completed", "final_answer", "Hello.")
    assert len({event.event_id for event in events}) == len(events)

    sessions = client.beta.agents.sessions
    session = await sessions.retrieve(events[0].session.id)
    assert session == events[-1].session
    assert (session.status, session.metadata, session.environment.type) == ("idle", {"team": "a"}, "none")
    [turn] = [turn async for turn in sessions.turns.list(session.id)]
    assert turn == events[-2].turn == await sessions.turns.retrieve(turn.id, session_id=session.id)
    assert (turn.status, turn.agent_id) == ("completed", "Front")
    assert turn.usage is not None
    items = [item async for item in sessions.items.list(session.id, order="asc", limit=1)]
    assert [item.to_dict() for item in items] == [said.to_dict(), done.to_dict()]
    of_turn = [item async for item in sessions.turns.items.list(turn.id, session_id=session.id, limit=1)]
    assert of_turn == [items[1], items[0]]


async def test_sessions_are_listed_changed_and_deleted(client: AsyncOpenAI, model: ScriptedModel) -> None:
    sessions = client.beta.agents.sessions
    made: list[Any] = []
    for team in ("a", "b", "a"):
        model.say("Hello.")
        events = await create(client, metadata={"team": team})
        made.insert(0, events[-1].session)
    assert [session async for session in sessions.list(limit=1)] == made
    assert [session.id async for session in sessions.list(metadata={"team": "b"})] == [made[1].id]
    assert [session.id async for session in sessions.list(agent_id="Sales / EU ☃")] == []
    changed = await sessions.update(made[0].id, metadata={"to": "c"})
    assert changed.metadata == {"to": "c"}
    deleted = await sessions.delete(made[0].id)
    assert (deleted.id, deleted.deleted) == (made[0].id, True)
    with pytest.raises(NotFoundError):
        await sessions.retrieve(made[0].id)


async def test_helper_streams_turn_after_turn(client: AsyncOpenAI, model: ScriptedModel) -> None:
    model.say("Hello.")
    session = (await create(client, agent={"instructions": "Be brief."}))[-1].session
    assert session.agent.instructions == "Be brief."
    model.call("get_weather", {"city": "Rome"}, text="I look.")
    model.say("Sunny.")
    async with client.beta.agents.sessions.stream(session.id, input="And Rome?") as stream:
        result = await stream.with_result_collection().get_final_result()
    assert result.output_text == "Sunny."
    assert result.turn.status == "completed"
    # What the session's agent is to be like holds for its later turns.
    assert "Be brief." in model.requests[-1]["messages"][0]["content"]
    items: list[Any] = [item async for item in client.beta.agents.sessions.items.list(session.id, order="asc")]
    assert [item.type for item in items] == ["message", "message", "message", "message", "mcp_call", "message"]
    assert (items[3].phase, items[4].name, items[4].output) == ("commentary", "get_weather", "sunny in Rome")


class Answer(BaseModel):
    city: str


async def test_answer_of_a_form(client: AsyncOpenAI, model: ScriptedModel) -> None:
    model.say('{"city": "Rome"}')
    stream = await client.beta.agents.sessions.create(
        environment=NONE, agent={"model": "Front"}, input="Where?", stream=True, output_type=Answer
    )
    result: Any = await stream.get_final_result()
    assert result.output_parsed == Answer(city="Rome")
    asked = model.requests[-1]["response_format"]
    assert (asked["type"], asked["json_schema"]["strict"]) == ("json_schema", True)


@pytest.mark.parametrize("fails", [False, True])
async def test_functions_of_the_caller(client: AsyncOpenAI, model: ScriptedModel, fails: bool) -> None:
    model.calls([("open_door", {"which": "left"}, "c1"), ("open_door", {"which": "right"}, "c2")])
    model.say("Both are open.")
    opened: list[str] = []

    def open_door(arguments: dict[str, Any]) -> str:
        opened.append(arguments["which"])
        if fails:
            raise ValueError("secret")
        return "open"

    stream = await client.beta.agents.sessions.create(
        environment=NONE,
        agent={"model": "Front", "tools": [DOOR]},
        input="Open both.",
        stream=True,
        tool_handlers={"open_door": open_door},
    )
    result = await stream.with_result_collection().get_final_result()
    assert (result.output_text, opened) == ("Both are open.", ["left", "right"])
    results = [entry["content"] for entry in model.requests[-1]["messages"] if entry["role"] == "tool"]
    assert results == (["Tool handler failed."] * 2 if fails else ["open"] * 2)
    items: list[Any] = [item async for item in client.beta.agents.sessions.items.list(result.session_id, order="asc")]
    outputs = [item for item in items if item.type == "function_call_output"]
    assert [item.status for item in outputs] == ["failed" if fails else "completed"] * 2
    # A session keeps its functions.
    model.call("open_door", {"which": "back"}, id="c3")
    model.say("That one, too.")
    async with client.beta.agents.sessions.stream(
        result.session_id, input="And the back?", tool_handlers={"open_door": lambda given: "open"}
    ) as following:
        assert (await following.get_final_result()).output_text == "That one, too."


async def test_unhandled_call_requires_action(client: AsyncOpenAI, model: ScriptedModel) -> None:
    model.call("open_door", {"which": "left"}, id="c1")
    sessions = client.beta.agents.sessions
    stream = await sessions.create(
        environment=NONE, agent={"model": "Front", "tools": [DOOR]}, input="Open it.", stream=True
    )
    with pytest.raises(AgentTurnResultError) as waiting:
        await stream.get_final_result()
    [action] = waiting.value.required_actions
    session_id = str(waiting.value.session_id)
    session = await sessions.retrieve(session_id)
    assert (session.status, session.required_actions) == ("requires_action", [action])
    assert action.type == "function_call"

    async def answer(call_id: str, turn_id: str = action.turn_id, **more: Any) -> None:
        result: Any = {"type": "agent.session.input.tool_result", "call_id": call_id, "turn_id": turn_id, **more}
        await sessions.events.create(session_id, events=[result], idempotency_key=f"{call_id} {turn_id} {more}")

    for call_id, turn_id in (("c2", action.turn_id), ("c1", "run_other")):
        with pytest.raises(BadRequestError) as refused:
            await answer(call_id, turn_id, success=True, output="open")
        # Exactly this has the client try again.
        assert refused.value.body["code"] == "invalid_request_error"  # type: ignore[index]
        assert refused.value.body["message"] == f"Unknown pending tool call: {call_id}"  # type: ignore[index]
    model.say("It is open.")
    await answer("c1", success=True, output=[{"type": "input_text", "text": "open"}])
    # The same once more is the same.
    await answer("c1", success=True, output=[{"type": "input_text", "text": "open"}])
    events = await follow(client, session_id, "evt_1-0-0")
    assert names(events)[-2:] == ["turn.completed", "idle"]
    shown = [
        (event.type.rpartition(".")[2], event.item.type, event.item.status) for event in events if "item" in event.type
    ]
    assert shown[1:] == [
        ("added", "function_call", "in_progress"),
        ("done", "function_call", "completed"),
        ("added", "function_call_output", "completed"),
        ("added", "message", "in_progress"),
        ("done", "message", "completed"),
    ]
    with pytest.raises(BadRequestError):
        await answer("c1", success=True, output="again")


@pytest.mark.parametrize("decision", ["approve", "deny", "cancel"])
async def test_approvals(client: AsyncOpenAI, model: ScriptedModel, decision: Any) -> None:
    model.call("refund", {"order": "1"}, id="c1")
    sessions = client.beta.agents.sessions
    session = await sessions.create(environment=NONE, agent_id="Front", input="Refund 1.")
    stream = await sessions.events.stream(session.id, extra_query={"after": "evt_1-0-0"})
    [action] = (await read_to_action(stream)).required_actions
    assert (action.type, action.request.name, action.request.arguments) == (
        "mcp_approval_request",
        "refund",
        '{"order": "1"}',
    )
    model.say("Decided.")
    given: Any = {
        "type": "agent.session.input.mcp_approval_request_result",
        "request_id": action.request_id,
        "response": {"type": "mcp_tool_call", "decision": decision},
    }
    await sessions.events.create(session.id, events=[given])
    events = await read_to_idle(stream)
    calls = [event.item for event in events if event.type == "agent.session.turn.item.done"]
    assert [item.type for item in calls] == ["mcp_call", "message"]
    assert calls[0].status == ("completed" if decision == "approve" else "failed")
    with pytest.raises(BadRequestError, match="no open request"):
        await sessions.events.create(session.id, events=[given])


async def test_stream_continues_behind_any_event(client: AsyncOpenAI, model: ScriptedModel) -> None:
    model.call("get_weather", {"city": "Rome"}, text="I look.")
    model.calls([("open_door", {"which": "left"}, "c1"), ("open_door", {"which": "right"}, "c2")])
    model.say(["All ", "is ", "done."])
    stream = await client.beta.agents.sessions.create(
        environment=NONE,
        agent={"model": "Front", "tools": [DOOR]},
        input="Do all.",
        stream=True,
        tool_handlers={"open_door": lambda given: given["which"]},
    )
    live = await read_to_idle(stream)
    session_id = live[-1].session.id
    first = live[0]
    for place, event in enumerate(live[:-1]):
        later = await follow(client, session_id, event.event_id)
        # Pieces that were recorded meanwhile come as one.
        assert leave_out_pieces(later) == leave_out_pieces(live[place + 1 :]), event.event_id
        assert join_pieces(later) == join_pieces(live[place + 1 :]), event.event_id
    whole = [first, *await follow(client, session_id, first.event_id)]
    for place, event in enumerate(whole[:-1]):
        assert await follow(client, session_id, event.event_id) == whole[place + 1 :]
    model.say("Again.")
    async with client.beta.agents.sessions.stream(session_id, input="Again.") as more:
        again = [event async for event in more]
    assert names(again)[:4] == ["turn.created", "in_progress", "turn.in_progress", "turn.item.added"]
    assert leave_out_pieces(await follow(client, session_id, live[-1].event_id)) == leave_out_pieces(again)


def leave_out_pieces(events: list[Any]) -> list[Any]:
    """The other events, without their ids: those of a message that is just beginning say that it is."""
    others = [event for event in events if event.type != "agent.session.turn.output_text.delta"]
    return [event.model_dump(exclude={"event_id"}) for event in others]


def join_pieces(events: list[Any]) -> str:
    return "".join(event.delta for event in events if event.type == "agent.session.turn.output_text.delta")


async def test_reader_joins_in_the_middle_of_a_message(client: AsyncOpenAI, model: ScriptedModel) -> None:
    model.hang("Once upon ", then="a time.")
    sessions = client.beta.agents.sessions
    stream = await sessions.create(environment=NONE, agent_id="Front", input="Tell me.", stream=True)
    seen: list[Any] = []
    async for event in stream:
        seen.append(event)
        if event.type == "agent.session.turn.output_text.delta":
            break
    assert join_pieces(seen) == "Once upon "
    session_id = seen[0].session.id
    joined = await sessions.events.stream(session_id, extra_headers={"Last-Event-ID": seen[-1].event_id})
    model.release()
    rest = await read_to_idle(joined)
    assert join_pieces(rest) == "a time."
    assert leave_out_pieces(rest) == leave_out_pieces(await read_to_idle(stream))
    assert not {event.event_id for event in seen} & {event.event_id for event in rest}


async def test_busy_session_queues_and_cancels(client: AsyncOpenAI, model: ScriptedModel) -> None:
    sessions = client.beta.agents.sessions
    model.hang("Slow")
    session = await sessions.create(environment=NONE, agent_id="Front", input="One.")
    await model.wait_for_requests_async(1)
    stream = await sessions.events.stream(session.id)
    await sessions.events.create(session.id, events=[message("Two.")])
    queued, running = [turn async for turn in sessions.turns.list(session.id)]
    assert (queued.status, running.status) == ("queued", "in_progress")
    model.say("Second.")
    await sessions.events.create(session.id, events=[{"type": "agent.session.input.cancel"}])
    events = await read_to_idle(stream)
    assert names(events).count("turn.created") == 1
    ends = [(event.type, event.turn_id) for event in events if event.type.endswith(("cancelled", "turn.completed"))]
    assert ends == [("agent.session.turn.cancelled", running.id), ("agent.session.turn.completed", queued.id)]
    assert names(events).count("idle") == 1
    model.hang("Slow")
    await sessions.events.create(session.id, events=[message("Three.")])
    await model.wait_for_requests_async(3)
    model.say("Fourth.")
    stream = await sessions.events.stream(session.id)
    await sessions.events.create(session.id, events=[{"type": "agent.session.input.cancel"}, message("Four.")])
    seen: list[Any] = []
    async for event in stream:
        seen.append(event)
        if event.type == "agent.session.turn.completed":
            break
    assert join_pieces(seen).endswith("Fourth.")
    turns = [turn.status async for turn in sessions.turns.list(session.id)]
    assert turns == ["completed", "cancelled", "completed", "cancelled"]
    # Where nothing is under way, there is nothing to cancel.
    await sessions.events.create(session.id, events=[{"type": "agent.session.input.cancel"}])


async def test_failed_turn_says_why(client: AsyncOpenAI, model: ScriptedModel) -> None:
    model.fail(400, message="no")
    events = await create(client)
    assert names(events)[-2:] == ["turn.failed", "idle"]
    assert events[-2].turn.error.code == "server_error"
    model.say("Better.")
    async with client.beta.agents.sessions.stream(events[-1].session.id, input="Again.") as stream:
        assert (await stream.get_final_result()).output_text == "Better."


async def test_idempotency_keys(client: AsyncOpenAI, model: ScriptedModel) -> None:
    sessions = client.beta.agents.sessions
    headers = {"Idempotency-Key": "made once"}
    model.say("Hello.")
    made: list[Any] = []
    for _ in range(2):
        session = await sessions.create(environment=NONE, agent_id="Front", input="Hi.", extra_headers=headers)
        made.append(session.id)
        await follow(client, session.id, "evt_1-0-0")
    assert made[0] == made[1]
    with pytest.raises(UnprocessableEntityError):
        await sessions.create(environment=NONE, agent_id="Front", input="Ho.", extra_headers=headers)
    model.say("Once.")
    await asyncio.gather(
        *(sessions.events.create(made[0], events=[message("Now.")], idempotency_key="once") for _ in range(5))
    )
    with pytest.raises(UnprocessableEntityError):
        await sessions.events.create(made[0], events=[message("Then.")], idempotency_key="once")
    assert len([turn async for turn in sessions.turns.list(made[0])]) == 2


# What is refused names what it is.

CREATIONS: list[tuple[Any, str]] = [
    ({"environment": {"type": "openai_hosted"}}, "environment.type"),
    ({"environment": {"type": "self_hosted", "workspace_directory": "/w"}}, "environment.type"),
    ({"environment": {"type": "none", "files": []}}, "environment.files"),
    ({"vault_ids": ["v"]}, "vault_ids"),
    ({"review": "auto_review"}, "review"),
    ({"prompt_cache_options": {"ttl": "30m"}}, "prompt_cache_options"),
    ({"input": None}, "input"),
    ({"input": []}, "input"),
    ({"input": [{"role": "system", "content": []}]}, "input[0]"),
    ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0]"),
    ({"agent_id": "Nobody"}, "agent_id"),
    ({"agent_id": None}, "agent_id"),
    ({"agent": {"model": "gpt-4o"}, "agent_id": None}, "agent.model"),
    ({"agent": {"model": "Sales / EU ☃"}}, "agent.model"),
    ({"agent": {"tools": [{"type": "web_search"}]}}, "agent.tools[0].type"),
    ({"agent": {"tools": [{**DOOR, "async": True}]}}, "agent.tools[0].async"),
    ({"agent": {"tools": [{**DOOR, "defer_loading": True}]}}, "agent.tools[0].defer_loading"),
    ({"agent": {"multi_agent": {"enabled": True}}}, "agent.multi_agent.enabled"),
    ({"agent": {"compaction": {"async": True}}}, "agent.compaction"),
    ({"agent": {"text": {"format": {"type": "grammar"}}}}, "agent.text.format"),
    ({"whatever": 1}, "whatever"),
]


@pytest.mark.one_database
@pytest.mark.parametrize(("change", "param"), CREATIONS)
async def test_creation_refused_by_name(service: RunningServer, change: Any, param: str) -> None:
    body = {"environment": NONE, "agent_id": "Front", "input": "Hi.", **change}
    answer = await service.post(URL, body)
    assert answer.status_code in (400, 404), answer.text
    assert answer.json()["error"]["param"] == param, answer.text
    assert (await service.get("/v1/sessions")).json()["data"] == []


GIVEN: list[tuple[Any, str]] = [
    ([], "events"),
    ([{"type": "agent.session.input.computer_use_approval_request_result"}], "events[0].type"),
    ([{"type": "message"}], "events[0].type"),
    ([{"type": ["agent.session.input.message"]}], "events[0].type"),
    ([message("a"), {"type": "agent.session.input.cancel"}], "events"),
    ([{**message("a"), "more": 1}], "events[0].more"),
    ([{"type": "agent.session.input.message", "input": []}], "events[0].input"),
    ([{"type": "agent.session.input.message", "input": 5}], "events[0].input"),
    ([{"type": "agent.session.input.tool_result", "call_id": 5}], "events[0]"),
    ([{"type": "agent.session.input.tool_result", "call_id": "a", "turn_id": "b"}], "events[0].success"),
    ([{"type": "agent.session.input.mcp_approval_request_result", "request_id": "x"}], "events[0].response"),
]


@pytest.mark.one_database
@pytest.mark.parametrize(("events", "param"), GIVEN)
async def test_input_refused_by_name(service: RunningServer, events: Any, param: str) -> None:
    session = (await service.session()).rpartition("/")[2]
    answer = await service.post(f"{URL}/{session}/events", {"events": events})
    error = check_error(answer, 400, "invalid_request", param)
    assert param != "events[0].more" or error["message"] == "'more' is not supported; known: input, type"


@pytest.mark.one_database
async def test_what_is_not_served_says_so(service: RunningServer, openai: AsyncOpenAI) -> None:
    session = (await service.session()).rpartition("/")[2]
    agents: Any = openai.beta.agents
    asked: list[tuple[Any, str]] = [
        (agents.vaults.list(), "vaults"),
        (agents.environments.retrieve("e"), "environments"),
        (agents.environments.templates.list(), "environments"),
        (agents.sessions.artifacts.delete("artifact_1-0", session_id=session), "artifact"),
    ]
    for question, word in asked:
        with pytest.raises(APIStatusError, match=word) as refused:
            await question
        assert (refused.value.status_code, refused.value.code) == (501, "not_served")


@pytest.mark.one_database
@pytest.mark.parametrize(
    "name", ["evt_", "evt_0-0-0", "evt_1-4-0", "evt_1-1-9999999999999999", "evt_9-0-0", "x" * 9999]
)
async def test_unknown_event_refused(service: RunningServer, name: str) -> None:
    session = (await service.session()).rpartition("/")[2]
    check_error(await service.get(f"{URL}/{session}/events", params={"after": name}), 404, "not_found", "after")


@pytest.mark.one_database
async def test_tenants_and_roles(service: RunningServer, model: ScriptedModel) -> None:
    model.call("refund", {"order": "1"}, id="c1")
    other = await create_key(service, "other")
    runner, reader = await create_key(service, "acme", role="run"), await create_key(service, "acme", role="read")
    body = {"environment": NONE, "agent_id": "Front", "input": "Refund 1."}
    support = await create_key(service, "acme", role="support")
    for key in (reader, support):
        check_error(await service.post(URL, body, headers=key), 403, "forbidden")
    session = (await service.post(URL, body, headers=runner)).json()["id"]
    url = f"{URL}/{session}"
    async with service.client.stream("GET", f"{url}/events?after=evt_1-0-0", headers=reader) as stream:
        async for line in stream.aiter_lines():
            if line == "event: agent.session.requires_action":
                break
    [action] = (await service.get(url, headers=reader)).json()["required_actions"]
    for path in (
        "",
        "/turns",
        f"/turns/{action['turn_id']}",
        "/items",
        "/events",
        "/subagents",
        "/artifacts",
        "/traces",
    ):
        check_error(await service.get(f"{url}{path}", headers=other), 404, "not_found")
    given = {
        "type": "agent.session.input.mcp_approval_request_result",
        "request_id": action["request_id"],
        "response": {"type": "mcp_tool_call", "decision": "approve"},
    }
    events = {"events": [given]}
    check_error(await service.post(f"{url}/events", events, headers=other), 404, "not_found")
    check_error(await service.post(f"{url}/events", events, headers=runner), 403, "forbidden")
    said = {"type": "agent.session.input.message", "input": "And more."}
    for given_by_support in ([said], [{"type": "agent.session.input.cancel"}, said]):
        refused = await service.post(f"{url}/events", {"events": given_by_support}, headers=support)
        check_error(refused, 403, "forbidden")
    model.say("Done.")
    assert (await service.post(f"{url}/events", events, headers=support)).status_code == 202
    check_error(await service.delete(url, headers=runner), 403, "forbidden")


@pytest.mark.one_database
@serve_team("asking_team")
async def test_asked_agents_approvals(client: AsyncOpenAI, model: ScriptedModel) -> None:
    model.call("ask_clerk", {"input": "Pay it."}, id="c1")
    model.call("pay", {"amount": 7}, id="p7")
    sessions = client.beta.agents.sessions
    stream = await sessions.create(environment=NONE, agent_id="Desk", input="Pay 7.", stream=True)
    session = await read_to_action(stream)
    [action] = session.required_actions
    assert (action.request.server_label, action.request.name) == ("Clerk", "pay")
    [active] = [subagent async for subagent in sessions.subagents.list(session.id)]
    assert (active.status, active.closed_at) == ("active", None)
    model.say("Paid.")
    model.say("Seven are paid.")
    given: Any = {
        "type": "agent.session.input.mcp_approval_request_result",
        "request_id": action.request_id,
        "response": {"type": "mcp_tool_call", "decision": "approve"},
    }
    await sessions.events.create(session.id, events=[given])
    assert join_pieces(await read_to_idle(stream)) == "Seven are paid."


@pytest.mark.one_database
@serve_team("asking_team")
async def test_subagents_are_asked_agents(client: AsyncOpenAI, model: ScriptedModel) -> None:
    model.calls([("ask_clerk", {"input": "Look it up."}, "c1"), ("ask_clerk", {"input": "And that."}, "c2")])
    model.say("It is there.")
    model.say("That, too.")
    model.say("Both are there.")
    sessions = client.beta.agents.sessions
    stream = await sessions.create(environment=NONE, agent_id="Desk", input="Where?", stream=True)
    events = await read_to_idle(stream)
    session_id = events[-1].session.id
    changes = [event for event in events if "subagent" in event.type]
    assert names(changes) == ["subagent.created", "subagent.closed"] * 2
    for place, event in enumerate(events[:-1]):
        later = await follow(client, session_id, event.event_id)
        assert leave_out_pieces(later) == leave_out_pieces(events[place + 1 :]), event.event_id

    found = [subagent async for subagent in sessions.subagents.list(session_id, order="asc", limit=1)]
    assert found == [event.subagent for event in changes[1::2]]
    first, second = found
    assert await sessions.subagents.retrieve(first.id, session_id=session_id) == first
    assert (first.parent_agent_id, first.name, first.status) == ("Desk", "ask_clerk", "closed")
    assert first.instructions is not None
    assert first.instructions[0].to_dict() == {"type": "output_text", "text": "Look it up."}
    [turn] = [turn async for turn in sessions.subagents.turns.list(second.id, session_id=session_id)]
    assert (turn.session_id, turn.subagent_id, turn.agent_id) == (session_id, second.id, "Clerk")
    where: Any = {"session_id": session_id, "subagent_id": second.id}
    assert await sessions.subagents.turns.retrieve(turn.id, **where) == turn
    items: list[Any] = [item async for item in sessions.subagents.items.list(second.id, session_id=session_id)]
    assert [item.content[0].text for item in items] == ["That, too.", "And that."]
    assert [item async for item in sessions.subagents.turns.items.list(turn.id, limit=1, **where)] == items
    # A session that was made otherwise is not one, and neither is another session's.
    model.say("Hello.")
    other = await sessions.create(environment=NONE, agent_id="Clerk", input="Hi.")
    for owner, name in ((session_id, other.id), (other.id, first.id), (session_id, "subsess_none")):
        with pytest.raises(NotFoundError, match="there is no subagent"):
            await sessions.subagents.retrieve(name, session_id=owner)
    assert [subagent async for subagent in sessions.subagents.list(other.id)] == []


@pytest.mark.one_database
@serve_team("asking_team")
async def test_subagents_close_with_cancelled_turn(client: AsyncOpenAI, model: ScriptedModel) -> None:
    model.call("ask_clerk", {"input": "Take your time."}, id="c1")
    model.hang("Well")
    sessions = client.beta.agents.sessions
    stream = await sessions.create(environment=NONE, agent_id="Desk", input="Ask.", stream=True)
    created: Any = None
    while created is None:
        event = await anext(stream)
        created = event.subagent if event.type == "agent.session.subagent.created" else None
    assert created.status == "active"
    await model.wait_for_requests_async(2)
    await sessions.events.create(created.session_id, events=[{"type": "agent.session.input.cancel"}])
    ended = await read_to_idle(stream)
    [closed] = [event.subagent for event in ended if event.type == "agent.session.subagent.closed"]
    assert closed == await sessions.subagents.retrieve(created.id, session_id=created.session_id)
    assert (closed.id, closed.status) == (created.id, "closed")


def read_spans(trace: Any) -> list[Any]:
    """The spans of a trace, as OpenTelemetry's own schema takes them."""
    export = json_format.ParseDict(trace.otlp, ExportTraceServiceRequest())  # type: ignore[no-untyped-call]
    return [span for resource in export.resource_spans for scope in resource.scope_spans for span in scope.spans]


def read_attributes(span: Any) -> dict[str, str]:
    return {each.key: each.value.string_value for each in span.attributes}


@pytest.mark.one_database
@serve_team("asking_team")
async def test_traces_are_of_turns(client: AsyncOpenAI, model: ScriptedModel) -> None:
    model.call("ask_clerk", {"input": "Where?"}, id="c1")
    model.say("Here.")
    model.say("It is here.")
    sessions = client.beta.agents.sessions
    events = await read_to_idle(await sessions.create(environment=NONE, agent_id="Desk", input="Where?", stream=True))
    session_id = events[-1].session.id
    model.fail(400, message="no")
    async with sessions.stream(session_id, input="And that?") as stream:
        async for _ in stream:
            pass
    failed, trace = [trace async for trace in sessions.traces.list(session_id, limit=1)]
    assert [each async for each in sessions.traces.list(session_id, order="asc")] == [trace, failed]
    turn, first, asked, last = read_spans(trace)
    assert [turn.name, first.name.split()[0], asked.name, last.name.split()[0]] == [
        "invoke_agent Desk",
        "chat",
        "execute_tool ask_clerk",
        "chat",
    ]
    assert {span.parent_span_id for span in (first, asked, last)} == {turn.span_id}
    assert {span.trace_id for span in (turn, first, asked, last)} == {turn.trace_id}
    assert turn.start_time_unix_nano <= first.start_time_unix_nano <= first.end_time_unix_nano
    assert last.end_time_unix_nano <= turn.end_time_unix_nano
    assert (read_attributes(turn)["swarmkeep.run.id"], turn.status.code) == (trace.id, 0)
    # The trace of the agent that was asked names the call.
    [below] = [each async for each in sessions.traces.list(read_attributes(asked)["swarmkeep.subagent.id"])]
    [link] = read_spans(below)[0].links
    assert (link.trace_id, link.span_id) == (asked.trace_id, asked.span_id)
    [turn] = read_spans(failed)
    assert (turn.status.code, read_attributes(turn)["error.type"]) == (2, "provider_bad_request")


async def test_trace_grows_with_its_turn(client: AsyncOpenAI, model: ScriptedModel) -> None:
    sessions = client.beta.agents.sessions
    model.hang("Slow")
    session = await sessions.create(environment=NONE, agent_id="Front", input="One.")
    await model.wait_for_requests_async(1)
    await sessions.events.create(session.id, events=[message("Two.")])
    [trace] = [trace async for trace in sessions.traces.list(session.id)]
    assert read_spans(trace) == []
    model.say("Second.")
    model.release()
    await follow(client, session.id, "evt_1-0-0")
    assert len([trace async for trace in sessions.traces.list(session.id)]) == 2


async def test_artifacts_are_files_of_turns(sqlite_ready: str, model: ScriptedModel, tmp_path: Path) -> None:
    picture = make_png(3000)
    model.calls([("paint", {}, "c1"), ("paint", {}, "c2")])
    model.say("Painted.")
    async with (
        start_server(scripted(sqlite_ready, model, agents=["tests.web.team"])) as running,
        connect_strictly(running) as client,
    ):
        sessions = client.beta.agents.sessions
        sent: Any = {"role": "user", "content": [{"type": "input_image", "image_url": make_data_url(picture)}]}
        stream = await sessions.create(environment=NONE, agent_id="Painter", input=[sent], stream=True)
        result = await stream.with_result_collection().get_final_result()
        session_id = str(result.session_id)
        artifacts = sessions.artifacts
        found = [artifact async for artifact in artifacts.list(session_id, order="asc", limit=2)]
        assert [each.path for each in found][1:] == [
            "/output/one.png",
            "/output/a.csv",
            "/output/2/one.png",
            "/output/2/a.csv",
        ]
        assert found[0].path.startswith("/input/")
        assert (found[0].size_bytes, found[0].turn_id) == (3000, result.turn.id)
        assert list(reversed(found)) == [artifact async for artifact in artifacts.list(session_id)]
        assert [each async for each in artifacts.list(session_id, environment_id="other")] == []
        assert await artifacts.retrieve(found[2].id, session_id=session_id) == found[2]
        content = await artifacts.content(found[0].id, session_id=session_id)
        assert content.content == picture
        downloaded = await artifacts.for_result(result).download("/output/a.csv", to=tmp_path / "a.csv")
        assert (downloaded, (tmp_path / "a.csv").read_bytes()) == (found[2], b"a,b")
        for name in ("artifact_1-0", f"{found[0].id}0"):
            with pytest.raises(NotFoundError, match="there is no artifact"):
                await artifacts.content(name, session_id=session_id)
