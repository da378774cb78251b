"""Messages are taken out of a session that goes on: by whom, while what happens, and what the audit says of it."""

from __future__ import annotations

import io
import json

import pytest

from swarmkeep import Agent, tool
from swarmkeep.decide.commands import Approval
from swarmkeep.events.errors import RunNotFound, SessionBusy
from swarmkeep.events.messages import list_shown
from swarmkeep.events.views import find_run
from swarmkeep.guardrails import limit_length
from swarmkeep.history.export import iterate_keys, write_export
from swarmkeep.history.import_export import import_export
from swarmkeep.history.redact import redact
from swarmkeep.history.replay import rebuild_request, replay_session
from swarmkeep.history.verify import verify
from swarmkeep.runs.agents import Registry
from swarmkeep.store.records import SessionKey
from tests.runs.cluster import KEY, EngineCluster, Server, ToolGate, list_contents
from tests.support.rules import find_body_faults
from tests.support.scripted import ScriptedModel
from tests.support.scripted.replies import Call

pytestmark = pytest.mark.one_database


def look_up(order: str) -> str:
    """Look an order up."""
    return f"order {order}"


AGENT = Agent(name="A", functions=[look_up])


async def make_talk(engine: Server, model: ScriptedModel) -> list[int]:
    """A run with a call; the seqs of its messages: asked, call, result, answer."""
    await engine.open_session()
    model.call("look_up", {"order": "17"}, id="c1")
    model.say("There it is.")
    await engine.run("Where is 17?", "first")
    return [entry.seq for entry in (await engine.read_state()).messages]


@pytest.mark.parametrize("elsewhere", [False, True])
async def test_next_request_omits_removed_message(
    cluster: EngineCluster, model: ScriptedModel, elsewhere: bool
) -> None:
    engine = await cluster.open_engine(AGENT)
    writer = await cluster.open_engine(AGENT) if elsewhere else engine
    asked, call, result, answer = await make_talk(engine, model)
    await writer.sessions.remove_message(KEY, result, by="Lee")
    await writer.sessions.remove_message(KEY, asked)
    model.say("Good.")
    await engine.run("Thanks.", "second")
    assert [message["role"] for message in model.requests[-1]["messages"]] == ["system", "assistant", "user"]
    state = await engine.read_state()
    assert next(list_shown(state.messages)).seq == answer
    assert [await rebuild_request(engine.store, KEY, seq) for seq in await engine.find_answers()] == model.raw_requests
    checked = await verify(engine.store, KEY)
    assert checked.problems == []
    assert (await replay_session(engine.store, Registry([AGENT]), KEY)).matches
    assert call not in [entry.seq for entry in list_shown(state.messages)]


@pytest.mark.parametrize("longest", [80, 3])
async def test_removal_during_reply_keeps_its_request(
    cluster: EngineCluster, model: ScriptedModel, longest: int
) -> None:
    """Also where a guardrail of its agent refuses what it says."""
    agent = AGENT.model_copy(update={"output_guardrails": [limit_length(longest)]})
    engine = await cluster.open_engine(agent)
    asked, *_ = await make_talk(engine, model)
    model.hang(then="answers", text="Good.")
    model.say("Bye.")
    await engine.start_run("Thanks.", "second")
    await model.wait_for_requests_async(3)
    await engine.sessions.remove_message(KEY, asked)
    model.release()
    await engine.wait("second")
    await engine.run("And?", "third")
    assert b"Where is 17?" in model.raw_requests[2]
    assert b"Where is 17?" not in model.raw_requests[3]
    assert [await rebuild_request(engine.store, KEY, seq) for seq in await engine.find_answers()] == model.raw_requests
    assert (await replay_session(engine.store, Registry([agent]), KEY)).matches


async def test_active_run_message_stays(cluster: EngineCluster, model: ScriptedModel) -> None:
    gate = ToolGate()

    def slow() -> str:
        gate.enter()
        return "done"

    engine = await cluster.begin(Agent(name="A", functions=[slow]))
    model.call("slow", id="c1")
    model.say("Done.")
    await engine.start_run(gate=gate)
    messages = (await engine.read_state()).messages
    assert [entry.role for entry in messages] == ["user", "assistant"]
    for entry in messages:
        with pytest.raises(SessionBusy) as refused:
            await engine.sessions.remove_message(KEY, entry.seq)
        assert refused.value.run_id == "r1"
    with pytest.raises(SessionBusy):
        await engine.runs.hide(KEY, "r1")
    await gate.open()
    await engine.wait()
    for entry in (await engine.read_state()).messages:
        await engine.sessions.remove_message(KEY, entry.seq)
    assert list((await engine.read_state()).messages) != []
    assert list(list_shown((await engine.read_state()).messages)) == []


async def test_earlier_fork_and_export_respect_removal(cluster: EngineCluster, model: ScriptedModel) -> None:
    engine = await cluster.open_engine(AGENT)
    asked, *_ = await make_talk(engine, model)
    before = (await engine.read_state()).seq
    await engine.sessions.remove_message(KEY, asked)
    earlier = await engine.sessions.fork(KEY, at=before)
    later = await engine.sessions.fork(KEY)
    assert (earlier.message_count, later.message_count) == (4, 3)
    exported = b"".join([piece async for piece in write_export(engine.store, iterate_keys([KEY]), alone=True)])
    await import_export(engine.store, "elsewhere", io.BytesIO(exported))
    state = await engine.store.state(SessionKey("elsewhere", KEY.id))
    assert [entry.removed for entry in state.messages] == [True, False, False, False]
    assert (await verify(engine.store, SessionKey("elsewhere", KEY.id))).problems == []


async def test_removed_then_redacted_breaks_no_request(cluster: EngineCluster, model: ScriptedModel) -> None:
    engine = await cluster.open_engine(AGENT)
    asked, *_ = await make_talk(engine, model)
    await engine.sessions.remove_message(KEY, asked, by="Lee")
    removal = (await engine.read_state()).seq
    model.say("Good.")
    await engine.run("Thanks.", "second")
    await redact(engine.store, KEY, [asked, removal], "asked for", publish=engine.publish)
    last = (await engine.find_answers())[-1]
    assert await rebuild_request(engine.store, KEY, last) == model.raw_requests[-1]
    assert b"Lee" not in json.dumps([event.payload for event in await engine.read_log()]).encode()
    assert (await verify(engine.store, KEY)).problems == []
    assert [entry.removed for entry in (await engine.read_state()).messages][:2] == [True, False]
    assert find_body_faults(await rebuild_request(engine.store, KEY, last)) == []


async def test_hidden_run_remains_for_v1(cluster: EngineCluster, model: ScriptedModel) -> None:
    engine = await cluster.open_engine(AGENT)
    await make_talk(engine, model)
    before = await engine.reader.get_run(KEY, "first")
    for _ in range(2):
        await engine.runs.hide(KEY, "first", by="Lee")
    assert await engine.reader.get_run(KEY, "first") == before
    assert (await engine.read_types()).count("run.hidden") == 1
    run = find_run(await engine.read_state(), "first")
    assert run.hidden
    with pytest.raises(RunNotFound):
        await engine.runs.hide(KEY, "nobody")
    model.say("Good.")
    assert (await engine.run("Thanks.", "second")).status == "completed"
    assert list_contents((await engine.reader.get_run(KEY, "first")).messages)[-1] == "There it is."
    assert (await verify(engine.store, KEY)).problems == []


async def test_redacted_arguments_call_does_not_run(cluster: EngineCluster, model: ScriptedModel) -> None:
    done: list[str] = []

    def delete(order: str = "all") -> str:
        """Delete an order."""
        done.append(order)
        return f"deleted {order}"

    @tool(requires_approval=True)
    def refund(order: str = "all") -> str:
        """Pay an order back."""
        return delete(order)

    engine = await cluster.begin(Agent(name="A", functions=[delete, refund]))
    model.calls([Call("delete", {"order": "17"}, id="c1"), Call("refund", {"order": "18"}, id="c2")])
    model.say("Done.")
    await engine.run(run_id="first")
    await engine.runs.resume(KEY, "first", approvals=[make_edit("c2", order="19")])
    assert (await engine.wait(run_id="first")).output_text == "Done."
    last = (await engine.read_state()).seq
    await redact(engine.store, KEY, range(1, last + 1), "private")
    resumed = 0
    for at in range(1, last + 1):
        fork = SessionKey(KEY.tenant, f"fork{at}")
        await engine.sessions.fork(KEY, at=at, session_id=fork.id)
        for run in (await engine.read_state(fork)).finished:
            if run.status == "interrupted":
                if not run.answered:
                    model.say("All right.")
                await engine.runs.resume(fork, "first")
                assert (await engine.wait("first", fork)).status == "completed"
                resumed += 1
        await engine.check_log(key=fork)
    assert (resumed, done) == (last - 2, ["17", "19"])


def make_edit(call_id: str, **arguments: str) -> Approval:
    return Approval(tool_call_id=call_id, decision="approve", arguments=arguments)
