"""Agents that ask others: a session of its own for each call, linked both ways, and counted once."""

from __future__ import annotations

import pytest
from msgspec import UNSET
from msgspec.structs import replace

from swarmkeep import Agent
from swarmkeep.events.errors import InvalidRequest, SessionNotFound
from swarmkeep.events.facts import SessionCreated
from swarmkeep.runs.identifiers import MOST_DEPTH
from tests.runs.cluster import KEY, LIMITS, EngineCluster, open_session, read_log, read_state, read_types, run_to_end
from tests.runs.teams.team import ask_clerk, count_model_calls, find_child, find_result, open_team
from tests.support.scripted import USAGE, ScriptedModel

pytestmark = pytest.mark.one_database


async def test_asked_agent_answer_is_result(cluster: EngineCluster, model: ScriptedModel) -> None:
    engine = await open_team(cluster)
    await open_session(engine)
    model.call("ask_clerk", {"input": "Is it open?"}, id="c1")
    model.say("Until six.")
    model.say("It is open until six.")
    view = await run_to_end(engine, "Open?")
    assert (view.status, view.output_text) == ("completed", "It is open until six.")
    child = await find_child(engine)
    assert await read_types(engine, child) == [
        "session.created", "run.started", "message.added", "message.added", "run.completed",
    ]  # fmt: skip
    asked = (await read_state(engine, child)).messages[0]
    assert asked.message == {"role": "user", "content": "Is it open?", "sender": "Desk"}
    result = find_result(await read_log(engine))
    assert (result.message["content"], result.tool and result.tool.status) == ("Until six.", "ok")
    assert model.requests[1]["messages"][-1] == {"role": "user", "content": "Is it open?"}


async def test_both_sessions_name_one_another(cluster: EngineCluster, model: ScriptedModel) -> None:
    engine, child = await ask_clerk(cluster, model)
    created = (await read_log(engine, child))[0].fact
    assert isinstance(created, SessionCreated)
    assert created.parent is not UNSET
    assert (created.parent.session_id, created.parent.run_id, created.parent.tool_call_id) == ("s1", "r1", "c1")
    assert (await engine.reader.view(child)).parent == created.parent
    assert (await engine.reader.view(KEY)).parent is UNSET
    record = find_result(await read_log(engine)).tool
    assert record is not None
    assert record.session_id == child.id


async def test_context_goes_down_and_changes_return(cluster: EngineCluster, model: ScriptedModel) -> None:
    engine = await open_team(cluster)
    await open_session(engine, context_variables={"user": "Ada", "kept": 1})
    model.call("ask_clerk", {"input": "Note it."}, id="c1")
    model.call("note", {"text": "late"}, id="n1")
    model.say("Done.")
    model.say("It is noted.")
    view = await run_to_end(engine)
    assert view.context_variables == {"user": "Ada", "kept": 1, "note": "late", "seen": "Ada"}


async def test_child_failure_is_a_readable_answer(cluster: EngineCluster, model: ScriptedModel) -> None:
    engine = await open_team(cluster)
    await open_session(engine)
    model.call("ask_clerk", {"input": "Hm?"}, id="c1")
    model.fail(401, message="no such key")
    model.say("The clerk is not there.")
    view = await run_to_end(engine)
    assert view.output_text == "The clerk is not there."
    result = find_result(await read_log(engine))
    assert result.tool is not None
    assert result.tool.status == "error"
    assert "agent 'Clerk', asked by ask_clerk, gave no answer (provider_" in result.message["content"]


async def test_usage_counts_once_and_names_asker(cluster: EngineCluster, model: ScriptedModel) -> None:
    engine = await open_team(cluster)
    await open_session(engine)
    before = await count_model_calls(engine)
    model.call("ask_clerk", {"input": "Hm?"}, id="c1")
    model.say("Yes.")
    model.say("Yes, it is.")
    view = await run_to_end(engine)
    assert view.usage.model_calls == 2
    assert view.total_usage is not UNSET
    assert view.total_usage.model_calls == 3
    assert view.total_usage.total_tokens == 3 * USAGE["total_tokens"]
    assert (await read_state(engine)).usage.model_calls == 2
    assert (await read_state(engine, await find_child(engine))).usage.model_calls == 1
    assert await count_model_calls(engine) - before == 3


async def test_run_without_questions_reports_no_total(cluster: EngineCluster, model: ScriptedModel) -> None:
    engine = await open_team(cluster)
    await open_session(engine)
    model.say("Yes.")
    assert (await run_to_end(engine)).total_usage is UNSET


async def test_team_needs_one_run_slot(cluster: EngineCluster, model: ScriptedModel) -> None:
    inner = Agent(name="Inner")
    middle = Agent(name="Middle", functions=[inner.as_tool("ask_inner", "Ask.")])
    outer = Agent(name="Outer", functions=[middle.as_tool("ask_middle", "Ask.")])
    engine = await cluster.open_engine(outer, limits=replace(LIMITS, max_runs_per_tenant=1))
    await open_session(engine)
    model.call("ask_middle", {"input": "?"}, id="c1")
    model.call("ask_inner", {"input": "??"}, id="c2")
    model.say("A")
    model.say("B")
    model.say("C")
    assert (await run_to_end(engine)).output_text == "C"


async def test_self_asking_agent_terminates(cluster: EngineCluster, model: ScriptedModel) -> None:
    mirror = Agent(name="Mirror")
    mirror.functions.append(mirror.as_tool("ask_mirror", "Ask yourself."))
    engine = await cluster.open_engine(mirror)
    await open_session(engine)
    for depth in range(MOST_DEPTH + 1):
        model.call("ask_mirror", {"input": "?"}, id=f"c{depth}")
    for depth in range(MOST_DEPTH + 1):
        model.say(f"answer {depth}")
    view = await run_to_end(engine)
    assert view.output_text == f"answer {MOST_DEPTH}"
    key = KEY
    for _ in range(MOST_DEPTH):
        key = await find_child(engine, key)
    result = find_result(await read_log(engine, key))
    assert "agents may ask one another up to 8 deep" in result.message["content"]
    # What was refused made no session.
    with pytest.raises(SessionNotFound):
        await read_state(engine, await find_child(engine, key))


async def test_nobody_else_gives_such_ids(cluster: EngineCluster) -> None:
    engine = await open_team(cluster)
    with pytest.raises(InvalidRequest, match="begin with subsess_"):
        await engine.sessions.create("default", session_id="subsess_mine")
