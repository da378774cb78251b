"""Commands, and the facts or refusals they become."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given as for_any
from hypothesis import settings

from swarmkeep.decide.commands import StartRun, cancel_run, create_session, start_queued, start_run, update_session
from swarmkeep.decide.drafts import draft_events
from swarmkeep.decide.settle import settle
from swarmkeep.decide.turns import ToolOutcome, end_run, record_reply, record_result
from swarmkeep.events.codec import Json
from swarmkeep.events.errors import RunNotFound, SessionBusy
from swarmkeep.events.facts import (
    ApprovalRequested,
    ContextUpdated,
    HandoffIgnored,
    HandoffMade,
    MessageAdded,
    RunCancelled,
    RunCompleted,
    RunError,
    RunFailed,
    RunInterrupted,
    RunQueued,
    RunStarted,
    RunWaiting,
    SessionCreated,
    SessionUpdated,
)
from swarmkeep.events.patch import apply, diff, merge
from swarmkeep.events.records import CompletionRecord, RunOptions, ToolRecord
from swarmkeep.events.state import PartialReply, State
from tests.events.given import (
    COMPLETED,
    OTHER,
    RUN,
    THIRD,
    active_run,
    answer_message,
    given,
    in_run,
    list_contents,
    list_facts,
    list_types,
    make_run_started,
    model_calls,
    model_reply,
    record_drafts,
    run_queued,
    running,
    tool_result,
    user_said,
    when,
)
from tests.support.hypothesis_profiles import examples
from tests.support.logs import json_objects
from tests.support.rules import is_same

HELLO = {"role": "user", "content": "hello"}


def start_command(run_id: str = OTHER, **keys: Any) -> StartRun:
    return StartRun(run_id=run_id, messages=keys.pop("messages", (HELLO,)), **keys)


# Sessions.


def test_session_begins_with_settings_and_history() -> None:
    assert create_session("triage", {"k": 1}, {"m": 1}, [HELLO, {"role": "tool", "sender": "x"}]) == [
        SessionCreated(agent="triage", context_variables={"k": 1}, metadata={"m": 1}),
        MessageAdded(message={**HELLO, "sender": "user"}),
        MessageAdded(message={"role": "tool", "sender": "x"}),
    ]


def test_update_makes_one_fact_per_change() -> None:
    facts = update_session(given(), agent="refunds", context_variables={"k": 1}, metadata={"m": 1})
    assert facts == [SessionUpdated(metadata={"m": 1}, agent="refunds"), ContextUpdated(patch={"k": 1})]


def test_what_already_holds_becomes_no_fact() -> None:
    state = given(SessionCreated(agent="triage", context_variables={"k": {"in": 1}}, metadata={"m": [1, None]}))
    patches: list[Json] = [{"m": [1, None]}, {"gone": None}, {}]
    for metadata in patches:
        assert update_session(state, agent="triage", metadata=metadata) == []
    for context in ({"k": {"in": 1}}, {"k": {"gone": None}}, {"gone": None}):
        assert update_session(state, context_variables=context) == []
    assert update_session(state) == []


def test_changed_value_type_is_a_change() -> None:
    state = given(SessionCreated(agent="triage", context_variables={"k": 1}, metadata={"m": True}))
    assert update_session(state, context_variables={"k": True}) == [ContextUpdated(patch={"k": True})]
    assert update_session(state, metadata={"m": 1}) == [SessionUpdated(metadata={"m": 1})]
    assert update_session(state, context_variables={"k": None}) == [ContextUpdated(patch={"k": None})]


@for_any(before=json_objects(), patch=json_objects())
@settings(max_examples=examples(60))
def test_update_is_idempotent_merge_patch(before: Json, patch: Json) -> None:
    state = given(SessionCreated(agent="triage", context_variables=before, metadata=before))
    state = when(state, *update_session(state, context_variables=patch, metadata=patch))
    assert is_same(state.context_variables, merge(before, patch))
    assert is_same(state.metadata, merge(before, patch))
    assert update_session(state, context_variables=patch, metadata=patch) == []


# Starting.


def test_a_run_starts_with_its_input() -> None:
    drafts = start_run(given(), start_command(options=RunOptions(max_turns=2), idempotency_key="key"))
    assert list_facts(drafts) == [
        RunStarted(options=RunOptions(max_turns=2), idempotency_key="key"),
        MessageAdded(message={**HELLO, "sender": "user"}),
    ]
    assert {(draft.run_id, draft.agent) for draft in drafts} == {(OTHER, "triage")}


def test_run_may_change_agent_and_context_first() -> None:
    drafts = start_run(given(), start_command(agent="refunds", context_variables={"k": 1}))
    assert list_types(drafts) == ["run.started", "session.updated", "context.updated", "message.added"]
    assert [draft.agent for draft in drafts] == ["triage", "refunds", "refunds", "refunds"]
    state = record_drafts(given(), drafts)
    assert (state.agent, state.context_variables) == ("refunds", {"k": 1})


def test_second_run_refused_during_active() -> None:
    for state, status in (
        (given(make_run_started()), "running"),
        (given(make_run_started(), RunWaiting(pending=())), "waiting"),
    ):
        with pytest.raises(SessionBusy, match=status) as refused:
            start_run(state, start_command())
        assert refused.value.extra() == {"active_run_id": RUN}


def test_non_queueing_run_does_not_overtake() -> None:
    state = given(make_run_started(), run_queued(OTHER))
    state = when(state, COMPLETED)
    with pytest.raises(SessionBusy, match="queued") as refused:
        start_run(state, start_command(THIRD))
    assert refused.value.extra() == {"active_run_id": OTHER}


def heard(state: State, text: str, run_id: str = RUN) -> PartialReply:
    """What a model has said so far that was asked in this state."""
    return PartialReply(run_id=run_id, seq=state.seq, agent=state.agent, text=text)


def test_interrupting_run_replaces_active_keeps_queue() -> None:
    queued = run_queued(OTHER)
    for state in (given(make_run_started(), queued), given(make_run_started(), RunWaiting(pending=()), queued)):
        drafts = start_run(state, start_command(THIRD, on_busy="interrupt"), heard(state, "Once upon"))
        assert [(draft.fact.type, draft.run_id) for draft in drafts] == [
            ("message.added", RUN), ("run.cancelled", RUN), ("run.started", THIRD), ("message.added", THIRD),
        ]  # fmt: skip
        state = record_drafts(state, settle(state, drafts))
        assert active_run(state).id == THIRD
        assert [waiting.run_id for waiting in state.queue] == [OTHER]
        state = record_drafts(state, settle(state, draft_events(state.agent, [COMPLETED], THIRD)))
        assert active_run(state).id == OTHER


def test_interrupting_run_precedes_unstarted_queue() -> None:
    state = given(make_run_started(), run_queued(OTHER))
    state = when(state, COMPLETED)
    drafts = start_run(state, start_command(THIRD, on_busy="interrupt"))
    assert list_types(drafts) == ["run.started", "message.added"]
    assert [waiting.run_id for waiting in record_drafts(state, drafts).queue] == [OTHER]


def test_a_second_run_may_queue_up() -> None:
    drafts = start_run(
        given(make_run_started()), start_command(on_busy="queue", agent="refunds", context_variables={"k": 1})
    )
    assert list_facts(drafts) == [
        RunQueued(options=RunOptions(), messages=(HELLO,), agent="refunds", context_variables={"k": 1})
    ]
    assert drafts[0].run_id == OTHER


def test_queueing_run_does_not_overtake() -> None:
    state = given(make_run_started(), run_queued(OTHER))
    state = when(state, COMPLETED)
    assert list_types(start_run(state, start_command(THIRD, on_busy="queue"))) == ["run.queued"]


def test_queued_runs_start_in_order() -> None:
    state = given(make_run_started())
    for run_id, text in ((OTHER, "first"), (THIRD, "second")):
        message = {"role": "user", "content": text}
        state = record_drafts(
            state, start_run(state, start_command(run_id, on_busy="queue", messages=(message,), agent="refunds"))
        )
    state = when(state, COMPLETED)
    for run_id, text in ((OTHER, "first"), (THIRD, "second")):
        drafts = start_queued(state)
        assert {draft.run_id for draft in drafts} == {run_id}
        state = record_drafts(state, drafts)
        assert (active_run(state).id, state.agent, list_contents(state)[-1]) == (run_id, "refunds", text)
        state = when(state, COMPLETED)
    assert state.queue == ()


@pytest.mark.parametrize("on_busy", ["reject", "queue", "interrupt"])
def test_already_taken_run_makes_no_fact(on_busy: Any) -> None:
    queued = given(make_run_started(), run_queued(OTHER))
    over = when(queued, COMPLETED, in_run(OTHER, RunCancelled(stop_reason="cancelled")))
    for state in (given(in_run(OTHER, make_run_started())), queued, over):
        assert start_run(state, start_command(OTHER, on_busy=on_busy)) == []


# Ending.


def test_end_carries_run_usage() -> None:
    state = running(model_reply(answer_message(), {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}))
    (fact,) = end_run(state, active_run(state), RunCompleted, "end_turn")
    assert isinstance(fact, RunCompleted)
    assert fact.usage == active_run(state).usage
    assert fact.usage.total_tokens == 5


def test_partial_speech_kept_with_end() -> None:
    state = running(model_calls("c1"), tool_result("c1"))
    drafts = cancel_run(state, RUN, heard(state, "I was about"))
    partial, end = list_facts(drafts)
    assert isinstance(partial, MessageAdded)
    assert partial.completion == CompletionRecord(partial=True)
    assert partial.message == {"role": "assistant", "content": "I was about", "sender": "triage"}
    after = record_drafts(state, drafts)
    assert isinstance(end, RunCancelled)
    assert after.finished[0].usage == end.usage == after.usage
    assert end.usage.model_calls == 2


def test_no_partial_between_call_and_result() -> None:
    state = running(model_calls("c1"))
    assert list_types(cancel_run(state, RUN, heard(state, "late"))) == ["run.cancelled"]


def test_recorded_message_clears_partial() -> None:
    state = running()
    partial = heard(state, "I was about")
    state = when(state, ContextUpdated(patch={"a": 1}))
    assert list_types(cancel_run(state, RUN, partial)) == ["message.added", "run.cancelled"]
    state = when(state, model_calls("c1"), tool_result("c1"))
    assert list_types(cancel_run(state, RUN, partial)) == ["run.cancelled"]
    assert list_types(cancel_run(state, RUN, heard(state, "And now", run_id=OTHER))) == ["run.cancelled"]


def test_cancelling_ends_the_active_run_once() -> None:
    for state in (
        given(make_run_started()),
        running(model_calls("c1")),
        given(make_run_started(), RunWaiting(pending=())),
    ):
        drafts = cancel_run(state, RUN)
        assert list_types(drafts) == ["run.cancelled"]
        assert cancel_run(record_drafts(state, drafts), RUN) == []


def test_cancelling_queued_run_leaves_others() -> None:
    queued = RunQueued(options=RunOptions(), messages=())
    state = given(make_run_started(), in_run(OTHER, queued), in_run(THIRD, queued))
    state = record_drafts(state, cancel_run(state, OTHER))
    assert active_run(state).id == RUN
    assert [waiting.run_id for waiting in state.queue] == [THIRD]
    assert cancel_run(state, OTHER) == []


def test_cancelling_unknown_run_refused() -> None:
    for state in (given(), given(make_run_started())):
        with pytest.raises(RunNotFound):
            cancel_run(state, "nobody")


# Replies.


@pytest.mark.parametrize(
    ("calls", "executes", "asked"),
    [
        ((("c1", "danger", '{"a": 1}'), "c2", ("c3", "danger")), True, ["c1", "c3"]),
        ((("c1", "danger"),), False, []),
        ((("c1", "danger"), ("c1", "danger")), True, ["c1"]),
    ],
)
def test_reply_asks_for_approvals_of_calls(calls: Any, executes: bool, asked: list[str]) -> None:
    run = active_run(running(execute_tools=executes))
    message = model_calls(*calls).message
    _, *facts = record_reply(run, message, CompletionRecord(), needs_approval={"danger"}, expires_at="2026-01-02")
    arguments = {call["id"]: call["function"]["arguments"] for call in message["tool_calls"]}
    assert facts == [
        ApprovalRequested(tool_call_id=call_id, name="danger", arguments=arguments[call_id], expires_at="2026-01-02")
        for call_id in asked
    ]


# Results.


def list_results(state: State, call_id: str, **outcome: Any) -> list[Any]:
    asked = next(asked for asked in active_run(state).calls if asked.id == call_id)
    return record_result(state, active_run(state), asked, ToolOutcome(**{"status": "ok", "content": "done", **outcome}))


def test_result_names_call_tool_and_outcome() -> None:
    state = running(model_calls("c1"))
    (fact,) = list_results(state, "c1", status="error", content="Error: no", duration_ms=2.5)
    assert fact == MessageAdded(
        message={
            "role": "tool",
            "tool_call_id": "c1",
            "tool_name": "look_up",
            "content": "Error: no",
            "sender": "triage",
        },
        tool=ToolRecord(name="look_up", status="error", duration_ms=2.5),
    )


def test_existing_result_makes_no_new_fact() -> None:
    state = running(model_calls("c1", "c2"))
    asked = active_run(state).calls[0]
    state = when(state, *list_results(state, "c1"))
    outcome = ToolOutcome(status="ok", content="done", patch={"a": 1}, handoff="refunds")
    assert record_result(state, active_run(state), asked, outcome) == []
    # Nor once the run has come to its next turn.
    state = when(state, *list_results(state, "c2"))
    state = when(state, model_calls("c3"))
    assert record_result(state, active_run(state), asked, outcome) == []


def test_context_change_is_fact_of_call() -> None:
    state = given(SessionCreated(agent="triage", context_variables={"a": 1, "b": 2}), make_run_started(), user_said())
    state = when(state, model_calls("c1"))
    facts = list_results(state, "c1", patch={"b": None}, nulls=("/c",))
    assert facts[1:] == [ContextUpdated(patch={"b": None}, tool_call_id="c1", nulls=("/c",))]
    assert when(state, *facts).context_variables == {"a": 1, "c": None}
    assert len(list_results(state, "c1", patch={"b": 2, "d": None})) == 1


@for_any(before=json_objects(), after=json_objects())
@settings(max_examples=examples(60))
def test_context_after_result_is_tools(before: Json, after: Json) -> None:
    state = given(SessionCreated(agent="triage", context_variables=before), make_run_started(), model_calls("c1"))
    patch, nulls = diff(before, after)
    assert is_same(when(state, *list_results(state, "c1", patch=patch, nulls=nulls)).context_variables, after)


def test_last_handoff_wins_and_others_told() -> None:
    state = running(model_calls("c1", "c2", "c3", "c4"))
    state = when(state, *list_results(state, "c1", handoff="sales"))
    state = when(state, *list_results(state, "c2", handoff="refunds"))
    assert state.agent == "triage"
    state = when(state, *list_results(state, "c3"))
    facts = list_results(state, "c4", handoff="support")
    assert facts[1:] == [
        HandoffIgnored(from_agent="triage", to_agent="sales", tool_call_id="c1"),
        HandoffIgnored(from_agent="triage", to_agent="refunds", tool_call_id="c2"),
        HandoffMade(from_agent="triage", to_agent="support", tool_call_id="c4"),
    ]
    state = when(state, *facts)
    assert state.agent == "support"
    first, second, third, fourth = (str(content) for content in list_contents(state)[-4:])
    assert "Not handed over to sales" in first
    assert "Not handed over to refunds" in second
    assert (third, fourth) == ("done", "done")
    tools = [entry.tool for entry in state.messages if entry.tool is not None]
    assert [tool.status for tool in tools] == ["superseded", "superseded", "ok", "ok"]


def test_handoff_made_after_last_answered_call() -> None:
    state = running(model_calls("c1", "c2"))
    state = when(state, *list_results(state, "c1", handoff="sales"))
    facts = list_results(state, "c2", status="error")
    assert facts[1:] == [HandoffMade(from_agent="triage", to_agent="sales", tool_call_id="c1")]


@pytest.mark.parametrize(("ending", "made"), [(RunCancelled, True), (RunFailed, True), (RunInterrupted, False)])
def test_run_ending_between_calls_keeps_handoff(ending: Any, made: bool) -> None:
    state = running(model_calls("c1", "c2", "c3"))
    state = when(state, *list_results(state, "c1", handoff="sales"))
    state = when(state, *list_results(state, "c2", handoff="refunds"))
    facts = end_run(state, active_run(state), ending, "cancelled")
    handoffs = [
        HandoffIgnored(from_agent="triage", to_agent="sales", tool_call_id="c1"),
        HandoffMade(from_agent="triage", to_agent="refunds", tool_call_id="c2"),
    ]
    assert facts[:-1] == (handoffs if made else [])
    assert isinstance(facts[-1], ending)
    assert record_drafts(state, draft_events(state.agent, facts, RUN)).agent == ("refunds" if made else "triage")


def test_a_failure_says_why() -> None:
    error = RunError(code="provider_error", message="503", retryable=True, provider_status=503)
    state = running()
    state = when(state, *end_run(state, active_run(state), RunFailed, "error", error))
    assert (state.finished[0].status, state.finished[0].error) == ("failed", error)


def test_tool_patch_applies_elsewhere() -> None:
    state = given(
        SessionCreated(agent="triage", context_variables={"a": {"b": 1}}), make_run_started(), model_calls("c1")
    )
    patch, nulls = diff({"a": {"b": 1}}, {"a": {"b": None, "c/d": [None]}})
    (_, fact) = list_results(state, "c1", patch=patch, nulls=nulls)
    assert apply({"a": {"b": 1}}, fact.patch, fact.nulls) == {"a": {"b": None, "c/d": [None]}}
