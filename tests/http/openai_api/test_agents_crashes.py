"""OpenAI's Agents API when servers are killed: what got its 202 is there, and streams go on behind any event."""

from __future__ import annotations

import signal
import time
from typing import Any

import pytest
from openai import OpenAI

from tests.chaos.cluster import ServerCluster
from tests.chaos.plans import call_step, make_plan, say_step, wait_until
from tests.support.processes import ServerProcess

NONE: Any = {"type": "none"}


def connect(server: ServerProcess) -> OpenAI:
    return OpenAI(base_url=f"{server.url}/openai/v1", api_key="none", max_retries=0, timeout=60)


def read_to_idle(client: OpenAI, session_id: str, after: str) -> list[Any]:
    seen: list[Any] = []
    with client.beta.agents.sessions.events.stream(session_id, extra_query={"after": after}) as stream:
        for event in stream:
            seen.append(event)
            if event.type == "agent.session.idle":
                break
    return seen


def join_pieces(events: list[Any]) -> str:
    return "".join(event.delta for event in events if event.type == "agent.session.turn.output_text.delta")


@pytest.mark.long
def test_stream_goes_on_from_another_server(cluster: ServerCluster) -> None:
    plan = make_plan(call_step(("put", {"what": "it"})), say_step("One word, and another, and the last.", pause="gate"))
    first, second = cluster.server(), cluster.server()
    with connect(first) as client, connect(second) as other:
        seen: list[Any] = []
        made = client.beta.agents.sessions.create(environment=NONE, agent_id="Clerk", input=plan, stream=True)
        for event in made:
            seen.append(event)
            if event.type == "agent.session.turn.output_text.delta":
                break
        session_id = seen[0].session.id
        first.kill()
        rest = read_to_idle(other, session_id, seen[-1].event_id)
        assert [event.type.rpartition("session.")[2] for event in rest[-2:]] == ["turn.completed", "idle"]
        assert join_pieces(seen + rest) == "One word, and another, and the last."
        assert len({event.event_id for event in seen + rest}) == len(seen + rest)
        first.start()
        # Each server tells it alike, behind every event.
        whole = read_to_idle(other, session_id, seen[0].event_id)
        for place, event in enumerate(whole[:-1]):
            assert read_to_idle(client, session_id, event.event_id) == whole[place + 1 :]
        items: list[Any] = list(other.beta.agents.sessions.items.list(session_id, order="asc"))
        assert [item.type for item in items] == ["message", "mcp_call", "message"]
    assert cluster.effects.count("end").total() == 1
    cluster.read_checked_log(session_id)


@pytest.mark.long
def test_made_agents_run_survives_server_and_agent(cluster: ServerCluster) -> None:
    """The server is killed in the run, and the agent deleted: another server ends the run as it began."""
    plan = make_plan(call_step(("put", {"what": "it"})), say_step("Done.", hold="gate"))
    first = cluster.server()
    with connect(first) as client:
        made = client.beta.agents.create(model="Clerk", instructions="Be a made one.")
        session_id = client.beta.agents.sessions.create(environment=NONE, agent_id=made.id, input=plan).id
        cluster.planned_model.wait_for("gate")
        client.beta.agents.delete(made.id)
        first.kill()
    with connect(cluster.server()) as other:
        events = read_to_idle(other, session_id, "evt_1-0-0")
        assert events[-1].session.agent.instructions == "Be a made one."
        [turn] = other.beta.agents.sessions.turns.list(session_id)
        assert (turn.status, turn.agent_id) == ("completed", made.id)
    assert cluster.effects.count("end").total() == 1
    cluster.read_checked_log(session_id)


@pytest.mark.long
def test_accepted_input_survives_its_server(cluster: ServerCluster) -> None:
    """The 202 says that it is recorded; the same with the same key adds nothing, on any server."""
    server = cluster.server()

    def give(client: OpenAI, text: str) -> None:
        content: Any = [{"type": "input_text", "text": text}]
        event: Any = {"type": "agent.session.input.message", "input": [{"role": "user", "content": content}]}
        client.beta.agents.sessions.events.create(session_id, events=[event], idempotency_key=text)

    with connect(server) as client:
        session_id = client.beta.agents.sessions.create(environment=NONE, agent_id="Clerk", input="Hi.").id
        read_to_idle(client, session_id, "evt_1-0-0")
        held = make_plan(say_step("Done.", hold="gate"))
        give(client, held)
        give(client, "And then?")
        cluster.planned_model.wait_for("gate")
        server.kill()
    with connect(cluster.server()) as other:
        turns = other.beta.agents.sessions.turns
        give(other, held)
        give(other, "And then?")
        wait_until("all is done", lambda: [turn.status for turn in turns.list(session_id)] == ["completed"] * 3)
        items: list[Any] = list(other.beta.agents.sessions.items.list(session_id, order="asc"))
        said = [item.content[0].text for item in items if item.role == "user"]
        assert said == ["Hi.", held, "And then?"]
    cluster.read_checked_log(session_id)


@pytest.mark.long
@pytest.mark.parametrize("point", ["invocation.ready", "run.begun"])
def test_automation_begins_one_run_whatever_dies(cluster: ServerCluster, point: str) -> None:
    """Killed between the time that is due and its run, or between the run and what is said of it."""
    armed = cluster.server(kill_at=point)
    said: Any = {"role": "user", "content": [{"type": "input_text", "text": make_plan(say_step("Done."))}]}
    target: Any = {"type": "new_session", "agent_id": "Clerk", "environment": NONE, "input": [said]}
    with connect(armed) as client:
        made = client.beta.agents.automations.create(
            type="once", name="Soon", run_at=int(time.time()) + 2, target=target
        )
    assert armed.wait() == -signal.SIGKILL
    servers = [cluster.server(), cluster.server()]
    with connect(servers[0]) as client, connect(servers[1]) as other:

        def list_statuses() -> list[str]:
            found = client.beta.agents.automations.invocations.list(made.id)
            return [invocation.status for invocation in found]

        wait_until("its run has begun", lambda: list_statuses() == ["completed"])
        [invocation] = other.beta.agents.automations.invocations.list(made.id)
        [session] = other.beta.agents.sessions.list()
        assert invocation.session_id == session.id
        read_to_idle(other, session.id, "evt_1-0-0")
        assert [turn.status for turn in other.beta.agents.sessions.turns.list(session.id)] == ["completed"]
        assert other.beta.agents.automations.retrieve(made.id).status == "completed"
    cluster.read_checked_log(session.id)
