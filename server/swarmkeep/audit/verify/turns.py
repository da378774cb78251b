"""Check that calls and results belong together, and that runs follow one another."""

from __future__ import annotations

from swarmkeep.audit.verify.problems import Problems
from swarmkeep.domain.envelope import RecordedEvent
from swarmkeep.domain.events import MessageAdded, RunCompleted, RunStarted, ToolStarted
from swarmkeep.domain.state import State, ToolCall


def check_turn(before: State, event: RecordedEvent, findings: Problems) -> None:
    """Say what does not fit, if this event is the one after `before`.

    Messages from outside are not looked at: a history that somebody brings may be as odd as it likes.
    """
    fact = event.fact
    if isinstance(fact, MessageAdded):
        if fact.tool is not None:
            _check_result(before, event, fact, findings)
    elif isinstance(fact, ToolStarted):
        _check_start(before, event, fact, findings)
    elif isinstance(fact, RunStarted):
        if before.run is not None:
            findings.add("run_overlaps", f"run {event.run_id} starts while {before.run.id} is active", event.seq)
    elif isinstance(fact, RunCompleted):
        _check_end(before, event, findings)


def _find_calls(state: State, event: RecordedEvent) -> tuple[ToolCall, ...] | None:
    """The calls of the turn that an event belongs to; None if it belongs to none, or nobody can say any more."""
    run = state.run
    if run is None or run.id != event.run_id:
        return None
    return run.calls


def _check_result(before: State, event: RecordedEvent, fact: MessageAdded, findings: Problems) -> None:
    calls = _find_calls(before, event)
    if calls is None:
        return
    call_id = fact.message.get("tool_call_id")
    call = next((call for call in calls if call.id == call_id), None)
    if call is None:
        findings.add("result_without_call", f"event {event.seq} is the result of no call: {call_id}", event.seq)
    elif call.done:
        findings.add("result_twice", f"event {event.seq} is a second result of call {call_id}", event.seq)


def _check_start(before: State, event: RecordedEvent, fact: ToolStarted, findings: Problems) -> None:
    calls = _find_calls(before, event)
    if calls is None:
        return
    call = next((call for call in calls if call.id == fact.tool_call_id), None)
    if call is None:
        findings.add("start_without_call", f"event {event.seq} starts no call: {fact.tool_call_id}", event.seq)
    elif call.done:
        detail = f"event {event.seq} starts call {fact.tool_call_id}, which already has a result"
        findings.add("start_after_result", detail, event.seq)


def _check_end(before: State, event: RecordedEvent, findings: Problems) -> None:
    missing = [call.id for call in _find_calls(before, event) or () if not call.done]
    if missing:
        detail = f"run {event.run_id} was completed without a result of {', '.join(missing)}"
        findings.add("call_without_result", detail, event.seq)
