"""Runs on a server's own tasks, and the tasks beside them: with nothing left behind."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from swarmkeep import Agent
from swarmkeep.events.codec import Json
from swarmkeep.runs.watcher import SearchIndexing
from swarmkeep.store.hashing import MAX_PAYLOAD_DEPTH
from swarmkeep.store.opening import open_store
from swarmkeep.store.records import SessionKey
from tests.runs.cluster import KEY, EngineCluster, ToolGate
from tests.runs.worker.servers import AGENT, SECONDS, open_engine, read_resume_reasons
from tests.store.sessions import begin_session
from tests.support.scripted import ScriptedModel

pytestmark = pytest.mark.one_database

# What other servers do.


async def test_remote_change_does_not_stop_run(cluster: EngineCluster, model: ScriptedModel) -> None:
    one, two = await open_engine(cluster), await cluster.open_engine(AGENT)
    await one.start_hanging_run(model, then="Hello.")
    for n in range(5):
        await two.sessions.update(KEY, context_variables={"n": n})
    await one.wait_for_state(lambda state: state.context_variables == {"n": 4})
    await one._worker._on_moved({KEY})
    assert one._worker.is_advancing(KEY)
    model.release()
    assert (await one.wait()).output_text == "Hello."


# Models and tools that misbehave.


@pytest.mark.parametrize("usage", [[], {"prompt_tokens": 2**63, "total_tokens": 2**63}])
async def test_odd_provider_usage_completes_runs(cluster: EngineCluster, model: ScriptedModel, usage: Any) -> None:
    engine = await open_engine(cluster)
    model.call("look", {"city": "Rome"}, usage=usage)
    model.say("Rain.", usage=usage)
    view = await engine.run()
    assert (view.status, view.output_text, view.usage.model_calls) == ("completed", "Rain.", 2)
    assert await read_resume_reasons(engine) == []


def nest(levels: int) -> Json:
    nested: Json = {}
    for _ in range(levels):
        nested = {"in": nested}
    return nested


async def test_unrecordable_reply_fails_its_run(cluster: EngineCluster, model: ScriptedModel) -> None:
    engine = await open_engine(cluster)
    message = {"role": "assistant", "content": "Hi.", "annotations": nest(MAX_PAYLOAD_DEPTH)}
    model.raw({"choices": [{"index": 0, "finish_reason": "stop", "message": message}]})
    view = await engine.run()
    assert view.status == "failed"
    assert (view.error.code, view.error.retryable) == ("provider_malformed", True)
    assert "nested more than" in view.error.message
    assert model.request_count == 1


async def test_run_begins_despite_previous_endless_tool(cluster: EngineCluster, model: ScriptedModel) -> None:
    reached, end = asyncio.Event(), asyncio.Event()

    async def stubborn() -> str:
        reached.set()
        try:
            await asyncio.Event().wait()
        finally:
            await end.wait()
        return "never"

    engine = await open_engine(cluster, Agent(name="A", functions=[stubborn]))
    model.call("stubborn")
    await engine.start_run()
    await reached.wait()
    model.say("Here I am.")
    assert (await engine.run("Hello?", "r2", on_busy="interrupt")).output_text == "Here I am."
    end.set()


# Nothing is left.


async def test_abandoned_tool_threads_end_with_tools(cluster: EngineCluster, model: ScriptedModel) -> None:
    gate, threads = ToolGate(), []

    def slow() -> str:
        threads.append(threading.current_thread())
        gate.enter()
        return "ok"

    engine = await open_engine(cluster, Agent(name="A", functions=[slow]))
    model.call("slow")
    await engine.start_run(gate=gate)
    await engine.runs.cancel(KEY, "r1")
    [thread] = threads
    assert thread.is_alive()
    await gate.open()
    await asyncio.to_thread(thread.join, SECONDS)
    assert not thread.is_alive()


async def test_many_runs_leave_nothing_behind(cluster: EngineCluster, model: ScriptedModel) -> None:
    engine = await open_engine(cluster)
    for n in range(30):
        model.say("Hello.")
        view = await engine.run(run_id=f"r{n}")
        assert view.status == "completed"
    worker = engine._worker
    assert (len(worker.tasks), len(worker.waiters)) == (0, 0)
    assert (engine.hub._feeds, engine.hub._partial_items) == ({}, {})


# The task that keeps the index of words: how it goes about what is recorded while it works.


async def test_records_during_indexing_are_gathered_again(sqlite_ready: str) -> None:
    store = open_store(sqlite_ready)
    names = iter(["late"])
    for number in range(3):
        await begin_session(store, SessionKey("default", f"s{number}"))
    index_some = store.index_some

    async def index_some_while_it_goes_on() -> int:
        count = await index_some()
        for name in names:
            await begin_session(store, SessionKey("default", name))
        return count

    watched: Any = store
    watched.index_some = index_some_while_it_goes_on
    indexing = SearchIndexing(store)
    await indexing._index_all()
    assert (await store.count_sessions_behind(), indexing.sessions_behind) == (1, 1)
    # As if it had been told of them just now.
    assert indexing._recorded.is_set()
    await indexing._index_all()
    assert indexing.sessions_behind == 0
    await store.close()
