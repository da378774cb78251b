"""Runs as callers meet them: started once, awaited, queued, interrupted, cancelled, resumed."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any

import pytest

from swarmkeep import Agent, Result, tool
from swarmkeep.domain.codec import Json
from swarmkeep.domain.decisions.resuming import Approval, ToolAnswer
from swarmkeep.domain.errors import (
    AgentNotFound,
    AgentUnavailable,
    AlreadyDecided,
    Draining,
    InvalidRequest,
    RunNotFound,
    RunNotWaiting,
    SessionBusy,
    SessionNotFound,
)
from swarmkeep.domain.run_options import RunOptions
from swarmkeep.engine.engine import Engine
from swarmkeep.engine.limits import Limits
from swarmkeep.engine.streams.items import MessageDeltas, join_text
from swarmkeep.store.ports import SessionKey
from tests.engine.cluster import (
    KEY,
    LIMITS,
    EngineCluster,
    ToolGate,
    collect_stream,
    list_contents,
    make_start_run,
    open_session,
    pick_recorded,
    read_log,
    read_state,
    read_types,
    run_to_end,
    take_items,
    wait_for_end,
    wait_for_state,
    wait_until,
)
from tests.support.rules import find_body_faults
from tests.support.scripted import USAGE, ScriptedModel

pytestmark = pytest.mark.one_database

STREAM = RunOptions(stream=True)
NO_TOOLS = RunOptions(execute_tools=False)


def look(city: str) -> str:
    return f"rain in {city}"


@pytest.fixture
async def engine(cluster: EngineCluster) -> Engine:
    return await open_engine(cluster, Agent(name="A", functions=[look]))


async def open_engine(cluster: EngineCluster, *agents: Agent, limits: Limits = LIMITS) -> Engine:
    """A server with a session on it."""
    engine = await cluster.open_engine(*agents, limits=limits)
    await open_session(engine)
    return engine


# A run and what it leaves.


async def test_a_run_is_a_view_of_what_happened(engine: Engine, model: ScriptedModel) -> None:
    model.call("look", {"city": "Oslo"}, id="c1")
    model.say("It rains.")
    view = await run_to_end(engine, "Weather?")
    assert (view.id, view.session_id, view.status, view.stop_reason) == ("r1", "s1", "completed", "end_turn")
    assert (view.agent, view.output_text, view.error, view.pending) == ("A", "It rains.", None, ())
    assert [(m["role"], m["content"], m["sender"]) for m in view.messages] == [
        ("user", "Weather?", "user"),
        ("assistant", None, "A"),
        ("tool", "rain in Oslo", "A"),
        ("assistant", "It rains.", "A"),
    ]
    assert (view.usage.total_tokens, view.usage.model_calls) == (2 * USAGE["total_tokens"], 2)
    assert (view.first_seq, view.last_seq) == (2, 8)
    assert view.finished_at is not None
    assert await engine.reader.get_run(KEY, "r1") == view
    assert (await engine.reader.view(KEY)).status == "idle"


async def test_the_input_is_durable_before_the_model_is_asked(engine: Engine, model: ScriptedModel) -> None:
    model.hang()
    feed = await engine.runs.start(KEY, make_start_run())
    assert (feed.run_id, feed.after) == ("r1", 1)
    assert await read_types(engine) == ["session.created", "run.started", "message.added"]
    await model.wait_for_requests_async(1)
    assert (await engine.reader.get_run(KEY, "r1")).status == "running"
    assert (await engine.reader.view(KEY)).active_run_id == "r1"
    model.release()
    await wait_for_end(engine)


async def test_runs_go_on_where_the_last_one_ended(engine: Engine, model: ScriptedModel) -> None:
    model.say("One.")
    model.say("Two.")
    await run_to_end(engine, "first")
    await run_to_end(engine, "second", "r2")
    assert list_contents(model.requests[1]["messages"][1:]) == ["first", "One.", "second"]
    assert [view.id for view in await engine.reader.list_runs(KEY, limit=9)] == ["r2", "r1"]


async def test_options_context_and_agent_of_a_run(cluster: EngineCluster, model: ScriptedModel) -> None:
    engine = await open_engine(
        cluster, Agent(name="A"), Agent(name="B", instructions=lambda context_variables: str(context_variables))
    )
    model.say("Hello.")
    view = await run_to_end(
        engine, agent="B", context_variables={"n": 1}, options=RunOptions(model="large", max_turns=1)
    )
    assert (view.agent, view.context_variables) == ("B", {"n": 1})
    [request] = model.requests
    assert request["model"] == "large"
    assert "'n': 1" in request["messages"][0]["content"]
    assert (await read_state(engine)).agent == "B"


async def test_a_limit_on_turns(engine: Engine, model: ScriptedModel) -> None:
    model.call("look", {"city": "Oslo"})
    view = await run_to_end(engine, options=RunOptions(max_turns=1))
    assert (view.status, view.stop_reason) == ("completed", "max_turns")
    assert view.messages[-1]["content"] == "rain in Oslo"


async def test_handoffs_and_context_are_there_for_the_next_run_on_another_server(
    cluster: EngineCluster, model: ScriptedModel
) -> None:
    def hand_over() -> Result:
        return Result("Over to you.", agent=sales, context_variables={"name": "Ann"})

    sales = Agent(name="Sales", instructions=lambda context_variables: f"Sell to {context_variables['name']}.")
    triage = Agent(name="Triage", functions=[hand_over])
    engine = await open_engine(cluster, triage, sales)
    model.call("hand_over")
    model.say("What would you like?")
    assert (await run_to_end(engine)).agent == "Sales"
    other = await cluster.open_engine(triage, sales)
    model.say("Of course.")
    view = await run_to_end(other, "A hat.", "r2")
    assert (view.agent, view.context_variables) == ("Sales", {"name": "Ann"})
    assert model.requests[-1]["messages"][0]["content"] == "Sell to Ann."


@pytest.mark.parametrize(("status", "code"), [(500, "provider_error"), (401, "provider_authentication")])
async def test_a_model_that_fails_fails_the_run_and_not_the_session(
    engine: Engine, model: ScriptedModel, status: int, code: str
) -> None:
    model.call("look", {"city": "Oslo"})
    model.fail(status, message="no")
    view = await run_to_end(engine)
    assert (view.status, view.stop_reason) == ("failed", "error")
    assert view.error is not None
    assert (view.error.code, view.error.message, view.error.provider_status) == (code, "no", status)
    assert view.messages[-1]["content"] == "rain in Oslo"
    model.say("I am back.")
    assert (await run_to_end(engine, "Again?", "r2")).output_text == "I am back."


async def test_half_a_stream_keeps_what_was_said(engine: Engine, model: ScriptedModel) -> None:
    model.half_stream("Once upon a")
    view = await run_to_end(engine, options=STREAM)
    assert view.status == "failed"
    assert view.error is not None
    assert view.error.code == "provider_stream_cut"
    assert view.output_text == "Once upon a"
    model.say("Sorry.")
    await run_to_end(engine, "Go on.", "r2")
    assert list_contents(model.requests[1]["messages"][1:]) == ["hello", "Once upon a", "Go on."]


async def test_a_mishap_in_the_server_itself_fails_the_run(
    cluster: EngineCluster, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken:
        async def ask(self, request: Any, *, stream: bool) -> Any:
            raise ZeroDivisionError
            yield

    engine = await cluster.open_engine(Agent(name="A"), model=Broken())
    await open_session(engine)
    view = await run_to_end(engine)
    assert view.status == "failed"
    assert view.error is not None
    assert view.error.code == "internal_error"
    assert "ZeroDivisionError" not in view.error.message
    assert "ZeroDivisionError" in caplog.text


@pytest.mark.parametrize("word", [asyncio.CancelledError, KeyboardInterrupt, SystemExit, GeneratorExit])
async def test_no_tool_can_stop_the_server_or_strand_its_session(
    cluster: EngineCluster, model: ScriptedModel, word: type[BaseException]
) -> None:
    def stop() -> str:
        raise word

    engine = await open_engine(cluster, Agent(name="A", functions=[stop]))
    model.call("stop")
    model.say("Still here.")
    assert (await run_to_end(engine)).output_text == "Still here."


async def test_what_cannot_start(engine: Engine) -> None:
    with pytest.raises(SessionNotFound):
        await engine.runs.start(SessionKey("default", "nobody"), make_start_run())
    with pytest.raises(AgentNotFound):
        await engine.runs.start(KEY, make_start_run(agent="Nobody"))
    with pytest.raises(RunNotFound):
        await engine.reader.get_run(KEY, "nobody")
    with pytest.raises(RunNotFound):
        await engine.runs.wait(KEY, "nobody")
    with pytest.raises(RunNotFound):
        await engine.reader.find_position(KEY, "nobody")
    with pytest.raises(RunNotFound):
        await engine.runs.cancel(KEY, "nobody")
    assert await read_types(engine) == ["session.created"]


async def test_a_session_whose_agent_is_not_served_here(cluster: EngineCluster, model: ScriptedModel) -> None:
    engine = await open_engine(cluster, Agent(name="Old"))
    other = await cluster.open_engine(Agent(name="New"))
    with pytest.raises(AgentUnavailable) as refused:
        await other.runs.start(KEY, make_start_run())
    assert refused.value.known_agents == ["New"]
    model.say("I take over.")
    assert (await run_to_end(other, agent="New")).agent == "New"
    assert (await read_state(engine)).agent == "New"


# Waiting for a run.


async def test_whoever_waits_gets_the_same(cluster: EngineCluster, engine: Engine, model: ScriptedModel) -> None:
    other = await cluster.open_engine(Agent(name="A"))
    model.hang(then="Hello.")
    await engine.runs.start(KEY, make_start_run())
    waiting = [asyncio.create_task(wait_for_end(one)) for one in (engine, engine, other)]
    await model.wait_for_requests_async(1)
    model.release()
    views = await asyncio.gather(*waiting)
    assert views[0] == views[1] == views[2] == await engine.reader.get_run(KEY, "r1")
    assert views[0].output_text == "Hello."


async def test_whoever_stops_waiting_does_not_end_the_run(engine: Engine, model: ScriptedModel) -> None:
    model.hang(then="Hello.")
    await engine.runs.start(KEY, make_start_run())
    waiting = asyncio.create_task(wait_for_end(engine))
    await model.wait_for_requests_async(1)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert len(engine._worker.waiters) == 0
    model.release()
    assert (await wait_for_end(engine)).output_text == "Hello."


# Busy sessions.


async def test_a_busy_session_refuses_another_run(cluster: EngineCluster, engine: Engine, model: ScriptedModel) -> None:
    other = await cluster.open_engine(Agent(name="A"))
    model.hang(then="Hello.")
    await engine.runs.start(KEY, make_start_run())
    for one in (engine, other):
        with pytest.raises(SessionBusy) as refused:
            await one.runs.start(KEY, make_start_run(run_id="r2"))
        assert refused.value.run_id == "r1"
    model.release()
    await wait_for_end(engine)
    assert [view.id for view in await engine.reader.list_runs(KEY, limit=9)] == ["r1"]


async def test_of_many_starts_at_once_one_wins(cluster: EngineCluster, engine: Engine, model: ScriptedModel) -> None:
    other = await cluster.open_engine(Agent(name="A"))
    model.hang(then="Hello.")
    tried = await asyncio.gather(
        *(one.runs.start(KEY, make_start_run(run_id=f"r{n}")) for n, one in enumerate([engine, other] * 16)),
        return_exceptions=True,
    )
    won = [one for one in tried if not isinstance(one, BaseException)]
    assert len(won) == 1
    assert {type(one) for one in tried if isinstance(one, BaseException)} == {SessionBusy}
    await model.wait_for_requests_async(1)
    model.release()
    await wait_for_end(engine, won[0].run_id)
    assert model.request_count == 1
    assert await read_types(engine) == [
        "session.created",
        "run.started",
        "message.added",
        "message.added",
        "run.completed",
    ]


async def test_queued_runs_follow_in_the_order_they_came(engine: Engine, model: ScriptedModel) -> None:
    model.hang(then="0")
    await engine.runs.start(KEY, make_start_run("text 0", "r0", on_busy="queue"))
    await model.wait_for_requests_async(1)
    for n in (1, 2, 3):
        feed = await engine.runs.start(
            KEY, make_start_run(f"text {n}", f"r{n}", on_busy="queue", context_variables={"n": n})
        )
        assert (await engine.reader.get_run(KEY, feed.run_id)).status == "queued"
        model.say(str(n))
    model.release()
    views = [await wait_for_end(engine, f"r{n}") for n in range(4)]
    assert [view.output_text for view in views] == ["0", "1", "2", "3"]
    assert [view.context_variables for view in views] == [{}, {"n": 1}, {"n": 2}, {"n": 3}]
    assert list_contents(model.requests[3]["messages"][1:]) == ["text 0", "0", "text 1", "1", "text 2", "2", "text 3"]


async def test_runs_queued_at_once_on_two_servers_all_run_once(
    cluster: EngineCluster, engine: Engine, model: ScriptedModel
) -> None:
    other = await cluster.open_engine(Agent(name="A"))
    for _ in range(8):
        model.say("Hello.")
    await asyncio.gather(
        *(
            one.runs.start(KEY, make_start_run(run_id=f"r{n}", on_busy="queue"))
            for n, one in enumerate([engine, other] * 4)
        )
    )
    views = await asyncio.gather(*(wait_for_end((engine, other)[n % 2], f"r{n}") for n in range(8)))
    assert {view.status for view in views} == {"completed"}
    assert model.request_count == 8
    starts = [event.run_id for event in await read_log(engine) if event.type == "run.started"]
    assert sorted(starts) == [f"r{n}" for n in range(8)]


async def test_a_queued_run_can_be_streamed_from_before_it_starts(engine: Engine, model: ScriptedModel) -> None:
    model.hang(then="One.")
    model.say("Two.")
    await engine.runs.start(KEY, make_start_run())
    await model.wait_for_requests_async(1)
    await engine.runs.start(KEY, make_start_run(run_id="r2", on_busy="queue"))
    reader = asyncio.create_task(collect_stream(engine, "r2"))
    model.release()
    assert [event.type for event in pick_recorded(await reader)] == [
        "run.queued", "run.started", "message.added", "message.added", "run.completed",
    ]  # fmt: skip


async def test_an_interrupting_run_takes_the_place_of_the_active_one(engine: Engine, model: ScriptedModel) -> None:
    model.hang("Once upon ", then="a time.")
    await engine.runs.start(KEY, make_start_run("A story!", options=STREAM))
    await wait_until_spoken(engine, "Once upon ")
    model.say("Stopped.")
    view = await run_to_end(engine, "Stop!", "r2", on_busy="interrupt")
    assert view.output_text == "Stopped."
    before = await engine.reader.get_run(KEY, "r1")
    assert (before.status, before.stop_reason, before.output_text) == ("cancelled", "cancelled", "Once upon ")
    assert list_contents(model.requests[1]["messages"][1:]) == ["A story!", "Once upon ", "Stop!"]
    await model.wait_for_disconnects_async(1)


async def test_an_interrupting_run_comes_before_the_queue_on_any_server(
    cluster: EngineCluster, engine: Engine, model: ScriptedModel
) -> None:
    other = await cluster.open_engine(Agent(name="A"))
    model.hang()
    await engine.runs.start(KEY, make_start_run())
    await model.wait_for_requests_async(1)
    for run_id in ("r2", "r3"):
        await engine.runs.start(KEY, make_start_run(run_id, run_id, on_busy="queue"))
    for text in ("Stopped.", "Two.", "Three."):
        model.say(text)
    feed = await other.runs.start(KEY, make_start_run("Stop!", "r4", on_busy="interrupt"))
    assert [(await wait_for_end(other, run_id)).output_text for run_id in ("r4", "r2", "r3")] == [
        "Stopped.",
        "Two.",
        "Three.",
    ]
    await model.wait_for_disconnects_async(1)
    events = await read_log(engine)
    # One commit: nothing can come in between, and nothing of the queue begins only to be cancelled.
    assert [(event.type, event.run_id) for event in events[5:8]] == [
        ("run.cancelled", "r1"), ("run.started", "r4"), ("message.added", "r4"),
    ]  # fmt: skip
    assert feed.after == events[5].seq
    assert [event.run_id for event in events if event.type == "run.started"] == ["r1", "r4", "r2", "r3"]
    assert [event.run_id for event in events if event.type == "run.cancelled"] == ["r1"]


async def test_a_run_that_was_started_before_is_not_started_again(engine: Engine, model: ScriptedModel) -> None:
    model.say("Hello.")
    feed = await engine.runs.start(KEY, make_start_run())
    await wait_for_end(engine)
    for on_busy in ("reject", "queue", "interrupt"):
        again = await engine.runs.start(KEY, make_start_run(on_busy=on_busy))
        assert (again.run_id, again.after) == (feed.run_id, feed.after)
    assert model.request_count == 1


async def test_an_interrupting_run_in_an_idle_session_just_starts(engine: Engine, model: ScriptedModel) -> None:
    model.say("Hello.")
    assert (await run_to_end(engine, on_busy="interrupt")).status == "completed"


async def test_an_interrupting_run_of_another_server(
    cluster: EngineCluster, engine: Engine, model: ScriptedModel
) -> None:
    other = await cluster.open_engine(Agent(name="A"))
    model.hang(then="Too late.")
    await engine.runs.start(KEY, make_start_run())
    await model.wait_for_requests_async(1)
    model.say("Quick.")
    assert (await run_to_end(other, "Stop!", "r2", on_busy="interrupt")).output_text == "Quick."
    model.release()
    await wait_for_state(engine, lambda state: not engine._worker.is_advancing(KEY))
    assert "Too late." not in str(list_contents((await engine.reader.get_run(KEY, "r1")).messages))
    assert (await engine.reader.get_run(KEY, "r1")).status == "cancelled"


# Cancelling.


async def wait_until_spoken(engine: Engine, text: str) -> None:
    await wait_until(lambda: engine.hub.get_partial(KEY).text == text)


async def test_a_cancel_in_a_model_call_keeps_what_was_said(engine: Engine, model: ScriptedModel) -> None:
    model.hang("Once upon ", then="a time.")
    await engine.runs.start(KEY, make_start_run(options=STREAM))
    await wait_until_spoken(engine, "Once upon ")
    waiting = asyncio.create_task(wait_for_end(engine))
    view = await engine.runs.cancel(KEY, "r1")
    assert (view.status, view.stop_reason, view.output_text) == ("cancelled", "cancelled", "Once upon ")
    assert await waiting == view
    await model.wait_for_disconnects_async(1)
    partial = (await read_state(engine)).messages[-1].completion
    assert partial is not None
    assert partial.partial is True
    # Asking twice is no more than asking once.
    assert await engine.runs.cancel(KEY, "r1") == view
    model.say("Yes?")
    assert (await run_to_end(engine, "Hello?", "r2")).output_text == "Yes?"


async def test_a_cancel_before_anything_was_said(engine: Engine, model: ScriptedModel) -> None:
    model.hang()
    await engine.runs.start(KEY, make_start_run())
    await model.wait_for_requests_async(1)
    view = await engine.runs.cancel(KEY, "r1")
    assert list_contents(view.messages) == ["hello"]
    await model.wait_for_disconnects_async(1)


async def test_a_cancel_in_a_blocking_tool_drops_its_late_result(cluster: EngineCluster, model: ScriptedModel) -> None:
    gate = ToolGate()

    def slow(context_variables: Json) -> str:
        gate.enter()
        context_variables["late"] = True
        return "too late"

    engine = await open_engine(cluster, Agent(name="A", functions=[slow]))
    model.call("slow", id="c1")
    await engine.runs.start(KEY, make_start_run())
    await gate.wait_until_reached()
    view = await engine.runs.cancel(KEY, "r1")
    assert view.status == "cancelled"
    model.say("I see.")
    await run_to_end(engine, "And now?", "r2")
    before = await read_log(engine)
    await gate.open()
    await asyncio.sleep(0)
    assert await read_log(engine) == before
    assert (await read_state(engine)).context_variables == {}
    # The model is told that nobody knows how the call ended.
    assert not find_body_faults(model.raw_requests[1])
    [told] = [message for message in model.requests[1]["messages"] if message["role"] == "tool"]
    assert told["tool_call_id"] == "c1"
    assert "unknown" in told["content"]


async def test_a_cancel_in_an_async_tool_cancels_it(cluster: EngineCluster, model: ScriptedModel) -> None:
    reached, cancelled = asyncio.Event(), asyncio.Event()

    async def slow() -> str:
        reached.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        return "never"

    engine = await open_engine(cluster, Agent(name="A", functions=[slow]))
    model.call("slow")
    await engine.runs.start(KEY, make_start_run())
    await reached.wait()
    assert (await engine.runs.cancel(KEY, "r1")).status == "cancelled"
    async with asyncio.timeout(20):
        await cancelled.wait()


async def test_a_queued_run_is_cancelled_without_the_active_one(engine: Engine, model: ScriptedModel) -> None:
    model.hang(then="One.")
    model.say("Three.")
    await engine.runs.start(KEY, make_start_run())
    await model.wait_for_requests_async(1)
    for run_id in ("r2", "r3"):
        await engine.runs.start(KEY, make_start_run(run_id=run_id, on_busy="queue"))
    waiting = asyncio.create_task(wait_for_end(engine, "r2"))
    view = await engine.runs.cancel(KEY, "r2")
    assert (view.status, view.messages) == ("cancelled", [])
    assert await waiting == view
    model.release()
    assert (await wait_for_end(engine)).output_text == "One."
    assert (await wait_for_end(engine, "r3")).output_text == "Three."


async def test_the_next_of_the_queue_follows_a_run_that_is_cancelled(engine: Engine, model: ScriptedModel) -> None:
    model.hang()
    model.say("Two.")
    await engine.runs.start(KEY, make_start_run())
    await model.wait_for_requests_async(1)
    await engine.runs.start(KEY, make_start_run(run_id="r2", on_busy="queue"))
    await engine.runs.cancel(KEY, "r1")
    assert (await wait_for_end(engine, "r2")).output_text == "Two."


async def test_a_cancel_from_another_server(cluster: EngineCluster, engine: Engine, model: ScriptedModel) -> None:
    other = await cluster.open_engine(Agent(name="A"))
    model.hang(then="Too late.")
    model.say("Two.")
    await engine.runs.start(KEY, make_start_run())
    await model.wait_for_requests_async(1)
    await other.runs.start(KEY, make_start_run(run_id="r2", on_busy="queue"))
    # The run ends, and with it its server's lease; what waited behind it begins on the server that ended it.
    view = await other.runs.cancel(KEY, "r1")
    assert view.status == "cancelled"
    assert (await wait_for_end(other, "r2")).output_text == "Two."
    model.release()
    await wait_for_state(engine, lambda state: not engine._worker.is_advancing(KEY))
    assert model.request_count == 2
    assert [event.type for event in await read_log(engine)] == [
        "session.created", "run.started", "message.added", "run.queued",
        "run.cancelled", "run.started", "message.added", "message.added", "run.completed",
    ]  # fmt: skip


async def test_a_waiting_run_can_be_cancelled(engine: Engine, model: ScriptedModel) -> None:
    model.call("look", {"city": "Oslo"})
    assert (await run_to_end(engine, options=NO_TOOLS)).status == "waiting"
    view = await engine.runs.cancel(KEY, "r1")
    assert (view.status, view.pending) == ("cancelled", ())
    model.say("Next.")
    assert (await run_to_end(engine, "Next?", "r2")).status == "completed"
    assert not find_body_faults(model.raw_requests[-1])


# Waiting for somebody, and going on.


async def test_calls_that_others_carry_out(cluster: EngineCluster, engine: Engine, model: ScriptedModel) -> None:
    model.calls([("look", {"city": "Oslo"}, "c1"), ("elsewhere", {}, "c2")])
    view = await run_to_end(engine, options=NO_TOOLS)
    assert (view.status, view.stop_reason) == ("waiting", "tool_calls")
    assert [(call.tool_call_id, call.name, call.reason) for call in view.pending] == [
        ("c1", "look", "tool_results"),
        ("c2", "elsewhere", "tool_results"),
    ]
    assert (await engine.reader.view(KEY)).status == "waiting"
    with pytest.raises(SessionBusy):
        await engine.runs.start(KEY, make_start_run(run_id="r2"))
    # One result now, on this server, and one later, on another.
    feed = await engine.runs.resume(KEY, "r1", tool_results=[ToolAnswer(tool_call_id="c2", content="there")])
    assert feed.run_id == "r1"
    view = await wait_for_end(engine)
    assert [call.tool_call_id for call in view.pending] == ["c1"]
    other = await cluster.open_engine(Agent(name="A"))
    model.say("Done.")
    await other.runs.resume(KEY, "r1", tool_results=[ToolAnswer(tool_call_id="c1", content="sun")])
    assert (await wait_for_end(other)).output_text == "Done."
    results = [(m["tool_call_id"], m["content"]) for m in model.requests[1]["messages"] if m["role"] == "tool"]
    assert results == [("c1", "sun"), ("c2", "there")]


class Rocket:
    def __init__(self) -> None:
        self.launched: list[str] = []

        @tool(requires_approval=True)
        def launch(where: str) -> str:
            self.launched.append(where)
            return f"launched to {where}"

        self.agent = Agent(name="A", functions=[launch, look])

    async def run_until_waiting(self, cluster: EngineCluster, model: ScriptedModel) -> Engine:
        engine = await open_engine(cluster, self.agent)
        model.calls([("launch", {"where": "Mars"}, "c1"), ("launch", {"where": "Venus"}, "c2")])
        view = await run_to_end(engine)
        assert (view.status, view.stop_reason) == ("waiting", "approval")
        assert [call.reason for call in view.pending] == ["approval", "approval"]
        return engine


def approve(call_id: str, **more: Any) -> Approval:
    return Approval(tool_call_id=call_id, decision="approve", **more)


def deny(call_id: str, **more: Any) -> Approval:
    return Approval(tool_call_id=call_id, decision="deny", **more)


async def test_approved_calls_run_and_denied_ones_do_not(cluster: EngineCluster, model: ScriptedModel) -> None:
    rocket = Rocket()
    engine = await rocket.run_until_waiting(cluster, model)
    model.say("Launched.")
    await engine.runs.resume(KEY, "r1", approvals=[approve("c1", by="Ann"), deny("c2", reason="too hot")])
    view = await wait_for_end(engine)
    assert (view.status, rocket.launched) == ("completed", ["Mars"])
    one, two = (message["content"] for message in view.messages if message["role"] == "tool")
    assert one == "launched to Mars"
    assert "not approved" in two
    assert "too hot" in two
    decided = [event.fact for event in await read_log(engine) if event.type == "approval.decided"]
    assert [(fact.decision, fact.by) for fact in decided] == [("approve", "Ann"), ("deny", None)]  # type: ignore[union-attr]


async def test_an_approval_may_be_given_on_a_server_that_never_saw_the_run(
    cluster: EngineCluster, model: ScriptedModel
) -> None:
    rocket = Rocket()
    await rocket.run_until_waiting(cluster, model)
    other = await cluster.open_engine(rocket.agent)
    model.say("Launched.")
    await other.runs.resume(KEY, "r1", approvals=[approve("c1"), approve("c2")])
    assert (await wait_for_end(other)).status == "completed"
    assert rocket.launched == ["Mars", "Venus"]


async def test_the_first_decision_wins(cluster: EngineCluster, model: ScriptedModel) -> None:
    rocket = Rocket()
    engine = await rocket.run_until_waiting(cluster, model)
    await engine.runs.resume(KEY, "r1", approvals=[deny("c1")])
    for second in ([approve("c1")], [deny("c1")], [approve("c2"), approve("c1")]):
        with pytest.raises(AlreadyDecided):
            await engine.runs.resume(KEY, "r1", approvals=second)
    assert [call.tool_call_id for call in (await engine.reader.get_run(KEY, "r1")).pending] == ["c2"]
    model.say("Done.")
    await engine.runs.resume(KEY, "r1", approvals=[deny("c2")])
    await wait_for_end(engine)
    with pytest.raises((AlreadyDecided, RunNotWaiting)):
        await engine.runs.resume(KEY, "r1", approvals=[approve("c2")])
    assert rocket.launched == []


async def test_of_many_decisions_at_once_one_wins(cluster: EngineCluster, model: ScriptedModel) -> None:
    rocket = Rocket()
    engine = await rocket.run_until_waiting(cluster, model)
    other = await cluster.open_engine(rocket.agent)
    model.say("Done.")
    tried = await asyncio.gather(
        *(
            one.runs.resume(KEY, "r1", approvals=[(approve, deny)[n % 3 == 0]("c1"), approve("c2")])
            for n, one in enumerate([engine, other] * 8)
        ),
        return_exceptions=True,
    )
    assert sum(not isinstance(one, BaseException) for one in tried) == 1
    assert {type(one) for one in tried if isinstance(one, BaseException)} == {AlreadyDecided}
    assert (await wait_for_end(engine)).status == "completed"
    assert len(rocket.launched) in (1, 2)
    assert len(set(rocket.launched)) == len(rocket.launched)


async def test_a_resume_that_does_not_fit_changes_nothing(cluster: EngineCluster, model: ScriptedModel) -> None:
    rocket = Rocket()
    engine = await rocket.run_until_waiting(cluster, model)
    before = await read_log(engine)
    with pytest.raises(InvalidRequest):
        await engine.runs.resume(KEY, "r1")
    with pytest.raises(InvalidRequest):
        await engine.runs.resume(KEY, "r1", approvals=[approve("c1"), approve("nobody")])
    with pytest.raises(InvalidRequest):
        await engine.runs.resume(KEY, "r1", tool_results=[ToolAnswer(tool_call_id="c1", content="forged")])
    with pytest.raises(RunNotFound):
        await engine.runs.resume(KEY, "r2", approvals=[approve("c1")])
    assert await read_log(engine) == before
    await engine.runs.cancel(KEY, "r1")
    with pytest.raises(RunNotWaiting):
        await engine.runs.resume(KEY, "r1", approvals=[approve("c1")])


async def test_a_running_run_cannot_be_resumed(engine: Engine, model: ScriptedModel) -> None:
    model.hang(then="Hello.")
    await engine.runs.start(KEY, make_start_run())
    with pytest.raises(RunNotWaiting):
        await engine.runs.resume(KEY, "r1")
    model.release()
    await wait_for_end(engine)


async def test_approvals_expire_when_the_server_says(cluster: EngineCluster, model: ScriptedModel) -> None:
    engine = await open_engine(
        cluster, Rocket().agent, limits=Limits(lease_seconds=30, grace_seconds=0.05, approval_seconds=3600)
    )
    model.call("launch", {"where": "Mars"})
    [pending] = (await run_to_end(engine)).pending
    assert pending.expires_at is not None
    assert pending.expires_at.endswith("Z")


async def test_the_stream_of_a_run_ends_where_it_waits_and_goes_on_after(
    cluster: EngineCluster, model: ScriptedModel
) -> None:
    rocket = Rocket()
    engine = await rocket.run_until_waiting(cluster, model)
    before = pick_recorded(await collect_stream(engine))
    assert before[-1].type == "run.waiting"
    model.say(["Launch", "ed."])
    feed = await engine.runs.resume(KEY, "r1", approvals=[approve("c1"), approve("c2")])
    async with asyncio.timeout(20), aclosing(engine.reader.follow_run(KEY, feed)) as items:
        after = pick_recorded([item async for item in items])
    assert after[0].seq == before[-1].seq + 1
    assert after[-1].type == "run.completed"
    assert [event.seq for event in pick_recorded(await collect_stream(engine))] == [
        event.seq for event in [*before, *after]
    ]


async def test_a_reader_who_began_before_the_wait_sees_the_end_of_a_run_that_went_on(
    cluster: EngineCluster, model: ScriptedModel
) -> None:
    rocket = Rocket()
    engine = await rocket.run_until_waiting(cluster, model)
    model.hang(then="Launched.")
    await engine.runs.resume(KEY, "r1", approvals=[approve("c1"), approve("c2")])
    await model.wait_for_requests_async(2)
    position = await engine.reader.find_position(KEY, "r1")
    async with asyncio.timeout(20), aclosing(engine.reader.follow_run(KEY, position)) as items:
        # It is seen to be under way; by the time that the reader comes to its wait, it is over.
        seen = await take_items(items, 1)
        model.release()
        await wait_for_end(engine)
        seen += [item async for item in items if item is not None]
    types = [event.type for event in pick_recorded(seen)]
    assert types[0] == "run.started"
    assert types.count("run.waiting") == 1
    assert types[-1] == "run.completed"


# Streams.


async def test_a_stream_shows_deltas_between_events(engine: Engine, model: ScriptedModel) -> None:
    model.hang("Hel", then="lo")
    feed = await engine.runs.start(KEY, make_start_run(options=STREAM))
    async with aclosing(engine.reader.follow_run(KEY, feed)) as items:
        seen = await take_items(items, 4)
        model.release()
        async with asyncio.timeout(20):
            seen += [item async for item in items if item is not None]
    texts = [join_text(item.deltas) for item in seen if isinstance(item, MessageDeltas)]
    assert "".join(filter(None, texts)) == "Hello"
    kinds = [getattr(item, "type", type(item).__name__) for item in seen]
    assert kinds[:3] == ["run.started", "message.added", "MessageStarted"]
    assert kinds[-2:] == ["message.added", "run.completed"]


async def test_one_slow_model_holds_up_nobody_else(
    cluster: EngineCluster, engine: Engine, model: ScriptedModel
) -> None:
    model.hang(then="Finally.", when=lambda request: request["messages"][-1]["content"] == "slow")
    await engine.runs.start(KEY, make_start_run("slow"))
    for n in range(5):
        key = await open_session(engine, SessionKey("default", f"other-{n}"))
        model.say("Quick.", when=lambda request: request["messages"][-1]["content"] == "quick")
        assert (await run_to_end(engine, "quick", "r1", key)).output_text == "Quick."
    model.release()
    assert (await wait_for_end(engine)).output_text == "Finally."


async def test_a_draining_server_takes_no_runs(engine: Engine) -> None:
    engine.runs.is_draining = True
    with pytest.raises(Draining):
        await engine.runs.start(KEY, make_start_run())
    with pytest.raises(Draining):
        await engine.runs.resume(KEY, "r1")
