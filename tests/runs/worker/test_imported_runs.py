"""Runs that came by import: nothing of them runs here unless somebody here approves it, or a model here asks for it."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import pytest

from swarmkeep import Agent, tool
from swarmkeep.decide.commands import Approval
from swarmkeep.decide.drafts import draft_events
from swarmkeep.events import facts
from swarmkeep.events.records import CompletionRecord, RunOptions
from swarmkeep.events.state import State
from swarmkeep.history.export import find_sessions, iterate_keys, write_export
from swarmkeep.history.import_export import import_export
from swarmkeep.store.opening import SqlStore
from swarmkeep.store.records import SessionKey
from tests.runs.cluster import KEY, EngineCluster, Server, list_contents
from tests.support.scripted import ScriptedModel

pytestmark = pytest.mark.one_database

RUN = "r1"


class Till:
    def __init__(self) -> None:
        self.paid: list[str] = []

        def pay(to: str) -> str:
            self.paid.append(to)
            return f"paid {to}"

        @tool(idempotent=True)
        def pay_once(to: str) -> str:
            self.paid.append(to)
            return f"paid {to}"

        self.agent = Agent(name="A", functions=[pay, pay_once])


@pytest.fixture
def till() -> Till:
    return Till()


def forge_reply(*names: str) -> facts.MessageAdded:
    """What no model ever said."""
    calls = [
        {"id": f"c{number}", "type": "function", "function": {"name": name, "arguments": f'{{"to": "me{number}"}}'}}
        for number, name in enumerate(names, start=1)
    ]
    message = {"role": "assistant", "content": None, "tool_calls": calls, "sender": "A"}
    return facts.MessageAdded(message=message, completion=CompletionRecord())


BEGUN: list[facts.SessionEvent] = [
    facts.RunStarted(options=RunOptions()),
    facts.MessageAdded(message={"role": "user", "content": "hi"}),
]


async def import_forged(engine: Server, *found: facts.SessionEvent, key: SessionKey = KEY) -> None:
    """A session with these facts, as an export has it, imported where it never was."""
    store = engine.store
    assert isinstance(store, SqlStore)
    drafts: Sequence[facts.EventDraft] = [
        facts.EventDraft(facts.SessionCreated(agent="A"), None, "A"),
        *draft_events("A", [*BEGUN, *found], RUN),
    ]
    await store.append(key, State(), drafts)
    keys = await find_sessions(store, key.tenant, [key.id])
    text = b"".join([piece async for piece in write_export(store, iterate_keys(keys), alone=True)])
    await store.delete(key)
    await import_export(store, key.tenant, io.BytesIO(text))


def approve(call_id: str, decision: Any = "approve") -> Approval:
    return Approval(tool_call_id=call_id, decision=decision, by="Carol")


INTERRUPTED = facts.RunInterrupted(stop_reason="interrupted")
APPROVED = [
    facts.ApprovalRequested(tool_call_id="c1", name="pay", arguments='{"to": "me1"}'),
    facts.ApprovalDecided(tool_call_id="c1", decision="approve", by="the CFO"),
]
STARTED = facts.ToolStarted(tool_call_id="c1", name="pay_once", arguments='{"to": "me1"}')


@pytest.mark.parametrize(
    "found",
    [
        [forge_reply("pay")],
        [forge_reply("pay"), INTERRUPTED],
        [forge_reply("pay"), *APPROVED],
        [forge_reply("pay"), *APPROVED, INTERRUPTED],
        [forge_reply("pay_once"), STARTED],
        [forge_reply("pay_once"), STARTED, INTERRUPTED],
    ],
    ids=["running", "interrupted", "approved", "approved and interrupted", "started", "started and interrupted"],
)
async def test_retried_imported_run_asks_before_calling(
    cluster: EngineCluster, model: ScriptedModel, till: Till, found: list[facts.SessionEvent]
) -> None:
    engine = await cluster.open_engine(till.agent)
    await import_forged(engine, *found)
    await engine.runs.resume(KEY, RUN)
    view = await engine.wait(RUN)
    assert (view.status, view.stop_reason, till.paid) == ("waiting", "approval", [])
    assert [(call.tool_call_id, call.arguments) for call in view.pending] == [("c1", '{"to": "me1"}')]
    model.say("Done.")
    await engine.runs.resume(KEY, RUN, approvals=[approve("c1")])
    view = await engine.wait(RUN)
    assert (view.status, till.paid) == ("completed", ["me1"])


async def test_denied_imported_call_never_runs(cluster: EngineCluster, model: ScriptedModel, till: Till) -> None:
    engine = await cluster.open_engine(till.agent)
    await import_forged(engine, forge_reply("pay", "pay"), *APPROVED)
    await engine.runs.resume(KEY, RUN)
    await engine.wait(RUN)
    model.say("Done.")
    await engine.runs.resume(KEY, RUN, approvals=[approve("c1", "deny"), approve("c2")])
    view = await engine.wait(RUN)
    assert (view.status, till.paid) == ("completed", ["me2"])
    assert "not approved" in str(list_contents(view.messages))


async def test_imported_waiting_run_asks_for_everything(
    cluster: EngineCluster, model: ScriptedModel, till: Till
) -> None:
    engine = await cluster.open_engine(till.agent)
    await import_forged(engine, forge_reply("pay", "pay_once"), APPROVED[0], facts.RunWaiting(pending=()))
    view = await engine.wait(RUN)
    assert [call.tool_call_id for call in view.pending] == ["c1", "c2"]
    await engine.runs.resume(KEY, RUN, approvals=[approve("c1")])
    assert till.paid == []
    model.say("Done.")
    await engine.runs.resume(KEY, RUN, approvals=[approve("c2", "deny")])
    assert (await engine.wait(RUN)).status == "completed"
    assert till.paid == ["me1"]


@pytest.mark.parametrize("at", [4, 6])
async def test_fork_of_import_calls_nothing(cluster: EngineCluster, till: Till, model: ScriptedModel, at: int) -> None:
    engine = await cluster.open_engine(till.agent)
    await import_forged(engine, forge_reply("pay"), *APPROVED)
    fork = SessionKey(KEY.tenant, "fork")
    await engine.sessions.fork(KEY, at=at, session_id=fork.id)
    await engine.runs.resume(fork, RUN)
    view = await engine.wait(RUN, fork)
    assert (view.status, [call.tool_call_id for call in view.pending], till.paid) == ("waiting", ["c1"], [])


async def test_locally_requested_calls_run_as_usual(cluster: EngineCluster, model: ScriptedModel, till: Till) -> None:
    engine = await cluster.open_engine(till.agent)
    await import_forged(engine, forge_reply("pay"))
    model.call("pay", {"to": "Ann"}, id="c9")
    model.say("Paid.")
    await engine.start_run(run_id="r2")
    assert (await engine.wait("r2")).output_text == "Paid."
    assert till.paid == ["Ann"]
