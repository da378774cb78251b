"""Runs outlive the server that began them: cut at each step, and taken over."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from swarmkeep import Agent
from swarmkeep.events.records import RunOptions
from swarmkeep.runs.limits import Limits
from tests.runs.cluster import KEY, EngineCluster, Server, kill_engine
from tests.runs.worker.servers import AGENT, SECONDS, count_answers, open_engine, read_resume_reasons
from tests.support.rules import find_body_faults
from tests.support.scripted import ScriptedModel


async def test_run_cut_in_model_call_asks_again(cluster: EngineCluster, model: ScriptedModel) -> None:
    one = await open_engine(cluster)
    await one.start_hanging_run(model, options=RunOptions(stream=True))
    await kill_engine(one)
    model.say("Hello.")
    two = await cluster.open_engine(AGENT)
    view = await two.wait()
    assert (view.status, view.output_text) == ("completed", "Hello.")
    assert model.raw_requests[0] == model.raw_requests[1]
    assert await two.read_types() == [
        "session.created", "run.started", "message.added", "run.resumed", "message.added", "run.completed",
    ]  # fmt: skip
    assert await read_resume_reasons(two) == ["recovery"]


@pytest.mark.parametrize("step", range(2, 7))
async def test_run_cut_after_any_commit_finishes(cluster: EngineCluster, model: ScriptedModel, step: int) -> None:
    """The server stops right after its n-th commit of the run, whichever that is."""
    calls: list[str] = []

    def note(text: str) -> str:
        calls.append(text)
        return f"noted {text}"

    agent = Agent(name="A", functions=[note])
    one = await open_engine(cluster, agent)
    stopped = asyncio.Event()
    stop_after(one, step, stopped)
    # The script follows what the model is shown, so that it is the same however often it is asked.
    model.call("note", {"text": "x"}, id="c1", when=lambda request: count_answers(request) == 0)
    model.call("note", {"text": "y"}, id="c2", when=lambda request: count_answers(request) == 1)
    model.say("Done.", when=lambda request: count_answers(request) == 2)
    await one.start_run()
    async with asyncio.timeout(SECONDS):
        await stopped.wait()
    await kill_engine(one)
    two = await cluster.open_engine(agent)
    view = await two.wait()
    assert view.status == "completed"
    assert view.output_text == "Done."
    assert len(calls) == len(set(calls)), "a tool ran twice"
    events = await two.read_log()
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    for body in model.raw_requests:
        assert not find_body_faults(body)


def stop_after(engine: Server, step: int, stopped: asyncio.Event) -> None:
    """Let the engine never hear that its commit number `step` from now was made."""
    append = engine.store.append
    left = step

    async def counted(*args: Any, **kwargs: Any) -> Any:
        nonlocal left
        appended = await append(*args, **kwargs)
        left -= 1
        if left == 0:
            stopped.set()
            await asyncio.Event().wait()
        return appended

    engine.store.append = counted  # type: ignore[method-assign]


# As often as it takes, and no more.


async def test_run_with_many_takeovers_is_interrupted(cluster: EngineCluster, model: ScriptedModel) -> None:
    limits = Limits(lease_seconds=30, grace_seconds=0.05, max_recoveries=2)
    engine = await open_engine(cluster, limits=limits)
    await engine.start_hanging_run(model)
    for n in (2, 3):
        await kill_engine(engine)
        model.hang()
        engine = await cluster.open_engine(AGENT, limits=limits)
        await model.wait_for_requests_async(n)
    await kill_engine(engine)
    engine = await cluster.open_engine(AGENT, limits=limits)
    view = await engine.wait()
    assert view.status == "interrupted"
    assert view.error.code == "too_many_recoveries"
    assert await read_resume_reasons(engine) == ["recovery", "recovery"]
    model.say("At last.")
    await engine.runs.resume(KEY, "r1")
    assert (await engine.wait()).output_text == "At last."


async def test_progressing_run_has_unlimited_takeovers(cluster: EngineCluster, model: ScriptedModel) -> None:
    limits = Limits(lease_seconds=30, grace_seconds=0.05, max_recoveries=1)
    engine = await open_engine(cluster, limits=limits)
    model.hang()
    await engine.start_run()
    for n in range(3):
        await model.wait_for_requests_async(2 * n + 1)
        await kill_engine(engine)
        model.call("look", {"city": "Oslo"})
        model.hang()
        engine = await cluster.open_engine(AGENT, limits=limits)
        await model.wait_for_requests_async(2 * n + 3)
    await kill_engine(engine)
    model.say("Done.")
    engine = await cluster.open_engine(AGENT, limits=limits)
    assert (await engine.wait()).status == "completed"
