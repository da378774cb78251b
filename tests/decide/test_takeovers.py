"""People in an agent's place, at the desk, and with decisions that they may not make."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import UNSET

from swarmkeep.decide.commands import Approval, StartRun, resume_run, start_run
from swarmkeep.decide.drafts import apply_drafts, draft_events
from swarmkeep.decide.people import (
    NOBODY_KNOWN,
    add_feedback,
    add_note,
    answer,
    assign,
    hand_back,
    remove_message,
    take_over,
)
from swarmkeep.decide.settle import finish_import
from swarmkeep.decide.steps import PERSON, AskModel, CallTool, StartQueued, TellNote, Wait, next_step
from swarmkeep.events import facts
from swarmkeep.events.errors import (
    EventNotFound,
    InvalidRequest,
    NotTakenOver,
    OwnApproval,
    RunNotFound,
    SessionBusy,
    TakenOverByOther,
)
from swarmkeep.events.records import CompletionRecord
from swarmkeep.events.state import Feedback, State
from tests.events.given import (
    COMPLETED,
    OTHER,
    active_run,
    given,
    in_run,
    list_facts,
    list_types,
    make_run_started,
    model_answer,
    model_calls,
    record_drafts,
    run_queued,
    running,
    tool_result,
    user_said,
    when,
)

ASKED = running()
CALLS = when(ASKED, model_calls("c1", "c2"))
BEGUN = when(CALLS, facts.ToolStarted(tool_call_id="c1", name="look_up", arguments="{}", attempt=1))


def taken(state: State, by: str | None = "Lee") -> State:
    return record_drafts(state, take_over(state, by=by))


def test_takeover_holds_until_forced() -> None:
    state = taken(ASKED)
    assert take_over(state, by="Lee") == []
    with pytest.raises(TakenOverByOther):
        take_over(state, by="Ana")
    with pytest.raises(TakenOverByOther):
        answer(state, "no", by="Ana")
    with pytest.raises(TakenOverByOther):
        hand_back(state, by="Ana")
    forced = record_drafts(state, take_over(state, by="Ana", note="mine", force=True))
    assert (forced.taken_over.by, forced.taken_over.note) == ("Ana", "mine")
    assert record_drafts(state, hand_back(state, by="Ana", force=True)).taken_over is None
    for refused in (lambda: answer(ASKED, "no", by="Lee"), lambda: hand_back(ASKED, by="Lee", force=True)):
        with pytest.raises(NotTakenOver):
            refused()


def test_begun_calls_end_and_no_others_begin() -> None:
    assert next_step(taken(ASKED)) == Wait((PERSON,), "person")
    assert next_step(taken(CALLS)) == Wait((PERSON,), "person")
    begun = next_step(taken(BEGUN))
    assert isinstance(begun, CallTool)
    assert begun.call.id == "c1"
    assert next_step(when(taken(BEGUN), tool_result("c1"))) == Wait((PERSON,), "person")


def test_person_answer_ends_run_and_calls() -> None:
    state = taken(BEGUN)
    with pytest.raises(SessionBusy):
        answer(state, "One moment.", by="Lee")
    drafts = answer(when(state, facts.RunWaiting(pending=(PERSON,))), "One moment.", by="Lee")
    assert list_types(drafts) == ["message.added"] * 3 + ["run.completed"]
    *left, said, _ = list_facts(drafts)
    statuses = [fact.tool.status for fact in left if isinstance(fact, facts.MessageAdded) and fact.tool is not None]
    assert statuses == ["unknown_outcome", "denied"]
    assert isinstance(said, facts.MessageAdded)
    assert (said.message["content"], said.message["sender"], said.person) == ("One moment.", "Lee", "Lee")


def test_nobody_known_is_named_as_such() -> None:
    state = taken(given(), by=None)
    (draft,) = answer(state, "Hello.", by=None)
    assert draft.run_id is None
    assert isinstance(draft.fact, facts.MessageAdded)
    assert (draft.fact.message["sender"], draft.fact.person) == (NOBODY_KNOWN, NOBODY_KNOWN)


def test_handed_back_run_reads_note_first() -> None:
    state = when(taken(ASKED), facts.RunWaiting(pending=(PERSON,)))
    drafts = hand_back(state, by="Lee", note="be kind")
    assert list_types(drafts) == ["session.handed_back", "run.resumed"]
    state = record_drafts(state, drafts)
    assert isinstance(next_step(state), TellNote)
    told = facts.MessageAdded(message={"role": "user", "content": "be kind", "sender": "Lee"}, person="Lee")
    assert isinstance(next_step(when(state, told)), AskModel)
    without = record_drafts(taken(ASKED), hand_back(taken(ASKED), by="Lee"))
    assert (without.handback_note, isinstance(next_step(without), AskModel)) == (None, True)


def test_other_waits_survive_a_takeover() -> None:
    waited = facts.PendingCall(tool_call_id="c1", name="look_up", arguments="{}", reason="approval")
    state = when(taken(CALLS), facts.RunWaiting(pending=(PERSON, waited)))
    drafts = hand_back(state, by="Lee")
    assert list_types(drafts) == ["session.handed_back"]
    assert active_run(record_drafts(state, drafts)).pending == (waited,)


def test_queued_run_starts_during_takeover_after_note() -> None:
    queued = when(given(), run_queued(OTHER))
    assert isinstance(next_step(taken(queued)), StartQueued)
    told = record_drafts(taken(queued), hand_back(taken(queued), by="Lee", note="be kind"))
    assert isinstance(next_step(told), TellNote)
    (fact,) = list_facts(hand_back(taken(queued), by="Lee", note=""))
    assert getattr(fact, "note", None) is UNSET


# Who looks after a session, and what colleagues note: decided without a word of either to a model.


def test_assignment_is_recorded_once_outside_the_run() -> None:
    state = running()
    (draft,) = assign(state, to="billing", by="Ann", reason="an invoice")
    assert (draft.fact, draft.run_id) == (facts.SessionAssigned(to="billing", by="Ann", reason="an invoice"), None)
    state = record_drafts(state, [draft])
    assert state.assignee == "billing"
    assert assign(state, to="billing", by="Bob") == []
    state = record_drafts(state, assign(state, to=None, by="Bob"))
    assert state.assignee is None
    assert assign(state, to=None, by="Bob") == []


@pytest.mark.parametrize("name", ["", "none", " billing", "a\nb", "n" * 201, "a\x00"])
def test_wrong_names_are_refused(name: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        assign(given(), to=name, by=None)
    assert refused.value.errors[0]["pointer"] == "/to"


def test_takeover_assigns_and_handback_keeps() -> None:
    taken = take_over(given(), by="key_1 (Ann)", owner="Ann")
    assert [type(draft.fact) for draft in taken] == [facts.SessionTakenOver, facts.SessionAssigned]
    state = record_drafts(given(), taken)
    assert state.assignee == "Ann"
    state = record_drafts(state, hand_back(state, by="key_1 (Ann)"))
    assert (state.assignee, state.taken_over) == ("Ann", None)
    # Hers already: only the conversation is taken over again.
    assert [type(draft.fact) for draft in take_over(state, by="key_1 (Ann)", owner="Ann")] == [facts.SessionTakenOver]
    # Without keys people have no names.
    assert [type(draft.fact) for draft in take_over(given(), by=None)] == [facts.SessionTakenOver]


def test_note_changes_nothing_that_a_model_is_sent() -> None:
    before = running()
    (draft,) = add_note(before, "Twice before.", by="Ann")
    assert (draft.fact, draft.run_id) == (facts.NoteAdded(text="Twice before.", by="Ann"), None)
    after = record_drafts(before, [draft])
    assert (after.messages, after.run, after.context_variables) == (
        before.messages, before.run, before.context_variables,
    )  # fmt: skip
    assert len(add_note(before, "n" * 10_000, by="Ann")) == 1
    for text in ("", "  \n", "n" * 10_001):
        with pytest.raises(InvalidRequest):
            add_note(before, text, by="Ann")


def test_forks_and_imports_are_assigned_to_no_one() -> None:
    state = given(facts.SessionAssigned(to="billing"))
    forked = when(state, facts.SessionForked(from_session_id="s", from_seq=2, from_hash=""))
    imported = when(state, facts.SessionImported(source="export", digest="", last_seq=2))
    assert (state.assignee, forked.assignee, imported.assignee) == ("billing", None, None)


# The caller who started or imported a run does not decide on it, where the decision says so.

CALL = {"id": "c1", "type": "function", "function": {"name": "refund", "arguments": "{}"}}
REPLY = facts.MessageAdded(
    message={"role": "assistant", "content": None, "tool_calls": [CALL], "sender": "A"}, completion=CompletionRecord()
)


def waiting_run(by: str | None) -> State:
    """A run that waits for a decision on the call `c1`."""
    state = apply_drafts(State(), draft_events("A", [facts.SessionCreated(agent="A")], None))
    command = StartRun(run_id="r1", messages=({"role": "user", "content": "hi"},), by=by)
    state = apply_drafts(state, start_run(state, command))
    asked = facts.ApprovalRequested(tool_call_id="c1", name="refund", arguments="{}")
    return apply_drafts(state, draft_events("A", [REPLY, asked, facts.RunWaiting(pending=())], "r1"))


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


# What people think of answers: of several about one answer the last counts, and a model reads none of it.


def talk() -> State:
    """Two runs, `r1` and `r2`, each with an answer."""
    found = [make_run_started(), user_said(), model_answer(), COMPLETED]
    return when(given(), *(in_run(run_id, fact) for run_id in ("r1", "r2") for fact in found))


def find_answers(state: State) -> list[int]:
    return [entry.seq for entry in state.messages if entry.role == "assistant"]


def rate(state: State, **given: Any) -> State:
    asked: dict[str, Any] = {"seq": None, "run_id": None, "comment": None, "by": "Ann", **given}
    return record_drafts(state, add_feedback(state, **asked))


def test_last_word_about_an_answer_counts() -> None:
    state = talk()
    first, second = find_answers(state)
    assert state.feedback.verdict is None
    state = rate(state, seq=first, value="up")
    state = rate(state, run_id="r2", value="down", comment="wrong price")
    assert (state.feedback, state.feedback.verdict) == (Feedback(up=1, down=1), "down")
    state = rate(state, seq=second, value="down", comment="really")
    assert state.feedback == Feedback(up=1, down=1)
    state = rate(state, seq=second, value="up")
    assert (state.feedback, state.feedback.verdict) == (Feedback(up=2), "up")
    # Of a later release.
    assert when(state, facts.FeedbackAdded(seq=first, value="sideways")).feedback == Feedback(up=2)


def test_feedback_changes_nothing_a_model_is_sent() -> None:
    before = when(talk(), in_run("r3", make_run_started()), in_run("r3", user_said()))
    seq = find_answers(before)[0]
    (draft,) = add_feedback(before, seq=seq, run_id=None, value="down", comment="no", by="Ann")
    assert (draft.fact, draft.run_id) == (facts.FeedbackAdded(seq=seq, value="down", comment="no", by="Ann"), None)
    after = record_drafts(before, [draft])
    assert (after.messages, after.run, after.last_change) == (before.messages, before.run, before.last_change)


def test_only_answers_are_rated() -> None:
    state = talk()
    answer = find_answers(state)[0]
    for seq in (1, answer - 1, 99):
        with pytest.raises(EventNotFound):
            rate(state, seq=seq, value="up")
    with pytest.raises(RunNotFound):
        rate(state, run_id="none", value="up")
    for wrong in ({}, {"seq": answer, "run_id": "r1"}, {"seq": answer, "comment": "n" * 10_001}):
        with pytest.raises(InvalidRequest):
            rate(state, value="up", **wrong)
    gone = record_drafts(state, remove_message(state, answer))
    with pytest.raises(EventNotFound):
        rate(gone, seq=answer, value="up")
    with pytest.raises(InvalidRequest):
        rate(gone, run_id="r1", value="up")


def test_forks_begin_without_feedback_and_imports_keep_it() -> None:
    state = rate(talk(), run_id="r1", value="down")
    forked = when(state, facts.SessionForked(from_session_id="s", from_seq=2, from_hash=""))
    imported = when(state, facts.SessionImported(source="export", digest="", last_seq=2))
    assert (forked.feedback, len(forked.rated), imported.feedback) == (Feedback(), 0, Feedback(down=1))
    assert rate(forked, run_id="r1", value="down").feedback == Feedback(down=1)
