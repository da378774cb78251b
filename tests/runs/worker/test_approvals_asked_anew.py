"""A call that was recorded before the code asked for approvals needs one all the same, when it is to start."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from swarmkeep import Agent, tool
from swarmkeep.decide.commands import Approval
from swarmkeep.events.facts import ApprovalDecided
from swarmkeep.history.replay import replay_session
from swarmkeep.store.records import SessionKey
from tests.runs.cluster import KEY, LIMITS, EngineCluster, Server, ToolGate, kill_engine, list_contents
from tests.support.scripted import ScriptedModel

pytestmark = pytest.mark.one_database


class Bank:
    """An agent that pays. As long as nobody thought of approvals, its functions need none."""

    def __init__(self) -> None:
        self.paid: list[str] = []
        self.gate = ToolGate()

    def make_agent(self, *, asks: bool, idempotent: bool = False) -> Agent:
        def first() -> str:
            self.gate.enter()
            return "one"

        @tool(requires_approval=asks, idempotent=idempotent)
        def pay(to: str) -> str:
            self.paid.append(to)
            if idempotent and len(self.paid) == 1:
                self.gate.enter()
            return f"paid {to}"

        return Agent(name="A", functions=[first, pay])

    async def cut(self, cluster: EngineCluster, model: ScriptedModel, **options: Any) -> Server:
        """A server that dies while it runs the first call of a reply whose second one pays."""
        engine = await cluster.begin(self.make_agent(asks=False))
        model.calls([("first", {}, "c1"), ("pay", {"to": "Ann"}, "c2"), ("pay", {"to": "Bob"}, "c3")])
        await engine.start_run(**options, gate=self.gate)
        await kill_engine(engine)
        return engine


@pytest.fixture
def bank() -> Bank:
    return Bank()


def decide(call_id: str, decision: Any = "approve") -> Approval:
    return Approval(tool_call_id=call_id, decision=decision, by="Carol")


async def test_older_call_needs_approval_after_takeover(
    cluster: EngineCluster, model: ScriptedModel, bank: Bank
) -> None:
    await bank.cut(cluster, model)
    two = await cluster.open_engine(bank.make_agent(asks=True))
    view = await two.wait()
    await bank.gate.open()
    assert (view.status, view.stop_reason, bank.paid) == ("waiting", "approval", [])
    assert [(call.tool_call_id, call.name, call.reason) for call in view.pending] == [
        ("c2", "pay", "approval"),
        ("c3", "pay", "approval"),
    ]
    assert (await two.read_types())[-4:] == ["message.added", "approval.requested", "approval.requested", "run.waiting"]
    model.say("Done.")
    await two.runs.resume(KEY, "r1", approvals=[decide("c2"), decide("c3", "deny")])
    assert (await two.wait()).status == "completed"
    assert bank.paid == ["Ann"]


async def test_older_call_needs_approval_on_retry(cluster: EngineCluster, model: ScriptedModel, bank: Bank) -> None:
    await bank.cut(cluster, model)
    without = await cluster.open_engine(Agent(name="Other"))
    assert (await without.wait()).status == "interrupted"
    await without.stop()
    two = await cluster.open_engine(bank.make_agent(asks=True))
    await two.runs.resume(KEY, "r1")
    view = await two.wait()
    await bank.gate.open()
    assert (view.status, [call.tool_call_id for call in view.pending], bank.paid) == ("waiting", ["c2", "c3"], [])


async def test_repeated_request_expires_like_others(cluster: EngineCluster, model: ScriptedModel, bank: Bank) -> None:
    await bank.cut(cluster, model)
    two = await cluster.open_engine(bank.make_agent(asks=True), limits=replace(LIMITS, approval_seconds=3600))
    view = await two.wait()
    await bank.gate.open()
    assert len(view.pending) == 2
    assert all(call.expires_at and call.expires_at.endswith("Z") for call in view.pending)
    asked = [event.fact for event in await two.read_log() if event.type == "approval.requested"]
    assert [fact.expires_at for fact in asked] == [call.expires_at for call in view.pending]  # type: ignore[union-attr]


async def test_idempotent_call_waits_for_approval(cluster: EngineCluster, model: ScriptedModel, bank: Bank) -> None:
    one = await cluster.begin(bank.make_agent(asks=False, idempotent=True))
    model.call("pay", {"to": "Ann"}, id="c1")
    await one.start_run(gate=bank.gate)
    await kill_engine(one)
    two = await cluster.open_engine(bank.make_agent(asks=True, idempotent=True))
    view = await two.wait()
    await bank.gate.open()
    assert (view.status, [call.tool_call_id for call in view.pending], bank.paid) == ("waiting", ["c1"], ["Ann"])
    model.say("Paid.")
    await two.runs.resume(KEY, "r1", approvals=[decide("c1")])
    view = await two.wait()
    assert list_contents(view.messages)[-2:] == ["paid Ann", "Paid."]
    assert bank.paid == ["Ann", "Ann"]


async def test_person_approved_call_is_not_asked_again(
    cluster: EngineCluster, model: ScriptedModel, bank: Bank
) -> None:
    one = await cluster.begin(bank.make_agent(asks=True))
    model.calls([("pay", {"to": "Ann"}, "c1"), ("first", {}, "c2"), ("pay", {"to": "Bob"}, "c3")])
    await one.start_run()
    assert (await one.wait()).status == "waiting"
    await one.runs.resume(KEY, "r1", approvals=[decide("c1"), decide("c3")])
    await bank.gate.wait_until_reached()
    await kill_engine(one)
    model.say("Done.")
    two = await cluster.open_engine(bank.make_agent(asks=True))
    view = await two.wait()
    await bank.gate.open()
    assert (view.status, bank.paid) == ("completed", ["Ann", "Bob"])


async def test_forks_do_not_inherit_approval(cluster: EngineCluster, model: ScriptedModel, bank: Bank) -> None:
    """Whoever may make forks and try runs again would have it done as often as they like."""
    engine = await cluster.begin(bank.make_agent(asks=True))
    model.call("pay", {"to": "Ann"}, id="c1")
    await engine.start_run()
    await engine.wait()
    model.say("Paid.")
    await engine.runs.resume(KEY, "r1", approvals=[replace(decide("c1"), arguments={"to": "Bob"})])
    assert (await engine.wait()).status == "completed"
    (decided,) = [event.seq for event in await engine.read_log() if isinstance(event.fact, ApprovalDecided)]
    fork = SessionKey(KEY.tenant, "fork")
    await engine.sessions.fork(KEY, at=decided, session_id=fork.id)
    await engine.runs.resume(fork, "r1")
    view = await engine.wait("r1", fork)
    asked = [(call.tool_call_id, call.reason, call.arguments) for call in view.pending]
    assert (asked, bank.paid) == ([("c1", "approval", '{"to": "Ann"}')], ["Bob"])
    model.say("Paid again.")
    await engine.runs.resume(fork, "r1", approvals=[decide("c1")])
    assert (await engine.wait("r1", fork)).output_text == "Paid again."
    assert bank.paid == ["Bob", "Ann"]
    assert (await replay_session(engine.store, engine.registry, fork)).divergences == []
