"""Limits of a run: its time, its rounds, its history, and the time of those who decide."""

from __future__ import annotations

import threading
from typing import Any, TypeVar

import pytest
from msgspec import UNSET
from msgspec.structs import replace

from swarmkeep import Agent, tool
from swarmkeep.events.facts import Fact, MessageAdded, RunStarted
from swarmkeep.events.records import RunOptions
from tests.runs.cluster import LIMITS, LOOKS_OFTEN, EngineCluster, Server
from tests.support.scripted import ScriptedModel

pytestmark = pytest.mark.one_database

F = TypeVar("F", bound=Fact)
TOO_LONG = {"code": "context_length_exceeded", "message": "too long"}


async def read_facts(engine: Server, kind: type[F]) -> list[F]:
    return [event.fact for event in await engine.read_log() if isinstance(event.fact, kind)]


async def open_engine(cluster: EngineCluster, *agents: Agent, **limits: Any) -> Server:
    return await cluster.begin(*agents, limits=replace(LIMITS, **limits))


# Time.


async def test_slow_model_ends_run_with_words_kept(cluster: EngineCluster, model: ScriptedModel) -> None:
    engine = await open_engine(cluster, Agent(name="A"), run_seconds=1)
    model.hang("So far", then=" so good")
    await engine.start_run(options=RunOptions(stream=True))
    view = await engine.wait()
    assert (view.status, view.stop_reason) == ("failed", "error")
    assert (view.error.code, view.error.retryable) == ("run_timeout", True)
    assert view.output_text in ("", "So far")
    model.release()


async def test_tool_past_run_time_is_abandoned(cluster: EngineCluster, model: ScriptedModel) -> None:
    go_on = threading.Event()

    @tool(timeout=60)
    def dig() -> str:
        go_on.wait(60)
        return "gold"

    engine = await open_engine(cluster, Agent(name="A", functions=[dig]), run_seconds=1)
    model.call("dig", {})
    view = await engine.run()
    go_on.set()
    assert view.error.code == "run_timeout"
    [result] = [fact for fact in await read_facts(engine, MessageAdded) if fact.tool is not None]
    assert result.tool.status == "timeout"
    assert "the run exceeded its time limit" in result.message["content"]


async def test_next_run_has_its_own_deadline(cluster: EngineCluster, model: ScriptedModel) -> None:
    engine = await open_engine(cluster, Agent(name="A"), run_seconds=1)
    model.hang()
    assert (await engine.run()).status == "failed"
    model.release()
    model.say("Hello.")
    assert (await engine.run(run_id="r2")).status == "completed"


# Rounds.


async def test_looping_model_is_stopped(cluster: EngineCluster, model: ScriptedModel) -> None:
    def look() -> str:
        return "nothing"

    engine = await open_engine(cluster, Agent(name="A", functions=[look]), loop_turns=4)
    for _ in range(4):
        model.call("look", {})
    view = await engine.run()
    assert (view.status, view.stop_reason, view.usage.model_calls) == ("completed", "loop_detected", 4)
    model.say("Sorry.")
    assert (await engine.run(run_id="r2")).output_text == "Sorry."


# History.


async def test_outgrown_session_takes_next_message(cluster: EngineCluster, model: ScriptedModel) -> None:
    engine = await open_engine(cluster, Agent(name="A"))
    for index in range(6):
        model.say(f"answer {index}")
        await engine.run(f"ask {index}", run_id=f"r{index}")
    model.fail(400, **TOO_LONG)
    model.fail(400, **TOO_LONG)
    model.say("Still here.")
    view = await engine.run("and now?", run_id="late")
    assert (view.status, view.output_text, view.usage.model_calls) == ("completed", "Still here.", 1)
    sent = [[message["content"] for message in request["messages"]] for request in model.requests[-3:]]
    assert [len(messages) for messages in sent] == [14, 6, 2]
    assert sent[-1][1:] == ["and now?"]
    assert len((await engine.read_state()).messages) == 14

    model.say("And here.")
    await engine.run("more", run_id="later")
    assert [message["content"] for message in model.requests[-1]["messages"]][1:] == ["and now?", "Still here.", "more"]


async def test_overlong_message_fails_alone(cluster: EngineCluster, model: ScriptedModel) -> None:
    engine = await open_engine(cluster, Agent(name="A"))
    model.say("Hello.")
    await engine.run()
    model.fail(400, **TOO_LONG)
    model.fail(400, **TOO_LONG)
    view = await engine.run("very long", run_id="r2")
    assert view.error.code == "context_length_exceeded"
    model.fail(400, **TOO_LONG)
    model.say("Better.")
    assert (await engine.run("short", run_id="r3")).output_text == "Better."


async def test_turn_limit_is_recorded_and_holds(cluster: EngineCluster, model: ScriptedModel) -> None:
    engine = await open_engine(cluster, Agent(name="A"), history_turns=2)
    for index in range(4):
        model.say(f"answer {index}")
        await engine.run(f"ask {index}", run_id=f"r{index}")
    assert [message["content"] for message in model.requests[-1]["messages"]][1:] == ["ask 2", "answer 2", "ask 3"]
    assert {fact.options.history_turns for fact in await read_facts(engine, RunStarted)} == {2}
    completions = [fact.completion for fact in await read_facts(engine, MessageAdded) if fact.completion is not None]
    requests = [completion.request for completion in completions if completion.request is not None]
    assert [request.history_from is UNSET for request in requests] == [True, True, False, False]


# Decisions.


def make_rocket(launched: list[str]) -> Agent:
    @tool(requires_approval=True)
    def launch(where: str) -> str:
        launched.append(where)
        return "launched"

    return Agent(name="A", functions=[launch])


async def test_approvals_expire_while_no_server_runs(cluster: EngineCluster, model: ScriptedModel) -> None:
    launched: list[str] = []
    first = await open_engine(cluster, make_rocket(launched), approval_seconds=0.3)
    model.call("launch", {"where": "Mars"})
    # Where the machine is so busy that the first server denies it, too, the second finds that.
    model.say("Then not.")
    await first.run()
    await first.drain()
    second = await cluster.open_engine(make_rocket(launched), limits=replace(LOOKS_OFTEN, approval_seconds=0.3))
    await second.wait_for_state(lambda state: state.status == "idle")
    assert (await second.wait()).output_text == "Then not."
    assert launched == []
