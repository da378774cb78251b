"""Agents that are asked while approvals are awaited or servers end: both go on, and nothing is asked twice."""

from __future__ import annotations

import io

import pytest
from msgspec.structs import replace

from swarmkeep import Agent, tool
from swarmkeep.decide.commands import Approval
from swarmkeep.decide.drafts import draft_events
from swarmkeep.decide.turns import end_run
from swarmkeep.events.errors import QuotaExceeded, RunNotWaiting
from swarmkeep.events.facts import RunCancelled, RunInterrupted, RunWaiting, StopReason, ToolStarted
from swarmkeep.history.export import iterate_keys, write_export
from swarmkeep.history.import_export import import_export
from swarmkeep.history.redact import redact
from swarmkeep.history.replay import replay_session
from swarmkeep.runs.identifiers import derive_child_run
from swarmkeep.runs.runs import IdempotentRequest
from swarmkeep.runs.teams import ApprovalBelow
from swarmkeep.store.records import SessionKey
from tests.runs.cluster import KEY, LIMITS, EngineCluster, Server, ToolGate, expire_leases, kill_engine
from tests.runs.teams.team import ask_for_payment, ask_hanging_clerk, find_child, make_team, open_team
from tests.support.scripted import Call, ScriptedModel

pytestmark = pytest.mark.one_database


async def test_asker_waits_for_child_approval(cluster: EngineCluster, model: ScriptedModel) -> None:
    engine, child = await ask_for_payment(cluster, model)
    view = await engine.wait()
    assert (view.status, view.stop_reason) == ("waiting", "approval")
    assert [(call.tool_call_id, call.reason, call.session_id) for call in view.pending] == [("c1", "session", child.id)]
    assert engine.active_session_count() == 0
    below = await engine.runs.wait(child, derive_child_run(child))
    assert [(call.tool_call_id, call.reason) for call in below.pending] == [("p1", "approval")]
    model.say("Paid.")
    model.say("It is paid.")
    await engine.runs.resume(child, below.id, approvals=[Approval(tool_call_id="p1", decision="approve")])
    # It goes on before whoever decided is answered.
    assert (await engine.read_state()).status in ("running", "idle")
    assert (await engine.wait()).output_text == "It is paid."
    assert (await engine.read_types()).count("tool.started") == 1


async def test_mid_chain_decision_is_told_above(cluster: EngineCluster, model: ScriptedModel) -> None:
    desk = make_team()
    engine = await cluster.begin(Agent(name="Head", functions=[desk.as_tool("ask_desk", "Ask the desk.")]))
    model.call("ask_desk", {"input": "Pay 7."}, id="d1")
    model.call("ask_clerk", {"input": "Pay 7."}, id="c1")
    model.call("pay", {"amount": 7}, id="p1")
    await engine.start_run()
    await engine.wait_for_state(lambda state: state.status == "waiting")
    middle = await find_child(engine)
    below = await find_child(engine, middle)
    for text in ("Paid.", "It is paid.", "Done."):
        model.say(text)
    approval = ApprovalBelow(below.id, derive_child_run(below), Approval(tool_call_id="p1", decision="approve"))
    await engine.approvals_below.decide(middle, derive_child_run(middle), [approval])
    # Before recovery looks, which leaves alone for up to a minute what has waited for long.
    assert (await engine.read_state()).status in ("running", "idle")
    assert (await engine.wait()).output_text == "Done."


async def test_decision_reaches_imported_waiting_run(cluster: EngineCluster, model: ScriptedModel) -> None:
    engine, first_child = await ask_for_payment(cluster, model)
    text = b"".join([piece async for piece in write_export(engine.store, iterate_keys([KEY]), alone=True)])
    copy = SessionKey(KEY.tenant, "copy")
    await import_export(engine.store, KEY.tenant, io.BytesIO(text), as_id=copy.id)
    model.call("pay", {"amount": 7}, id="p2")
    await engine.runs.resume(copy, "r1", approvals=[Approval(tool_call_id="c1", decision="approve")])
    [pending] = (await engine.wait(key=copy)).pending
    assert (pending.reason, pending.session_id == first_child.id) == ("session", False)
    child = SessionKey(KEY.tenant, str(pending.session_id))
    model.say("Paid.")
    model.say("It is paid.")
    await engine.runs.resume(
        child, derive_child_run(child), approvals=[Approval(tool_call_id="p2", decision="approve")]
    )
    await engine.wait_for_state(lambda state: state.run is None, copy)
    assert (await engine.reader.get_run(copy, "r1")).output_text == "It is paid."


async def test_parent_decision_is_refused_before_recording(cluster: EngineCluster, model: ScriptedModel) -> None:
    _, child = await ask_for_payment(cluster, model)
    decision = ApprovalBelow(child.id, derive_child_run(child), Approval(tool_call_id="p1", decision="approve"))
    once = IdempotentRequest("key", "d" * 64)
    for refusing in ({"max_session_events": 3}, {"max_stored_bytes": 1}, {"max_tokens_per_day": 1}):
        engine = await open_team(cluster, limits=replace(LIMITS, **refusing))
        before = (await engine.read_state()).seq
        with pytest.raises(QuotaExceeded):
            await engine.approvals_below.decide(KEY, "r1", [decision], idempotency=once)
        assert (await engine.read_state()).seq == before
    engine = await open_team(cluster)
    model.say("Paid.")
    model.say("It is paid.")
    await engine.approvals_below.decide(KEY, "r1", [decision], idempotency=once)
    assert (await engine.wait()).output_text == "It is paid."
    assert (await engine.approvals_below.decide(KEY, "r1", [decision], idempotency=once)).repeated


async def test_decision_is_noticed_by_another_server(cluster: EngineCluster, model: ScriptedModel) -> None:
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
    await two.wait_for_state(lambda state: state.status == "idle")
    assert (await two.wait()).output_text == "It is paid."


async def test_waiting_call_records_its_child_session(cluster: EngineCluster, model: ScriptedModel) -> None:
    engine, child = await ask_for_payment(cluster, model)
    fact = (await engine.read_log())[-1].fact
    assert isinstance(fact, RunWaiting)
    assert fact.pending[0].session_id == child.id


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize("order", ["pa", "ap"])
@pytest.mark.parametrize("first", ["own", "below"])
async def test_own_and_child_approvals_pend_together(
    cluster: EngineCluster, model: ScriptedModel, first: str, order: str, at_once: bool
) -> None:
    paid: list[int] = []

    @tool(requires_approval=True, concurrent=at_once)
    def spend(amount: int) -> str:
        """Spend an amount."""
        paid.append(amount)
        return f"spent {amount}"

    clerk = Agent(name="Clerk", functions=[spend])
    desk = Agent(
        name="Desk",
        functions=[spend, clerk.as_tool("ask_clerk", "Ask the clerk.", concurrent=at_once)],
        concurrent_tools=at_once,
    )
    engine = await cluster.begin(desk)
    calls = {"p": Call("spend", {"amount": 1}, "own"), "a": Call("ask_clerk", {"input": "Spend 2."}, "asked")}
    model.calls([calls[name] for name in order])
    model.call("spend", {"amount": 2}, id="below", when=lambda request: request["messages"][-1]["role"] == "user")
    await engine.start_run()
    if order == "pa" and not at_once:
        # In their order: the clerk is asked once this one is decided.
        await engine.wait_for_state(lambda state: state.status == "waiting")
        first = "own"
    else:
        await engine.wait_for_state(
            lambda state: state.run is not None and {"own", "asked"} == {c.tool_call_id for c in state.run.pending}
        )
    yes = [Approval(tool_call_id="own", decision="approve")]

    async def decide_below() -> None:
        child = await find_child(engine)
        await engine.wait_for_state(lambda state: state.status == "waiting", child)
        approval = [Approval(tool_call_id="below", decision="approve")]
        await engine.runs.resume(child, derive_child_run(child), approvals=approval)

    model.say("Spent.", when=lambda request: request["messages"][-1]["content"] == "spent 2")
    model.say("All spent.")
    if first == "own":
        await engine.runs.resume(KEY, "r1", approvals=yes)
        if order == "pa" and not at_once:
            await engine.wait_for_state(lambda state: state.run is not None and bool(state.run.awaited_calls))
        await decide_below()
    else:
        await decide_below()
        await engine.wait_for_state(
            lambda state: state.run is not None and [c.tool_call_id for c in state.run.pending] == ["own"]
        )
        await engine.runs.resume(KEY, "r1", approvals=yes)
    assert (await engine.wait()).output_text == "All spent."
    assert sorted(paid) == [1, 2]
    await engine.check_log()


# Servers end while one agent asks another: others go on with both, and neither is asked twice.


async def test_taken_over_asker_reuses_the_answer(cluster: EngineCluster, model: ScriptedModel) -> None:
    gate = ToolGate()

    def look() -> str:
        gate.enter()
        return "rain"

    one = await open_team(cluster, look)
    await one.open_session()
    model.call("ask_clerk", {"input": "Weather?"}, id="c1")
    model.call("look", {}, id="l1")
    await one.start_run(gate=gate)
    child = await find_child(one)
    await kill_engine(one)
    # The call that was cut off is told to be of unknown outcome; the asked agent makes something of that.
    model.say("I do not know.")
    model.say("Nobody knows.")
    two = await open_team(cluster, look)
    view = await two.wait()
    assert view.output_text == "Nobody knows."
    assert await find_child(two) == child
    assert [event.fact.attempt for event in await two.read_log() if isinstance(event.fact, ToolStarted)] == [1]
    assert "unknown_outcome" not in [entry.tool.status for entry in (await two.read_state()).messages if entry.tool]
    await gate.open()


async def test_asked_run_continues_on_another_server(cluster: EngineCluster, model: ScriptedModel) -> None:
    one, child = await ask_hanging_clerk(cluster, model)
    # Its server loses the one that is asked, and keeps the one that asks.
    two = await open_team(cluster)
    one._worker.tasks.abandon(child)
    await expire_leases(one)
    model.say("Yes.")
    model.say("Yes, it is.")
    await two._worker.recovery.recover()
    view = await two.wait()
    assert view.output_text == "Yes, it is."
    assert (await two.read_types(child)).count("message.added") == 2


async def test_cancelled_askers_child_is_not_continued(cluster: EngineCluster, model: ScriptedModel) -> None:
    one, child = await ask_hanging_clerk(cluster, model)
    # As if its server had died between the two cancels.
    one.runs.children = None
    await one.runs.cancel(KEY, "r1")
    await kill_engine(one)
    two = await open_team(cluster)
    state = await two.wait_for_state(lambda state: state.run is None, child)
    assert [run.status for run in state.finished] == ["cancelled"]


async def test_stopping_server_leaves_both_resumable(cluster: EngineCluster, model: ScriptedModel) -> None:
    one, child = await ask_hanging_clerk(cluster, model)
    await one.drain()
    assert [run.status for run in (await one.read_state()).finished] == ["interrupted"]
    assert [run.status for run in (await one.read_state(child)).finished] == ["interrupted"]
    two = await open_team(cluster)
    model.say("Yes.")
    model.say("Yes, it is.")
    await two.runs.resume(KEY, "r1")
    assert (await two.wait()).output_text == "Yes, it is."
    assert [run.status for run in (await two.read_state(child)).finished] == ["completed"]


async def stop_above(engine: Server, ending: type[RunInterrupted | RunCancelled], reason: StopReason) -> None:
    """Record that the run above ended, as a server does that dies before it has ended the one below."""
    state = await engine.read_state()
    assert state.run is not None
    await engine.store.append(KEY, state, draft_events("Desk", end_run(state, state.run, ending, reason), "r1"))


async def test_superseded_interrupted_run_frees_child_waiters(cluster: EngineCluster, model: ScriptedModel) -> None:
    engine, child = await ask_for_payment(cluster, model)
    await stop_above(engine, RunInterrupted, "interrupted")
    assert (await engine.read_state(child)).status == "waiting"
    model.say("Hello.")
    await engine.run(run_id="r2")
    assert (await engine.reader.get_run(child, derive_child_run(child))).status == "cancelled"


async def test_ended_caller_grants_no_approval(cluster: EngineCluster, model: ScriptedModel) -> None:
    engine, child = await ask_for_payment(cluster, model)
    await stop_above(engine, RunCancelled, "cancelled")
    approval = Approval(tool_call_id="p1", decision="approve")
    with pytest.raises(RunNotWaiting):
        await engine.runs.resume(child, derive_child_run(child), approvals=[approval])
    assert (await engine.read_types(child))[-1] == "run.cancelled"


@pytest.mark.parametrize("is_asked", [True, False])
async def test_redacted_call_gets_its_original_answer(
    cluster: EngineCluster, model: ScriptedModel, is_asked: bool
) -> None:
    one, child = await ask_hanging_clerk(cluster, model)
    await one.drain()
    await redact(one.store, KEY, [event.seq for event in await one.read_log()], "private")
    two = await open_team(cluster)
    if is_asked:
        model.say("Yes.")
    else:
        await one.sessions.delete(child, force=True)
    model.say("Yes, it is.")
    await two.runs.resume(KEY, "r1")
    assert (await two.wait()).output_text == "Yes, it is."
    given = model.requests[-1]["messages"][-1]["content"]
    lost = "Error: agent 'Clerk', asked by ask_clerk, could not be asked: what it was to be asked was redacted"
    assert given == ("Yes." if is_asked else lost)
    assert (await replay_session(two.store, two.registry, KEY)).divergences == []
