"""Calls that run at once have one outcome in any order of their ends; cut calls of earlier releases go on."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import pytest
from hypothesis import given as for_all
from hypothesis import strategies as st
from msgspec import UNSET

from swarmkeep.decide.commands import Approval, ToolAnswer, resume_run
from swarmkeep.decide.drafts import apply_drafts, draft_events
from swarmkeep.decide.settle import Approvals, find_outside_step, finish_import, settle
from swarmkeep.decide.steps import AskModel, CallTool, CallTools, next_step
from swarmkeep.decide.turns import (
    ToolOutcome,
    end_run,
    find_batch,
    make_pending_call,
    record_reply,
    record_result,
    request_approval,
    start_tool,
)
from swarmkeep.events.codec import Json
from swarmkeep.events.facts import (
    ApprovalRequested,
    ContextUpdated,
    EventDraft,
    MessageAdded,
    RunCancelled,
    RunInterrupted,
    RunResumed,
    RunWaiting,
    SessionCreated,
    SessionForked,
    ToolStarted,
)
from swarmkeep.events.records import CallerFunction, CallerTool, CompletionRecord
from swarmkeep.events.state import State
from tests.events.given import (
    RUN,
    active_run,
    calling_message,
    given,
    list_facts,
    list_types,
    make_run_started,
    record_drafts,
    running,
    tool_call,
    user_said,
    when,
)

CONCURRENT = ("look", "ask", "note")


def rules(guarded: Collection[str] = (), max_calls: int = 16) -> Approvals:
    return Approvals(
        find_guarded=lambda state: guarded,
        find_batch=lambda state, run: find_batch(run, CONCURRENT, guarded, max_calls=max_calls),
    )


def ask_for(
    *names: str, guarded: Collection[str] = (), max_calls: int = 16, context: Json | None = None, caller: str = ""
) -> tuple[State, list[EventDraft]]:
    """A run whose model has asked for calls c0, c1, … to these functions; and what was recorded with its reply."""
    options: Json = {"tools": (CallerTool(function=CallerFunction(name=caller)),)} if caller else {}
    created = SessionCreated(agent="triage", context_variables=context or {})
    state = given(created, make_run_started(**options), user_said())
    message = calling_message(*(tool_call(f"c{number}", name) for number, name in enumerate(names)))
    facts = record_reply(active_run(state), message, CompletionRecord(), needs_approval=set(guarded), expires_at=None)
    drafts = settle(state, draft_events("triage", facts, "run_a"), approvals=rules(guarded, max_calls))
    return record_drafts(state, drafts), drafts


def end_call(state: State, call_id: str, outcome: ToolOutcome, guarded: Collection[str] = ()) -> list[EventDraft]:
    run = active_run(state)
    call = next(call for call in run.calls if call.id == call_id)
    facts = record_result(state, run, call, outcome)
    return settle(state, draft_events("triage", facts, run.id), approvals=rules(guarded))


def list_started(drafts: Sequence[EventDraft]) -> list[str]:
    return [fact.tool_call_id for fact in list_facts(drafts) if isinstance(fact, ToolStarted)]


def changed(**patch: object) -> ToolOutcome:
    return ToolOutcome(status="ok", content="done", patch=dict(patch))


# Which start together.


def test_adjacent_concurrent_calls_start_together() -> None:
    state, drafts = ask_for("look", "ask", "look")
    assert list_types(drafts) == ["message.added", "tool.started", "tool.started", "tool.started"]
    assert list_started(drafts) == ["c0", "c1", "c2"]
    step = find_outside_step(state)
    assert isinstance(step, CallTools)
    assert [call.id for call in step.calls] == ["c0", "c1", "c2"]


@pytest.mark.parametrize(
    ("names", "started", "following"),
    [
        (("pay", "look", "ask"), ["c0"], ["c1", "c2"]),
        (("look", "pay", "ask"), ["c0"], ["c1"]),
        (("look", "ask", "pay", "note"), ["c0", "c1"], ["c2"]),
        (("look",), ["c0"], []),
        (("pay", "pay"), ["c0"], ["c1"]),
    ],
)
def test_other_functions_run_alone_in_turn(names: tuple[str, ...], started: list[str], following: list[str]) -> None:
    state, drafts = ask_for(*names)
    assert list_started(drafts) == started
    for call_id in started:
        drafts = end_call(state, call_id, changed())
        state = record_drafts(state, drafts)
    # What comes next had to wait for all of them.
    assert list_started(drafts) == following


def test_awaited_approvals_delay_no_concurrent_calls() -> None:
    state, drafts = ask_for("ask", "look", "note", guarded=["ask"])
    assert list_started(drafts) == ["c1", "c2"]
    assert "run.waiting" not in list_types(drafts)
    state = record_drafts(state, end_call(state, "c2", changed(a=2), ["ask"]))
    drafts = end_call(state, "c1", changed(a=1), ["ask"])
    assert list_types(drafts) == ["message.added", "run.waiting"]
    state = record_drafts(state, drafts)
    assert (state.status, state.context_variables) == ("waiting", {})
    resumed = resume_run(state, "run_a", approvals=[Approval(tool_call_id="c0", decision="approve")])
    drafts = settle(state, resumed, approvals=rules(["ask"]))
    assert list_started(drafts) == ["c0"]
    state = record_drafts(state, drafts)
    state = record_drafts(state, end_call(state, "c0", changed(a=0, b=0)))
    assert state.context_variables == {"a": 2, "b": 0}
    assert find_outside_step(state) == AskModel()


def test_denied_call_answered_and_dependents_changed() -> None:
    state, _ = ask_for("ask", "look", guarded=["ask"])
    state = record_drafts(state, end_call(state, "c1", changed(a=1), ["ask"]))
    resumed = resume_run(state, "run_a", approvals=[Approval(tool_call_id="c0", decision="deny")])
    drafts = settle(state, resumed, approvals=rules(["ask"]))
    assert list_types(drafts) == ["approval.decided", "run.resumed", "message.added", "context.updated"]
    assert record_drafts(state, drafts).context_variables == {"a": 1}


def test_waiting_call_stops_other_functions() -> None:
    _, drafts = ask_for("pay", "look", "ask", guarded=["pay"])
    assert list_started(drafts) == []
    assert list_types(drafts)[-1] == "run.waiting"


def test_callers_function_between_is_harmless() -> None:
    state, drafts = ask_for("look", "theirs", "ask", caller="theirs")
    assert list_started(drafts) == ["c0", "c2"]
    # Nothing that was changed here waits for what comes from outside.
    drafts = end_call(state, "c0", changed(a=0))
    state = record_drafts(state, drafts)
    drafts = end_call(state, "c2", changed(a=2))
    assert list_types(drafts) == ["message.added", "context.updated", "run.waiting"]
    state = record_drafts(state, drafts)
    answered = resume_run(state, "run_a", [ToolAnswer(tool_call_id="c1", content="so")])
    assert find_outside_step(record_drafts(state, settle(state, answered))) == AskModel()


def test_simultaneous_starts_are_limited() -> None:
    state, drafts = ask_for(*["look"] * 5, max_calls=2)
    assert list_started(drafts) == ["c0", "c1"]
    state = record_drafts(state, end_call(state, "c1", changed()))
    run = active_run(state)
    call = run.calls[0]
    facts = record_result(state, run, call, changed())
    drafts = settle(state, draft_events("triage", facts, run.id), approvals=rules(max_calls=2))
    assert list_started(drafts) == ["c2", "c3"]


# What they change.


def test_change_waits_for_earlier_calls() -> None:
    state, _ = ask_for("look", "ask", "note", context={"a": 0})
    drafts = end_call(state, "c2", changed(a=2))
    [result] = list_facts(drafts)
    assert isinstance(result, MessageAdded)
    assert result.tool.context is not UNSET
    assert result.tool.context.patch == {"a": 2}
    state = record_drafts(state, drafts)
    assert state.context_variables == {"a": 0}
    state = record_drafts(state, end_call(state, "c1", changed(b=1)))
    assert state.context_variables == {"a": 0}
    drafts = end_call(state, "c0", changed(a=9))
    made = [(fact.tool_call_id, fact.patch) for fact in list_facts(drafts) if isinstance(fact, ContextUpdated)]
    assert made == [("c0", {"a": 9}), ("c1", {"b": 1}), ("c2", {"a": 2})]
    state = record_drafts(state, drafts)
    assert state.context_variables == {"a": 2, "b": 1}
    assert [call.held for call in active_run(state).calls] == [None] * 3


def test_in_order_endings_recorded_as_before() -> None:
    state, _ = ask_for("look", "ask")
    drafts = end_call(state, "c0", changed(a=1))
    assert list_types(drafts) == ["message.added", "context.updated"]
    [result, _] = list_facts(drafts)
    assert isinstance(result, MessageAdded)
    assert result.tool.context is UNSET


def test_whole_value_replaces_others_changes() -> None:
    state, _ = ask_for("look", "ask", context={"cart": {"x": 1}})
    second = ToolOutcome(status="ok", content="", values={"cart": {"y": 2, "z": None}})
    state = record_drafts(state, end_call(state, "c1", second))
    first = ToolOutcome(status="ok", content="", patch={"cart": {"w": 0}})
    drafts = end_call(state, "c0", first)
    assert record_drafts(state, drafts).context_variables == {"cart": {"y": 2, "z": None}}
    last = list_facts(drafts)[-1]
    assert isinstance(last, ContextUpdated)
    assert (last.patch, last.nulls) == ({"cart": {"x": None, "w": None, "y": 2}}, ("/cart/z",))


def test_last_handoff_in_call_order_wins() -> None:
    for order in (("c0", "c1"), ("c1", "c0")):
        state, _ = ask_for("look", "ask")
        for call_id in order:
            outcome = ToolOutcome(status="ok", content="", handoff=f"agent of {call_id}")
            state = record_drafts(state, end_call(state, call_id, outcome))
        assert state.agent == "agent of c1"


def test_cancel_keeps_changes_and_handoffs() -> None:
    state, _ = ask_for("look", "ask", "note")
    outcome = ToolOutcome(status="ok", content="", patch={"a": 1}, handoff="other")
    state = record_drafts(state, end_call(state, "c1", outcome))
    facts = end_run(state, active_run(state), RunCancelled, "cancelled")
    assert [fact.type for fact in facts] == ["context.updated", "handoff.made", "run.cancelled"]
    state = when(state, *facts)
    assert (state.context_variables, state.agent) == ({"a": 1}, "other")


def test_interrupted_run_changes_only_once() -> None:
    state, _ = ask_for("look", "ask")
    state = record_drafts(state, end_call(state, "c1", changed(a=1)))
    facts = end_run(state, active_run(state), RunInterrupted, "interrupted")
    assert [fact.type for fact in facts] == ["context.updated", "run.interrupted"]
    state = when(state, *facts)
    state = when(state, *draft_events("triage", [RunResumed(reason="recovery")], "run_a"))
    state = when(state, ContextUpdated(patch={"a": 5}))
    assert isinstance(find_outside_step(state), CallTool)
    assert list_types(end_call(state, "c0", changed(b=1))) == ["message.added", "context.updated"]
    assert record_drafts(state, end_call(state, "c0", changed())).context_variables == {"a": 5}


def test_outdated_no_op_change_made_once() -> None:
    state, _ = ask_for("look", "ask", "note")
    state = record_drafts(state, end_call(state, "c1", changed(a=1)))
    state = when(state, ContextUpdated(patch={"a": 1}))
    state = record_drafts(state, end_call(state, "c0", changed()))
    state = when(state, ContextUpdated(patch={"a": 2}))
    assert record_drafts(state, end_call(state, "c2", changed())).context_variables == {"a": 2}


def test_outside_context_changes_keep_place() -> None:
    state, _ = ask_for("look", "ask")
    state = record_drafts(state, end_call(state, "c1", changed(a=1)))
    state = when(state, ContextUpdated(patch={"a": 7, "mine": True}))
    assert record_drafts(state, end_call(state, "c0", changed(b=0))).context_variables == {"a": 1, "b": 0, "mine": True}


# Whatever the order.


KEYS = st.sampled_from(["a", "b", "c"])
LEAVES = st.one_of(st.integers(0, 3), st.none(), st.text(max_size=2), st.lists(st.integers(), max_size=2))
VALUES = st.recursive(LEAVES, lambda inner: st.dictionaries(KEYS, inner, max_size=3), max_leaves=6)
OBJECTS = st.dictionaries(KEYS, VALUES, max_size=3)


@st.composite
def outcomes(draw: st.DrawFn) -> ToolOutcome:
    return ToolOutcome(
        status=draw(st.sampled_from(["ok", "error"])),
        content=draw(st.text(max_size=3)),
        patch=draw(OBJECTS),
        nulls=tuple(draw(st.lists(st.sampled_from(["/a", "/b", "/a/b", "/c/a"]), max_size=2, unique=True))),
        values=draw(OBJECTS),
        handoff=draw(st.sampled_from([None, None, "x", "y"])),
    )


@for_all(context=OBJECTS, results=st.lists(outcomes(), min_size=1, max_size=5), data=st.data())
def test_result_order_does_not_affect_state(context: Json, results: list[ToolOutcome], data: st.DataObject) -> None:
    order = data.draw(st.permutations(range(len(results))))
    one, _ = ask_for(*["look"] * len(results), context=context)
    other, _ = ask_for(*["pay"] * len(results), context=context)
    for place in order:
        one = record_drafts(one, end_call(one, f"c{place}", results[place]))
    for place, outcome in enumerate(results):
        other = record_drafts(other, end_call(other, f"c{place}", outcome))
    assert (one.context_variables, one.agent) == (other.context_variables, other.agent)
    assert find_outside_step(one) == find_outside_step(other) == AskModel()
    sent = [entry.message["tool_call_id"] for entry in one.messages if entry.role == "tool"]
    assert sorted(sent) == sorted(f"c{place}" for place in order)


def test_fork_keeps_changes_awaiting_open_calls() -> None:
    state, _ = ask_for("look", "ask", context={"a": 0})
    state = record_drafts(state, end_call(state, "c1", changed(booking=7)))
    assert state.context_variables == {"a": 0}
    fork = when(state, SessionForked(from_session_id="one", from_seq=state.seq, from_hash=state.hash))
    assert fork.context_variables == {"a": 0, "booking": 7}
    assert [call.held for run in fork.finished for call in run.calls] == [None] * 2


# Cut calls in logs of earlier releases: what was begun goes on as it did, and nothing else is begun.

CUT = MessageAdded(
    message=calling_message(tool_call("c0", "pay", arguments='{"amou')),
    completion=CompletionRecord(finish_reason="length"),
)


def ask_to_pay() -> State:
    return running(CUT)


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
