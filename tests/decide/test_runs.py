"""Invariants of every session that a server runs, whatever models, tools and people do."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import pytest
from hypothesis import given as for_any
from hypothesis import settings
from msgspec import UNSET

from swarmkeep.decide.commands import Approval, ToolAnswer, resume_run, start_queued
from swarmkeep.decide.drafts import draft_events
from swarmkeep.decide.people import hand_back
from swarmkeep.decide.settle import settle
from swarmkeep.decide.steps import AskModel, CallTool, CallTools, Compact, StartQueued, next_step
from swarmkeep.events import facts
from swarmkeep.events.fold import evolve
from swarmkeep.events.messages import read_tool_calls
from swarmkeep.events.state import State
from tests.events.given import (
    answer_message,
    calling_message,
    commit_reply,
    commit_result,
    record_drafts,
    running,
    tool_call,
)
from tests.support.hypothesis_profiles import examples
from tests.support.logs import CONCURRENT, RandomSession, SeededDice, make_random_log, random_logs, random_sessions

SEEDS = range(examples(200))


@pytest.fixture(scope="module")
def seeded() -> list[list[facts.RecordedEvent]]:
    return [make_random_log(SeededDice(seed), moves=40) for seed in SEEDS]


# A run's life.


def check_lives(events: list[facts.RecordedEvent]) -> None:
    """Runs begin once, one at a time, and end once; only an interrupted one may go on, and only as the latest."""
    queue: list[str | None] = []
    active = latest = None
    interrupted = False
    known: set[str | None] = set()
    for event in events:
        match event.fact:
            case facts.RunQueued():
                assert event.run_id not in known
                known.add(event.run_id)
                queue.append(event.run_id)
            case facts.RunStarted():
                assert active is None
                # Whoever may queue waits for those before; whoever may not starts at once.
                assert event.run_id in queue[:1] or event.run_id not in known
                queue = [run_id for run_id in queue if run_id != event.run_id]
                known.add(event.run_id)
                active = latest = event.run_id
            case facts.RunEnded() if event.run_id == active:
                active, latest, interrupted = None, event.run_id, event.type == "run.interrupted"
            case facts.RunEnded():
                # An import interrupts what waits in the queue.
                assert event.type in ("run.cancelled", "run.interrupted")
                queue.remove(event.run_id)
                ended = (event.run_id, event.type == "run.interrupted")
                latest, interrupted = ended if active is None else (latest, interrupted)
            case facts.RunResumed() if active is None:
                assert (event.run_id, interrupted) == (latest, True)
                active = event.run_id
            case facts.SessionForked():
                interrupted = interrupted or active is not None
                active, queue = None, []
            case (
                facts.RunWaiting()
                | facts.RunResumed()
                | facts.ToolStarted()
                | facts.ApprovalRequested()
                | facts.ApprovalDecided()
            ):
                assert event.run_id == active is not None
            case facts.MessageAdded():
                assert event.run_id == active


@for_any(events=random_logs(moves=30))
@settings(max_examples=examples(100))
def test_runs_end_once_and_never_overlap(events: list[facts.RecordedEvent]) -> None:
    check_lives(events)


def test_seeded_logs_never_overlap_runs(seeded: list[list[facts.RecordedEvent]]) -> None:
    for events in seeded:
        check_lives(events)


# Turns and calls.


class Turn:
    """What a log says of one reply and its calls."""

    def __init__(self, reply: facts.MessageAdded) -> None:
        self.asked = [call_id for call_id, _, _ in read_tool_calls(reply.message)]
        self.alone = {call_id for call_id, name, _ in read_tool_calls(reply.message) if name not in CONCURRENT}
        self.starts: list[tuple[str, int]] = []
        self.results: list[tuple[str, str]] = []
        self.handoffs: list[facts.HandoffMade | facts.HandoffIgnored] = []
        self.proposed: list[tuple[str, str]] = []
        self.changes: list[str] = []
        self.cut_off = False
        self.interrupted = False


def list_turns(events: list[facts.RecordedEvent]) -> Iterator[Turn]:
    """Every turn of a log; what follows the end of a run belongs to no turn."""
    turn: Turn | None = None
    for event in events:
        fact = event.fact
        if isinstance(fact, facts.MessageAdded) and fact.completion is not None:
            turn = Turn(fact)
            yield turn
        elif isinstance(fact, facts.RunStarted):
            turn = None
        elif turn is not None:
            note_fact(turn, fact)


def note_fact(turn: Turn, fact: object) -> None:
    match fact:
        case facts.ToolStarted():
            assert fact.tool_call_id not in [call_id for call_id, _ in turn.results]
            turn.starts.append((fact.tool_call_id, fact.attempt))
        case facts.MessageAdded(tool=tool) if tool is not None:
            call_id = fact.message["tool_call_id"]
            turn.results.append((call_id, tool.status))
            if tool.handoff is not UNSET:
                turn.proposed.append((call_id, tool.handoff))
        case facts.HandoffMade() | facts.HandoffIgnored():
            turn.handoffs.append(fact)
        case facts.ContextUpdated(tool_call_id=str(call_id)):
            turn.changes.append(call_id)
        case facts.RunInterrupted() | facts.SessionForked():
            turn.interrupted = True
        case facts.RunCancelled() | facts.RunFailed():
            turn.cut_off = True


def test_started_calls_get_at_most_one_result(seeded: list[list[facts.RecordedEvent]]) -> None:
    for turn in (turn for events in seeded for turn in list(list_turns(events))):
        answered = [call_id for call_id, _ in turn.results]
        assert len(set(answered)) == len(answered)
        assert set(answered) <= set(turn.asked)
        begun = {call_id for call_id, _ in turn.starts}
        for call_id, status in turn.results:
            assert call_id in begun or status in ("denied", "external", "error")
            assert not (call_id in begun and status in ("denied", "external"))


def test_calls_run_in_requested_order(seeded: list[list[facts.RecordedEvent]]) -> None:
    for turn in (turn for events in seeded for turn in list(list_turns(events))):
        begun = [call_id for call_id, attempt in turn.starts if attempt == 1 and call_id in turn.alone]
        assert begun == [call_id for call_id in turn.asked if call_id in begun]
        by_us = [call_id for call_id, status in turn.results if status not in ("external", "error")]
        in_turn = [call_id for call_id in by_us if call_id in turn.alone]
        assert in_turn == [call_id for call_id in turn.asked if call_id in in_turn]


def test_context_changes_apply_in_call_order(seeded: list[list[facts.RecordedEvent]]) -> None:
    out_of_order = 0
    for turn in (turn for events in seeded for turn in list(list_turns(events))):
        ended = [call_id for call_id, _ in turn.results if call_id in turn.changes]
        in_order = [call_id for call_id in turn.asked if call_id in turn.changes]
        assert turn.interrupted or turn.changes == in_order
        out_of_order += ended != in_order
    assert out_of_order


def test_call_starts_are_numbered_in_order(seeded: list[list[facts.RecordedEvent]]) -> None:
    for turn in (turn for events in seeded for turn in list(list_turns(events))):
        attempts = defaultdict(list)
        for call_id, attempt in turn.starts:
            attempts[call_id].append(attempt)
        for numbers in attempts.values():
            assert numbers == list(range(1, len(numbers) + 1))


def test_last_handoff_of_a_turn_wins(seeded: list[list[facts.RecordedEvent]]) -> None:
    several = 0
    for turn in (turn for events in seeded for turn in list(list_turns(events))):
        if not turn.handoffs:
            continue
        several += len(turn.handoffs) > 1
        proposed = sorted(turn.proposed, key=lambda each: turn.asked.index(each[0]))
        if turn.interrupted and len(turn.handoffs) < len(proposed):
            # Forked in the middle of a commit.
            continue
        assert [(fact.tool_call_id, fact.to_agent) for fact in turn.handoffs] == proposed
        *ignored, made = turn.handoffs
        assert isinstance(made, facts.HandoffMade)
        assert all(isinstance(fact, facts.HandoffIgnored) for fact in ignored)
        assert turn.cut_off or {call_id for call_id, _ in turn.results} == set(turn.asked)
    assert several


def test_events_name_the_active_or_asked_agent(seeded: list[list[facts.RecordedEvent]]) -> None:
    others = 0
    for events in seeded:
        state = State()
        for event in events:
            before, state = state, evolve(state, event)
            expected = state.agent if event.seq == 1 or isinstance(event.fact, facts.SessionUpdated) else before.agent
            asked = _find_asked_agent(before, event)
            # An approval is asked for by the agent whose call it is, or by the one that is active when an import ends.
            either = {
                asked or expected,
                expected if isinstance(event.fact, facts.ApprovalRequested) else asked or expected,
            }
            assert event.agent in either
            others += asked not in (None, expected)
    assert others


def _find_asked_agent(before: State, event: facts.RecordedEvent) -> str | None:
    """The agent whose reply or call an event is; None if it is neither."""
    fact = event.fact
    if isinstance(fact, facts.ToolStarted | facts.ApprovalRequested | facts.MessageAdded) and before.run is not None:
        call_id = fact.message.get("tool_call_id") if isinstance(fact, facts.MessageAdded) else fact.tool_call_id
        for call in before.run.calls:
            if call.id == call_id:
                return call.agent
    if isinstance(fact, facts.MessageAdded) and fact.completion is not None:
        return str(fact.message["sender"])
    return None


def test_model_calls_stay_within_max_turns(seeded: list[list[facts.RecordedEvent]]) -> None:
    stopped = 0
    for events in seeded:
        limits: dict[str | None, int | None] = {}
        calls: dict[str | None, int] = defaultdict(int)
        for event in events:
            fact = event.fact
            if isinstance(fact, facts.RunStarted):
                limits[event.run_id] = fact.options.max_turns
            elif isinstance(fact, facts.MessageAdded) and fact.completion is not None:
                # A reply that was cut off is kept as one, and belongs to a call that the run was allowed.
                calls[event.run_id] += 1
                limit = limits[event.run_id]
                assert limit is None or calls[event.run_id] <= limit
            elif isinstance(fact, facts.RunCompleted) and fact.stop_reason == "max_turns":
                stopped += 1
                assert calls[event.run_id] == limits[event.run_id]
    assert stopped


def test_run_usage_sums_its_calls(seeded: list[list[facts.RecordedEvent]]) -> None:
    for events in seeded:
        spent: dict[str | None, list[int]] = defaultdict(lambda: [0, 0])
        for event in events:
            fact = event.fact
            if isinstance(fact, facts.MessageAdded | facts.CompactionSummarised) and fact.completion is not None:
                tokens = (fact.completion.usage or {}).get("total_tokens")
                spent[event.run_id][0] += tokens if isinstance(tokens, int) else 0
                spent[event.run_id][1] += 1
            elif isinstance(fact, facts.RunEnded):
                assert [fact.usage.total_tokens, fact.usage.model_calls] == spent[event.run_id]


def test_approval_precedes_every_guarded_start(seeded: list[list[facts.RecordedEvent]]) -> None:
    guarded = 0
    for events in seeded:
        undecided: set[str] = set()
        for event in events:
            fact = event.fact
            if isinstance(fact, facts.MessageAdded) and fact.completion is not None:
                undecided = set()
            elif isinstance(fact, facts.ApprovalRequested):
                undecided.add(fact.tool_call_id)
            elif isinstance(fact, facts.ApprovalDecided):
                guarded += 1
                assert fact.tool_call_id in undecided
                if fact.decision == "approve":
                    undecided.discard(fact.tool_call_id)
            elif isinstance(fact, facts.ToolStarted):
                assert fact.tool_call_id not in undecided
    assert guarded


# Progress.


def answer_pending(state: State) -> list[facts.EventDraft]:
    """What a waiting run needs to go on."""
    run = state.run
    assert run is not None
    if any(call.reason == "person" for call in run.pending):
        return settle(state, hand_back(state, by="me", note="go on", force=True))
    approvals = [
        Approval(tool_call_id=call.tool_call_id, decision="approve")
        for call in run.pending
        if call.reason == "approval"
    ]
    answers = [
        ToolAnswer(tool_call_id=call.tool_call_id, content="42") for call in run.pending if call.reason != "approval"
    ]
    return settle(state, resume_run(state, run.id, answers, approvals))


def finish(state: State) -> int:
    """Drive a session until there is nothing left to do, with models that answer and people who agree.

    Returns how many commits that took.
    """
    commits = 0
    while (step := next_step(state)) is not None or state.run is not None:
        match step:
            case None:
                drafts = answer_pending(state)
            case AskModel():
                drafts = commit_reply(state, answer_message())
            case Compact():
                drafts = draft_events(state.agent, [facts.CompactionFailed(code="x", message="y")], None)
            case CallTool(call=call) if call.attempts:
                drafts = commit_result(state, call.id)
            case CallTools(calls=calls):
                drafts = commit_result(state, calls[-1].id)
            case StartQueued():
                drafts = settle(state, start_queued(state))
            case _:
                drafts = settle(state, [])
        assert drafts, "a step that leaves no trace would come again for ever"
        state = record_drafts(state, drafts)
        commits += 1
        assert commits < 1000
    assert state.queue == ()
    return commits


def count_commits_left(state: State) -> int:
    """More commits than it can take to end what is there."""
    open_calls = 0 if state.run is None else len(state.run.open_calls)
    taken_over = 0 if state.taken_over is None else 3
    return 5 + 2 * open_calls + 4 * len(state.queue) + taken_over


@for_any(talk=random_sessions(moves=25))
@settings(max_examples=examples(60))
def test_session_can_finish_after_any_commit(talk: RandomSession) -> None:
    state = State()
    for commit in talk.commits:
        state = record_drafts(state, commit)
        assert finish(state) <= count_commits_left(state)


@for_any(talk=random_sessions(moves=25))
@settings(max_examples=examples(60))
def test_busy_session_has_a_next_step(talk: RandomSession) -> None:
    state = State()
    for event in talk.events:
        state = evolve(state, event)
        rests = state.status == "idle" and not state.queue and state.handback_note is None
        assert (next_step(state) is None) == (state.status == "waiting" or rests)


@pytest.mark.parametrize("limit", [0, 1, 7])
def test_turn_limit_stops_endless_tool_calls(limit: int) -> None:
    state = running(max_turns=limit)
    for turn in range(limit):
        assert next_step(state) == AskModel()
        state = record_drafts(state, commit_reply(state, calling_message(tool_call(f"a{turn}"), tool_call(f"b{turn}"))))
        state = record_drafts(state, commit_result(state, f"a{turn}"))
        state = record_drafts(state, commit_result(state, f"b{turn}"))
    state = record_drafts(state, settle(state, []))
    (run,) = state.finished
    assert (run.status, run.stop_reason, run.turns) == ("completed", "max_turns", limit)
    assert next_step(state) is None
