"""Calls that run at once: which start together, and that what they change is the same in whatever order they end."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import pytest
from hypothesis import given as for_all
from hypothesis import strategies as st
from msgspec import UNSET

from swarmkeep.domain.codec import Json
from swarmkeep.domain.decisions.concurrent_calls import find_batch
from swarmkeep.domain.decisions.drafts import draft_events
from swarmkeep.domain.decisions.resuming import Approval, ToolAnswer, resume_run
from swarmkeep.domain.decisions.settling import Approvals, find_outside_step, settle
from swarmkeep.domain.decisions.steps import AskModel, CallTool, CallTools
from swarmkeep.domain.decisions.turns import ToolOutcome, end_run, record_reply, record_result
from swarmkeep.domain.envelope import EventDraft
from swarmkeep.domain.events import (
    CompletionRecord,
    ContextUpdated,
    MessageAdded,
    RunCancelled,
    RunInterrupted,
    RunResumed,
    SessionCreated,
    SessionForked,
    ToolStarted,
)
from swarmkeep.domain.run_options import CallerFunction, CallerTool
from swarmkeep.domain.state import State
from tests.domain.given import (
    active_run,
    calling_message,
    given,
    list_facts,
    list_types,
    make_run_started,
    record_drafts,
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


def test_concurrent_calls_that_stand_side_by_side_start_in_one_commit() -> None:
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
def test_any_other_function_runs_by_itself_in_its_turn(
    names: tuple[str, ...], started: list[str], following: list[str]
) -> None:
    state, drafts = ask_for(*names)
    assert list_started(drafts) == started
    for call_id in started:
        drafts = end_call(state, call_id, changed())
        state = record_drafts(state, drafts)
    # What comes next had to wait for all of them.
    assert list_started(drafts) == following


def test_those_that_wait_for_an_approval_keep_no_concurrent_ones_back() -> None:
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


def test_what_has_yet_to_be_approved_by_todays_code_does_not_start() -> None:
    state, _ = ask_for("ask", "pay", "look")
    run = active_run(state)
    assert [call.id for call in find_batch(run, ("ask", "pay", "look"), ["pay"])] == ["c2"]


def test_a_denied_call_is_answered_and_what_waited_for_it_is_changed() -> None:
    state, _ = ask_for("ask", "look", guarded=["ask"])
    state = record_drafts(state, end_call(state, "c1", changed(a=1), ["ask"]))
    resumed = resume_run(state, "run_a", approvals=[Approval(tool_call_id="c0", decision="deny")])
    drafts = settle(state, resumed, approvals=rules(["ask"]))
    assert list_types(drafts) == ["approval.decided", "run.resumed", "message.added", "context.updated"]
    assert record_drafts(state, drafts).context_variables == {"a": 1}


def test_a_call_that_waits_stops_those_of_other_functions_as_ever() -> None:
    _, drafts = ask_for("pay", "look", "ask", guarded=["pay"])
    assert list_started(drafts) == []
    assert list_types(drafts)[-1] == "run.waiting"


def test_a_callers_function_between_them_is_not_in_the_way() -> None:
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


def test_no_more_than_so_many_start_at_once() -> None:
    state, drafts = ask_for(*["look"] * 5, max_calls=2)
    assert list_started(drafts) == ["c0", "c1"]
    state = record_drafts(state, end_call(state, "c1", changed()))
    run = active_run(state)
    call = run.calls[0]
    facts = record_result(state, run, call, changed())
    drafts = settle(state, draft_events("triage", facts, run.id), approvals=rules(max_calls=2))
    assert list_started(drafts) == ["c2", "c3"]


# What they change.


def test_a_change_is_made_once_the_calls_before_have_ended() -> None:
    state, _ = ask_for("look", "ask", "note", context={"a": 0})
    drafts = end_call(state, "c2", changed(a=2))
    [result] = list_facts(drafts)
    assert isinstance(result, MessageAdded)
    assert result.tool is not None
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


def test_what_ends_in_order_is_recorded_as_ever() -> None:
    state, _ = ask_for("look", "ask")
    drafts = end_call(state, "c0", changed(a=1))
    assert list_types(drafts) == ["message.added", "context.updated"]
    [result, _] = list_facts(drafts)
    assert isinstance(result, MessageAdded)
    assert result.tool is not None
    assert result.tool.context is UNSET


def test_a_value_that_is_given_as_a_whole_takes_the_place_of_what_others_put_there() -> None:
    state, _ = ask_for("look", "ask", context={"cart": {"x": 1}})
    second = ToolOutcome(status="ok", content="", values={"cart": {"y": 2, "z": None}})
    state = record_drafts(state, end_call(state, "c1", second))
    first = ToolOutcome(status="ok", content="", patch={"cart": {"w": 0}})
    drafts = end_call(state, "c0", first)
    assert record_drafts(state, drafts).context_variables == {"cart": {"y": 2, "z": None}}
    last = list_facts(drafts)[-1]
    assert isinstance(last, ContextUpdated)
    assert (last.patch, last.nulls) == ({"cart": {"x": None, "w": None, "y": 2}}, ("/cart/z",))


def test_the_last_handoff_in_the_order_of_the_calls_wins() -> None:
    for order in (("c0", "c1"), ("c1", "c0")):
        state, _ = ask_for("look", "ask")
        for call_id in order:
            outcome = ToolOutcome(status="ok", content="", handoff=f"agent of {call_id}")
            state = record_drafts(state, end_call(state, call_id, outcome))
        assert state.agent == "agent of c1"


def test_a_cancel_keeps_what_was_changed_and_handed_over() -> None:
    state, _ = ask_for("look", "ask", "note")
    outcome = ToolOutcome(status="ok", content="", patch={"a": 1}, handoff="other")
    state = record_drafts(state, end_call(state, "c1", outcome))
    facts = end_run(state, active_run(state), RunCancelled, "cancelled")
    assert [fact.type for fact in facts] == ["context.updated", "handoff.made", "run.cancelled"]
    state = when(state, *facts)
    assert (state.context_variables, state.agent) == ({"a": 1}, "other")


def test_an_interrupted_run_has_made_its_changes_and_does_not_make_them_twice() -> None:
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


def test_a_change_that_is_none_by_now_is_made_once_all_the_same() -> None:
    state, _ = ask_for("look", "ask", "note")
    state = record_drafts(state, end_call(state, "c1", changed(a=1)))
    state = when(state, ContextUpdated(patch={"a": 1}))
    state = record_drafts(state, end_call(state, "c0", changed()))
    state = when(state, ContextUpdated(patch={"a": 2}))
    assert record_drafts(state, end_call(state, "c2", changed())).context_variables == {"a": 2}


def test_others_who_change_the_context_meanwhile_keep_their_place() -> None:
    state, _ = ask_for("look", "ask")
    state = record_drafts(state, end_call(state, "c1", changed(a=1)))
    state = when(state, ContextUpdated(patch={"a": 7, "mine": True}))
    assert record_drafts(state, end_call(state, "c0", changed(b=0))).context_variables == {
        "a": 1,
        "b": 0,
        "mine": True,
    }


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
def test_any_order_of_the_results_gives_the_state_of_one_after_the_other(
    context: Json, results: list[ToolOutcome], data: st.DataObject
) -> None:
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


def test_a_fork_has_the_changes_that_wait_for_calls_that_it_does_not_end() -> None:
    state, _ = ask_for("look", "ask", context={"a": 0})
    state = record_drafts(state, end_call(state, "c1", changed(booking=7)))
    assert state.context_variables == {"a": 0}
    fork = when(state, SessionForked(from_session_id="one", from_seq=state.seq, from_hash=state.hash))
    assert fork.context_variables == {"a": 0, "booking": 7}
    assert [call.held for run in fork.finished for call in run.calls] == [None] * 2
