"""Cut calls in logs of earlier releases: what was begun goes on as it did, and nothing else is begun."""

from __future__ import annotations

from swarmkeep.decide.commands import Approval, resume_run
from swarmkeep.decide.drafts import apply_drafts
from swarmkeep.decide.importing import finish_import
from swarmkeep.decide.settle import settle
from swarmkeep.decide.steps import CallTool, next_step
from swarmkeep.decide.turns import make_pending_call, request_approval, start_tool
from swarmkeep.events.facts import ApprovalRequested, MessageAdded, RunInterrupted, RunWaiting, ToolStarted
from swarmkeep.events.records import CompletionRecord
from swarmkeep.events.state import State
from tests.events.given import (
    RUN,
    active_run,
    calling_message,
    given,
    list_facts,
    make_run_started,
    tool_call,
    user_said,
    when,
)

CUT = MessageAdded(
    message=calling_message(tool_call("c0", "pay", arguments='{"amou')),
    completion=CompletionRecord(finish_reason="length"),
)


def ask_to_pay() -> State:
    return given(make_run_started(), user_said(), CUT)


def wait_for_approval() -> State:
    state = ask_to_pay()
    [call] = active_run(state).calls
    return when(state, request_approval(call, None), RunWaiting(pending=(make_pending_call(call, "approval"),)))


def test_approving_cut_call_starts_nothing() -> None:
    state = wait_for_approval()
    approvals = [Approval(tool_call_id="c0", decision="approve")]
    facts = list_facts(settle(state, resume_run(state, RUN, approvals=approvals)))
    assert not [fact for fact in facts if isinstance(fact, ToolStarted)]
    [told] = [fact for fact in facts if isinstance(fact, MessageAdded)]
    assert told.tool is not None
    assert (told.tool.status, "pay was not run" in told.message["content"]) == ("error", True)


def test_human_given_arguments_are_whole() -> None:
    state = wait_for_approval()
    approvals = [Approval(tool_call_id="c0", decision="approve", arguments={"amount": 5})]
    facts = list_facts(settle(state, resume_run(state, RUN, approvals=approvals)))
    assert [fact.arguments for fact in facts if isinstance(fact, ToolStarted)] == ['{"amount":5}']


def test_started_cut_call_keeps_its_start() -> None:
    state = ask_to_pay()
    state = when(state, start_tool(active_run(state).calls[0]))
    assert settle(state, []) == []
    step = next_step(state)
    assert isinstance(step, CallTool)
    assert step.call.attempts == 1


def test_import_asks_no_approval_of_cut_call() -> None:
    state = wait_for_approval()
    drafts = finish_import(state, source="export", digest="d", by="Lee")
    facts = list_facts(drafts)
    assert not [fact for fact in facts if isinstance(fact, ApprovalRequested)]
    assert isinstance(facts[-1], RunInterrupted)
    assert apply_drafts(state, drafts).run is None
