"""Agents that clients of the Agents API make: they are stored, and sessions keep what they began with."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI, NotFoundError, UnprocessableEntityError

from swarmkeep.store import made_agents
from tests.http.auth.keys import create_key
from tests.http.openai_api.conftest import connect_strictly as connect
from tests.http.openai_api.test_agents import DOOR, NONE, create, read_to_idle
from tests.http.openai_api.test_errors import check_error
from tests.http.server import RunningServer, scripted, start_server
from tests.support.scripted import ScriptedModel

pytestmark = pytest.mark.one_database

URL = "/openai/v1/agents"
FRONT = "Sales / EU ☃"
LINES = {"content-type": "application/x-ndjson"}


def read_system(model: ScriptedModel) -> str:
    """What the model was told first."""
    return str(model.requests[-1]["messages"][0]["content"])


def read_tool_names(model: ScriptedModel) -> list[str]:
    return [tool["function"]["name"] for tool in model.requests[-1].get("tools", ())]


async def say(client: AsyncOpenAI, session_id: str, text: str) -> Any:
    async with client.beta.agents.sessions.stream(session_id, input=text) as stream:
        return await stream.get_final_result()


async def test_agent_is_made_changed_listed_and_deleted(client: AsyncOpenAI, service: RunningServer) -> None:
    agents = client.beta.agents
    made = await agents.create(
        model="Front",
        name="Porter",
        instructions="Open doors.",
        tools=[DOOR],
        reasoning={"effort": "low"},
        text={"verbosity": "low", "format": {"type": "json_schema", "schema": {"type": "object"}}},
        metadata={"team": "a"},
    )
    assert made.id.startswith("agent_")
    assert (made.model, made.name, made.instructions) == ("Front", "Porter", "Open doors.")
    assert (made.reasoning.effort, made.text.verbosity, made.metadata) == ("low", "low", {"team": "a"})
    [tool] = made.to_dict()["tools"]  # type: ignore[misc]
    assert (tool["name"], tool["parameters"]) == ("open_door", DOOR["parameters"])
    assert await agents.retrieve(made.id) == made
    bare = await agents.create(model=FRONT)
    assert (bare.name, bare.instructions, bare.tools, bare.metadata) == (None, None, [], {})
    listed = [agent async for agent in agents.list(limit=1)]
    assert [agent.id for agent in listed[-2:]] == ["Front", FRONT]
    assert {agent.id for agent in listed[:2]} == {made.id, bare.id}
    assert made in listed
    assert [agent.id async for agent in agents.list(limit=1, order="asc")] == [one.id for one in reversed(listed)]

    changed = await agents.update(made.id, instructions=None, metadata={"team": "b"}, text=None)
    assert (changed.instructions, changed.metadata, changed.name) == (None, {"team": "b"}, "Porter")
    assert (changed.text.verbosity, changed.tools) == ("medium", made.tools)
    again = await agents.update(made.id, metadata={"team": "b"})
    assert (again, changed.to_dict()["version"]) == (changed, 2)
    assert await agents.retrieve(made.id, extra_query={"version": 1}) == made
    with pytest.raises(NotFoundError, match=r"no such version of agent .*; the latest is 2"):
        await agents.retrieve(made.id, extra_query={"version": 3})
    with pytest.raises(NotFoundError, match="ask without `version`"):
        await agents.retrieve("Front", extra_query={"version": 1})
    with pytest.raises(NotFoundError, match="there is no model 'gpt-5'; a model is an agent here: Front, "):
        await agents.create(model="gpt-5")
    with pytest.raises(NotFoundError, match="begin with POST agents/sessions only"):
        await client.responses.create(model=made.id, input="Hi.")

    deleted = await agents.delete(made.id)
    assert (deleted.id, deleted.deleted) == (made.id, True)
    for question in (agents.retrieve(made.id), agents.update(made.id, name="x"), agents.delete(made.id)):
        with pytest.raises(NotFoundError, match="there is no agent"):
            await question
    assert [agent.id async for agent in agents.list()] == [bare.id, "Front", FRONT]
    told = [
        (one["type"], one["data"]["agent_id"], one["data"]["version"])
        for one in (await service.get("/v1/audit")).json()["data"]
        if one["type"].startswith("agent.")
    ]
    assert told == [
        ("agent.created", made.id, 1),
        ("agent.created", bare.id, 1),
        ("agent.updated", made.id, 2),
        ("agent.deleted", made.id, 2),
    ]


async def test_session_keeps_version_it_began_with(
    client: AsyncOpenAI, service: RunningServer, model: ScriptedModel
) -> None:
    agents = client.beta.agents
    made = await agents.create(model=FRONT, name="Porter", instructions="Open doors.", tools=[DOOR])
    model.say("Hello.")
    session = (await create(client, agent_id=made.id, metadata={"team": "a"}))[-1].session
    assert (session.agent.id, session.agent.name, session.agent.model) == (made.id, "Porter", FRONT)
    assert (session.agent.instructions, session.metadata) == ("Open doors.", {"team": "a"})
    assert read_system(model).startswith("Sell.")
    assert read_system(model).endswith("Open doors.")
    assert read_tool_names(model) == ["open_door"]
    [turn] = [turn async for turn in agents.sessions.turns.list(session.id)]
    assert turn.agent_id == made.id

    await agents.update(made.id, instructions="Close doors.", tools=None, name="Guard")
    model.say("Still here.")
    assert (await say(client, session.id, "Again.")).output_text == "Still here."
    assert read_system(model).endswith("Open doors.")
    model.say("Hello.")
    other = (await create(client, agent_id=made.id))[-1].session
    assert read_system(model).endswith("Close doors.")
    assert read_tool_names(model) == []
    assert (other.agent.name, (await agents.sessions.retrieve(session.id)).agent.name) == ("Guard", "Porter")
    found = [one async for one in agents.sessions.list(agent_id=made.id)]
    assert [(one.id, one.agent.id) for one in found] == [(other.id, made.id), (session.id, made.id)]
    assert [one.id async for one in agents.sessions.list(agent_id=made.id, metadata={"team": "a"})] == [session.id]
    # The label by which lists find it is not the caller's.
    changed = await agents.sessions.update(session.id, metadata={"to": "b"})
    assert changed.metadata == {"to": "b"}
    assert [one.id async for one in agents.sessions.list(agent_id=made.id, metadata={"to": "b"})] == [session.id]

    # What a session has begun with is its own: it goes on without the agent.
    await agents.delete(made.id)
    model.say("And on.")
    assert (await say(client, session.id, "Go on.")).output_text == "And on."
    assert read_system(model).endswith("Open doors.")
    with pytest.raises(NotFoundError, match="there is no agent"):
        await create(client, agent_id=made.id)
    events = await service.events(f"/v1/sessions/{session.id}")
    runs = [event["data"]["options"]["request"]["agent"] for event in events if event["type"] == "run.started"]
    assert [run["version"] for run in runs] == [1, 1, 1]
    assert (await service.get(f"/v1/sessions/{session.id}/verify")).json()["valid"]
    replayed = (await service.post(f"/v1/sessions/{session.id}/replay", {})).json()
    assert replayed["divergences"] == []


async def test_session_can_say_otherwise(client: AsyncOpenAI, model: ScriptedModel) -> None:
    made = await client.beta.agents.create(
        model=FRONT, instructions="Open doors.", tools=[DOOR], reasoning={"effort": "low"}
    )
    model.say("Hello.")
    given: Any = {"instructions": "Knock first.", "reasoning": {"effort": "high"}}
    session = (await create(client, agent_id=made.id, agent=given))[-1].session
    assert (session.agent.id, session.agent.instructions) == (made.id, "Knock first.")
    assert session.agent.reasoning.effort == model.requests[-1]["reasoning_effort"] == "high"
    assert read_tool_names(model) == ["open_door"]


async def test_any_server_goes_on_with_a_made_agent(
    pair: tuple[RunningServer, RunningServer], model: ScriptedModel
) -> None:
    one, other = pair
    async with connect(one) as client, connect(other) as elsewhere:
        made = await client.beta.agents.create(model=FRONT, instructions="Open doors.", tools=[DOOR])
        model.call("open_door", {"which": "left"}, id="c1")
        sessions = elsewhere.beta.agents.sessions
        session = await sessions.create(environment=NONE, agent_id=made.id, input="Open it.")
        while not (session := await sessions.retrieve(session.id)).required_actions:
            pass
        [action] = session.required_actions
        await elsewhere.beta.agents.delete(made.id)
        model.say("It is open.")
        stream = await client.beta.agents.sessions.events.stream(session.id)
        turn_id = action.turn_id  # type: ignore[union-attr]
        result: Any = {"call_id": "c1", "turn_id": turn_id, "success": True, "output": "open"}
        await client.beta.agents.sessions.events.create(
            session.id, events=[{"type": "agent.session.input.tool_result", **result}]
        )
        events = await read_to_idle(stream)
        assert events[-1].session.agent.id == made.id
        assert read_system(model).endswith("Open doors.")


async def test_forks_and_imports_have_what_they_need(
    client: AsyncOpenAI, service: RunningServer, model: ScriptedModel, sqlite_template: Path, tmp_path: Path
) -> None:
    made = await client.beta.agents.create(model=FRONT, name="Porter", instructions="Open doors.", tools=[DOOR])
    model.say("Hello.")
    session = (await create(client, agent_id=made.id))[-1].session
    path = f"/v1/sessions/{session.id}"
    seq = (await service.events(path))[-1]["seq"]
    fork = (await service.post(f"{path}/fork", {"at": seq})).json()["id"]
    model.say("I am another one.")
    assert (await say(client, fork, "Who are you?")).output_text == "I am another one."
    assert (read_system(model).endswith("Open doors."), read_tool_names(model)) == (True, ["open_door"])
    assert (await client.beta.agents.sessions.retrieve(fork)).agent.id == made.id
    exported = (await service.get(f"/v1/export?id={session.id}")).content
    # A server that has never heard of the agent.
    file = shutil.copy(sqlite_template, tmp_path / "other.db")
    async with start_server(scripted(f"sqlite:///{file}", model)) as other, connect(other) as theirs:
        report = await other.post("/v1/import", headers=LINES, content=exported)
        assert report.status_code == 200, report.text
        assert [agent.id async for agent in theirs.beta.agents.list()] == ["Front", FRONT]
        model.say("I have moved.")
        assert (await say(theirs, session.id, "Where are you?")).output_text == "I have moved."
        assert (read_system(model).endswith("Open doors."), read_tool_names(model)) == (True, ["open_door"])
        found = [one async for one in theirs.beta.agents.sessions.list(agent_id=made.id)]
        assert [(one.id, one.agent.id) for one in found] == [(session.id, made.id)]


async def test_automation_begins_sessions_of_a_made_agent(client: AsyncOpenAI, model: ScriptedModel) -> None:
    made = await client.beta.agents.create(model=FRONT, instructions="Report.")
    said: Any = {"role": "user", "content": [{"type": "input_text", "text": "Now."}]}
    automation = await client.beta.agents.automations.create(
        type="periodic",
        name="Daily",
        expression="0 9 * * *",
        timezone="Europe/Berlin",
        target={"type": "new_session", "agent_id": made.id, "environment": NONE, "input": [said]},
    )
    assert automation.to_dict()["target"]["agent_id"] == made.id  # type: ignore[index]
    model.say("All is well.")
    await client.beta.agents.automations.invocations.create(automation.id)
    while not (found := [one async for one in client.beta.agents.sessions.list(agent_id=made.id)]):
        pass
    stream = await client.beta.agents.sessions.events.stream(found[0].id, extra_query={"after": "evt_1-0-0"})
    await read_to_idle(stream)
    assert read_system(model).endswith("Report.")


REFUSED: list[tuple[Any, int, str]] = [
    ({"model": "gpt-5"}, 404, "model"),
    ({}, 400, "model"),
    ({"tools": [{"type": "web_search"}]}, 400, "tools[0].type"),
    ({"tools": [{"type": "mcp", "server_label": "x"}]}, 400, "tools[0].type"),
    ({"tools": [{**DOOR, "async": True}]}, 400, "tools[0].async"),
    ({"tools": [{**DOOR, "name": "refund"}]}, 400, "tools[0]"),
    ({"multi_agent": {"enabled": True}}, 400, "multi_agent.enabled"),
    ({"compaction": {"async": True}}, 400, "compaction"),
    ({"experimental": {"time_awareness": True}}, 400, "experimental"),
    ({"text": {"format": {"type": "grammar"}}}, 400, "text.format"),
    ({"metadata": {"a": 1}}, 400, "metadata"),
    ({"service_tier": "flex"}, 400, "service_tier"),
    ({"whatever": 1}, 400, "whatever"),
]


@pytest.mark.one_database
@pytest.mark.parametrize(("change", "status", "param"), REFUSED)
async def test_what_cannot_be_made_is_refused_by_name(
    service: RunningServer, change: Any, status: int, param: str
) -> None:
    body = {"model": "Front", **change} if change else {}
    answer = await service.post(URL, body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (status, param), answer.text
    made = (await service.post(URL, {"model": "Front"})).json()["id"]
    if change:
        answer = await service.post(f"{URL}/{made}", change)
        assert (answer.status_code, answer.json()["error"]["param"]) == (status, param), answer.text
    assert (await service.get(f"{URL}/{made}")).json()["version"] == 1


@pytest.mark.one_database
async def test_made_agents_are_bounded_and_of_their_tenant(
    service: RunningServer, model: ScriptedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(made_agents, "MAX_AGENTS", 2)
    monkeypatch.setattr(made_agents, "KEPT_VERSIONS", 3)
    writer, runner = await create_key(service, "acme"), await create_key(service, "acme", role="run")
    other = await create_key(service, "other")
    check_error(await service.post(URL, {"model": "Front"}, headers=runner), 403, "forbidden")
    made = (await service.post(URL, {"model": "Front", "instructions": "a"}, headers=writer)).json()["id"]
    url = f"{URL}/{made}"
    assert (await service.get(url, headers=runner)).status_code == 200
    for answer in (
        await service.get(url, headers=other),
        await service.post(url, {"name": "theirs"}, headers=other),
        await service.delete(url, headers=other),
    ):
        check_error(answer, 404, "not_found")
    body = {"environment": NONE, "agent_id": made, "input": "Hi."}
    check_error(await service.post(f"{URL}/sessions", body, headers=other), 404, "not_found", "agent_id")
    for change in (await service.post(url, {"name": "x"}, headers=runner), await service.delete(url, headers=runner)):
        check_error(change, 403, "forbidden")
    for answer in (
        await service.post(f"{URL}/Front", {"name": "x"}, headers=writer),
        await service.delete(f"{URL}/Front", headers=writer),
    ):
        check_error(answer, 501, "not_served")
    # Of another tenant none are in its list, or counted.
    assert [one["id"] for one in (await service.get(URL, headers=other)).json()["data"]] == ["Front", FRONT]
    assert (await service.post(URL, {"model": "Front"}, headers=writer)).status_code == 200
    check_error(await service.post(URL, {"model": "Front"}, headers=writer), 429, "quota_exceeded")
    assert (await service.post(URL, {"model": "Front"}, headers=other)).status_code == 200
    large = await service.post(url, {"instructions": "x" * 64_001}, headers=writer)
    check_error(large, 413, "too_large")
    # All of these callers change it at once, and each makes a version.
    answers = await asyncio.gather(*(service.post(url, {"name": str(n)}, headers=writer) for n in range(8)))
    assert sorted(answer.json()["version"] for answer in answers) == list(range(2, 10))
    known = [(await service.get(f"{url}?version={n}", headers=writer)).status_code for n in range(1, 10)]
    assert known == [404] * 6 + [200] * 3
    taken = {"environment": NONE, "agent_id": "Front", "input": "Hi.", "metadata": {"openai_agent_id": made}}
    refused = await service.post(f"{URL}/sessions", taken, headers=writer)
    check_error(refused, 400, "invalid_request", "metadata.openai_agent_id")


async def test_repeated_request_makes_one_agent(client: AsyncOpenAI) -> None:
    agents, key = client.beta.agents, {"Idempotency-Key": "once"}
    made = await agents.create(model="Front", name="A", extra_headers=key)
    assert await agents.create(model="Front", name="A", extra_headers=key) == made
    with pytest.raises(UnprocessableEntityError):
        await agents.create(model="Front", name="B", extra_headers=key)
    assert len([agent async for agent in agents.list()]) == 3


async def test_agent_without_its_model_says_so(ready_url: str, model: ScriptedModel) -> None:
    """The file that has the agent is gone after a restart: nothing else is."""
    async with start_server(scripted(ready_url, model)) as server, connect(server) as client:
        made = await client.beta.agents.create(model="Front", instructions="Be brief.")
    others = scripted(ready_url, model, agents=["tests.http.asking_team"])
    async with start_server(others) as server, connect(server) as client:
        assert await client.beta.agents.retrieve(made.id) == made
        assert made in [agent async for agent in client.beta.agents.list()]
        with pytest.raises(NotFoundError, match="there is no agent 'Front'"):
            await client.beta.agents.sessions.create(environment=NONE, agent_id=made.id, input="Hi.")
