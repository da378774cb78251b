"""Runs as callers meet them: one at a time in a session, what each leaves, and what is streamed meanwhile."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from swarmkeep import Agent, Result
from swarmkeep.events.errors import Draining, SessionBusy
from swarmkeep.runs.engine import Engine
from swarmkeep.runs.hub import Item
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
    read_types,
    run_to_end,
    start_hanging_run,
    wait_for_end,
)
from tests.runs.runs.sessions import open_engine
from tests.support.scripted import ScriptedModel
from tests.support.waiting import wait_until

pytestmark = pytest.mark.one_database

# A run and what it leaves.


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


# Streams.


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
