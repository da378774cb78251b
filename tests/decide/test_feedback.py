"""What people think of answers: of several about one answer the last counts, and a model reads none of it."""

from __future__ import annotations

from typing import Any

import pytest

from swarmkeep.decide.people import add_feedback, remove_message
from swarmkeep.events.errors import EventNotFound, InvalidRequest, RunNotFound
from swarmkeep.events.facts import FeedbackAdded, RunCompleted, SessionForked, SessionImported
from swarmkeep.events.state import Feedback, State
from tests.events.given import (
    answer_message,
    given,
    in_run,
    make_run_started,
    model_reply,
    record_drafts,
    user_said,
    when,
)

COMPLETED = RunCompleted(stop_reason="end_turn")


def talk() -> State:
    """Two runs, `r1` and `r2`, each with an answer."""
    facts = [make_run_started(), user_said(), model_reply(answer_message()), COMPLETED]
    return when(given(), *(in_run(run_id, fact) for run_id in ("r1", "r2") for fact in facts))


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
    assert when(state, FeedbackAdded(seq=first, value="sideways")).feedback == Feedback(up=2)


def test_feedback_changes_nothing_a_model_is_sent() -> None:
    before = when(talk(), in_run("r3", make_run_started()), in_run("r3", user_said()))
    seq = find_answers(before)[0]
    (draft,) = add_feedback(before, seq=seq, run_id=None, value="down", comment="no", by="Ann")
    assert (draft.fact, draft.run_id) == (FeedbackAdded(seq=seq, value="down", comment="no", by="Ann"), None)
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
    forked = when(state, SessionForked(from_session_id="s", from_seq=2, from_hash=""))
    imported = when(state, SessionImported(source="export", digest="", last_seq=2))
    assert (forked.feedback, len(forked.rated), imported.feedback) == (Feedback(), 0, Feedback(down=1))
    assert rate(forked, run_id="r1", value="down").feedback == Feedback(down=1)
