"""A person speaks in the agent's place until they hand back; nobody else does meanwhile."""

from __future__ import annotations

import pytest
from msgspec import UNSET

from swarmkeep.decide.people import NOBODY_KNOWN, answer, hand_back, take_over
from swarmkeep.decide.steps import PERSON, AskModel, CallTool, StartQueued, TellNote, Wait, next_step
from swarmkeep.events.errors import NotTakenOver, SessionBusy, TakenOverByOther
from swarmkeep.events.facts import MessageAdded, PendingCall, RunQueued, RunWaiting, ToolStarted
from swarmkeep.events.records import RunOptions
from swarmkeep.events.state import State
from tests.events.given import (
    OTHER,
    active_run,
    calling_message,
    given,
    in_run,
    list_facts,
    list_types,
    make_run_started,
    model_reply,
    record_drafts,
    tool_call,
    tool_result,
    user_said,
    when,
)

ASKED = given(make_run_started(), user_said())
CALLS = when(ASKED, model_reply(calling_message(tool_call("c1"), tool_call("c2"))))
BEGUN = when(CALLS, ToolStarted(tool_call_id="c1", name="look_up", arguments="{}", attempt=1))


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
    assert forced.taken_over is not None
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
    drafts = answer(when(state, RunWaiting(pending=(PERSON,))), "One moment.", by="Lee")
    assert list_types(drafts) == ["message.added"] * 3 + ["run.completed"]
    *left, said, _ = list_facts(drafts)
    statuses = [fact.tool.status for fact in left if isinstance(fact, MessageAdded) and fact.tool is not None]
    assert statuses == ["unknown_outcome", "denied"]
    assert isinstance(said, MessageAdded)
    assert (said.message["content"], said.message["sender"], said.person) == ("One moment.", "Lee", "Lee")


def test_nobody_known_is_named_as_such() -> None:
    state = taken(given(), by=None)
    (draft,) = answer(state, "Hello.", by=None)
    assert draft.run_id is None
    assert isinstance(draft.fact, MessageAdded)
    assert (draft.fact.message["sender"], draft.fact.person) == (NOBODY_KNOWN, NOBODY_KNOWN)


def test_handed_back_run_reads_note_first() -> None:
    state = when(taken(ASKED), RunWaiting(pending=(PERSON,)))
    drafts = hand_back(state, by="Lee", note="be kind")
    assert list_types(drafts) == ["session.handed_back", "run.resumed"]
    state = record_drafts(state, drafts)
    assert isinstance(next_step(state), TellNote)
    told = MessageAdded(message={"role": "user", "content": "be kind", "sender": "Lee"}, person="Lee")
    assert isinstance(next_step(when(state, told)), AskModel)
    without = record_drafts(taken(ASKED), hand_back(taken(ASKED), by="Lee"))
    assert (without.handback_note, isinstance(next_step(without), AskModel)) == (None, True)


def test_other_waits_survive_a_takeover() -> None:
    waited = PendingCall(tool_call_id="c1", name="look_up", arguments="{}", reason="approval")
    state = when(taken(CALLS), RunWaiting(pending=(PERSON, waited)))
    drafts = hand_back(state, by="Lee")
    assert list_types(drafts) == ["session.handed_back"]
    assert active_run(record_drafts(state, drafts)).pending == (waited,)


def test_queued_run_starts_during_takeover_after_note() -> None:
    queued = when(given(), in_run(OTHER, RunQueued(options=RunOptions(), messages=())))
    assert isinstance(next_step(taken(queued)), StartQueued)
    told = record_drafts(taken(queued), hand_back(taken(queued), by="Lee", note="be kind"))
    assert isinstance(next_step(told), TellNote)
    (fact,) = list_facts(hand_back(taken(queued), by="Lee", note=""))
    assert getattr(fact, "note", None) is UNSET
