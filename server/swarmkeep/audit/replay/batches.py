"""Calls that ran at once in a recorded conversation: they start together, and end one after the other, as they did."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Sequence

from msgspec import UNSET

from swarmkeep.agent.output import OUTPUT_TOOL
from swarmkeep.domain.decisions.turns import ToolOutcome
from swarmkeep.domain.envelope import RecordedEvent
from swarmkeep.domain.events import (
    ApprovalRequested,
    ContextUpdated,
    GuardrailTripped,
    HandoffIgnored,
    HandoffMade,
    MessageAdded,
    RunWaiting,
    SessionCreated,
    SessionEvent,
    ToolStarted,
)
from swarmkeep.domain.state import Run, ToolCall
from swarmkeep.engine.calls.together import CarryOut

# What comes before a start in one commit.
_BEFORE_STARTS = (MessageAdded, ApprovalRequested, GuardrailTripped, ContextUpdated)


def find_recorded_batch(events: Iterable[RecordedEvent], run: Run) -> Sequence[ToolCall]:
    """The calls that these events start together: several, or one beside another that waits for an approval."""
    started: set[str] = set()
    for event in events:
        if isinstance(event.fact, ToolStarted):
            started.add(event.fact.tool_call_id)
        elif started or not isinstance(event.fact, _BEFORE_STARTS):
            break
    is_beside = run.own_open_calls[0].approval == "requested"
    return [call for call in run.own_open_calls if call.id in started] if is_beside or len(started) > 1 else ()


def count_given_up(events: Iterable[RecordedEvent], run: Run | None) -> int:
    """How many of these events, right behind those that had a run go on, are about calls whose arguments were redacted:
    whoever resumed it recorded that they do not run any more."""
    redacted = set() if run is None else {call.id for call in run.open_calls if call.redacted}
    count = 0
    for event in events:
        match event.fact:
            case MessageAdded(tool=tool, message=message) if tool is not None:
                if message.get("tool_call_id") not in redacted:
                    break
            case ContextUpdated() | HandoffMade() | HandoffIgnored() if count:
                pass
            case _:
                break
        count += 1
    return count


async def end_as_recorded(
    read_next: Callable[[], RecordedEvent], calls: Sequence[ToolCall], carry_out: CarryOut
) -> AsyncGenerator[tuple[ToolCall, ToolOutcome]]:
    """Stands in for what runs calls at once: each ends when it ended then, as long as one did."""
    left = {call.id: call for call in calls}
    while ended := [left.pop(call_id) for call_id in _list_answered_calls(read_next()) if call_id in left]:
        for call in ended:
            yield call, await carry_out(call)
        if not left:
            return


def _list_answered_calls(event: RecordedEvent) -> list[str]:
    """The call whose result an event is, or begins with; those for whose sessions the run then waits."""
    fact = event.fact
    if isinstance(fact, RunWaiting):
        return [call.tool_call_id for call in fact.pending if call.reason == "session"]
    if isinstance(fact, MessageAdded) and fact.tool is not None:
        return [str(fact.message.get("tool_call_id"))]
    return [fact.tool_call_id] if isinstance(fact, GuardrailTripped) and fact.tool_call_id else []


def changes_context(fact: SessionEvent) -> bool:
    if isinstance(fact, MessageAdded):
        return fact.tool is not None and fact.tool.context is not UNSET
    return isinstance(fact, ContextUpdated | SessionCreated)


def follows_verdict(fact: MessageAdded, before: SessionEvent) -> bool:
    """Whether it came in one commit with the final answer that it is about, or with the refusal that it says."""
    if fact.guardrail is not UNSET and fact.completion is None:
        return True
    if fact.correction is not UNSET or (fact.tool is not None and fact.tool.output is True):
        return True
    # Of several calls that give an answer one counts; the others are answered right after it.
    return _answers_output_call(fact) and _answers_output_call(before)


def _answers_output_call(fact: SessionEvent) -> bool:
    return isinstance(fact, MessageAdded) and fact.tool is not None and fact.tool.name == OUTPUT_TOOL
