"""Agents that ask others: a session of its own for each call, linked both ways, and ended with the one that asks."""

from __future__ import annotations

import pytest
from msgspec import UNSET
from msgspec.structs import replace

from swarmkeep import Agent
from swarmkeep.decide.drafts import draft_events
from swarmkeep.decide.turns import end_run
from swarmkeep.events.errors import OnHold, SessionBusy, SessionNotFound
from swarmkeep.events.facts import RunInterrupted
from swarmkeep.history.redact import redact
from swarmkeep.runs.identifiers import MOST_DEPTH, derive_child_run
from swarmkeep.runs.sessions import hold_session, release_session
from swarmkeep.store.records import SessionKey
from tests.runs.cluster import KEY, LIMITS, EngineCluster, kill_engine
from tests.runs.teams.team import (
    ask_clerk,
    ask_for_payment,
    ask_hanging_clerk,
    count_model_calls,
    find_child,
    find_result,
    open_team,
)
from tests.support.scripted import USAGE, ScriptedModel

pytestmark = pytest.mark.one_database


async def test_asked_agent_answer_is_result(cluster: EngineCluster, model: ScriptedModel) -> None:
    engine = await open_team(cluster)
    await engine.open_session()
    model.call("ask_clerk", {"input": "Is it open?"}, id="c1")
    model.say("Until six.")
    model.say("It is open until six.")
    view = await engine.run("Open?")
    assert (view.status, view.output_text) == ("completed", "It is open until six.")
    child = await find_child(engine)
    assert await engine.read_types(child) == [
        "session.created", "run.started", "message.added", "message.added", "run.completed",
    ]  # fmt: skip
    asked = (await engine.read_state(child)).messages[0]
    assert asked.message == {"role": "user", "content": "Is it open?", "sender": "Desk"}
    result = find_result(await engine.read_log())
    assert (result.message["content"], result.tool and result.tool.status) == ("Until six.", "ok")
    assert model.requests[1]["messages"][-1] == {"role": "user", "content": "Is it open?"}


async def test_context_goes_down_and_changes_return(cluster: EngineCluster, model: ScriptedModel) -> None:
    engine = await open_team(cluster)
    await engine.open_session(context_variables={"user": "Ada", "kept": 1})
    model.call("ask_clerk", {"input": "Note it."}, id="c1")
    model.call("note", {"text": "late"}, id="n1")
    model.say("Done.")
    model.say("It is noted.")
    view = await engine.run()
    assert view.context_variables == {"user": "Ada", "kept": 1, "note": "late", "seen": "Ada"}


async def test_child_failure_is_a_readable_answer(cluster: EngineCluster, model: ScriptedModel) -> None:
    engine = await open_team(cluster)
    await engine.open_session()
    model.call("ask_clerk", {"input": "Hm?"}, id="c1")
    model.fail(401, message="no such key")
    model.say("The clerk is not there.")
    view = await engine.run()
    assert view.output_text == "The clerk is not there."
    result = find_result(await engine.read_log())
    assert result.tool.status == "error"
    assert "agent 'Clerk', asked by ask_clerk, gave no answer (provider_" in result.message["content"]


async def test_usage_counts_once_and_names_asker(cluster: EngineCluster, model: ScriptedModel) -> None:
    engine = await open_team(cluster)
    await engine.open_session()
    before = await count_model_calls(engine)
    model.call("ask_clerk", {"input": "Hm?"}, id="c1")
    model.say("Yes.")
    model.say("Yes, it is.")
    view = await engine.run()
    assert view.usage.model_calls == 2
    assert view.total_usage is not UNSET
    assert view.total_usage.model_calls == 3
    assert view.total_usage.total_tokens == 3 * USAGE["total_tokens"]
    assert (await engine.read_state()).usage.model_calls == 2
    assert (await engine.read_state(await find_child(engine))).usage.model_calls == 1
    assert await count_model_calls(engine) - before == 3


async def test_run_without_questions_reports_no_total(cluster: EngineCluster, model: ScriptedModel) -> None:
    engine = await open_team(cluster)
    await engine.open_session()
    model.say("Yes.")
    assert (await engine.run()).total_usage is UNSET


async def test_team_needs_one_run_slot(cluster: EngineCluster, model: ScriptedModel) -> None:
    inner = Agent(name="Inner")
    middle = Agent(name="Middle", functions=[inner.as_tool("ask_inner", "Ask.")])
    outer = Agent(name="Outer", functions=[middle.as_tool("ask_middle", "Ask.")])
    engine = await cluster.begin(outer, limits=replace(LIMITS, max_runs_per_tenant=1))
    model.call("ask_middle", {"input": "?"}, id="c1")
    model.call("ask_inner", {"input": "??"}, id="c2")
    model.say("A")
    model.say("B")
    model.say("C")
    assert (await engine.run()).output_text == "C"


async def test_self_asking_agent_terminates(cluster: EngineCluster, model: ScriptedModel) -> None:
    mirror = Agent(name="Mirror")
    mirror.functions.append(mirror.as_tool("ask_mirror", "Ask yourself."))
    engine = await cluster.begin(mirror)
    for depth in range(MOST_DEPTH + 1):
        model.call("ask_mirror", {"input": "?"}, id=f"c{depth}")
    for depth in range(MOST_DEPTH + 1):
        model.say(f"answer {depth}")
    view = await engine.run()
    assert view.output_text == f"answer {MOST_DEPTH}"
    key = KEY
    for _ in range(MOST_DEPTH):
        key = await find_child(engine, key)
    result = find_result(await engine.read_log(key))
    assert "agents may ask one another up to 8 deep" in result.message["content"]
    # What was refused made no session.
    with pytest.raises(SessionNotFound):
        await engine.read_state(await find_child(engine, key))


# Who ends or deletes the session that asks ends those below; what ends below is an answer above.


@pytest.mark.parametrize("end", ["cancelled", "replaced", "cancelled while it waits"])
async def test_end_of_asker_ends_the_asked(cluster: EngineCluster, model: ScriptedModel, end: str) -> None:
    ask = ask_for_payment if end == "cancelled while it waits" else ask_hanging_clerk
    engine, child = await ask(cluster, model)
    if end == "replaced":
        model.say("Hello.")
        await engine.run("Stop.", "r2", on_busy="interrupt")
    else:
        assert (await engine.runs.cancel(KEY, "r1")).status == "cancelled"
    assert [run.status for run in (await engine.read_state(child)).finished] == ["cancelled"]


async def test_cancelled_child_is_answer_above(cluster: EngineCluster, model: ScriptedModel) -> None:
    engine, child = await ask_for_payment(cluster, model)
    model.say("It was cancelled.")
    await engine.runs.cancel(child, derive_child_run(child))
    assert (await engine.wait()).output_text == "It was cancelled."
    assert "was cancelled" in find_result(await engine.read_log()).message["content"]


async def test_deleted_child_is_not_asked_again(cluster: EngineCluster, model: ScriptedModel) -> None:
    engine, child = await ask_for_payment(cluster, model)
    model.say("Nobody knows.")
    await engine.sessions.delete(child, force=True)
    await kill_engine(engine)
    other = await open_team(cluster)
    await other.wait_for_state(lambda state: state.status == "idle")
    assert (await other.wait()).output_text == "Nobody knows."
    assert "was deleted" in find_result(await other.read_log()).message["content"]
    with pytest.raises(SessionNotFound):
        await other.store.state(child)


# Deleted and copied.


async def test_continuing_fork_does_not_ask_again(cluster: EngineCluster, model: ScriptedModel) -> None:
    engine, _ = await ask_for_payment(cluster, model)
    copy = replace(KEY, id="copy")
    await engine.sessions.fork(KEY, session_id=copy.id)
    model.say("It is not known.")
    await engine.runs.resume(copy, "r1")
    assert (await engine.wait(key=copy)).output_text == "It is not known."
    tool_result = find_result(await engine.read_log(copy)).tool
    assert tool_result.status == "unknown_outcome"


async def test_deleting_a_session_deletes_those_below(cluster: EngineCluster, model: ScriptedModel) -> None:
    engine, child = await ask_clerk(cluster, model)
    fork = await engine.sessions.fork(KEY, session_id="copy")
    await engine.sessions.delete(SessionKey(KEY.tenant, fork.id))
    assert (await engine.read_state(child)).seq > 0
    await engine.sessions.delete(KEY)
    with pytest.raises(SessionNotFound):
        await engine.read_state(child)


async def test_hold_covers_sessions_below(cluster: EngineCluster, model: ScriptedModel) -> None:
    engine, child = await ask_clerk(cluster, model)
    await hold_session(engine.store, KEY, "case 12", by=None)
    with pytest.raises(OnHold, match=KEY.id):
        await engine.sessions.delete(child)
    await release_session(engine.store, KEY, by=None)
    await hold_session(engine.store, child, "case 13", by=None)
    with pytest.raises(OnHold, match="case 13"):
        await engine.sessions.delete(KEY, force=True)
    assert (await engine.read_state(KEY)).seq > 0
    await release_session(engine.store, child, by=None)
    await engine.sessions.delete(KEY)


async def test_busy_child_prevents_session_deletion(cluster: EngineCluster, model: ScriptedModel) -> None:
    engine, child = await ask_for_payment(cluster, model)
    with pytest.raises(SessionBusy):
        await engine.sessions.delete(KEY)
    await engine.sessions.delete(KEY, force=True)
    for key in (KEY, child):
        with pytest.raises(SessionNotFound):
            await engine.read_state(key)


async def test_fork_keeps_result_without_an_asker(cluster: EngineCluster, model: ScriptedModel) -> None:
    engine, child = await ask_clerk(cluster, model)
    fork = await engine.sessions.fork(child, session_id="copy")
    assert (fork.parent, fork.forked_from is None) == (UNSET, False)


@pytest.mark.parametrize("left", ["timeout", "removed", "run time"])
async def test_abandoned_call_sessions_are_deleted(cluster: EngineCluster, model: ScriptedModel, left: str) -> None:
    if left == "removed":
        engine, child = await ask_clerk(cluster, model)
        asking = next(entry for entry in (await engine.read_state()).messages if entry.message.get("tool_calls"))
        await engine.sessions.remove_message(KEY, asking.seq)
    else:
        limits = replace(LIMITS, run_seconds=0.3) if left == "run time" else LIMITS
        engine = await open_team(cluster, limits=limits, **({"timeout": 0.3} if left == "timeout" else {}))
        await engine.open_session()
        model.call("ask_clerk", {"input": "Hm?"}, id="c1")
        model.hang()
        if left == "timeout":
            model.say("It takes too long.")
        await engine.run()
        child = await find_child(engine)
        await engine.wait_for_state(lambda state: state.run is None, child)
        model.release()
    await engine.sessions.delete(KEY)
    with pytest.raises(SessionNotFound):
        await engine.read_state(child)


async def test_interrupted_fork_asks_no_agent_again(cluster: EngineCluster, model: ScriptedModel) -> None:
    one, child = await ask_hanging_clerk(cluster, model)
    await one.drain()
    assert (await one.read_state()).finished[-1].status == "interrupted"
    two = await open_team(cluster)
    copy = replace(KEY, id="copy")
    await two.sessions.fork(KEY, session_id=copy.id)
    model.release()
    model.say("It is not known.")
    before = model.request_count
    await two.runs.resume(copy, "r1")
    assert (await two.wait(key=copy)).output_text == "It is not known."
    assert model.request_count == before + 1
    tool_result = find_result(await two.read_log(copy)).tool
    assert tool_result.status == "unknown_outcome"
    # The original goes on where it was.
    model.say("Yes.")
    model.say("Yes, it is.")
    await two.runs.resume(KEY, "r1")
    assert (await two.wait()).output_text == "Yes, it is."
    for key in (KEY, copy, child):
        await two.check_log(key=key)


# What one session repeats of the other.


@pytest.mark.parametrize(
    ("word", "side", "kind"),
    [
        ("question", "above", "message.added"),
        ("question", "below", "message.added"),
        ("answer", "above", "message.added"),
        ("answer", "below", "message.added"),
        ("context", "above", "session.created"),
        ("noted", "above", "context.updated"),
        ("noted", "below", "context.updated"),
    ],
)
async def test_redaction_reaches_sessions_that_copied_it(
    cluster: EngineCluster, model: ScriptedModel, word: str, side: str, kind: str
) -> None:
    engine = await open_team(cluster)
    await engine.open_session(context_variables={"user": "canary-context"})
    model.call("ask_clerk", {"input": "canary-question"}, id="c1")
    model.call("note", {"text": "canary-noted"}, id="n1")
    model.say("canary-answer")
    model.say("It is done.")
    await engine.run()
    child = await find_child(engine)
    here, there = (KEY, child) if side == "above" else (child, KEY)

    async def list_holding(key: SessionKey) -> list[int]:
        events = await engine.read_log(key)
        return [event.seq for event in events if event.type == kind and f"canary-{word}" in event.payload]

    assert await list_holding(there)
    tried = await redact(engine.store, here, (await list_holding(here))[:1], "private", dry_run=True)
    done = await redact(engine.store, here, (await list_holding(here))[:1], "private")
    assert [(copy.session_id, copy.seqs) for copy in tried.forks] == [(there.id, done.forks[0].seqs)]
    assert done.forks[0].redacted
    assert await list_holding(there) == []
    for key in (KEY, child):
        await engine.check_log(key=key)


async def test_redaction_reaches_errors_of_asked_agents(cluster: EngineCluster, model: ScriptedModel) -> None:
    """A provider repeats what it was sent: in the session below, and so in the call's result above."""
    engine = await open_team(cluster)
    await engine.open_session(context_variables={"user": "canary"})
    model.call("ask_clerk", {"input": "Well?"}, id="c1")
    model.fail(400, message="the server does not like canary")
    model.say("It failed.")
    await engine.run()
    keys = (KEY, await find_child(engine))

    async def list_holding() -> list[tuple[str, int]]:
        logs = [(key.id, event) for key in keys for event in await engine.read_log(key)]
        return [(key_id, event.seq) for key_id, event in logs if "canary" in event.payload]

    assert {key_id for key_id, _ in await list_holding()} == {key.id for key in keys}
    await redact(engine.store, KEY, [1], "private")
    assert await list_holding() == []


async def test_busy_session_below_is_named_and_left(cluster: EngineCluster, model: ScriptedModel) -> None:
    engine, child = await ask_for_payment(cluster, model)
    state = await engine.read_state()
    assert state.run is not None
    ended = end_run(state, state.run, RunInterrupted, "interrupted")
    await engine.store.append(KEY, state, draft_events("Desk", ended, "r1"))
    asking = next(event.seq for event in await engine.read_log() if "Pay 7." in event.payload)
    done = await redact(engine.store, KEY, [asking], "private")
    assert [(copy.session_id, copy.redacted) for copy in done.forks] == [(child.id, False)]
