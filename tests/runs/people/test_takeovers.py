"""A person takes over from the agent: no model is asked, the person answers, and hands back with a note."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from swarmkeep import Agent, tool
from swarmkeep.decide.commands import Approval
from swarmkeep.events.errors import IdempotencyMismatch, NotTakenOver, SessionBusy, TakenOverByOther
from swarmkeep.events.facts import PendingCall
from swarmkeep.history.redact import find_same_text
from swarmkeep.history.verify import verify
from swarmkeep.runs.runs import IdempotentRequest
from swarmkeep.store.index import SessionFilter
from tests.runs.cluster import KEY, EngineCluster, Server, ToolGate, kill_engine, list_contents
from tests.support.scripted import ScriptedModel

pytestmark = [pytest.mark.long, pytest.mark.one_database]


async def open_engine(cluster: EngineCluster, *functions: Callable[..., Any]) -> Server:
    return await cluster.begin(Agent(name="A", functions=list(functions)))


async def test_person_answers_until_handback(cluster: EngineCluster, model: ScriptedModel) -> None:
    engine = await open_engine(cluster)
    other = await cluster.open_engine(Agent(name="A"))
    session = await engine.takeovers.take_over(KEY, by="Ann", note="angry customer")
    assert session.taken_over.by == "Ann"  # type: ignore[union-attr]
    listed = (await other.reader.list_page(SessionFilter(KEY.tenant))).sessions[0]
    assert listed.taken_over.note == "angry customer"  # type: ignore[union-attr]
    # Hers already: nothing is recorded again. Somebody else's only by force.
    await engine.takeovers.take_over(KEY, by="Ann")
    with pytest.raises(TakenOverByOther):
        await other.takeovers.take_over(KEY, by="Bob")
    with pytest.raises(TakenOverByOther):
        await other.takeovers.answer(KEY, "Hello.", by="Bob")
    view = await engine.run("Where is my order?")
    assert (view.status, view.stop_reason) == ("waiting", "person")
    assert view.pending == (PendingCall(tool_call_id="", name="", arguments="", reason="person"),)
    with pytest.raises(SessionBusy):
        await engine.start_run("Hello?", "r2")
    await engine.start_run("Hello?", "r2", on_busy="queue")
    # Answered on another server than the one that is asked.
    request = IdempotentRequest("k", "1" * 64)
    said = [await other.takeovers.answer(KEY, "It is on its way.", by="Ann", idempotency=request) for _ in range(2)]
    assert said[0] == said[1]
    assert said[0].view() | {"seq": 0, "at": ""} == {
        "seq": 0, "at": "", "run_id": "r1", "person": "Ann", "sender": "Ann", "role": "assistant",
        "content": "It is on its way.",
    }  # fmt: skip
    with pytest.raises(IdempotencyMismatch):
        await other.takeovers.answer(KEY, "No.", by="Ann", idempotency=IdempotentRequest("k", "2" * 64))
    first = await engine.wait()
    assert (first.status, first.stop_reason, first.output_text) == ("completed", "end_turn", "It is on its way.")
    assert (await engine.wait("r2")).stop_reason == "person"
    # What waits is the agent's now, and it reads the note.
    model.say("You are welcome.")
    await other.takeovers.hand_back(KEY, by="Ann", note="be very kind")
    assert (await engine.wait("r2")).output_text == "You are welcome."
    sent = model.requests[0]["messages"][1:]
    assert [message["role"] for message in sent] == ["user", "assistant", "user", "user"]
    assert list_contents(sent)[:3] == ["Where is my order?", "It is on its way.", "Hello?"]
    assert sent[3]["content"].startswith("[A note from a person")
    events = await engine.read_log()
    noted = next(event.seq for event in events if event.type == "session.handed_back")
    told = next(event.seq for event in events if event.seq > noted and event.type == "message.added")
    assert find_same_text(events, [noted]) == find_same_text(events, [told]) == {noted, told}
    assert sent[3]["content"].endswith("be very kind")
    with pytest.raises(NotTakenOver):
        await engine.takeovers.hand_back(KEY, by="Ann")
    with pytest.raises(NotTakenOver):
        await engine.takeovers.answer(KEY, "More.", by="Ann")
    await engine.check_log()


async def test_speaking_model_is_cut_and_resumes_after(cluster: EngineCluster, model: ScriptedModel) -> None:
    engine = await open_engine(cluster)
    other = await cluster.open_engine(Agent(name="A"))
    model.hang("Let me")
    await engine.start_run()
    await asyncio.to_thread(model.wait_for_requests, 1)
    await other.takeovers.take_over(KEY, by=None)
    assert (await engine.wait()).stop_reason == "person"
    await asyncio.to_thread(model.wait_for_disconnects, 1)
    assert await engine.read_types() == [
        "session.created", "run.started", "message.added", "session.taken_over", "run.waiting",
    ]  # fmt: skip
    model.say("Now I do.")
    await engine.takeovers.hand_back(KEY, by=None)
    assert (await engine.wait()).output_text == "Now I do."
    await engine.check_log()


async def test_begun_call_ends_and_none_follows(cluster: EngineCluster, model: ScriptedModel) -> None:
    gate = ToolGate()
    paid: list[int] = []

    def look() -> str:
        gate.enter()
        return "rain"

    @tool(requires_approval=True)
    def pay(amount: int) -> str:
        paid.append(amount)
        return f"paid {amount}"

    engine = await open_engine(cluster, look, pay)
    other = await cluster.open_engine(Agent(name="A", functions=[look, pay]))
    calls = [("look", {}, "c1"), ("look", {}, "c2"), ("pay", {"amount": 5}, "c3")]
    model.calls(calls)
    await engine.start_run(gate=gate)
    await other.takeovers.take_over(KEY, by="Ann")
    with pytest.raises(SessionBusy):
        await other.takeovers.answer(KEY, "I do it.", by="Ann")
    await gate.open()
    view = await engine.wait()
    assert [(call.reason, call.tool_call_id) for call in view.pending] == [("person", "")]
    assert gate.count == 1
    # What is decided meanwhile is kept, and begins nothing.
    model.say("All done.")
    await other.takeovers.hand_back(KEY, by="Ann", note="go on")
    view = await engine.wait()
    assert (view.stop_reason, gate.count) == ("approval", 2)
    await engine.takeovers.take_over(KEY, by="Ann")
    await engine.runs.resume(KEY, "r1", approvals=[Approval(tool_call_id="c3", decision="approve", by="Bob")])
    assert ((await engine.wait()).stop_reason, paid) == ("person", [])
    await engine.takeovers.hand_back(KEY, by="Bob", force=True)
    assert ((await engine.wait()).output_text, paid) == ("All done.", [5])
    # The first note has waited until there was room for it: between calls and their results there is none.
    assert [message["role"] for message in model.requests[-1]["messages"]][-4:] == ["tool", "tool", "tool", "user"]
    await engine.check_log()


async def test_takeover_prevents_new_batches(cluster: EngineCluster, model: ScriptedModel) -> None:
    gate = ToolGate()
    done: list[str] = []

    @tool(concurrent=False)
    def look() -> str:
        gate.enter()
        return "rain"

    @tool(concurrent=True)
    def note(text: str) -> str:
        done.append(text)
        return "noted"

    @tool(concurrent=True, requires_approval=True)
    def pay(text: str) -> str:
        done.append(text)
        return "paid"

    engine = await cluster.begin(Agent(name="A", functions=[look, note, pay], concurrent_tools=True))
    model.calls([("look", {}, "c1"), ("note", {"text": "a"}, "c2"), ("note", {"text": "b"}, "c3")])
    await engine.start_run(gate=gate)
    await engine.takeovers.take_over(KEY, by="Ann")
    await gate.open()
    assert ((await engine.wait()).stop_reason, done) == ("person", [])
    model.calls([("pay", {"text": "c"}, "c4"), ("pay", {"text": "d"}, "c5")])
    await engine.takeovers.hand_back(KEY, by="Ann")
    assert ((await engine.wait()).stop_reason, sorted(done)) == ("approval", ["a", "b"])
    # Those that an approval has let go begin no sooner.
    await engine.takeovers.take_over(KEY, by="Ann")
    for call, reason in (("c4", "approval"), ("c5", "person")):
        approval = Approval(tool_call_id=call, decision="approve", by="Bob")
        await engine.runs.resume(KEY, "r1", approvals=[approval])
        assert ((await engine.wait()).stop_reason, len(done)) == (reason, 2)
    model.say("All done.")
    await engine.takeovers.hand_back(KEY, by="Ann")
    assert ((await engine.wait()).output_text, sorted(done)) == ("All done.", ["a", "b", "c", "d"])
    await engine.check_log()


async def test_an_answer_leaves_no_call_open(cluster: EngineCluster, model: ScriptedModel) -> None:
    @tool(requires_approval=True)
    def pay(amount: int) -> str:
        raise AssertionError

    clerk = Agent(name="Clerk", functions=[pay])
    engine = await open_engine(cluster, clerk.as_tool("ask_clerk", "Ask."), pay)
    model.calls([("ask_clerk", {"input": "Pay 5."}, "c1"), ("pay", {"amount": 5}, "c2")])
    model.call("pay", {"amount": 5}, id="d1")
    await engine.start_run()
    state = await engine.wait_for_state(lambda state: state.status == "waiting")
    await engine.takeovers.take_over(KEY, by="Ann")
    await engine.takeovers.answer(KEY, "I paid it myself.", by="Ann")
    view = await engine.wait()
    assert (view.status, view.output_text) == ("completed", "I paid it myself.")
    results = [message for message in view.messages if message["role"] == "tool"]
    assert ["Interrupted" in message["content"] for message in results] == [True, False]
    assert "did not run" in results[1]["content"]
    # The agent that was asked is not waited for any more.
    assert state.run is not None
    child = type(KEY)(KEY.tenant, next(call.session_id or "" for call in state.run.calls if call.id == "c1"))
    await engine.wait_for_state(lambda below: below.run is None, child)
    assert (await verify(engine.store, KEY)).valid


async def test_takeover_survives_crashes_but_not_forks(cluster: EngineCluster, model: ScriptedModel) -> None:
    engine = await open_engine(cluster)
    await engine.takeovers.take_over(KEY, by="Ann")
    await engine.start_run()
    await kill_engine(engine)
    heir = await cluster.open_engine(Agent(name="A"))
    await heir._worker.recovery.recover()
    assert (await heir.wait()).stop_reason == "person"
    fork = await heir.sessions.fork(KEY)
    assert (fork.status, fork.taken_over) == ("idle", (await heir.reader.view(KEY, at=1)).taken_over)
    await heir.runs.cancel(KEY, "r1")
    assert (await heir.read_state()).taken_over is not None
    # An answer needs no question.
    said = await heir.takeovers.answer(KEY, "Are you still there?", by="Ann")
    assert (said.run_id, (await heir.read_state()).run) == (None, None)
    model.say("Hello.")
    await heir.takeovers.hand_back(KEY, by="Ann", note="say hello")
    assert (await heir.run("Yes.", "r2")).output_text == "Hello."
    roles = [message["role"] for message in model.requests[0]["messages"]]
    assert roles == ["system", "user", "assistant", "user", "user"]
    assert (await heir.read_log())[-1].type == "run.completed"
    await heir.check_log()
