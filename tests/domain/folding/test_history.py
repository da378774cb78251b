"""What is sent in the place of messages follows what becomes of these."""

from __future__ import annotations

import pytest

from swarmkeep.domain.events import MessageAdded, PendingCall, RunResumed, RunWaiting
from swarmkeep.domain.facts.compaction import CompactionStarted, CompactionSummarised
from swarmkeep.domain.facts.history import MessageRemoved
from swarmkeep.domain.facts.records import CompletionRecord
from swarmkeep.domain.facts.tools import ToolsListed
from swarmkeep.domain.folding.listings import find_listing
from swarmkeep.domain.history.window import count_turns
from swarmkeep.domain.state import State
from tests.domain.given import (
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


def test_a_summary_counts_where_it_covers_more_than_the_one_before() -> None:
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
def test_what_was_taken_out_is_in_no_summary(removed: MessageRemoved, left: list[tuple[int, int]]) -> None:
    assert list_covered(when(summarise(summarise(TALK, 2, 3), 2, 4), removed)) == left


def test_a_compaction_goes_on_until_all_of_it_is_summed_up() -> None:
    state = when(TALK, CompactionStarted(reason="asked", keep_turns=1, last_seq=4))
    assert state.compaction is not None
    assert summarise(state, 2, 3).compaction is state.compaction
    assert summarise(state, 2, 4).compaction is None


def test_a_summary_is_paid_for_by_the_run_that_it_was_made_in() -> None:
    state = when(TALK, make_run_started(), user_said())
    fact = CompactionSummarised(
        first_seq=2, last_seq=4, summary="in short", characters=9, completion=CompletionRecord(usage=USAGE)
    )
    for run_id, tokens in ((active_run(state).id, 5), (OTHER, 0), (None, 0)):
        after = when(state, in_run(run_id, fact))
        assert (after.usage.total_tokens, active_run(after).usage.total_tokens) == (5, tokens)


def test_a_list_of_tools_names_the_text_that_describes_them() -> None:
    state = when(TALK, ToolsListed(server="files", schemas="digest"), ToolsListed(server="files", error="gone"))
    assert list(state.other_texts) == ["digest"]
    listing = find_listing(state, "triage", "files")
    assert listing is not None
    assert (listing.schemas, listing.error) == (None, "gone")
    assert find_listing(state, "refunds", "files") is None


def test_a_run_has_gone_on_once_it_is_resumed() -> None:
    waited = PendingCall(tool_call_id="c1", name="look_up", arguments="{}", reason="approval")
    state = when(given(make_run_started(), user_said()), RunWaiting(pending=(waited,)))
    run = active_run(state)
    assert (run.status, run.waits, run.last_wait, run.has_gone_on) == ("waiting", 1, state.seq, False)
    run = active_run(when(state, RunResumed(reason="approval")))
    assert (run.status, run.waits, run.pending, run.has_gone_on) == ("running", 1, (), True)


def test_what_a_person_says_in_the_agents_place_may_begin_a_turn_and_a_note_does_not() -> None:
    answered = given(make_run_started(), user_said(), model_reply(answer_message()))
    assert count_turns(answered.messages) == 1
    spoken = when(answered, MessageAdded(message=answer_message("And one more thing."), person="Lee"))
    assert count_turns(spoken.messages) == 2
    noted = when(answered, MessageAdded(message={"role": "user", "content": "be kind"}, person="Lee"))
    assert count_turns(noted.messages) == 1
