"""Agents that ask others: a session of its own for each call, linked both ways, durable, and over with who asked."""

from __future__ import annotations

import io
from typing import Any

import pytest
from msgspec import UNSET
from msgspec.structs import replace

from swarmkeep import Agent, Result, tool
from swarmkeep.audit.redact import redact
from swarmkeep.audit.replay.session import replay_session
from swarmkeep.audit.transfer.export import iterate_keys, write_export
from swarmkeep.audit.transfer.import_export import import_export
from swarmkeep.domain.decisions.drafts import draft_events
from swarmkeep.domain.decisions.resuming import Approval
from swarmkeep.domain.decisions.turns import end_run
from swarmkeep.domain.envelope import RecordedEvent
from swarmkeep.domain.errors import InvalidRequest, QuotaExceeded, RunNotWaiting, SessionBusy, SessionNotFound
from swarmkeep.domain.events import (
    MessageAdded,
    RunCancelled,
    RunInterrupted,
    RunWaiting,
    SessionCreated,
    StopReason,
    ToolStarted,
)
from swarmkeep.domain.usage import UsageQuery
from swarmkeep.engine.engine import Engine
from swarmkeep.engine.idempotency import IdempotentRequest
from swarmkeep.engine.limits import Limits
from swarmkeep.engine.teams.approving import ApprovalBelow
from swarmkeep.engine.teams.links import MOST_DEPTH, derive_child_run
from swarmkeep.store.ports import SessionKey
from tests.engine.cluster import (
    KEY,
    LIMITS,
    EngineCluster,
    ToolGate,
    expire_leases,
    kill_engine,
    make_start_run,
    open_session,
    read_log,
    read_state,
    read_types,
    run_to_end,
    wait_for_end,
    wait_for_state,
)
from tests.support.scripted import USAGE, ScriptedModel

pytestmark = pytest.mark.one_database


def note(context_variables: dict[str, Any], text: str) -> Result:
    """Write something down."""
    return Result(value="noted", context_variables={"note": text, "seen": context_variables.get("user")})


@tool(requires_approval=True)
def pay(amount: int) -> str:
    """Pay an amount."""
    return f"paid {amount}"


def make_team(*functions: Any, **options: Any) -> Agent:
    """The agent that asks, and one that is asked."""
    clerk = Agent(name="Clerk", functions=[note, pay, *functions])
    return Agent(name="Desk", functions=[clerk.as_tool("ask_clerk", "Ask the clerk.", **options)])


async def open_team(cluster: EngineCluster, *functions: Any, limits: Limits = LIMITS, **options: Any) -> Engine:
    return await cluster.open_engine(make_team(*functions, **options), limits=limits)


async def find_child(engine: Engine, key: SessionKey = KEY) -> SessionKey:
    """The session of the last call that asks."""
    starts = [event.fact for event in await read_log(engine, key) if isinstance(event.fact, ToolStarted)]
    assert starts[-1].session_id is not UNSET
    return SessionKey(key.tenant, starts[-1].session_id)


def find_result(events: list[RecordedEvent]) -> MessageAdded:
    facts = [event.fact for event in events]
    return next(fact for fact in reversed(facts) if isinstance(fact, MessageAdded) and fact.tool is not None)


async def count_model_calls(engine: Engine) -> int:
    """Those of the tenant."""
    return sum(row.model_calls for row in (await engine.store.sum_usage(KEY.tenant, UsageQuery())).rows)


async def test_the_answer_of_the_asked_agent_is_the_result(cluster: EngineCluster, model: ScriptedModel) -> None:
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
    engine = await open_team(cluster)
    await open_session(engine)
    model.call("ask_clerk", {"input": "Hm?"}, id="c1")
    model.say("Yes.")
    model.say("Yes, it is.")
    await run_to_end(engine)
    child = await find_child(engine)
    created = (await read_log(engine, child))[0].fact
    assert isinstance(created, SessionCreated)
    assert created.parent is not UNSET
    assert (created.parent.session_id, created.parent.run_id, created.parent.tool_call_id) == ("s1", "r1", "c1")
    assert (await engine.reader.view(child)).parent == created.parent
    assert (await engine.reader.view(KEY)).parent is UNSET
    record = find_result(await read_log(engine)).tool
    assert record is not None
    assert record.session_id == child.id


async def test_context_variables_go_there_and_what_was_changed_comes_back(
    cluster: EngineCluster, model: ScriptedModel
) -> None:
    engine = await open_team(cluster)
    await open_session(engine, context_variables={"user": "Ada", "kept": 1})
    model.call("ask_clerk", {"input": "Note it."}, id="c1")
    model.call("note", {"text": "late"}, id="n1")
    model.say("Done.")
    model.say("It is noted.")
    view = await run_to_end(engine)
    assert view.context_variables == {"user": "Ada", "kept": 1, "note": "late", "seen": "Ada"}


async def test_what_failed_is_an_answer_that_the_model_can_read(cluster: EngineCluster, model: ScriptedModel) -> None:
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


async def test_usage_is_counted_once_and_shown_with_who_asked(cluster: EngineCluster, model: ScriptedModel) -> None:
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


async def test_a_run_that_asks_nobody_tells_of_no_total(cluster: EngineCluster, model: ScriptedModel) -> None:
    engine = await open_team(cluster)
    await open_session(engine)
    model.say("Yes.")
    assert (await run_to_end(engine)).total_usage is UNSET


async def test_one_run_at_once_is_enough_for_a_team(cluster: EngineCluster, model: ScriptedModel) -> None:
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


async def test_an_agent_that_asks_itself_comes_to_an_end(cluster: EngineCluster, model: ScriptedModel) -> None:
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


async def test_who_is_cancelled_does_not_let_others_go_on(cluster: EngineCluster, model: ScriptedModel) -> None:
    engine = await open_team(cluster)
    await open_session(engine)
    model.call("ask_clerk", {"input": "Hm?"}, id="c1")
    model.hang("Let me ")
    await engine.runs.start(KEY, make_start_run())
    await model.wait_for_requests_async(2)
    assert (await engine.runs.cancel(KEY, "r1")).status == "cancelled"
    child = await find_child(engine)
    state = await read_state(engine, child)
    assert [run.status for run in state.finished] == ["cancelled"]


async def test_who_takes_the_place_of_a_run_ends_what_it_asked_for(
    cluster: EngineCluster, model: ScriptedModel
) -> None:
    engine = await open_team(cluster)
    await open_session(engine)
    model.call("ask_clerk", {"input": "Hm?"}, id="c1")
    model.hang()
    await engine.runs.start(KEY, make_start_run())
    await model.wait_for_requests_async(2)
    child = await find_child(engine)
    model.say("Hello.")
    await run_to_end(engine, "Stop.", "r2", on_busy="interrupt")
    assert [run.status for run in (await read_state(engine, child)).finished] == ["cancelled"]


async def test_who_asked_is_taken_over_and_the_answer_is_not_asked_for_again(
    cluster: EngineCluster, model: ScriptedModel
) -> None:
    gate = ToolGate()

    def look() -> str:
        gate.enter()
        return "rain"

    one = await open_team(cluster, look)
    await open_session(one)
    model.call("ask_clerk", {"input": "Weather?"}, id="c1")
    model.call("look", {}, id="l1")
    await one.runs.start(KEY, make_start_run())
    await gate.wait_until_reached()
    child = await find_child(one)
    await kill_engine(one)
    # The call that was cut off is told to be of unknown outcome; the asked agent makes something of that.
    model.say("I do not know.")
    model.say("Nobody knows.")
    two = await open_team(cluster, look)
    view = await wait_for_end(two)
    assert view.output_text == "Nobody knows."
    assert await find_child(two) == child
    assert [event.fact.attempt for event in await read_log(two) if isinstance(event.fact, ToolStarted)] == [1]
    assert "unknown_outcome" not in [entry.tool.status for entry in (await read_state(two)).messages if entry.tool]
    await gate.open()


async def test_a_run_that_is_asked_goes_on_where_another_server_has_it(
    cluster: EngineCluster, model: ScriptedModel
) -> None:
    one = await open_team(cluster)
    await open_session(one)
    model.call("ask_clerk", {"input": "Hm?"}, id="c1")
    model.hang()
    await one.runs.start(KEY, make_start_run())
    await model.wait_for_requests_async(2)
    child = await find_child(one)
    # Its server loses the one that is asked, and keeps the one that asks.
    two = await open_team(cluster)
    one._worker.tasks.abandon(child)
    await expire_leases(one)
    model.say("Yes.")
    model.say("Yes, it is.")
    await two._worker.recovery.recover()
    view = await wait_for_end(two)
    assert view.output_text == "Yes, it is."
    assert (await read_types(two, child)).count("message.added") == 2


async def test_nobody_goes_on_for_one_that_was_cancelled(cluster: EngineCluster, model: ScriptedModel) -> None:
    one = await open_team(cluster)
    await open_session(one)
    model.call("ask_clerk", {"input": "Hm?"}, id="c1")
    model.hang()
    await one.runs.start(KEY, make_start_run())
    await model.wait_for_requests_async(2)
    child = await find_child(one)
    # As if its server had died between the two cancels.
    one.runs.children = None
    await one.runs.cancel(KEY, "r1")
    await kill_engine(one)
    two = await open_team(cluster)
    state = await wait_for_state(two, lambda state: state.run is None, child)
    assert [run.status for run in state.finished] == ["cancelled"]


async def ask_for_payment(cluster: EngineCluster, model: ScriptedModel, **options: Any) -> tuple[Engine, SessionKey]:
    """A run that waits, because the agent that it asks needs an approval."""
    engine = await open_team(cluster, **options)
    await open_session(engine)
    model.call("ask_clerk", {"input": "Pay 7."}, id="c1")
    model.call("pay", {"amount": 7}, id="p1")
    await engine.runs.start(KEY, make_start_run())
    await wait_for_state(engine, lambda state: state.status == "waiting")
    return engine, await find_child(engine)


async def test_who_asks_waits_while_an_approval_is_needed_below(cluster: EngineCluster, model: ScriptedModel) -> None:
    engine, child = await ask_for_payment(cluster, model)
    view = await wait_for_end(engine)
    assert (view.status, view.stop_reason) == ("waiting", "approval")
    assert [(call.tool_call_id, call.reason, call.session_id) for call in view.pending] == [("c1", "session", child.id)]
    assert engine.active_session_count() == 0
    below = await engine.runs.wait(child, derive_child_run(child))
    assert [(call.tool_call_id, call.reason) for call in below.pending] == [("p1", "approval")]
    model.say("Paid.")
    model.say("It is paid.")
    await engine.runs.resume(child, below.id, approvals=[Approval(tool_call_id="p1", decision="approve")])
    # It goes on before whoever decided is answered.
    assert (await read_state(engine)).status in ("running", "idle")
    assert (await wait_for_end(engine)).output_text == "It is paid."
    assert (await read_types(engine)).count("tool.started") == 1


async def test_a_decision_in_the_middle_is_told_above(cluster: EngineCluster, model: ScriptedModel) -> None:
    desk = make_team()
    engine = await cluster.open_engine(Agent(name="Head", functions=[desk.as_tool("ask_desk", "Ask the desk.")]))
    await open_session(engine)
    model.call("ask_desk", {"input": "Pay 7."}, id="d1")
    model.call("ask_clerk", {"input": "Pay 7."}, id="c1")
    model.call("pay", {"amount": 7}, id="p1")
    await engine.runs.start(KEY, make_start_run())
    await wait_for_state(engine, lambda state: state.status == "waiting")
    middle = await find_child(engine)
    below = await find_child(engine, middle)
    for text in ("Paid.", "It is paid.", "Done."):
        model.say(text)
    approval = ApprovalBelow(below.id, derive_child_run(below), Approval(tool_call_id="p1", decision="approve"))
    await engine.approvals_below.decide(middle, derive_child_run(middle), [approval])
    # Before recovery looks, which leaves alone for up to a minute what has waited for long.
    assert (await read_state(engine)).status in ("running", "idle")
    assert (await wait_for_end(engine)).output_text == "Done."


async def test_so_does_a_run_that_was_imported_as_it_waited(cluster: EngineCluster, model: ScriptedModel) -> None:
    engine, first_child = await ask_for_payment(cluster, model)
    text = b"".join([piece async for piece in write_export(engine.store, iterate_keys([KEY]), alone=True)])
    copy = SessionKey(KEY.tenant, "copy")
    await import_export(engine.store, KEY.tenant, io.BytesIO(text), as_id=copy.id)
    model.call("pay", {"amount": 7}, id="p2")
    await engine.runs.resume(copy, "r1", approvals=[Approval(tool_call_id="c1", decision="approve")])
    [pending] = (await wait_for_end(engine, key=copy)).pending
    assert (pending.reason, pending.session_id == first_child.id) == ("session", False)
    child = SessionKey(KEY.tenant, str(pending.session_id))
    model.say("Paid.")
    model.say("It is paid.")
    await engine.runs.resume(
        child, derive_child_run(child), approvals=[Approval(tool_call_id="p2", decision="approve")]
    )
    await wait_for_state(engine, lambda state: state.run is None, copy)
    assert (await engine.reader.get_run(copy, "r1")).output_text == "It is paid."


async def test_a_decision_from_above_is_refused_before_anything_is_recorded(
    cluster: EngineCluster, model: ScriptedModel
) -> None:
    _, child = await ask_for_payment(cluster, model)
    decision = ApprovalBelow(child.id, derive_child_run(child), Approval(tool_call_id="p1", decision="approve"))
    once = IdempotentRequest("key", "d" * 64)
    for refusing in ({"max_session_events": 3}, {"max_stored_bytes": 1}, {"max_tokens_per_day": 1}):
        engine = await open_team(cluster, limits=replace(LIMITS, **refusing))
        before = (await read_state(engine)).seq
        with pytest.raises(QuotaExceeded):
            await engine.approvals_below.decide(KEY, "r1", [decision], idempotency=once)
        assert (await read_state(engine)).seq == before
    engine = await open_team(cluster)
    model.say("Paid.")
    model.say("It is paid.")
    await engine.approvals_below.decide(KEY, "r1", [decision], idempotency=once)
    assert (await wait_for_end(engine)).output_text == "It is paid."
    assert (await engine.approvals_below.decide(KEY, "r1", [decision], idempotency=once)).repeated


async def test_a_decision_is_noticed_by_another_server(cluster: EngineCluster, model: ScriptedModel) -> None:
    one, child = await ask_for_payment(cluster, model)
    # As if whoever decided died before it told the session above.
    one.runs.children = None
    model.say("Paid.")
    run_id = derive_child_run(child)
    await one.runs.resume(child, run_id, approvals=[Approval(tool_call_id="p1", decision="approve")])
    assert (await one.runs.wait(child, run_id)).status == "completed"
    await kill_engine(one)
    model.say("It is paid.")
    two = await open_team(cluster)
    await wait_for_state(two, lambda state: state.status == "idle")
    assert (await wait_for_end(two)).output_text == "It is paid."


async def test_a_waiting_run_that_is_cancelled_takes_those_below_with_it(
    cluster: EngineCluster, model: ScriptedModel
) -> None:
    engine, child = await ask_for_payment(cluster, model)
    await engine.runs.cancel(KEY, "r1")
    assert [run.status for run in (await read_state(engine, child)).finished] == ["cancelled"]


async def test_who_is_cancelled_below_is_an_answer_above(cluster: EngineCluster, model: ScriptedModel) -> None:
    engine, child = await ask_for_payment(cluster, model)
    model.say("It was cancelled.")
    await engine.runs.cancel(child, derive_child_run(child))
    assert (await wait_for_end(engine)).output_text == "It was cancelled."
    assert "was cancelled" in find_result(await read_log(engine)).message["content"]


async def test_one_that_was_deleted_below_is_not_asked_anew(cluster: EngineCluster, model: ScriptedModel) -> None:
    engine, child = await ask_for_payment(cluster, model)
    model.say("Nobody knows.")
    await engine.sessions.delete(child, force=True)
    await kill_engine(engine)
    other = await open_team(cluster)
    await wait_for_state(other, lambda state: state.status == "idle")
    assert (await wait_for_end(other)).output_text == "Nobody knows."
    assert "was deleted" in find_result(await read_log(other)).message["content"]
    with pytest.raises(SessionNotFound):
        await other.store.state(child)


async def test_a_fork_that_goes_on_does_not_ask_anew(cluster: EngineCluster, model: ScriptedModel) -> None:
    engine, _ = await ask_for_payment(cluster, model)
    copy = replace(KEY, id="copy")
    await engine.sessions.fork(KEY, session_id=copy.id)
    model.say("It is not known.")
    await engine.runs.resume(copy, "r1")
    assert (await wait_for_end(engine, key=copy)).output_text == "It is not known."
    tool_result = find_result(await read_log(engine, copy)).tool
    assert tool_result is not None
    assert tool_result.status == "unknown_outcome"


async def test_deleting_a_session_deletes_those_below(cluster: EngineCluster, model: ScriptedModel) -> None:
    engine = await open_team(cluster)
    await open_session(engine)
    model.call("ask_clerk", {"input": "Hm?"}, id="c1")
    model.say("Yes.")
    model.say("Yes, it is.")
    await run_to_end(engine)
    child = await find_child(engine)
    fork = await engine.sessions.fork(KEY, session_id="copy")
    await engine.sessions.delete(SessionKey(KEY.tenant, fork.id))
    assert (await read_state(engine, child)).seq > 0
    await engine.sessions.delete(KEY)
    with pytest.raises(SessionNotFound):
        await read_state(engine, child)


async def test_a_session_is_not_deleted_while_somebody_is_busy_below(
    cluster: EngineCluster, model: ScriptedModel
) -> None:
    engine, child = await ask_for_payment(cluster, model)
    with pytest.raises(SessionBusy):
        await engine.sessions.delete(KEY)
    await engine.sessions.delete(KEY, force=True)
    for key in (KEY, child):
        with pytest.raises(SessionNotFound):
            await read_state(engine, key)


async def test_a_fork_keeps_the_result_and_is_asked_by_nobody(cluster: EngineCluster, model: ScriptedModel) -> None:
    engine = await open_team(cluster)
    await open_session(engine)
    model.call("ask_clerk", {"input": "Hm?"}, id="c1")
    model.say("Yes.")
    model.say("Yes, it is.")
    await run_to_end(engine)
    child = await find_child(engine)
    fork = await engine.sessions.fork(child, session_id="copy")
    assert (fork.parent, fork.forked_from is None) == (UNSET, False)


async def test_nobody_else_gives_such_ids(cluster: EngineCluster) -> None:
    engine = await open_team(cluster)
    with pytest.raises(InvalidRequest, match="begin with subsess_"):
        await engine.sessions.create("default", session_id="subsess_mine")


async def test_a_server_that_stops_leaves_both_to_be_gone_on_with(cluster: EngineCluster, model: ScriptedModel) -> None:
    one = await open_team(cluster)
    await open_session(one)
    model.call("ask_clerk", {"input": "Hm?"}, id="c1")
    model.hang()
    await one.runs.start(KEY, make_start_run())
    await model.wait_for_requests_async(2)
    child = await find_child(one)
    await one.drain()
    assert [run.status for run in (await read_state(one)).finished] == ["interrupted"]
    assert [run.status for run in (await read_state(one, child)).finished] == ["interrupted"]
    two = await open_team(cluster)
    model.say("Yes.")
    model.say("Yes, it is.")
    await two.runs.resume(KEY, "r1")
    assert (await wait_for_end(two)).output_text == "Yes, it is."
    assert [run.status for run in (await read_state(two, child)).finished] == ["completed"]


async def test_what_waits_is_recorded_as_waiting_for_a_session(cluster: EngineCluster, model: ScriptedModel) -> None:
    engine, child = await ask_for_payment(cluster, model)
    fact = (await read_log(engine))[-1].fact
    assert isinstance(fact, RunWaiting)
    assert fact.pending[0].session_id == child.id


async def stop_above(engine: Engine, ending: type[RunInterrupted | RunCancelled], reason: StopReason) -> None:
    """Record that the run above ended, as a server does that dies before it has ended the one below."""
    state = await read_state(engine)
    assert state.run is not None
    await engine.store.append(KEY, state, draft_events("Desk", end_run(state, state.run, ending, reason), "r1"))


async def test_an_interrupted_run_that_another_follows_leaves_nobody_waiting_below(
    cluster: EngineCluster, model: ScriptedModel
) -> None:
    engine, child = await ask_for_payment(cluster, model)
    await stop_above(engine, RunInterrupted, "interrupted")
    assert (await read_state(engine, child)).status == "waiting"
    model.say("Hello.")
    await run_to_end(engine, run_id="r2")
    assert (await engine.reader.get_run(child, derive_child_run(child))).status == "cancelled"


async def test_nothing_is_approved_for_a_caller_that_has_ended(cluster: EngineCluster, model: ScriptedModel) -> None:
    engine, child = await ask_for_payment(cluster, model)
    await stop_above(engine, RunCancelled, "cancelled")
    approval = Approval(tool_call_id="p1", decision="approve")
    with pytest.raises(RunNotWaiting):
        await engine.runs.resume(child, derive_child_run(child), approvals=[approval])
    assert (await read_types(engine, child))[-1] == "run.cancelled"


@pytest.mark.parametrize("is_asked", [True, False])
async def test_who_goes_on_with_a_redacted_call_gets_the_answer_to_what_was_asked(
    cluster: EngineCluster, model: ScriptedModel, is_asked: bool
) -> None:
    one = await open_team(cluster)
    await open_session(one)
    model.call("ask_clerk", {"input": "Hm?"}, id="c1")
    model.hang()
    await one.runs.start(KEY, make_start_run())
    await model.wait_for_requests_async(2)
    child = await find_child(one)
    await one.drain()
    await redact(one.store, KEY, [event.seq for event in await read_log(one)], "private")
    two = await open_team(cluster)
    if is_asked:
        model.say("Yes.")
    else:
        await one.sessions.delete(child, force=True)
    model.say("Yes, it is.")
    await two.runs.resume(KEY, "r1")
    assert (await wait_for_end(two)).output_text == "Yes, it is."
    given = model.requests[-1]["messages"][-1]["content"]
    lost = "Error: agent 'Clerk', asked by ask_clerk, could not be asked: what it was to be asked was redacted"
    assert given == ("Yes." if is_asked else lost)
    assert (await replay_session(two.store, two.registry, KEY)).divergences == []
