"""Arguments that whoever approves a call has changed: checked, recorded, carried out, and told to the model."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import UNSET
from msgspec.structs import replace

from swarmkeep import Agent, tool
from swarmkeep.decide.commands import Approval
from swarmkeep.decide.drafts import apply_drafts
from swarmkeep.decide.settle import finish_import
from swarmkeep.events.codec import Json
from swarmkeep.events.errors import InvalidRequest, TooLarge
from swarmkeep.events.facts import ApprovalDecided, ApprovalRequested, MessageAdded, ToolStarted
from swarmkeep.events.redaction import is_stand_in, redact_payload
from swarmkeep.history.redact import find_same_text
from swarmkeep.history.replay import replay_session
from tests.runs.cluster import KEY, LIMITS, EngineCluster, kill_engine
from tests.support.scripted import ScriptedModel

pytestmark = pytest.mark.one_database


class Bank:
    def __init__(self) -> None:
        self.paid: list[tuple[str, int]] = []

        @tool(requires_approval=True)
        def pay(to: str, amount: int) -> str:
            """Pay an amount."""
            self.paid.append((to, amount))
            return f"paid {amount} to {to}"

        self.agent = Agent(name="A", functions=[pay])


def approve(arguments: Json | None, **more: Any) -> Approval:
    return Approval(tool_call_id="c1", decision="approve", by="Ann", arguments=arguments, **more)


@pytest.mark.long
async def test_what_runs_is_what_was_approved(cluster: EngineCluster, model: ScriptedModel) -> None:
    bank = Bank()
    engine = await cluster.begin(bank.agent, limits=replace(LIMITS, max_message_bytes=2_000))
    model.call("pay", {"to": "Bob", "amount": 500}, id="c1")
    assert (await engine.run()).stop_reason == "approval"
    before = await engine.read_log()
    for wrong in ({"to": "Bob"}, {"to": "Bob", "amount": "many"}, {"to": "Bob", "amount": 1, "now": True}):
        with pytest.raises(InvalidRequest) as refused:
            await engine.runs.resume(KEY, "r1", approvals=[approve(wrong)])
        assert refused.value.errors[0]["pointer"] == "/approvals/0/arguments"
    with pytest.raises(TooLarge):
        await engine.runs.resume(KEY, "r1", approvals=[approve({"to": "B" * 3_000, "amount": 1})])
    denied = Approval(tool_call_id="c1", decision="deny", arguments={"to": "Bob", "amount": 1})
    with pytest.raises(InvalidRequest):
        await engine.runs.resume(KEY, "r1", approvals=[denied])
    assert await engine.read_log() == before
    model.say("Paid 50.")
    await engine.runs.resume(KEY, "r1", approvals=[approve({"to": "Bob", "amount": 50})])
    view = await engine.wait()
    assert (bank.paid, view.output_text) == ([("Bob", 50)], "Paid 50.")
    events = await engine.read_log()
    decided = next(event for event in events if isinstance(event.fact, ApprovalDecided))
    assert (decided.fact.arguments, decided.fact.by) == ('{"to":"Bob","amount":50}', "Ann")  # type: ignore[union-attr]
    assert [event.fact.arguments for event in events if isinstance(event.fact, ToolStarted)] == [decided.fact.arguments]  # type: ignore[union-attr]
    # Whoever redacts one of the places that say it means all of them.
    says = [event.seq for event in events if event.type in ("approval.decided", "tool.started")]
    told = next(event.seq for event in events if isinstance(event.fact, MessageAdded) and event.fact.tool is not None)
    assert all(find_same_text(events, [seq]) == {*says, told} for seq in (*says, told))
    asked, result = model.requests[-1]["messages"][-2:]
    assert '"amount":500' in asked["tool_calls"][0]["function"]["arguments"].replace(" ", "")
    assert result["content"].startswith("[A person changed the arguments")
    assert 'It was made with: {"to":"Bob","amount":50} What follows' in result["content"]
    assert result["content"].endswith("paid 50 to Bob")
    replayed = await replay_session(engine.store, engine.registry, KEY)
    assert (replayed.matches, replayed.last_seq) == (True, events[-1].seq)
    stand_in = redact_payload(decided)
    assert "Bob" not in stand_in
    assert "Ann" not in stand_in
    assert is_stand_in(replace(decided, payload=stand_in, fact=replace(decided.fact, by="[redacted]", arguments="{}")))


async def test_identical_arguments_are_no_edit(cluster: EngineCluster, model: ScriptedModel) -> None:
    bank = Bank()
    engine = await cluster.begin(bank.agent)
    model.call("pay", '{ "to": "Bob", "amount": 1 }', id="c1")
    await engine.run()
    model.say("Paid.")
    await engine.runs.resume(KEY, "r1", approvals=[approve({"to": "Bob", "amount": 1})])
    await engine.wait()
    decided = next(event.fact for event in await engine.read_log() if isinstance(event.fact, ApprovalDecided))
    assert decided.arguments is UNSET
    assert model.requests[-1]["messages"][-1]["content"] == "paid 1 to Bob"


async def test_edit_survives_crash_but_not_import(cluster: EngineCluster, model: ScriptedModel) -> None:
    bank = Bank()
    engine = await cluster.begin(bank.agent)
    model.calls([("pay", {"to": "Bob", "amount": 500}, "c1"), ("pay", {"to": "Eve", "amount": 7}, "c2")])
    await engine.run()
    # The other call still waits, so nothing runs yet.
    await engine.runs.resume(KEY, "r1", approvals=[approve({"to": "Bob", "amount": 50})])
    assert bank.paid == []
    await kill_engine(engine)
    imported = finish_import(await engine.read_state(), source="export", digest="", by=None)
    anew = [draft.fact for draft in imported if isinstance(draft.fact, ApprovalRequested)]
    assert ["500" in fact.arguments for fact in anew] == [True, False]
    after = apply_drafts(await engine.read_state(), imported)
    assert [call.original_arguments for call in after.run.calls] == [None, None]
    heir = await cluster.open_engine(bank.agent)
    model.say("Paid.")
    await heir.runs.resume(KEY, "r1", approvals=[Approval(tool_call_id="c2", decision="deny")])
    await heir.wait_for_state(lambda state: state.run is None)
    assert bank.paid == [("Bob", 50)]
