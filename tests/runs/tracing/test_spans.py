"""Spans of runs, model calls and tool calls: names, kinds, attributes, and what is below what."""

from __future__ import annotations

import asyncio
import json
import threading
from contextlib import aclosing
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import Decision, Sampler, SamplingResult
from opentelemetry.trace import SpanKind, StatusCode

from swarmkeep import Agent, tool
from swarmkeep.decide.commands import Approval
from swarmkeep.events.facts import RunStarted
from swarmkeep.events.records import RunOptions
from swarmkeep.logs import current_trace_ids
from swarmkeep.runs.hub import join_text
from swarmkeep.runs.tracing import SpanSettings, Tracing
from swarmkeep.store.records import SessionKey
from tests.runs.cluster import KEY, LIMITS, EngineCluster, ToolGate, expire_leases, kill_engine
from tests.support.scripted import ScriptedModel
from tests.support.spans import CaughtSpans, get_attributes, get_id, get_trace_id, list_links
from tests.support.waiting import wait_until

pytestmark = pytest.mark.one_database

front = Agent(name="Front", instructions="Help.", model="gpt-test")


async def test_chat_span_names_request_settings(
    cluster: EngineCluster, model: ScriptedModel, spans: CaughtSpans, tracing: Tracing
) -> None:
    settings = {"temperature": 0.5, "max_completion_tokens": 9, "seed": 2**70, "top_p": "odd", "user": "somebody"}
    engine = await cluster.begin(Agent(name="Front", model_settings=settings), tracing=tracing)
    model.say("Good day")
    await engine.run()
    chat = get_attributes(spans.one("chat gpt-4o"))
    told = {name: value for name, value in chat.items() if name.startswith("gen_ai.request.")}
    assert told == {"gen_ai.request.model": "gpt-4o", "gen_ai.request.temperature": 0.5, "gen_ai.request.max_tokens": 9}


async def test_a_plain_turn(cluster: EngineCluster, model: ScriptedModel, spans: CaughtSpans, tracing: Tracing) -> None:
    engine = await cluster.begin(front, tracing=tracing)
    model.say("Good day")
    with spans.tracer.start_as_current_span("request") as request:
        await engine.run()

    assert spans.tree() == [["request", ["invoke_agent Front", "chat gpt-test"]]]
    run, chat = spans.one("invoke_agent Front"), spans.one("chat gpt-test")
    assert (run.kind, chat.kind) == (SpanKind.INTERNAL, SpanKind.CLIENT)
    assert (run.status.status_code, chat.status.status_code) == (StatusCode.UNSET, StatusCode.UNSET)
    assert get_attributes(run) == {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.provider.name": "openai",
        "gen_ai.agent.name": "Front",
        "gen_ai.conversation.id": "s1",
        "gen_ai.usage.input_tokens": 10,
        "gen_ai.usage.output_tokens": 5,
        "swarmkeep.run.id": "r1",
        "swarmkeep.tenant": "default",
        "swarmkeep.stop_reason": "end_turn",
    }
    answered = get_attributes(chat)
    assert answered.pop("gen_ai.response.id").startswith("chatcmpl")
    assert answered == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",
        "server.address": "model.example",
        "server.port": 443,
        "gen_ai.request.model": "gpt-test",
        "gen_ai.response.model": "scripted-model",
        "gen_ai.response.finish_reasons": ("stop",),
        "gen_ai.conversation.id": "s1",
        "gen_ai.agent.name": "Front",
        "gen_ai.usage.input_tokens": 10,
        "gen_ai.usage.output_tokens": 5,
        "swarmkeep.run.id": "r1",
    }
    (started,) = [event.fact for event in await engine.read_log() if isinstance(event.fact, RunStarted)]
    context = request.get_span_context()
    assert started.traceparent == f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


class NotingSampler(Sampler):
    """Keeps every span, and what it was told of it."""

    def __init__(self) -> None:
        self.told: dict[str, dict[str, Any]] = {}

    def should_sample(
        self,
        parent_context: Any,
        trace_id: int,
        name: str,
        kind: Any = None,
        attributes: Any = None,
        *rest: Any,
        **more: Any,
    ) -> SamplingResult:
        self.told[name] = dict(attributes or {})
        return SamplingResult(Decision.RECORD_AND_SAMPLE)

    def get_description(self) -> str:
        return "notes"


async def test_samplers_receive_deciding_attributes(cluster: EngineCluster, model: ScriptedModel) -> None:
    sampler = NotingSampler()
    provider = TracerProvider(sampler=sampler, shutdown_on_exit=False)
    settings = SpanSettings(tracer=provider.get_tracer("tests"), provider={"gen_ai.provider.name": "openai"})
    engine = await cluster.begin(front, tracing=Tracing(settings))
    model.say("Good day")
    await engine.run()
    run, chat = sampler.told["invoke_agent Front"], sampler.told["chat gpt-test"]
    assert (run["gen_ai.agent.name"], run["gen_ai.operation.name"]) == ("Front", "invoke_agent")
    assert (chat["gen_ai.request.model"], chat["gen_ai.provider.name"]) == ("gpt-test", "openai")


async def test_tools_run_within_their_spans(
    cluster: EngineCluster, model: ScriptedModel, spans: CaughtSpans, tracing: Tracing
) -> None:
    seen: dict[str, Any] = {}

    def look(city: str) -> str:
        seen["thread"] = current_trace_ids()
        trace.get_tracer("of the tool", tracer_provider=spans.provider).start_span("inside").end()
        return f"rain in {city}"

    async def peek(city: str) -> str:
        seen["loop"] = current_trace_ids()
        return f"sun in {city}"

    engine = await cluster.begin(Agent(name="Front", model="m", functions=[look, peek]), tracing=tracing)
    model.calls([("look", {"city": "Oslo"}, "call_1"), ("peek", {"city": "Rome"}, "call_2")])
    model.say("Take an umbrella")
    await engine.run()
    await engine.stop()

    assert spans.tree() == [
        ["invoke_agent Front", "chat m", ["execute_tool look", "inside"], "execute_tool peek", "chat m"]
    ]
    called = spans.one("execute_tool look")
    assert called.kind == SpanKind.INTERNAL
    assert get_attributes(called) == {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "look",
        "gen_ai.tool.type": "function",
        "gen_ai.tool.call.id": "call_1",
        "gen_ai.conversation.id": "s1",
        "gen_ai.agent.name": "Front",
        "swarmkeep.run.id": "r1",
        "swarmkeep.tool.attempt": 1,
    }
    assert seen["thread"] == (f"{get_trace_id(called):032x}", f"{get_id(called):016x}")
    assert seen["loop"] == (f"{get_trace_id(called):032x}", f"{get_id(spans.one('execute_tool peek')):016x}")
    assert current_trace_ids() is None


async def test_concurrent_call_spans_are_side_by_side(
    cluster: EngineCluster, model: ScriptedModel, spans: CaughtSpans, tracing: Tracing
) -> None:
    both = threading.Barrier(2)

    @tool(concurrent=True)
    def meet() -> str:
        with spans.tracer.start_as_current_span("inside"):
            both.wait(20)
        return "met"

    agent = Agent(name="Front", model="gpt-test", functions=[meet], concurrent_tools=True)
    engine = await cluster.begin(agent, tracing=tracing)
    model.calls([("meet", {}), ("meet", {})])
    model.say("Done.")
    await engine.run()
    await engine.stop()
    call = ["execute_tool meet", "inside"]
    assert spans.tree() == [["invoke_agent Front", "chat gpt-test", call, call, "chat gpt-test"]]


async def test_handover_is_span_of_new_agent(
    cluster: EngineCluster, model: ScriptedModel, spans: CaughtSpans, tracing: Tracing
) -> None:
    sales = Agent(name="Sales", model="m2")

    def to_sales() -> Agent:
        return sales

    talker = Agent(name="Front", model="m", functions=[to_sales])
    engine = await cluster.begin(talker, sales, tracing=tracing)
    model.call("to_sales")
    model.say("What would you like?")
    await engine.run()
    await engine.stop()

    assert spans.tree() == [
        ["invoke_agent Front", "chat m", "execute_tool to_sales", ["invoke_agent Sales", "chat m2"]]
    ]
    assert get_attributes(spans.one("chat m2"))["gen_ai.agent.name"] == "Sales"
    assert get_attributes(spans.one("invoke_agent Front"))["swarmkeep.stop_reason"] == "end_turn"


async def test_a_tool_that_fails(
    cluster: EngineCluster, model: ScriptedModel, spans: CaughtSpans, tracing: Tracing
) -> None:
    def look(city: str) -> str:
        raise LookupError(f"no weather in {city}")

    engine = await cluster.begin(Agent(name="Front", model="m", functions=[look]), tracing=tracing)
    calls = [
        {"id": f"call_{name}", "type": "function", "function": {"name": name, "arguments": '{"city": "Oslo"}'}}
        for name in ("look", "gues\ud800s")
    ]
    message = {"role": "assistant", "content": None, "tool_calls": calls}
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls"}
    model.raw(json.dumps({"id": "c1", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice]}))
    model.say("I cannot know")
    await engine.run()
    await engine.stop()

    failed, unknown = spans.one("execute_tool look"), spans.one("execute_tool")
    assert (failed.status.status_code, failed.status.description) == (StatusCode.ERROR, None)
    assert get_attributes(failed)["error.type"] == "tool_error"
    assert get_attributes(unknown)["error.type"] == "unknown_tool"
    # Half a character would cost the whole batch that it is sent in.
    assert get_attributes(unknown)["gen_ai.tool.name"] == "gues\ufffds"
    assert spans.one("invoke_agent Front").status.status_code == StatusCode.UNSET
    assert "no weather" not in spans.read_texts()


async def test_a_model_that_fails(
    cluster: EngineCluster, model: ScriptedModel, spans: CaughtSpans, tracing: Tracing
) -> None:
    engine = await cluster.begin(front, tracing=tracing)
    model.fail(401, message="who says 'hello'?")
    await engine.run()
    await engine.stop()

    chat, run = spans.one("chat gpt-test"), spans.one("invoke_agent Front")
    for span in (chat, run):
        assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, None)
        assert get_attributes(span)["error.type"] == "provider_authentication"
    assert get_attributes(chat)["http.response.status_code"] == 401
    assert get_attributes(run)["swarmkeep.stop_reason"] == "error"
    assert "who says" not in spans.read_texts()


async def test_odd_model_figures_are_left_out(
    cluster: EngineCluster, model: ScriptedModel, spans: CaughtSpans, tracing: Tracing
) -> None:
    engine = await cluster.begin(front, tracing=tracing)
    model.say("hello", usage={"prompt_tokens": 2**64, "completion_tokens": "many", "total_tokens": -1})
    await engine.run()
    await engine.stop()
    answered = get_attributes(spans.one("chat gpt-test"))
    assert not [name for name in answered if name.startswith("gen_ai.usage")]


async def test_stream_span_records_start_and_end(
    cluster: EngineCluster, model: ScriptedModel, spans: CaughtSpans, tracing: Tracing
) -> None:
    engine = await cluster.begin(front, tracing=tracing)
    model.hang("Good ", then="day")
    await engine.start_run(options=RunOptions(stream=True))
    feed = await engine.reader.find_position(KEY, "r1")
    async with asyncio.timeout(20), aclosing(engine.reader.follow_run(KEY, feed)) as items:
        async for item in items:
            if join_text(getattr(item, "deltas", [])) == "Good ":
                break
    assert spans.named("chat gpt-test") == []
    model.release()
    await engine.wait()
    await engine.stop()

    chat, run = spans.one("chat gpt-test"), spans.one("invoke_agent Front")
    assert chat.end_time is not None
    assert chat.start_time is not None
    assert run.end_time is not None
    answered = get_attributes(chat)
    assert answered["gen_ai.request.stream"] is True
    lasted = (chat.end_time - chat.start_time) / 1e9
    assert 0 < answered["gen_ai.response.time_to_first_chunk"] < lasted
    # Before the answer was recorded, which is the run's own time.
    assert chat.end_time < run.end_time


async def test_a_cancelled_run(
    cluster: EngineCluster, model: ScriptedModel, spans: CaughtSpans, tracing: Tracing
) -> None:
    engine = await cluster.begin(front, tracing=tracing)
    await engine.start_hanging_run(model)
    await engine.runs.cancel(KEY, "r1")
    await wait_until(lambda: len(spans.all) == 2)
    await engine.stop()

    chat, run = spans.one("chat gpt-test"), spans.one("invoke_agent Front")
    assert (chat.status.status_code, run.status.status_code) == (StatusCode.UNSET, StatusCode.UNSET)
    assert get_attributes(chat)["swarmkeep.stop_reason"] == "abandoned"
    assert get_attributes(run)["swarmkeep.stop_reason"] == "cancelled"


async def test_same_run_id_cancels_one_session_only(
    cluster: EngineCluster, model: ScriptedModel, spans: CaughtSpans, tracing: Tracing
) -> None:
    """As a fork has one, which goes on with what its original is at."""
    engine = await cluster.open_engine(front, tracing=tracing)
    for number, key in enumerate((KEY, SessionKey(KEY.tenant, "fork")), 1):
        await engine.open_session(key)
        model.hang()
        await engine.start_run(key=key)
        await model.wait_for_requests_async(number)
    await engine.runs.cancel(KEY, "r1")
    await wait_until(lambda: spans.named("invoke_agent Front"))
    assert get_attributes(spans.one("invoke_agent Front"))["swarmkeep.stop_reason"] == "cancelled"
    await engine.stop()


async def test_approval_spans_link_to_first_trace(
    cluster: EngineCluster, model: ScriptedModel, spans: CaughtSpans, tracing: Tracing
) -> None:
    @tool(requires_approval=True)
    def refund(order: str) -> str:
        return f"refunded {order}"

    engine = await cluster.begin(Agent(name="Front", model="m", functions=[refund]), tracing=tracing)
    model.call("refund", {"order": "7"}, id="call_1")
    model.say("done")
    with spans.tracer.start_as_current_span("ask") as asked:
        await engine.run()
    with spans.tracer.start_as_current_span("approve"):
        await engine.runs.resume(KEY, "r1", approvals=[Approval(tool_call_id="call_1", decision="approve")])
        await engine.wait()
    await engine.stop()

    assert spans.tree() == [
        ["ask", ["invoke_agent Front", "chat m"]],
        ["approve", ["invoke_agent Front", "execute_tool refund", "chat m"]],
    ]
    first, second = spans.named("invoke_agent Front")
    assert get_attributes(first)["swarmkeep.stop_reason"] == "approval"
    assert first.links == ()
    assert get_attributes(second)["swarmkeep.run.resumed"] == "approval"
    assert list_links(second) == [(asked.get_span_context().trace_id, asked.get_span_context().span_id)]
    assert get_trace_id(first) == asked.get_span_context().trace_id != get_trace_id(second)


async def test_takeover_links_first_trace_from_log(
    cluster: EngineCluster, model: ScriptedModel, spans: CaughtSpans, tracing: Tracing
) -> None:
    first_engine = await cluster.begin(front, tracing=tracing)
    model.hang()
    with spans.tracer.start_as_current_span("ask") as asked:
        await first_engine.start_run()
    await model.wait_for_requests_async(1)
    await kill_engine(first_engine)
    spans.clear()

    model.say("still here")
    second_engine = await cluster.open_engine(front, tracing=tracing)
    await second_engine.wait()
    await second_engine.stop()
    assert spans.tree() == [["invoke_agent Front", "chat gpt-test"]]
    resumed = spans.one("invoke_agent Front")
    assert get_attributes(resumed)["swarmkeep.run.resumed"] == "recovery"
    assert list_links(resumed) == [(asked.get_span_context().trace_id, asked.get_span_context().span_id)]
    assert get_trace_id(resumed) != asked.get_span_context().trace_id


async def test_queued_run_uses_its_request_trace(
    cluster: EngineCluster, model: ScriptedModel, spans: CaughtSpans, tracing: Tracing
) -> None:
    engine = await cluster.begin(front, tracing=tracing)
    model.hang(then="one")
    model.say("two")
    with spans.tracer.start_as_current_span("first"):
        await engine.start_run()
    with spans.tracer.start_as_current_span("second"):
        await engine.start_run(run_id="r2", on_busy="queue")
    model.release()
    await engine.wait("r2")
    await engine.stop()
    below = ["invoke_agent Front", "chat gpt-test"]
    assert spans.tree() == [["first", below], ["second", below]]


async def test_remotely_ended_run_is_abandoned_here(
    cluster: EngineCluster, model: ScriptedModel, spans: CaughtSpans, tracing: Tracing
) -> None:
    gate = ToolGate()

    def wait() -> str:
        gate.enter()
        return "waited"

    engine = await cluster.begin(Agent(name="Front", model="m", functions=[wait]), tracing=tracing)
    model.call("wait")
    await engine.start_run(gate=gate)
    await expire_leases(engine)
    other = await cluster.open_engine(Agent(name="Front", model="m", functions=[wait]), start=False)
    await other.runs.cancel(KEY, "r1")
    await wait_until(lambda: spans.named("invoke_agent Front"))
    await gate.open()
    await engine.stop()
    for name in ("execute_tool wait", "invoke_agent Front"):
        assert get_attributes(spans.one(name))["swarmkeep.stop_reason"] == "abandoned"


async def test_stopping_server_ends_its_spans(
    cluster: EngineCluster, model: ScriptedModel, spans: CaughtSpans, tracing: Tracing
) -> None:
    engine = await cluster.begin(front, tracing=tracing, limits=LIMITS)
    await engine.start_hanging_run(model)
    await engine.drain()
    assert spans.tree() == [["invoke_agent Front", "chat gpt-test"]]
    await engine.stop()


async def test_disabled_traces_record_nothing(cluster: EngineCluster, model: ScriptedModel, spans: CaughtSpans) -> None:
    engine = await cluster.begin(front)
    model.say("hello")
    with spans.tracer.start_as_current_span("of somebody else's"):
        await engine.run()
    assert "traceparent" not in "".join(event.payload for event in await engine.read_log())
    await engine.collect_stream()
    assert spans.names == ["of somebody else's"]
    state = await engine.wait_for_state(lambda state: state.run is None)
    assert state.finished[-1].id == "r1"
