"""Whoever started a run does not decide on it, where the decision says so; nor whoever imported it."""

from __future__ import annotations

import pytest

from swarmkeep.decide.commands import Approval, StartRun, resume_run, start_run
from swarmkeep.decide.drafts import apply_drafts, draft_events
from swarmkeep.decide.importing import finish_import
from swarmkeep.events.errors import OwnApproval
from swarmkeep.events.facts import ApprovalRequested, MessageAdded, RunWaiting, SessionCreated
from swarmkeep.events.records import CompletionRecord
from swarmkeep.events.state import State

CALL = {"id": "c1", "type": "function", "function": {"name": "refund", "arguments": "{}"}}
REPLY = MessageAdded(
    message={"role": "assistant", "content": None, "tool_calls": [CALL], "sender": "A"},
    completion=CompletionRecord(),
)


def waiting_run(by: str | None) -> State:
    """A run that waits for a decision on the call `c1`."""
    state = apply_drafts(State(), draft_events("A", [SessionCreated(agent="A")], None))
    command = StartRun(run_id="r1", messages=({"role": "user", "content": "hi"},), by=by)
    state = apply_drafts(state, start_run(state, command))
    asked = ApprovalRequested(tool_call_id="c1", name="refund", arguments="{}")
    return apply_drafts(state, draft_events("A", [REPLY, asked, RunWaiting(pending=())], "r1"))


def decide(state: State, by: str | None, *, may_be_own: bool = False) -> None:
    resume_run(state, "r1", approvals=[Approval(tool_call_id="c1", decision="approve", by=by, may_be_own=may_be_own)])


def test_only_somebody_else_decides() -> None:
    state = waiting_run("Ann")
    with pytest.raises(OwnApproval):
        decide(state, "Ann")
    decide(state, "Bob")
    decide(state, "Ann", may_be_own=True)


def test_nameless_callers_all_may_decide() -> None:
    decide(waiting_run(None), None)
    decide(waiting_run(None), "Bob")


def test_file_claimed_starter_is_not_believed() -> None:
    state = waiting_run("Ann")
    state = apply_drafts(state, finish_import(state, source="export", digest="d", by="Bob"))
    with pytest.raises(OwnApproval):
        decide(state, "Bob")
