"""The effect of each fact on the state."""

from __future__ import annotations

import pytest

from swarmkeep.events.facts import (
    ApprovalDecided,
    ApprovalRequested,
    CompactionStarted,
    CompactionSummarised,
    ContextUpdated,
    HandoffIgnored,
    HandoffMade,
    MessageAdded,
    MessageRemoved,
    PendingCall,
    RunCancelled,
    RunCompleted,
    RunError,
    RunFailed,
    RunInterrupted,
    RunQueued,
    RunResumed,
    RunWaiting,
    SessionCreated,
    SessionForked,
    SessionRedacted,
    SessionUpdated,
    ToolsListed,
    ToolStarted,
    UnknownFact,
)
from swarmkeep.events.fold import find_listing
from swarmkeep.events.records import CompletionRecord, RunOptions, Usage, sum_usage
from swarmkeep.events.state import Origin, State
from swarmkeep.request.request import count_turns
from tests.events.given import (
    COMPLETED,
    OTHER,
    RUN,
    active_run,
    answer_message,
    calling_message,
    given,
    in_run,
    list_contents,
    make_run_started,
    model_answer,
    model_calls,
    model_reply,
    run_queued,
    running,
    tool_call,
    tool_result,
    user_said,
    when,
)

USAGE = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
WAITING = RunWaiting(pending=(PendingCall(tool_call_id="c1", name="f", arguments="{}", reason="tool_results"),))


def test_created_session_has_agent_context_metadata() -> None:
    state = given(SessionCreated(agent="refunds", context_variables={"user": None}, metadata={"k": 1}))
    assert (state.agent, state.context_variables, state.metadata) == ("refunds", {"user": None}, {"k": 1})
    assert state.created_at == state.updated_at


def test_events_advance_seq_hash_and_time() -> None:
    before = given()
    for fact in (UnknownFact(data=1), SessionRedacted(seqs=(1,), reason=""), user_said(), make_run_started()):
        after = when(before, fact)
        assert after.seq == before.seq + 1
        assert after.hash != before.hash
        assert after.updated_at > before.updated_at
        before = after


def test_unknown_fact_and_redaction_change_only_position() -> None:
    before = running()
    after = when(before, UnknownFact(data={"agent": "x"}), SessionRedacted(seqs=(1,), reason="asked to"))
    assert (after.run, after.messages, after.agent) == (before.run, before.messages, before.agent)


def test_early_messages_belong_to_no_run() -> None:
    state = given(user_said("imported"))
    assert [(entry.seq, entry.run_id, entry.role) for entry in state.messages] == [(2, None, "user")]


def test_update_merges_metadata_and_changes_agent() -> None:
    state = given(SessionCreated(agent="a", metadata={"keep": 1, "drop": 1, "in": {"x": 1}}))
    state = when(state, SessionUpdated(metadata={"drop": None, "in": {"y": 2}}))
    assert (state.metadata, state.agent) == ({"keep": 1, "in": {"x": 1, "y": 2}}, "a")
    state = when(state, SessionUpdated(agent="b"))
    assert (state.metadata, state.agent) == ({"keep": 1, "in": {"x": 1, "y": 2}}, "b")


def test_context_patch_keeps_marked_nulls() -> None:
    state = given(SessionCreated(agent="a", context_variables={"a": 1, "b": {"c": 1}}))
    state = when(state, ContextUpdated(patch={"a": None, "b": {"d": 2}}, nulls=("/b/c", "/e")))
    assert state.context_variables == {"b": {"c": None, "d": 2}, "e": None}


def test_run_starts_with_session_agent_and_context() -> None:
    state = given(SessionCreated(agent="a", context_variables={"k": 1}), make_run_started(max_turns=3))
    run = active_run(state)
    assert (run.id, run.status, run.agent, run.context_variables) == (RUN, "running", "a", {"k": 1})
    assert (run.first_seq, run.last_seq, run.turns, run.options.max_turns) == (2, 2, 0, 3)
    assert state.status == "running"


def test_run_messages_span_start_to_end() -> None:
    state = given(user_said("before"), make_run_started(), user_said("in"), model_answer("out"), COMPLETED)
    state = when(state, in_run(OTHER, make_run_started()), user_said("later"))
    first = state.finished[0]
    assert list_contents(state)[first.first_message : first.last_message] == ["in", "out"]


def test_reply_counts_turn_and_usage() -> None:
    state = running(
        model_reply(calling_message(tool_call("c1")), USAGE), tool_result("c1"), model_reply(answer_message(), USAGE)
    )
    total = Usage(prompt_tokens=6, completion_tokens=4, total_tokens=10, model_calls=2)
    assert (active_run(state).turns, active_run(state).usage, state.usage) == (2, total, total)


@pytest.mark.parametrize("usage", [None, {}, *({"total_tokens": odd} for odd in (None, "5", 5.5, True, -5, -(10**40)))])
def test_senseless_usage_counts_without_tokens(usage: dict[str, object] | None) -> None:
    state = running(model_reply(answer_message(), usage))
    assert active_run(state).usage == Usage(model_calls=1)


def test_impossible_usage_is_bounded() -> None:
    state = running(*[model_reply(answer_message(), {"prompt_tokens": 10**40})] * 2)
    assert active_run(state).usage == Usage(prompt_tokens=2 * 2**40, model_calls=2)


def test_usage_sums_fit_json() -> None:
    most = 2**63 - 1
    odd = Usage(prompt_tokens=most, completion_tokens=-5, total_tokens=1)
    assert sum_usage(odd, Usage(prompt_tokens=1, total_tokens=1)) == Usage(prompt_tokens=most, total_tokens=2)


def test_message_without_completion_is_no_turn() -> None:
    state = running(MessageAdded(message=calling_message(tool_call("c1"))))
    assert (active_run(state).turns, active_run(state).calls, active_run(state).answered) == (0, (), False)


def test_callless_reply_answers_the_run() -> None:
    assert active_run(given(make_run_started(), model_answer())).answered
    assert active_run(given(make_run_started(), model_reply({**answer_message(), "tool_calls": []}))).answered
    assert not active_run(given(make_run_started(), model_calls("c1"))).answered


def test_reply_opens_calls_that_results_close() -> None:
    state = given(make_run_started(), model_calls("c1", "c2"), ToolStarted(tool_call_id="c1", name="f", arguments=""))
    assert [(asked.id, asked.attempts, asked.done) for asked in active_run(state).calls] == [
        ("c1", 1, False),
        ("c2", 0, False),
    ]
    state = when(state, tool_result("c1", handoff="refunds"))
    assert [asked.id for asked in active_run(state).open_calls] == ["c2"]
    assert active_run(state).calls[0].handoff == "refunds"


def test_only_tool_messages_close_calls() -> None:
    imposter = MessageAdded(message={"role": "user", "content": "done", "tool_call_id": "c1"})
    state = given(make_run_started(), model_calls("c1"), imposter)
    assert [asked.id for asked in active_run(state).open_calls] == ["c1"]


def test_duplicate_call_id_is_one_call() -> None:
    state = given(make_run_started(), model_calls(("c1", "first"), ("c1", "second")))
    assert [(asked.id, asked.name) for asked in active_run(state).calls] == [("c1", "first")]


def test_non_function_calls_are_ignored() -> None:
    custom = {"id": "c1", "type": "custom", "custom": {"name": "f", "input": "text"}}
    state = given(make_run_started(), model_reply(calling_message(custom)))
    assert (active_run(state).calls, active_run(state).answered) == ((), True)


def test_missing_arguments_mean_none() -> None:
    asked = {"id": "c1", "type": "function", "function": {"name": "f"}}
    assert active_run(given(make_run_started(), model_reply(calling_message(asked)))).calls[0].arguments == "{}"


def test_a_handoff_changes_the_active_agent() -> None:
    assert given(make_run_started(), HandoffMade(from_agent="triage", to_agent="refunds")).agent == "refunds"


def test_ignored_handoff_rewrites_only_its_result() -> None:
    before = given(
        make_run_started(),
        model_calls("c1", "c2"),
        tool_result("c1", handoff="sales"),
        tool_result("c2", handoff="refunds"),
    )
    after = when(before, HandoffIgnored(from_agent="triage", to_agent="sales", tool_call_id="c1"))
    rewritten, other = after.messages[-2], after.messages[-1]
    assert "Not handed over to sales" in str(rewritten.message["content"])
    assert rewritten.tool.status == "superseded"
    assert other == before.messages[-1]
    assert after.agent == "triage"
    assert before.messages[-2].message["content"] == "done"


def test_unknown_ignored_handoff_changes_nothing() -> None:
    before = given(make_run_started(), MessageAdded(message={"role": "tool", "content": "no id"}))
    for call_id in (None, "c9"):
        after = when(before, HandoffIgnored(from_agent="a", to_agent="b", tool_call_id=call_id))
        assert after.messages == before.messages


def test_waiting_run_makes_session_waiting() -> None:
    state = given(make_run_started(), model_calls("c1"), WAITING)
    assert (state.status, active_run(state).status, active_run(state).pending) == (
        "waiting",
        "waiting",
        WAITING.pending,
    )
    assert active_run(state).last_seq == state.seq


def test_resumed_run_waits_for_nothing() -> None:
    state = given(make_run_started(), model_calls("c1"), WAITING, tool_result("c1"), RunResumed(reason="tool_results"))
    assert (state.status, active_run(state).pending, active_run(state).last_seq) == ("running", (), state.seq)


def test_takeovers_count_until_next_reply() -> None:
    recovery = RunResumed(reason="recovery")
    state = given(make_run_started(), recovery, recovery)
    assert active_run(state).recoveries == 2
    assert active_run(when(state, model_calls("c1"))).recoveries == 0
    assert active_run(when(state, RunResumed(reason="approval"))).recoveries == 0


@pytest.mark.parametrize(
    ("ending", "status"),
    [(RunCompleted, "completed"), (RunFailed, "failed"), (RunCancelled, "cancelled"), (RunInterrupted, "interrupted")],
)
def test_run_end_idles_session_and_keeps_run(ending: type[RunCompleted], status: str) -> None:
    error = RunError(code="x", message="y")
    state = given(make_run_started(), model_calls("c1"), WAITING)
    state = when(state, HandoffMade(from_agent="triage", to_agent="refunds"), ContextUpdated(patch={"k": 1}))
    state = when(state, ending(stop_reason="error", error=error))
    assert (state.status, state.run, len(state.finished)) == ("idle", None, 1)
    run = state.finished[0]
    assert (run.status, run.stop_reason, run.error, run.pending) == (status, "error", error, ())
    assert (run.agent, run.context_variables) == ("refunds", {"k": 1})
    assert (run.last_seq, run.finished_at) == (state.seq, state.updated_at)


def test_foreign_run_end_leaves_active_run() -> None:
    state = given(make_run_started(), in_run(OTHER, COMPLETED))
    assert active_run(state).id == RUN
    assert len(state.finished) == 0


def test_queued_runs_wait_and_leave_in_order() -> None:
    queued = RunQueued(options=RunOptions(), messages=())
    state = given(make_run_started(), in_run("q1", queued), in_run("q2", queued), in_run("q3", queued))
    assert [waiting.run_id for waiting in state.queue] == ["q1", "q2", "q3"]
    state = when(state, in_run("q2", RunCancelled(stop_reason="cancelled")))
    assert [waiting.run_id for waiting in state.queue] == ["q1", "q3"]
    assert [(run.id, run.status) for run in state.finished] == [("q2", "cancelled")]
    state = when(state, COMPLETED, in_run("q1", make_run_started()))
    assert [waiting.run_id for waiting in state.queue] == ["q3"]
    assert active_run(state).id == "q1"


def test_decision_shrinks_pending_list() -> None:
    asked = calling_message(tool_call("c1", "danger"), tool_call("c2", "danger"))
    pending = tuple(
        PendingCall(tool_call_id=call_id, name="danger", arguments="{}", reason="approval") for call_id in ("c1", "c2")
    )
    state = given(
        make_run_started(),
        model_reply(asked),
        ApprovalRequested(tool_call_id="c1", name="danger", arguments="{}", expires_at="2026-01-02"),
        ApprovalRequested(tool_call_id="c2", name="danger", arguments="{}"),
        RunWaiting(pending=pending),
        ApprovalDecided(tool_call_id="c2", decision="deny", reason="no"),
    )
    assert [waiting.tool_call_id for waiting in active_run(state).pending] == ["c1"]
    first, second = active_run(state).calls
    assert (first.approval, first.expires_at) == ("requested", "2026-01-02")
    assert (second.approval, second.approval_reason) == ("deny", "no")


def test_outside_result_shrinks_pending_list() -> None:
    state = given(make_run_started(execute_tools=False), model_calls("c1"), WAITING, tool_result("c1"))
    assert (active_run(state).status, active_run(state).pending) == ("waiting", ())


def test_interrupted_run_continues_in_place() -> None:
    before = running(model_reply(calling_message(tool_call("c1")), USAGE))
    stopped = when(before, RunInterrupted(stop_reason="interrupted", error=RunError(code="x", message="y")))
    state = when(stopped, in_run(RUN, RunResumed(reason="recovery")))
    run = active_run(state)
    assert (run.id, run.status, run.calls, run.turns) == (RUN, "running", active_run(before).calls, 1)
    assert (run.stop_reason, run.error, run.finished_at, run.recoveries) == (None, None, None, 0)
    assert len(state.finished) == 0
    assert len(stopped.finished) == 1


def test_resuming_an_older_run_changes_nothing() -> None:
    state = given(
        make_run_started(), RunInterrupted(stop_reason="interrupted"), in_run(RUN, RunResumed(reason="recovery"))
    )
    state = when(state, RunInterrupted(stop_reason="interrupted"), in_run(OTHER, RunResumed(reason="recovery")))
    assert (state.run, len(state.finished)) == (None, 1)


def test_fork_knows_origin_and_drops_runs() -> None:
    before = running(run_queued(OTHER))
    state = when(before, SessionForked(from_session_id="original", from_seq=before.seq, from_hash=before.hash))
    assert state.forked_from == Origin(session_id="original", seq=before.seq, hash=before.hash)
    assert (state.run, state.queue, state.created_at) == (None, (), state.updated_at)
    assert [(run.id, run.status) for run in state.finished] == [(RUN, "interrupted")]
    assert list_contents(state) == ["hello"]


def test_idle_fork_has_no_run_to_leave() -> None:
    state = given(user_said(), SessionForked(from_session_id="original", from_seq=2, from_hash=""))
    assert len(state.finished) == 0


@pytest.mark.parametrize("ended", [[], [RunInterrupted(stop_reason="interrupted")]])
def test_forks_keep_denials_but_not_approvals(ended: list[RunInterrupted]) -> None:
    """Also of a run that had ended before, and may be tried again."""
    before = given(
        make_run_started(),
        model_reply(calling_message(tool_call("c1", arguments="1"), tool_call("c2"), tool_call("c3"))),
        *(ApprovalRequested(tool_call_id=name, name="look_up", arguments="") for name in ("c1", "c2", "c3")),
        ApprovalDecided(tool_call_id="c1", decision="approve", by="Ann", arguments="2"),
        ApprovalDecided(tool_call_id="c2", decision="deny", by="Ann"),
        *ended,
    )
    state = when(before, SessionForked(from_session_id="original", from_seq=before.seq, from_hash=before.hash))
    calls = [(call.approval, call.arguments) for call in state.finished[-1].calls]
    assert calls == [(None, "1"), ("deny", "{}"), ("requested", "{}")]


def test_truncated_reply_counts_as_turn() -> None:
    said_so_far = MessageAdded(message=answer_message("I was about"), completion=CompletionRecord(partial=True))
    state = running(said_so_far, RunCancelled(stop_reason="cancelled"))
    assert list_contents(state)[-1] == "I was about"
    assert state.finished[0].turns == 1


# What is sent in the place of messages follows what becomes of these.


# Event 1 makes the session; these are 2 to 5.
TALK = given(user_said("one"), user_said("two"), user_said("three"), user_said("four"))


def summarise(state: State, first_seq: int, last_seq: int, text: str = "in short") -> State:
    fact = CompactionSummarised(first_seq=first_seq, last_seq=last_seq, summary=text, characters=9)
    return when(state, in_run(None, fact))


def list_covered(state: State) -> list[tuple[int, int]]:
    return [(summary.first_seq, summary.last_seq) for summary in state.summaries]


def test_summary_counts_when_it_covers_more() -> None:
    state = summarise(summarise(TALK, 2, 3), 2, 4)
    assert list_covered(state) == [(2, 3), (2, 4)]
    for last_seq, text in ((4, "as much"), (3, "less"), (5, "")):
        late = summarise(state, 2, last_seq, text)
        assert (late.summaries, late.last_change) == (state.summaries, state.last_change)
    # Of what had not been said by then there is none.
    assert list_covered(summarise(TALK, 2, 99)) == [(2, TALK.seq)]


@pytest.mark.parametrize(
    ("removed", "left"),
    [
        (MessageRemoved(message_seq=3, tool_call_id="c1"), []),
        (MessageRemoved(message_seq=9, seqs=(3,)), []),
        (MessageRemoved(message_seq=4, seqs=(4,)), [(2, 3)]),
        (MessageRemoved(message_seq=5, seqs=(5,)), [(2, 3), (2, 4)]),
    ],
)
def test_removed_messages_are_in_no_summary(removed: MessageRemoved, left: list[tuple[int, int]]) -> None:
    assert list_covered(when(summarise(summarise(TALK, 2, 3), 2, 4), removed)) == left


def test_compaction_continues_until_all_is_summarised() -> None:
    state = when(TALK, CompactionStarted(reason="asked", keep_turns=1, last_seq=4))
    assert state.compaction is not None
    assert summarise(state, 2, 3).compaction is state.compaction
    assert summarise(state, 2, 4).compaction is None


def test_summary_usage_belongs_to_its_run() -> None:
    state = when(TALK, make_run_started(), user_said())
    fact = CompactionSummarised(
        first_seq=2, last_seq=4, summary="in short", characters=9, completion=CompletionRecord(usage=USAGE)
    )
    for run_id, tokens in ((active_run(state).id, 5), (OTHER, 0), (None, 0)):
        after = when(state, in_run(run_id, fact))
        assert (after.usage.total_tokens, active_run(after).usage.total_tokens) == (5, tokens)


def test_tool_list_names_its_description_blob() -> None:
    state = when(TALK, ToolsListed(server="files", schemas="digest"), ToolsListed(server="files", error="gone"))
    assert list(state.other_texts) == ["digest"]
    listing = find_listing(state, "triage", "files")
    assert (listing.schemas, listing.error) == (None, "gone")
    assert find_listing(state, "refunds", "files") is None


def test_resumed_run_counts_as_continued() -> None:
    waited = PendingCall(tool_call_id="c1", name="look_up", arguments="{}", reason="approval")
    state = when(running(), RunWaiting(pending=(waited,)))
    run = active_run(state)
    assert (run.status, run.waits, run.last_wait, run.has_gone_on) == ("waiting", 1, state.seq, False)
    run = active_run(when(state, RunResumed(reason="approval")))
    assert (run.status, run.waits, run.pending, run.has_gone_on) == ("running", 1, (), True)


def test_person_words_begin_turns_notes_do_not() -> None:
    answered = running(model_answer())
    assert count_turns(answered.messages) == 1
    spoken = when(answered, MessageAdded(message=answer_message("And one more thing."), person="Lee"))
    assert count_turns(spoken.messages) == 2
    noted = when(answered, MessageAdded(message={"role": "user", "content": "be kind"}, person="Lee"))
    assert count_turns(noted.messages) == 1
