"""What is sent in the place of messages follows what becomes of these."""

from __future__ import annotations

import pytest

from swarmkeep.events.facts import (
    CompactionStarted,
    CompactionSummarised,
    MessageAdded,
    MessageRemoved,
    PendingCall,
    RunResumed,
    RunWaiting,
    ToolsListed,
)
from swarmkeep.events.fold import find_listing
from swarmkeep.events.records import CompletionRecord
from swarmkeep.events.state import State
from swarmkeep.request.request import count_turns
from tests.events.given import (
    OTHER,
    active_run,
    answer_message,
    given,
    in_run,
    make_run_started,
    model_reply,
    user_said,
    when,
)

USAGE = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
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
    assert listing is not None
    assert (listing.schemas, listing.error) == (None, "gone")
    assert find_listing(state, "refunds", "files") is None


def test_resumed_run_counts_as_continued() -> None:
    waited = PendingCall(tool_call_id="c1", name="look_up", arguments="{}", reason="approval")
    state = when(given(make_run_started(), user_said()), RunWaiting(pending=(waited,)))
    run = active_run(state)
    assert (run.status, run.waits, run.last_wait, run.has_gone_on) == ("waiting", 1, state.seq, False)
    run = active_run(when(state, RunResumed(reason="approval")))
    assert (run.status, run.waits, run.pending, run.has_gone_on) == ("running", 1, (), True)


def test_person_words_begin_turns_notes_do_not() -> None:
    answered = given(make_run_started(), user_said(), model_reply(answer_message()))
    assert count_turns(answered.messages) == 1
    spoken = when(answered, MessageAdded(message=answer_message("And one more thing."), person="Lee"))
    assert count_turns(spoken.messages) == 2
    noted = when(answered, MessageAdded(message={"role": "user", "content": "be kind"}, person="Lee"))
    assert count_turns(noted.messages) == 1
