"""Runs as callers meet them: one at a time in a session, what each leaves, and what is streamed meanwhile."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any

import pytest

from swarmkeep import Agent, Result
from swarmkeep.events.errors import AgentNotFound, AgentUnavailable, Draining, RunNotFound, SessionBusy, SessionNotFound
from swarmkeep.events.records import RunOptions
from swarmkeep.runs.engine import Engine
from swarmkeep.runs.hub import Item, MessageDeltas, join_text
from swarmkeep.store.records import SessionKey
from tests.runs.cluster import (
    KEY,
    EngineCluster,
    collect_stream,
    list_contents,
    make_start_run,
    open_session,
    pick_recorded,
    read_log,
    read_state,
    read_types,
    run_to_end,
    start_hanging_run,
    take_items,
    wait_for_end,
    wait_for_state,
    wait_until,
)
from tests.runs.runs.sessions import STREAM, open_engine, wait_until_spoken
from tests.support.scripted import USAGE, ScriptedModel

pytestmark = pytest.mark.one_database

# A run and what it leaves.


async def test_run_view_reflects_its_events(engine: Engine, model: ScriptedModel) -> None:
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


async def test_input_is_durable_before_model_call(engine: Engine, model: ScriptedModel) -> None:
    model.hang()
    feed = await engine.runs.start(KEY, make_start_run())
    assert (feed.run_id, feed.after) == ("r1", 1)
    assert await read_types(engine) == ["session.created", "run.started", "message.added"]
    await model.wait_for_requests_async(1)
    assert (await engine.reader.get_run(KEY, "r1")).status == "running"
    assert (await engine.reader.view(KEY)).active_run_id == "r1"
    model.release()
    await wait_for_end(engine)


async def test_runs_continue_from_the_last(engine: Engine, model: ScriptedModel) -> None:
    model.say("One.")
    model.say("Two.")
    await run_to_end(engine, "first")
    await run_to_end(engine, "second", "r2")
    assert list_contents(model.requests[1]["messages"][1:]) == ["first", "One.", "second"]
    assert [view.id for view in await engine.reader.list_runs(KEY, limit=9)] == ["r2", "r1"]


async def test_run_options_context_and_agent_apply(cluster: EngineCluster, model: ScriptedModel) -> None:
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


async def test_next_run_elsewhere_has_handoffs_and_context(cluster: EngineCluster, model: ScriptedModel) -> None:
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
async def test_failing_model_fails_only_the_run(engine: Engine, model: ScriptedModel, status: int, code: str) -> None:
    model.call("look", {"city": "Oslo"})
    model.fail(status, message="no")
    view = await run_to_end(engine)
    assert (view.status, view.stop_reason) == ("failed", "error")
    assert view.error is not None
    assert (view.error.code, view.error.message, view.error.provider_status) == (code, "no", status)
    assert view.messages[-1]["content"] == "rain in Oslo"
    model.say("I am back.")
    assert (await run_to_end(engine, "Again?", "r2")).output_text == "I am back."


async def test_half_a_stream_keeps_its_words(engine: Engine, model: ScriptedModel) -> None:
    model.half_stream("Once upon a")
    view = await run_to_end(engine, options=STREAM)
    assert view.status == "failed"
    assert view.error is not None
    assert view.error.code == "provider_stream_cut"
    assert view.output_text == "Once upon a"
    model.say("Sorry.")
    await run_to_end(engine, "Go on.", "r2")
    assert list_contents(model.requests[1]["messages"][1:]) == ["hello", "Once upon a", "Go on."]


async def test_server_mishap_fails_the_run(cluster: EngineCluster, caplog: pytest.LogCaptureFixture) -> None:
    class Broken:
        async def ask(self, request: Any, *, stream: bool) -> Any:
            raise ZeroDivisionError
            yield

    engine = await cluster.begin(Agent(name="A"), model=Broken())
    view = await run_to_end(engine)
    assert view.status == "failed"
    assert view.error is not None
    assert view.error.code == "internal_error"
    assert "ZeroDivisionError" not in view.error.message
    assert "ZeroDivisionError" in caplog.text


@pytest.mark.parametrize("word", [asyncio.CancelledError, KeyboardInterrupt, SystemExit, GeneratorExit])
async def test_tools_cannot_stop_server_or_strand_session(
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


async def test_unserved_session_agent_is_refused(cluster: EngineCluster, model: ScriptedModel) -> None:
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


async def test_run_outlives_its_waiting_caller(engine: Engine, model: ScriptedModel) -> None:
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


async def test_slow_model_blocks_only_itself(cluster: EngineCluster, engine: Engine, model: ScriptedModel) -> None:
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


# A session has one run at a time: another one is refused, queued, or takes its place.


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


async def test_concurrent_starts_have_one_winner(cluster: EngineCluster, engine: Engine, model: ScriptedModel) -> None:
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


async def test_queued_runs_follow_in_order(engine: Engine, model: ScriptedModel) -> None:
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


async def test_runs_queued_on_two_servers_run_once(
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


async def test_queued_run_streams_before_its_start(engine: Engine, model: ScriptedModel) -> None:
    model.hang(then="One.")
    model.say("Two.")
    await engine.runs.start(KEY, make_start_run())
    await model.wait_for_requests_async(1)
    await engine.runs.start(KEY, make_start_run(run_id="r2", on_busy="queue"))
    found: list[Item] = []
    reader = asyncio.create_task(collect_stream(engine, "r2", found=found))
    # One that joins later begins with the start.
    await wait_until(lambda: found)
    model.release()
    assert [event.type for event in pick_recorded(await reader)] == [
        "run.queued", "run.started", "message.added", "message.added", "run.completed",
    ]  # fmt: skip


async def test_interrupting_run_replaces_active_run(engine: Engine, model: ScriptedModel) -> None:
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


async def test_interrupting_run_precedes_queue_on_any_server(
    cluster: EngineCluster, engine: Engine, model: ScriptedModel
) -> None:
    other = await cluster.open_engine(Agent(name="A"))
    await start_hanging_run(engine, model)
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


async def test_started_run_is_not_started_again(engine: Engine, model: ScriptedModel) -> None:
    model.say("Hello.")
    feed = await engine.runs.start(KEY, make_start_run())
    await wait_for_end(engine)
    for on_busy in ("reject", "queue", "interrupt"):
        again = await engine.runs.start(KEY, make_start_run(on_busy=on_busy))
        assert (again.run_id, again.after) == (feed.run_id, feed.after)
    assert model.request_count == 1


async def test_interrupting_run_starts_in_idle_session(engine: Engine, model: ScriptedModel) -> None:
    model.say("Hello.")
    assert (await run_to_end(engine, on_busy="interrupt")).status == "completed"


async def test_an_interrupting_run_of_another_server(
    cluster: EngineCluster, engine: Engine, model: ScriptedModel
) -> None:
    other = await cluster.open_engine(Agent(name="A"))
    await start_hanging_run(engine, model, then="Too late.")
    model.say("Quick.")
    assert (await run_to_end(other, "Stop!", "r2", on_busy="interrupt")).output_text == "Quick."
    model.release()
    await wait_for_state(engine, lambda state: not engine._worker.is_advancing(KEY))
    assert "Too late." not in str(list_contents((await engine.reader.get_run(KEY, "r1")).messages))
    assert (await engine.reader.get_run(KEY, "r1")).status == "cancelled"
