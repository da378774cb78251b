"""Runs as callers meet them: one at a time in a session, what each leaves, and what is streamed meanwhile."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any

import pytest

from swarmkeep import Agent, Result, tool
from swarmkeep.decide.commands import Approval
from swarmkeep.events.codec import Json
from swarmkeep.events.errors import AlreadyDecided, Draining, SessionBusy
from swarmkeep.events.records import RunOptions
from swarmkeep.runs.hub import Item
from swarmkeep.store.records import SessionKey
from tests.runs.cluster import KEY, EngineCluster, Server, ToolGate, pick_recorded, take_items
from tests.support.rules import find_body_faults
from tests.support.scripted import ScriptedModel
from tests.support.waiting import wait_until

pytestmark = pytest.mark.one_database


def look(city: str) -> str:
    return f"rain in {city}"


@pytest.fixture
async def engine(cluster: EngineCluster) -> Server:
    """A server of one agent, with a session on it."""
    return await cluster.begin(Agent(name="A", functions=[look]))


def approve(call_id: str, **more: Any) -> Approval:
    return Approval(tool_call_id=call_id, decision="approve", **more)


# A run and what it leaves.


async def test_next_run_elsewhere_has_handoffs_and_context(cluster: EngineCluster, model: ScriptedModel) -> None:
    def hand_over() -> Result:
        return Result("Over to you.", agent=sales, context_variables={"name": "Ann"})

    sales = Agent(name="Sales", instructions=lambda context_variables: f"Sell to {context_variables['name']}.")
    triage = Agent(name="Triage", functions=[hand_over])
    engine = await cluster.begin(triage, sales)
    model.call("hand_over")
    model.say("What would you like?")
    assert (await engine.run()).agent == "Sales"
    other = await cluster.open_engine(triage, sales)
    model.say("Of course.")
    view = await other.run("A hat.", "r2")
    assert (view.agent, view.context_variables) == ("Sales", {"name": "Ann"})
    assert model.requests[-1]["messages"][0]["content"] == "Sell to Ann."


async def test_server_mishap_fails_the_run(cluster: EngineCluster, caplog: pytest.LogCaptureFixture) -> None:
    class Broken:
        async def ask(self, request: Any, *, stream: bool) -> Any:
            raise ZeroDivisionError
            yield

    engine = await cluster.begin(Agent(name="A"), model=Broken())
    view = await engine.run()
    assert view.status == "failed"
    assert view.error.code == "internal_error"
    assert "ZeroDivisionError" not in view.error.message
    assert "ZeroDivisionError" in caplog.text


@pytest.mark.parametrize("word", [asyncio.CancelledError, KeyboardInterrupt, SystemExit, GeneratorExit])
async def test_tools_cannot_stop_server_or_strand_session(
    cluster: EngineCluster, model: ScriptedModel, word: type[BaseException]
) -> None:
    def stop() -> str:
        raise word

    engine = await cluster.begin(Agent(name="A", functions=[stop]))
    model.call("stop")
    model.say("Still here.")
    assert (await engine.run()).output_text == "Still here."


# Waiting for a run.


async def test_whoever_waits_gets_the_same(cluster: EngineCluster, engine: Server, model: ScriptedModel) -> None:
    other = await cluster.open_engine(Agent(name="A"))
    model.hang(then="Hello.")
    await engine.start_run()
    waiting = [asyncio.create_task(one.wait()) for one in (engine, engine, other)]
    await model.wait_for_requests_async(1)
    model.release()
    views = await asyncio.gather(*waiting)
    assert views[0] == views[1] == views[2] == await engine.reader.get_run(KEY, "r1")
    assert views[0].output_text == "Hello."


# Streams.


async def test_slow_model_blocks_only_itself(cluster: EngineCluster, engine: Server, model: ScriptedModel) -> None:
    model.hang(then="Finally.", when=lambda request: request["messages"][-1]["content"] == "slow")
    await engine.start_run("slow")
    for n in range(5):
        key = await engine.open_session(SessionKey("default", f"other-{n}"))
        model.say("Quick.", when=lambda request: request["messages"][-1]["content"] == "quick")
        assert (await engine.run("quick", "r1", key)).output_text == "Quick."
    model.release()
    assert (await engine.wait()).output_text == "Finally."


async def test_a_draining_server_takes_no_runs(engine: Server) -> None:
    engine.runs.is_draining = True
    with pytest.raises(Draining):
        await engine.start_run()
    with pytest.raises(Draining):
        await engine.runs.resume(KEY, "r1")


# A session has one run at a time: another one is refused, queued, or takes its place.


async def test_concurrent_starts_have_one_winner(cluster: EngineCluster, engine: Server, model: ScriptedModel) -> None:
    other = await cluster.open_engine(Agent(name="A"))
    model.hang(then="Hello.")
    tried = await asyncio.gather(
        *(one.start_run(run_id=f"r{n}") for n, one in enumerate([engine, other] * 16)), return_exceptions=True
    )
    won = [one for one in tried if not isinstance(one, BaseException)]
    assert len(won) == 1
    assert {type(one) for one in tried if isinstance(one, BaseException)} == {SessionBusy}
    await model.wait_for_requests_async(1)
    model.release()
    await engine.wait(won[0].run_id)
    assert model.request_count == 1
    assert await engine.read_types() == [
        "session.created",
        "run.started",
        "message.added",
        "message.added",
        "run.completed",
    ]


async def test_runs_queued_on_two_servers_run_once(
    cluster: EngineCluster, engine: Server, model: ScriptedModel
) -> None:
    other = await cluster.open_engine(Agent(name="A"))
    for _ in range(8):
        model.say("Hello.")
    await asyncio.gather(*(one.start_run(run_id=f"r{n}", on_busy="queue") for n, one in enumerate([engine, other] * 4)))
    views = await asyncio.gather(*((engine, other)[n % 2].wait(f"r{n}") for n in range(8)))
    assert {view.status for view in views} == {"completed"}
    assert model.request_count == 8
    starts = [event.run_id for event in await engine.read_log() if event.type == "run.started"]
    assert sorted(starts) == [f"r{n}" for n in range(8)]


async def test_queued_run_streams_before_its_start(engine: Server, model: ScriptedModel) -> None:
    model.hang(then="One.")
    model.say("Two.")
    await engine.start_run()
    await model.wait_for_requests_async(1)
    await engine.start_run(run_id="r2", on_busy="queue")
    found: list[Item] = []
    reader = asyncio.create_task(engine.collect_stream("r2", found=found))
    # One that joins later begins with the start.
    await wait_until(lambda: found)
    model.release()
    assert [event.type for event in pick_recorded(await reader)] == [
        "run.queued", "run.started", "message.added", "message.added", "run.completed",
    ]  # fmt: skip


async def test_started_run_is_not_started_again(engine: Server, model: ScriptedModel) -> None:
    model.say("Hello.")
    feed = await engine.start_run()
    await engine.wait()
    for on_busy in ("reject", "queue", "interrupt"):
        again = await engine.start_run(on_busy=on_busy)
        assert (again.run_id, again.after) == (feed.run_id, feed.after)
    assert model.request_count == 1


# Runs that wait, and go on or are cancelled on any server.


class Rocket:
    def __init__(self) -> None:
        self.launched: list[str] = []

        @tool(requires_approval=True)
        def launch(where: str) -> str:
            self.launched.append(where)
            return f"launched to {where}"

        self.agent = Agent(name="A", functions=[launch, look])

    async def run_until_waiting(self, cluster: EngineCluster, model: ScriptedModel) -> Server:
        engine = await cluster.begin(self.agent)
        model.calls([("launch", {"where": "Mars"}, "c1"), ("launch", {"where": "Venus"}, "c2")])
        view = await engine.run()
        assert (view.status, view.stop_reason) == ("waiting", "approval")
        assert [call.reason for call in view.pending] == ["approval", "approval"]
        return engine


def deny(call_id: str, **more: Any) -> Approval:
    return Approval(tool_call_id=call_id, decision="deny", **more)


async def test_any_server_may_approve_a_run(cluster: EngineCluster, model: ScriptedModel) -> None:
    rocket = Rocket()
    await rocket.run_until_waiting(cluster, model)
    other = await cluster.open_engine(rocket.agent)
    model.say("Launched.")
    await other.runs.resume(KEY, "r1", approvals=[approve("c1"), approve("c2")])
    assert (await other.wait()).status == "completed"
    assert rocket.launched == ["Mars", "Venus"]


async def test_concurrent_decisions_have_one_winner(cluster: EngineCluster, model: ScriptedModel) -> None:
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
    assert (await engine.wait()).status == "completed"
    assert len(rocket.launched) in (1, 2)
    assert len(set(rocket.launched)) == len(rocket.launched)


async def test_run_stream_ends_at_wait_and_continues(cluster: EngineCluster, model: ScriptedModel) -> None:
    rocket = Rocket()
    engine = await rocket.run_until_waiting(cluster, model)
    before = pick_recorded(await engine.collect_stream())
    assert before[-1].type == "run.waiting"
    model.say(["Launch", "ed."])
    feed = await engine.runs.resume(KEY, "r1", approvals=[approve("c1"), approve("c2")])
    async with asyncio.timeout(20), aclosing(engine.reader.follow_run(KEY, feed)) as items:
        after = pick_recorded([item async for item in items])
    assert after[0].seq == before[-1].seq + 1
    assert after[-1].type == "run.completed"
    assert [event.seq for event in pick_recorded(await engine.collect_stream())] == [
        event.seq for event in [*before, *after]
    ]


async def test_early_reader_sees_resumed_run_end(cluster: EngineCluster, model: ScriptedModel) -> None:
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
        await engine.wait()
        seen += [item async for item in items if item is not None]
    types = [event.type for event in pick_recorded(seen)]
    assert types[0] == "run.started"
    assert types.count("run.waiting") == 1
    assert types[-1] == "run.completed"


# Runs are cancelled: in a model call, in a tool, in the queue, and from another server.


async def test_cancel_in_model_call_keeps_words(engine: Server, model: ScriptedModel) -> None:
    model.hang("Once upon ", then="a time.")
    await engine.start_run(options=RunOptions(stream=True))
    await wait_until(lambda: engine.hub.get_partial(KEY).text == "Once upon ")
    waiting = asyncio.create_task(engine.wait())
    view = await engine.runs.cancel(KEY, "r1")
    assert (view.status, view.stop_reason, view.output_text) == ("cancelled", "cancelled", "Once upon ")
    assert await waiting == view
    await model.wait_for_disconnects_async(1)
    partial = (await engine.read_state()).messages[-1].completion
    assert partial.partial is True
    # Asking twice is no more than asking once.
    assert await engine.runs.cancel(KEY, "r1") == view
    model.say("Yes?")
    assert (await engine.run("Hello?", "r2")).output_text == "Yes?"


async def test_cancel_in_blocking_tool_drops_late_result(cluster: EngineCluster, model: ScriptedModel) -> None:
    gate = ToolGate()

    def slow(context_variables: Json) -> str:
        gate.enter()
        context_variables["late"] = True
        return "too late"

    engine = await cluster.begin(Agent(name="A", functions=[slow]))
    model.call("slow", id="c1")
    await engine.start_run(gate=gate)
    view = await engine.runs.cancel(KEY, "r1")
    assert view.status == "cancelled"
    model.say("I see.")
    await engine.run("And now?", "r2")
    before = await engine.read_log()
    await gate.open()
    await asyncio.sleep(0)
    assert await engine.read_log() == before
    assert (await engine.read_state()).context_variables == {}
    # The model is told that nobody knows how the call ended.
    assert not find_body_faults(model.raw_requests[1])
    [told] = [message for message in model.requests[1]["messages"] if message["role"] == "tool"]
    assert told["tool_call_id"] == "c1"
    assert "unknown" in told["content"]
