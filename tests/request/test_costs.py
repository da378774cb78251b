"""Pieces of requests that are kept: the same as anew, at the cost of what was added, and right for each session."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given as for_any
from hypothesis import settings
from hypothesis import strategies as st
from msgspec.structs import replace

from swarmkeep import File
from swarmkeep.decide.checks import FileLimits, keep_files
from swarmkeep.decide.drafts import apply_drafts
from swarmkeep.decide.people import remove_message
from swarmkeep.events.chain import Chain
from swarmkeep.events.facts import (
    CompactionSummarised,
    EventDraft,
    MessageAdded,
    MessageRemoved,
    RecordedEvent,
    SessionForked,
)
from swarmkeep.events.fold import fold
from swarmkeep.events.messages import read_tool_calls
from swarmkeep.events.records import CompletionRecord, ToolRecord
from swarmkeep.events.state import State, find_call_ids, find_finished_runs
from swarmkeep.request.request import assemble_request, build_request, list_standing
from tests.events.given import (
    answer_message,
    calling_message,
    given,
    model_answer,
    model_calls,
    record_drafts,
    running,
    tool_call,
    tool_result,
    user_said,
    when,
)
from tests.request.profile import PROFILE, TOOLS
from tests.support.calls import count_calls
from tests.support.hypothesis_profiles import examples
from tests.support.logs import PROFILES, Dice, DrawnDice, SeededDice, any_logs, make_hostile_log, make_random_log
from tests.support.pictures import make_png

SOME_MESSAGES = st.sampled_from(
    [
        user_said("hello"),
        user_said("ö"),
        model_answer(),
        model_calls("c1", "c2"),
        model_calls("c1"),
        tool_result("c1"),
        tool_result("c2"),
    ]
)


@settings(max_examples=examples(200))
@for_any(st.lists(SOME_MESSAGES, max_size=30), st.data())
def test_request_ignores_earlier_requests(facts: list[MessageAdded], data: st.DataObject) -> None:
    """What earlier requests were made of is kept, for states that grew from one another in any way."""
    states = [State()]
    for fact in facts:
        states.append(when(data.draw(st.sampled_from(states[-3:])), fact))
        asked = data.draw(st.sampled_from(states))
        anew = assemble_request(list(asked.messages), "Be kind.", None, {"model": "m"})
        for _ in range(2):
            request = assemble_request(asked.messages, "Be kind.", None, {"model": "m"})
            assert (request.body(), request.entries) == (anew.body(), anew.entries)


def test_long_history_is_not_traversed_again() -> None:
    state = given(*[fact for n in range(500) for fact in (user_said(str(n)), model_answer())])
    assemble_request(state.messages, "Be kind.", None, {})
    state = when(when(state, user_said("again")), model_answer())
    request = assemble_request(state.messages, "Be kind.", None, {})
    kept = [entry for entry in request.entries if "chat_json" in vars(entry)]
    assert len(request.entries) == 1002
    assert [entry.message["content"] for entry in kept] == [answer_message()["content"]]


@pytest.mark.parametrize("window", [None, 3])
def test_turn_cost_ignores_run_length(window: int | None) -> None:
    profile = replace(PROFILE, tools=TOOLS, tool_choice="required")
    costs = []
    for turns in (20, 200):
        state = running()
        for number in range(turns):
            call = tool_call(f"c{number}")
            asked = CompletionRecord(request=build_request(state, profile, turns=window).record)
            reply = MessageAdded(message=calling_message(call), completion=asked)
            state = when(state, reply, tool_result(f"c{number}"))
        with count_calls() as counted:
            body = build_request(state, profile, turns=window).body()
        anew = replace(state, messages=Chain(state.messages))
        assert body == build_request(anew, profile, turns=window).body()
        costs.append(counted.total())
    assert costs[0] == pytest.approx(costs[1], abs=20)


@pytest.mark.parametrize("window", [None, 3])
def test_removed_beginning_costs_requests_nothing(window: int | None) -> None:
    costs = []
    for taken_out in (20, 200):
        state = given(*[user_said(str(number)) for number in range(taken_out + 5)])
        asked = CompletionRecord(request=build_request(state, PROFILE, turns=window).record)
        state = when(state, MessageAdded(message=answer_message(), completion=asked), user_said())
        for entry in list(state.messages[:taken_out]):
            state = record_drafts(state, remove_message(state, entry.seq))
            with count_calls() as counted:
                request = build_request(state, PROFILE, turns=window)
        anew = replace(state, messages=Chain(state.messages))
        assert request.body() == build_request(anew, PROFILE, turns=window).body()
        costs.append(counted.total())
    assert costs[0] == pytest.approx(costs[1], abs=20)


def test_long_histories_are_few_identical_pieces() -> None:
    state = given()
    for number in range(200):
        said = user_said(f"question {number}"), model_answer("a" * (number % 7) + "!")
        state = when(state, *said)
        history = build_request(when(state, user_said("And?")), PROFILE).history
        assert len(history.pieces) < 16
        assert history.size == len(history.json)
    anew = replace(state, messages=Chain(state.messages))
    assert build_request(state, PROFILE).body() == build_request(anew, PROFILE).body()


# What is kept of a history is right for each that finds it: sessions that grew from one state, and what is tried out.

KEPT = keep_files([File(make_png(50, seed), "image/png") for seed in range(2)], FileLimits())


def tell_otherwise(event: RecordedEvent, number: int) -> RecordedEvent:
    """The same event in another session, where something else was said at that place."""
    fact = event.fact
    if isinstance(fact, MessageAdded) and isinstance(fact.message.get("content"), str):
        message = {**fact.message, "content": f"{fact.message['content']} {number}"}
        return replace(event, fact=replace(fact, message=message))
    if isinstance(fact, CompactionSummarised) and fact.summary:
        return replace(event, fact=replace(fact, summary=f"{fact.summary} {number}"))
    return event


def give_files(event: RecordedEvent, dice: Dice) -> RecordedEvent:
    """The same event, perhaps with pictures in what the user said, or in what a call gave."""
    fact = event.fact
    if not isinstance(fact, MessageAdded) or not dice.chance(30):
        return event
    parts = dice.pick((KEPT.parts, KEPT.parts[1:], (*KEPT.parts[1:], {"type": "text", "text": "é"}, *KEPT.parts[:1])))
    if fact.message.get("role") == "tool":
        tool = fact.tool or ToolRecord(name="draw", status="ok")
        return replace(event, fact=replace(fact, tool=replace(tool, files=parts)))
    message = {**fact.message, "content": list(parts)} if fact.message.get("role") == "user" else fact.message
    return replace(event, fact=replace(fact, message=message))


class Line:
    """A session that is folded step by step. `log` is what it has been told by now and what it will be."""

    def __init__(self, log: Sequence[RecordedEvent], state: State, length: int) -> None:
        self.log = log
        self.state = state
        self.length = length

    def go_on(self, count: int) -> None:
        self.state = fold(self.log[self.length : self.length + count], self.state)
        self.length = min(self.length + count, len(self.log))

    def branch_off(self, number: int, lost: int) -> Line:
        rest = [replace(event, seq=event.seq - lost) for event in self.log[self.length + lost :]]
        later = [tell_otherwise(event, number) for event in rest]
        return Line([*self.log[: self.length], *later], self.state, self.length)

    def try_out(self, count: int, dice: Dice) -> None:
        """Ask on what would be if something else came, which it does not."""
        later = [tell_otherwise(event, -1) for event in self.log[self.length : self.length + count]]
        check(
            apply_drafts(self.state, [EventDraft(event.fact, event.run_id, event.agent) for event in later]),
            fold([*self.log[: self.length], *later]),
            dice,
        )

    def check(self, dice: Dice) -> None:
        check(self.state, fold(self.log[: self.length]), dice)


def check(state: State, anew: State, dice: Dice) -> None:
    """What is made of a state is what is made of one that nobody has asked anything."""
    profile, turns = dice.pick(PROFILES), dice.pick((None, None, 1, 2, 5))
    files = dice.pick((KEPT.content, {}))
    request, expected = (replace(build_request(one, profile, turns=turns), files=files) for one in (state, anew))
    assert request.body() == expected.body()
    # As a past request is rebuilt.
    parts = request.instructions, request.tools, request.params, request.history_from
    listed = assemble_request(list(anew.messages), *parts, anew.summary)
    assert replace(listed, files=files).body() == request.body()
    assert request.record == expected.record
    assert request.history.media == expected.history.media
    if dice.chance(30):
        assert [entry.seq for entry in list_standing(state.messages)] == [e.seq for e in list_standing(anew.messages)]
        places: dict[str, list[int]] = {}
        for place, entry in enumerate(anew.messages):
            for call_id, _, _ in read_tool_calls(entry.message) if entry.role == "assistant" else ():
                places.setdefault(call_id, []).append(place)
        known = find_call_ids(state.messages)
        assert {call_id: list(known.find(call_id)) for call_id in places} == places
        runs, ended = [run.id for run in anew.finished], find_finished_runs(state.finished)
        assert all([at for at, name in enumerate(runs) if name == run_id] == [*ended.find(run_id)] for run_id in runs)


def go_through(log: Sequence[RecordedEvent], dice: Dice, steps: int) -> None:
    lines = [Line([give_files(event, dice) for event in log], State(), 0)]
    for number in range(steps):
        line = dice.pick(lines)
        match dice.pick(("go on", "go on", "go on", "check", "check", "try out", "branch off")):
            case "go on":
                line.go_on(dice.pick((1, 2, 5, 20)))
            case "check":
                line.check(dice)
            case "try out":
                line.try_out(dice.pick((0, 1, 3, 10)), dice)
            case "branch off" if len(lines) < 4:
                lines.append(line.branch_off(number, dice.pick((0, 0, 1, 2, 5))))
    for line in lines:
        line.check(dice)


def test_removed_call_endings_let_late_results_count() -> None:
    calls = model_calls("c1", "c2")
    state = given(user_said(), calls, tool_result("c1"), model_answer())
    build_request(state, PROFILES[0])
    gone = MessageRemoved(message_seq=state.messages[-1].seq, content=True)
    state = when(state, gone, tool_result("c2", "Here it is."))
    sent = build_request(state, PROFILES[0])
    assert sent.messages[-1]["content"] == "Here it is."
    assert sent.body() == build_request(replace(state, messages=Chain(state.messages)), PROFILES[0]).body()


def test_results_count_despite_sibling_fork_endings() -> None:
    state = running(model_calls("c1"))
    fork = when(state, SessionForked(from_session_id="s", from_seq=state.seq, from_hash=state.hash))
    build_request(when(fork, user_said("Never mind.")), PROFILES[0])
    state = when(state, tool_result("c1", "Here it is."))
    assert build_request(state, PROFILES[0]).messages[-1]["content"] == "Here it is."


@settings(max_examples=examples(50))
@for_any(any_logs(), st.data())
def test_request_ignores_earlier_questions_asked(log: list[RecordedEvent], data: st.DataObject) -> None:
    go_through(log, DrawnDice(data.draw), data.draw(st.integers(0, 30)))


def test_seeded_requests_depend_on_log_alone() -> None:
    for seed in range(examples(30)):
        dice = SeededDice(seed)
        go_through(make_random_log(dice, moves=30) if seed % 2 else make_hostile_log(dice), dice, 40)
