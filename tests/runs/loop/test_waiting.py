"""The loop waits for approvals and for results from outside, and goes on with what was decided."""

from __future__ import annotations

from collections.abc import Callable

from swarmkeep import Agent, tool
from swarmkeep.decide.commands import Approval, ToolAnswer, resume_run
from swarmkeep.decide.drafts import draft_events
from swarmkeep.decide.settle import settle
from swarmkeep.events.codec import Json
from swarmkeep.events.facts import EventDraft, RunResumed
from swarmkeep.events.records import RunOptions
from swarmkeep.events.state import State
from tests.runs.loop.memory import (
    RUN,
    FixedPolicy,
    RememberingLog,
    ScriptedReplies,
    advance,
    group_commits,
    make_calls,
    open_run,
)


class Gatekeeper:
    def __init__(self) -> None:
        self.ran: list[str] = []

        @tool(requires_approval=True)
        def launch(where: str) -> str:
            self.ran.append(f"launch {where}")
            return f"launched to {where}"

        def look() -> str:
            self.ran.append("look")
            return "rain"

        self.agent = Agent(name="A", functions=[launch, look])

    async def run_until_waiting(self, reply: Json, policy: FixedPolicy | None = None) -> RememberingLog:
        log = await open_run(self.agent)
        await advance(log, ScriptedReplies(reply), self.agent, policy=policy)
        assert log.state.run is not None
        assert log.state.run.status == "waiting"
        return log

    async def resume(
        self, log: RememberingLog, model: ScriptedReplies, decide: Callable[[State], list[EventDraft]]
    ) -> None:
        events = await log.commit(decide)
        await advance(log, model, self.agent, begun=events)


LAUNCHES = make_calls(("1", "look"), ("2", "launch", '{"where": "Mars"}'), ("3", "launch", '{"where": "Venus"}'))


async def test_guarded_calls_wait_after_earlier_ones() -> None:
    keeper = Gatekeeper()
    log = await keeper.run_until_waiting(LAUNCHES, FixedPolicy(expires_at="2026-01-01T00:00:00.000000Z"))
    assert keeper.ran == ["look"]
    assert group_commits(log)[1:] == [
        ["message.added", "approval.requested", "approval.requested", "tool.started"],
        ["message.added", "run.waiting"],
    ]
    assert log.state.run is not None
    pending = log.state.run.pending
    assert [(call.tool_call_id, call.reason) for call in pending] == [("2", "approval"), ("3", "approval")]
    assert {call.expires_at for call in pending} == {"2026-01-01T00:00:00.000000Z"}
    assert pending[0].arguments == '{"where": "Mars"}'


async def test_approved_runs_and_denied_does_not() -> None:
    keeper = Gatekeeper()
    log = await keeper.run_until_waiting(LAUNCHES)
    decisions = [
        Approval(tool_call_id="3", decision="approve"),
        Approval(tool_call_id="2", decision="deny", reason="too far"),
    ]
    await keeper.resume(log, ScriptedReplies("Launched."), lambda state: resume_run(state, RUN, (), decisions))
    assert keeper.ran == ["look", "launch Venus"]
    results = [entry for entry in log.state.messages if entry.tool is not None]
    assert [entry.tool.status for entry in results if entry.tool] == ["ok", "denied", "ok"]
    assert "too far" in results[1].message["content"]
    assert group_commits(log)[3:] == [
        ["approval.decided", "approval.decided", "run.resumed", "message.added", "tool.started"],
        ["message.added"],
        ["message.added", "run.completed"],
    ]


async def test_run_waits_for_last_decision() -> None:
    keeper = Gatekeeper()
    log = await keeper.run_until_waiting(LAUNCHES)
    one = [Approval(tool_call_id="2", decision="approve")]
    await keeper.resume(log, ScriptedReplies(), lambda state: resume_run(state, RUN, (), one))
    assert keeper.ran == ["look"]
    other = [Approval(tool_call_id="3", decision="approve")]
    await keeper.resume(log, ScriptedReplies("Launched."), lambda state: resume_run(state, RUN, (), other))
    assert keeper.ran == ["look", "launch Mars", "launch Venus"]


async def test_approved_cut_call_does_not_rerun() -> None:
    keeper = Gatekeeper()
    log = await keeper.run_until_waiting(make_calls(("1", "launch", '{"where": "Mars"}')))
    approved = [Approval(tool_call_id="1", decision="approve")]
    await log.commit(lambda state: resume_run(state, RUN, (), approved))
    # The process that recorded the start is gone; this is another one, which recorded nothing.
    await log.commit(lambda state: draft_events("A", [RunResumed(reason="recovery")], RUN))
    await advance(log, ScriptedReplies("Who knows."), keeper.agent)
    assert keeper.ran == []
    assert [entry.tool.status for entry in log.state.messages if entry.tool] == ["unknown_outcome"]


async def test_results_from_outside() -> None:
    keeper = Gatekeeper()
    log = await open_run(keeper.agent, options=RunOptions(execute_tools=False))
    await advance(log, ScriptedReplies(make_calls(("1", "look"), ("2", "anything"))), keeper.agent)
    assert log.state.run is not None
    assert [call.reason for call in log.state.run.pending] == ["tool_results"] * 2
    answers = [ToolAnswer(tool_call_id="2", content="no", is_error=True), ToolAnswer(tool_call_id="1", content="sun")]
    model = ScriptedReplies("Done.")
    await keeper.resume(log, model, lambda state: resume_run(state, RUN, answers))
    assert keeper.ran == []
    tools = [(m["tool_call_id"], m["content"]) for m in model.asked[0].messages if m["role"] == "tool"]
    assert tools == [("1", "sun"), ("2", "no")]
    assert [entry.tool.status for entry in log.state.messages if entry.tool] == ["error", "external"]


async def test_in_memory_a_refusal_records_nothing() -> None:
    log = await open_run(Agent(name="A"))
    state, count = log.state, len(log.commits)
    assert await log.commit(lambda state: None) == []
    assert log.state is state
    assert len(log.commits) == count
    assert settle(state, []) == []
