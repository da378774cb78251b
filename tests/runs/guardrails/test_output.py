"""Guardrails of what goes out: a refused reply is shown to nobody, not even in pieces."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
from pydantic import BaseModel

from swarmkeep import Agent
from swarmkeep.events.records import RunOptions
from swarmkeep.guardrails import limit_length
from swarmkeep.runs.hub import MessageDeltas
from tests.runs.cluster import (
    KEY,
    EngineCluster,
    ToolGate,
    collect_stream,
    kill_engine,
    make_start_run,
    open_session,
    read_log,
    run_to_end,
    start_hanging_run,
    wait_for_end,
)
from tests.runs.guardrails.guards import (
    SECRET,
    broken,
    check_log,
    find_divergences,
    list_kinds,
    list_trips,
    make_payer,
    no_secrets,
)
from tests.support.scripted import ScriptedModel

pytestmark = pytest.mark.one_database


@pytest.mark.parametrize("stream", [False, True])
async def test_refused_reply_is_never_shown(cluster: EngineCluster, model: ScriptedModel, stream: bool) -> None:
    agent = Agent(name="A", output_guardrails=[no_secrets])
    engine = await cluster.open_engine(agent)
    await open_session(engine)
    # In two pieces, neither of which has it.
    model.say(["It is sword", "fish, really."])
    feed = engine.reader.open_feed(KEY)
    await engine.runs.start(KEY, make_start_run(options=RunOptions(stream=stream)))
    items = await collect_stream(engine, feed=feed)
    view = await wait_for_end(engine)
    assert (view.status, view.stop_reason, view.output_text) == (
        "completed", "guardrail", "Let us speak of something else.",
    )  # fmt: skip
    assert [item for item in items if isinstance(item, MessageDeltas)] == []
    events = await read_log(engine)
    assert not [event for event in events if "fish" in event.payload]
    (trip,) = list_trips(events)
    assert (trip.stage, trip.digest) == ("output", hashlib.sha256(b"It is swordfish, really.").hexdigest())
    # The model's work is counted, and its request kept.
    assert (view.usage.model_calls, view.usage.total_tokens > 0) == (1, True)
    model.say("Hello!")
    await run_to_end(engine, "Hello?", "r2")
    assert [message["content"] for message in model.requests[1]["messages"][1:]] == [
        "hello", "Let us speak of something else.", "Hello?",
    ]  # fmt: skip
    await check_log(engine, model)
    assert await find_divergences(engine, agent) == []
    assert await list_kinds(engine, Agent(name="A")) == ["guardrail"]


async def test_passing_reply_streams_after_check(cluster: EngineCluster, model: ScriptedModel) -> None:
    agent = Agent(name="A", output_guardrails=[no_secrets])
    engine = await cluster.open_engine(agent)
    await open_session(engine)
    model.say(["It is ", "a ", "fish."])
    feed = engine.reader.open_feed(KEY)
    await engine.runs.start(KEY, make_start_run(options=RunOptions(stream=True)))
    items = await collect_stream(engine, feed=feed)
    assert [item.deltas for item in items if isinstance(item, MessageDeltas)] == [[{"content": "It is a fish."}]]
    assert (await wait_for_end(engine)).output_text == "It is a fish."
    assert await find_divergences(engine, agent) == []
    stricter = Agent(name="A", output_guardrails=[limit_length(3)])
    ((kind, recorded, actual),) = await find_divergences(engine, stricter)
    assert (kind, recorded["refused"], actual["refused"]) == ("guardrail", False, True)


async def test_text_is_checked_and_refused_calls_skipped(cluster: EngineCluster, model: ScriptedModel) -> None:
    paid: list[str] = []
    engine = await cluster.open_engine(Agent(name="A", functions=[make_payer(paid)], output_guardrails=[no_secrets]))
    await open_session(engine)
    model.call("pay", {"to": "Lee"}, id="c1", text=f"First {SECRET}.")
    view = await run_to_end(engine)
    assert (view.stop_reason, paid) == ("guardrail", [])
    assert not [event for event in await read_log(engine) if SECRET in event.payload]


async def test_withheld_text_is_in_no_partial(cluster: EngineCluster, model: ScriptedModel) -> None:
    agent = Agent(name="A", output_guardrails=[no_secrets])
    engine = await cluster.open_engine(agent)
    await open_session(engine)
    await start_hanging_run(engine, model, f"It is {SECRET}", options=RunOptions(stream=True))
    await engine.runs.cancel(KEY, "r1")
    model.release()
    # One that breaks off by itself: the model is not asked again for what has begun.
    model.half_stream([f"It is {SECRET}", " and"])
    view = await run_to_end(engine, run_id="r2", options=RunOptions(stream=True))
    assert view.status == "failed"
    assert not [event for event in await read_log(engine) if SECRET in event.payload]


async def test_output_guardrail_error_hides_reply(cluster: EngineCluster, model: ScriptedModel) -> None:
    engine = await cluster.open_engine(Agent(name="A", output_guardrails=[broken]))
    await open_session(engine)
    model.say(f"It is {SECRET}.")
    assert (await run_to_end(engine)).stop_reason == "guardrail"
    events = await read_log(engine)
    assert [trip.error for trip in list_trips(events)] == ["LookupError"]
    assert not [event for event in events if SECRET in event.payload]


async def test_kill_at_output_guardrail_shows_nothing(cluster: EngineCluster, model: ScriptedModel) -> None:
    gate = ToolGate()

    def slow(text: Any, context_variables: dict[str, Any]) -> None:
        gate.enter()

    first = await cluster.open_engine(Agent(name="A", output_guardrails=[slow]))
    await open_session(first)
    for _ in range(2):
        model.say(f"It is {SECRET}.")
    await first.runs.start(KEY, make_start_run())
    await gate.wait_until_reached()
    await kill_engine(first)
    second = await cluster.open_engine(Agent(name="A", output_guardrails=[no_secrets]))
    assert (await wait_for_end(second)).stop_reason == "guardrail"
    await gate.open()
    assert not [event for event in await read_log(second) if SECRET in event.payload]


class Answer(BaseModel):
    answer: str


@pytest.mark.parametrize(
    "text",
    [
        '{"answer": "sword\\u0066ish"}',
        '{"answer": "a \\u0073wordfish"',
        '["sword\\u0066ish"]',
        '{"answer": "sword\\u0066ish", "answer": "fine"}',
        '{"answer": "{\\"a\\": \\"sword\\\\u0066ish\\"}"}',
    ],
)
@pytest.mark.parametrize("options", [{"output_type": Answer}, {"output_type": Answer, "output_mode": "tool"}, {}])
async def test_what_readers_decode_is_looked_at(
    cluster: EngineCluster, model: ScriptedModel, text: str, options: dict[str, Any]
) -> None:
    agent = Agent(name="A", output_guardrails=[no_secrets], **options)
    engine = await cluster.open_engine(agent)
    await open_session(engine)
    if options.get("output_mode") == "tool":
        model.call("final_output", text)
    else:
        model.say(text)
    view = await run_to_end(engine)
    assert (view.stop_reason, view.output, view.output_text) == ("guardrail", None, "Let us speak of something else.")
    assert await find_divergences(engine, agent) == []
