"""Messages are taken out of what models are sent, and the log keeps them; runs are made unfindable as responses."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given as for_any
from hypothesis import settings
from hypothesis import strategies as st

from swarmkeep.decide.commands import resume_run
from swarmkeep.decide.people import hide_run, remove_message
from swarmkeep.decide.steps import AskModel, next_step
from swarmkeep.events.errors import DomainError, EventNotFound, RunNotFound, SessionBusy
from swarmkeep.events.facts import MessageRemoved, RecordedEvent, RunHidden, RunInterrupted, SessionForked
from swarmkeep.events.fold import evolve, fold
from swarmkeep.events.messages import list_shown
from swarmkeep.events.state import State
from swarmkeep.events.views import find_run, view_run, view_session
from swarmkeep.request.request import History, Profile, build_request
from tests.events.given import (
    COMPLETED,
    OTHER,
    RUN,
    calling_message,
    given,
    in_run,
    list_facts,
    make_run_started,
    model_answer,
    model_calls,
    model_reply,
    running,
    tool_call,
    tool_result,
    user_said,
    when,
)
from tests.support.calls import count_calls
from tests.support.hypothesis_profiles import examples
from tests.support.logs import any_logs
from tests.support.rules import find_body_faults, find_faults

PROFILE = Profile(name="triage", model="m", instructions="You help.")
ENDED = COMPLETED


def make_talk() -> State:
    """A run with two calls: messages 3 (asks), 4 (calls c1 and c2), 5 and 6 (results), 7 (answer)."""
    asked = calling_message(tool_call("c1"), tool_call("c2"))
    return given(
        make_run_started(),
        user_said("Where is it?"),
        model_reply(asked),
        tool_result("c1", "one"),
        tool_result("c2", "two"),
        model_answer("There."),
        ENDED,
    )


def remove(state: State, seq: int, call_id: str | None = None, by: str | None = None) -> State:
    return when(state, *remove_message(state, seq, call_id, by))


def list_sent(state: State, **options: Any) -> list[str]:
    """What a model is sent: texts, and the ids of calls."""
    messages = build_request(state, PROFILE, **options).messages
    assert find_faults(messages) == []
    return [
        message.get("content") or " ".join(call["id"] for call in message["tool_calls"]) for message in messages[1:]
    ]


def test_content_is_taken_out_once_while_calls_stay() -> None:
    state = given(
        make_run_started(),
        model_reply(calling_message(tool_call("c1")) | {"content": "Look."}),
        tool_result("c1", "one"),
        ENDED,
    )
    gone = when(state, *remove_message(state, 3, content_only=True))
    assert gone.messages[0].removed_content
    assert remove_message(gone, 3, content_only=True) == []
    asked, result = (entry.message for entry in list_shown(gone.messages))
    assert ([call["id"] for call in asked["tool_calls"]], result["tool_call_id"]) == (["c1"], "c1")


def list_views(state: State) -> list[int]:
    return [entry.view()["seq"] for entry in list_shown(state.messages)]


def test_removed_message_neither_sent_nor_shown() -> None:
    state = remove(make_talk(), 3)
    assert list_sent(state) == ["c1 c2", "one", "two", "There."]
    assert list_views(state) == [4, 5, 6, 7]
    run = find_run(state, RUN)
    assert run is not None
    view = view_run("s", state, run)
    assert [message["seq"] for message in view.messages] == [4, 5, 6, 7]
    assert (view_session("s", state).message_count, view.output_text) == (4, "There.")


def test_log_keeps_the_removed() -> None:
    state = remove(make_talk(), 3)
    assert state.messages[0].message["content"] == "Where is it?"
    assert len(state.messages) == 5


def test_removed_answer_is_no_output() -> None:
    state = remove(make_talk(), 7)
    run = find_run(state, RUN)
    assert run is not None
    assert view_run("s", state, run).output_text == ""


def test_assistant_message_goes_with_call_results() -> None:
    (fact,) = list_facts(remove_message(make_talk(), 4, by="Lee"))
    assert fact == MessageRemoved(message_seq=4, seqs=(4, 5, 6), by="Lee")
    assert list_sent(remove(make_talk(), 4)) == ["Where is it?", "There."]


@pytest.mark.parametrize(("seq", "call_id"), [(5, None), (5, "c1"), (4, "c1")])
def test_call_and_result_go_together(seq: int, call_id: str | None) -> None:
    (fact,) = list_facts(remove_message(make_talk(), seq, call_id))
    assert fact == MessageRemoved(message_seq=4, tool_call_id="c1", seqs=(5,))
    state = remove(make_talk(), seq, call_id)
    assert list_sent(state) == ["Where is it?", "c2", "two", "There."]
    assert list_views(state) == [3, 4, 6, 7]
    assert [call["id"] for call in list(state.messages)[1].view()["tool_calls"]] == ["c2"]


def test_message_without_calls_or_text_goes_too() -> None:
    state = remove(remove(make_talk(), 5), 6)
    assert list_sent(state) == ["Where is it?", "There."]
    assert view_session("s", state).message_count == 2
    words = calling_message(tool_call("c1")) | {"content": "Let me see."}
    state = running(model_reply(words), tool_result("c1"), ENDED)
    state = remove(state, 5)
    assert list_sent(state) == ["hello", "Let me see."]
    assert "tool_calls" not in state.messages[1].view()


def test_taking_out_twice_changes_nothing() -> None:
    for seq, call_id in ((3, None), (4, None), (5, None), (4, "c1")):
        state = remove(make_talk(), seq, call_id)
        assert remove_message(state, seq, call_id) == []
    without_calls = remove(make_talk(), 4)
    for seq, call_id in ((5, None), (6, "c2"), (4, "c1")):
        assert remove_message(without_calls, seq, call_id) == []


@pytest.mark.parametrize(("seq", "call_id"), [(2, None), (99, None), (3, "c1"), (4, "c3"), (5, "c2")])
def test_non_message_or_missing_call_not_found(seq: int, call_id: str | None) -> None:
    with pytest.raises(EventNotFound) as refused:
        remove_message(make_talk(), seq, call_id)
    assert refused.value.seq == seq


def test_active_messages_stay_earlier_removable() -> None:
    state = when(make_talk(), in_run(OTHER, make_run_started()), user_said("And now?"))
    last = state.messages[-1].seq
    with pytest.raises(SessionBusy) as refused:
        remove_message(state, last)
    assert refused.value.run_id == OTHER
    assert list_sent(remove(state, 4)) == ["Where is it?", "There.", "And now?"]


def test_active_run_result_stays_with_call() -> None:
    asked = calling_message(tool_call("c1"))
    state = given(user_said(), model_reply(asked))
    state = when(state, make_run_started(), tool_result("c1"))
    with pytest.raises(SessionBusy):
        remove_message(state, state.messages[1].seq)


def test_interrupted_run_retried_without_removed_calls() -> None:
    asked = model_calls("c1", "c2")
    stopped = RunInterrupted(stop_reason="interrupted")
    state = running(asked, tool_result("c1"), stopped)
    state = remove(state, 4)
    state = when(state, *resume_run(state, RUN))
    assert isinstance(next_step(state), AskModel)
    assert list_sent(state) == ["hello"]


def test_earlier_fork_keeps_removed_later_not() -> None:
    before = make_talk()
    after = remove(before, 4)
    forked = SessionForked(from_session_id="s", from_seq=1, from_hash="h")
    assert list_sent(when(before, forked)) == list_sent(before)
    assert list_sent(when(after, forked)) == ["Where is it?", "There."]


def test_question_of_cut_history_exists() -> None:
    state = when(make_talk(), in_run(OTHER, make_run_started()), user_said("And now?"))
    state = when(state, model_calls("c3"), tool_result("c3", "three"))
    assert list_sent(state, turns=1) == ["And now?", "c3", "three"]
    state = when(state, ENDED)
    state = remove(state, state.messages[5].seq)
    assert list_sent(state, turns=1) == ["Where is it?", "c3", "three"]


def test_kept_history_not_used_for_removed() -> None:
    state = given()
    for number in range(5):
        run = f"r{number}"
        state = when(state, in_run(run, make_run_started()), user_said(f"ask {number}"))
        build_request(state, PROFILE).body()
        state = when(state, model_answer(f"answer {number}"), in_run(run, ENDED))
    assert state.messages.recall(History) is not None
    changed = remove(state, state.messages[2].seq)
    assert b"ask 1" not in build_request(changed, PROFILE).body()
    assert build_request(state, PROFILE).body() == build_request(fold_again(state), PROFILE).body()
    assert b"ask 1" in build_request(state, PROFILE).body()
    kept = state.messages.recall(History)
    assert kept is not None
    assert remove(state, state.messages[-1].seq).messages.recall(History) is kept


def fold_again(state: State) -> State:
    """The same state with nothing kept."""
    from msgspec.structs import replace

    from swarmkeep.events.chain import Chain

    return replace(state, messages=Chain(state.messages))


@settings(max_examples=examples(60))
@for_any(any_logs(), st.data())
def test_sent_messages_valid_after_any_removal(log: list[RecordedEvent], data: st.DataObject) -> None:
    state = fold(log[: data.draw(st.integers(1, len(log)))])
    for _ in range(data.draw(st.integers(1, 6))):
        if not state.messages:
            return
        if data.draw(st.booleans()):
            # Something is kept of the history by now.
            build_request(state, PROFILE)
        entry = state.messages[data.draw(st.integers(0, len(state.messages) - 1))]
        call_id = data.draw(st.sampled_from((None, *entry.call_ids))) if entry.role == "assistant" else None
        try:
            state = remove(state, entry.seq, call_id)
        except DomainError:
            continue
        for turns in (None, 1, 2):
            asked = build_request(state, PROFILE, turns=turns)
            assert find_body_faults(asked.body()) == []
            assert all(not sent.removed for sent in asked.entries)
        assert build_request(state, PROFILE).body() == build_request(fold_again(state), PROFILE).body()
        shown = [other.seq for other in list_shown(state.messages)]
        assert entry.seq not in shown or call_id is not None
        assert view_session("s", state).message_count == len(shown) or any_forged(log)


def any_forged(log: list[RecordedEvent]) -> bool:
    """Whether a removal tells of messages that are not there, or of some twice."""
    told = [seq for event in log if isinstance(event.fact, MessageRemoved) for seq in event.fact.seqs]
    there = {entry.seq for entry in fold(log).messages}
    return len(told) != len(set(told)) or not set(told) <= there


def test_removing_all_messages_copies_nothing() -> None:
    state = given(*(user_said(f"{number}") for number in range(2000)))
    shared = state.messages._items
    for seq in range(2, 2002):
        (draft,) = remove_message(state, seq)
        state = evolve(state, when_recorded(state, draft))
    assert state.messages._items is shared
    assert (list_sent(state), view_session("s", state).message_count) == ([], 0)


def when_recorded(state: State, draft: Any) -> RecordedEvent:
    from tests.support.logs import record_draft

    return record_draft(draft, state.seq, state.hash)


# Runs.


def test_hidden_run_stays_readable_hiding_idempotent() -> None:
    state = make_talk()
    before = find_run(state, RUN)
    assert before is not None
    hidden = hide_run(state, RUN, by="Lee")
    assert list_facts(hidden) == [RunHidden(by="Lee")]
    state = when(state, *hidden)
    run = find_run(state, RUN)
    assert run.hidden
    assert view_run("s", state, run) == view_run("s", state, before)
    assert hide_run(state, RUN) == []


def test_hiding_run_has_constant_cost() -> None:
    names = [f"r{number}" for number in range(200)]
    state = given(*(in_run(name, fact) for name in names for fact in (make_run_started(), ENDED)))
    with count_calls() as calls:
        state = when(state, *(in_run(name, RunHidden()) for name in names))
    assert all(run.hidden for run in state.finished)
    assert calls.total() < 50 * len(names)


def test_active_or_queued_run_not_hidden() -> None:
    from swarmkeep.decide.commands import StartRun, start_run

    state = running()
    state = when(state, *start_run(state, StartRun(run_id=OTHER, messages=(), on_busy="queue")))
    for run_id, status in ((RUN, "running"), (OTHER, "queued")):
        with pytest.raises(SessionBusy, match=f"{run_id} is still {status}; wait for it, or cancel it"):
            hide_run(state, run_id)
    with pytest.raises(RunNotFound):
        hide_run(state, "nobody")
