"""A session has one run at a time: another one is refused, queued, or takes its place."""

from __future__ import annotations

import asyncio

import pytest

from swarmkeep import Agent
from swarmkeep.events.errors import SessionBusy
from swarmkeep.runs.engine import Engine
from swarmkeep.runs.hub import Item
from tests.runs.cluster import (
    KEY,
    EngineCluster,
    collect_stream,
    list_contents,
    make_start_run,
    pick_recorded,
    read_log,
    read_types,
    run_to_end,
    start_hanging_run,
    wait_for_end,
    wait_for_state,
    wait_until,
)
from tests.runs.runs.sessions import STREAM, wait_until_spoken
from tests.support.scripted import ScriptedModel

pytestmark = pytest.mark.one_database


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
