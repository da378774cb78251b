"""Guardrails of what comes in: what they refuse is an event, is sent to no model, and is shown to nobody."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec.structs import replace

from swarmkeep import Agent, Refusal, tool
from swarmkeep.guardrails import limit_length
from swarmkeep.history.redact import redact
from swarmkeep.store.records import SessionKey
from tests.runs.cluster import (
    KEY,
    LIMITS,
    EngineCluster,
    ToolGate,
    kill_engine,
    make_start_run,
    open_session,
    read_log,
    read_state,
    read_types,
    run_to_end,
    wait_for_end,
)
from tests.runs.guardrails.guards import (
    SECRET,
    broken,
    careless,
    check_log,
    endless,
    find_divergences,
    list_trips,
    no_secrets,
    no_secrets_async,
    refuse_all,
)
from tests.runs.swarm.runners import AsyncRunner, SyncRunner
from tests.support.scripted import ScriptedModel

pytestmark = pytest.mark.one_database


def test_length_limit_counts_text_only() -> None:
    picture = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{'A' * 1000}"}}
    messages = [{"content": [{"type": "text", "text": "Look!"}, picture]}, {"content": None}, {"content": "Well?"}]
    assert limit_length(24)(messages, {}) is None
    assert limit_length(23)(messages, {}) == Refusal("This is too long.")


@pytest.mark.parametrize("guardrail", [no_secrets, no_secrets_async])
async def test_refused_input_reaches_no_model(cluster: EngineCluster, model: ScriptedModel, guardrail: Any) -> None:
    agent = Agent(name="A", input_guardrails=[guardrail])
    engine = await cluster.open_engine(agent)
    await open_session(engine, context_variables={"k": 1})
    view = await run_to_end(engine, f"It is {SECRET}.")
    assert (view.status, view.stop_reason, view.error) == ("completed", "guardrail", None)
    assert view.output_text == "Let us speak of something else."
    assert (view.usage.model_calls, view.context_variables) == (0, {"k": 1})
    assert [(message["role"], message["sender"], message.get("guardrail")) for message in view.messages] == [
        ("user", "user", guardrail.__name__),
        ("assistant", "A", guardrail.__name__),
    ]
    (trip,) = list_trips(await read_log(engine))
    assert (trip.stage, trip.name, trip.message, trip.messages) == (
        "input", guardrail.__name__, "Let us speak of something else.", (3,),
    )  # fmt: skip
    assert await read_types(engine) == [
        "session.created", "run.started", "message.added", "guardrail.tripped", "message.added", "run.completed",
    ]  # fmt: skip
    assert model.requests == []
    # It trips on new messages only.
    model.say("Hello!")
    model.say("Bye!")
    for run_id, text in (("r2", "Hello?"), ("r3", "Bye?")):
        assert (await run_to_end(engine, text, run_id)).stop_reason == "end_turn"
    assert [message["content"] for message in model.requests[1]["messages"][1:]] == ["Hello?", "Hello!", "Bye?"]
    assert len(list_trips(await read_log(engine))) == 1
    await check_log(engine, model)
    assert await find_divergences(engine, agent) == []


async def test_guardrail_sees_every_message_once(cluster: EngineCluster, model: ScriptedModel) -> None:
    seen: list[list[str]] = []

    def watch(messages: Any, context_variables: dict[str, Any]) -> None:
        seen.append([message["content"] for message in messages])

    def look() -> str:
        return "rain"

    agent = Agent(name="A", input_guardrails=[watch], functions=[look])
    engine = await cluster.open_engine(agent)
    await open_session(engine, messages=[{"role": "user", "content": "1"}, {"role": "assistant", "content": "2"}])
    await engine.sessions.add_messages(KEY, [{"role": "user", "content": "3"}])
    model.call("look", {}, id="c1")
    model.say("rain")
    await run_to_end(engine, "4")
    model.say("again")
    await run_to_end(engine, "5", "r2")
    assert seen == [["1", "2"], ["3", "4"], ["5"]]


@pytest.mark.parametrize("text", ["Hello?", f"And {SECRET}?"])
async def test_refused_history_is_left_out(cluster: EngineCluster, model: ScriptedModel, text: str) -> None:
    agent = Agent(name="A", input_guardrails=[no_secrets])
    engine = await cluster.open_engine(agent)
    said = [("user", "1"), ("assistant", "2"), ("user", "3"), ("assistant", f"It is {SECRET}."), ("user", "5")]
    await open_session(engine, messages=[{"role": role, "content": content} for role, content in said])
    passes = SECRET not in text
    if passes:
        model.say("Hi.")
    view = await run_to_end(engine, text)
    assert view.stop_reason == ("end_turn" if passes else "guardrail")
    trips = list_trips(await read_log(engine))
    assert [(trip.stage, trip.messages) for trip in trips] == [
        ("history", (4, 5)),
        *([] if passes else [("input", (6, 8))]),
    ]
    model.say("Bye.")
    await run_to_end(engine, "And now?", "r2")
    assert SECRET not in json.dumps(model.requests)
    assert [message["content"] for message in model.requests[0]["messages"]][1:3] == ["1", "2"]
    await check_log(engine, model)
    assert await find_divergences(engine, agent) == []
    assert [kind for kind, _, _ in await find_divergences(engine, Agent(name="A"))] != []
    await engine.sessions.fork(KEY, session_id="fork")
    assert await find_divergences(engine, agent, key=SessionKey(KEY.tenant, "fork")) == []


async def test_handoff_target_checks_input_itself(cluster: EngineCluster, model: ScriptedModel) -> None:
    second = Agent(name="Second", input_guardrails=[no_secrets])

    def hand_over() -> Agent:
        return second

    first = Agent(name="First", functions=[hand_over])
    engine = await cluster.open_engine(first, second)
    await open_session(engine)
    model.call("hand_over", {}, id="c1")
    view = await run_to_end(engine, f"It is {SECRET}.")
    assert (view.stop_reason, view.agent, view.messages[-1]["sender"]) == ("guardrail", "Second", "Second")
    model.say("Hello!")
    assert (await run_to_end(engine, "Hello?", "r2")).stop_reason == "end_turn"
    assert SECRET not in json.dumps(model.requests[1])
    await check_log(engine, model)
    assert await find_divergences(engine, first, second) == []


@pytest.mark.parametrize(
    ("guardrail", "error"),
    [
        (broken, "LookupError: no idea what"),
        (careless, "it returned a str, and not None or a Refusal"),
        (endless, "it took longer than 0.05 s"),
    ],
)
async def test_failing_input_guardrail_refuses_with_notice(
    cluster: EngineCluster, model: ScriptedModel, guardrail: Any, error: str
) -> None:
    agent = Agent(name="A", input_guardrails=[guardrail])
    limits = replace(LIMITS, tool_seconds=0.05) if guardrail is endless else LIMITS
    engine = await cluster.open_engine(agent, limits=limits)
    await open_session(engine)
    view = await run_to_end(engine)
    assert view.output_text == f"This was refused, because the guardrail {guardrail.__name__} failed."
    (trip,) = list_trips(await read_log(engine))
    assert isinstance(trip.error, str)
    assert trip.error.startswith(error)
    assert model.requests == []


async def test_invalid_guardrail_is_refused_at_agent_creation() -> None:
    for wrong in ("no_secrets", [no_secrets, 3], [lambda messages: None]):
        with pytest.raises(ValueError, match="input_guardrails of agent 'A'"):
            Agent(name="A", input_guardrails=wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="guardrails"):
        tool(guardrails=[lambda: None])  # type: ignore[list-item, misc]
    for message in ("", "x" * 10_001, "\ud800"):
        with pytest.raises(ValueError, match=r"refusal|surrogates"):
            Refusal(message)


async def test_killed_server_decides_again_unless_recorded(cluster: EngineCluster, model: ScriptedModel) -> None:
    gate = ToolGate()

    def slow(messages: Any, context_variables: dict[str, Any]) -> Refusal:
        gate.enter()
        return Refusal("Not here.")

    first = await cluster.open_engine(Agent(name="A", input_guardrails=[slow]))
    await open_session(first)
    await first.runs.start(KEY, make_start_run())
    await gate.wait_until_reached()
    # The verdict was not recorded: another server asks its own.
    await kill_engine(first)
    gate.opened.set()
    second = await cluster.open_engine(Agent(name="A", input_guardrails=[refuse_all]))
    view = await wait_for_end(second)
    assert (view.stop_reason, view.output_text) == ("guardrail", "Nor here.")
    assert len(list_trips(await read_log(second))) == 1
    await kill_engine(second)
    # The verdict is recorded with all that follows from it: there is nothing to go on with.
    third = await cluster.open_engine(Agent(name="A"))
    assert (await wait_for_end(third)).output_text == "Nor here."
    assert (await read_state(third)).status == "idle"
    assert model.requests == []


async def test_forks_after_refusal_do_not_send_input(cluster: EngineCluster, model: ScriptedModel) -> None:
    agent = Agent(name="A", input_guardrails=[no_secrets])
    engine = await cluster.open_engine(agent)
    await open_session(engine)
    await run_to_end(engine, f"It is {SECRET}.")
    last = (await read_state(engine)).seq
    refused_at = []
    for at in range(2, last + 1):
        fork = SessionKey(KEY.tenant, f"fork{at}")
        await engine.sessions.fork(KEY, at=at, session_id=fork.id)
        forked = await read_state(engine, fork)
        assert forked.status == "idle"
        model.say("Hello!")
        # Where it was not refused yet, it is new again, and refused then.
        view = await run_to_end(engine, "Hello?", f"again{at}", fork)
        if view.stop_reason == "guardrail":
            refused_at.append(at)
            view = await run_to_end(engine, "Hello?", f"more{at}", fork)
        assert view.stop_reason == "end_turn"
        assert SECRET not in json.dumps(model.requests)
    assert refused_at == [3]


async def test_redacted_guardrail_reason_keeps_input_refused(cluster: EngineCluster, model: ScriptedModel) -> None:

    def quote(messages: Any, context_variables: dict[str, Any]) -> Refusal | None:
        return Refusal(f"No {SECRET}!") if SECRET in str(messages) else None

    agent = Agent(name="A", input_guardrails=[quote])
    engine = await cluster.open_engine(agent)
    await open_session(engine)
    await run_to_end(engine, f"It is {SECRET}.")
    events = await read_log(engine)
    seqs = [event.seq for event in events if SECRET in event.payload]
    await redact(engine.store, KEY, seqs, reason="asked to", by=None)
    events = await read_log(engine)
    assert not [event for event in events if SECRET in event.payload]
    model.say("Hello!")
    await run_to_end(engine, "Hello?", "r2")
    assert [message["content"] for message in model.requests[0]["messages"][1:]] == ["Hello?"]
    assert await find_divergences(engine, agent) == []


@pytest.mark.parametrize("kind", [SyncRunner, AsyncRunner])
def test_guardrails_do_not_get_attachments(kind: Any) -> None:
    seen: list[Any] = []

    def watch(messages: Any, context_variables: dict[str, Any]) -> None:
        seen.extend(messages)

    agent = Agent(name="A", model="m", input_guardrails=[watch])
    message = {"role": "assistant", "content": "Hm.", "reasoning_content": "SEALED"}
    with ScriptedModel(strict=False) as model:
        swarm = kind(model.url)
        model.raw({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]})
        first = swarm.run(agent, "1").messages
        model.say("Yes?")
        swarm.run(agent, [{"role": "user", "content": "1"}, *first, {"role": "user", "content": "2"}])
        assert model.requests[1]["messages"][2]["reasoning_content"] == "SEALED"
    assert [message["content"] for message in seen] == ["1", "1", "Hm.", "2"]
    assert [message for message in seen if "SEALED" in json.dumps(message) or "provider" in message] == []
