"""Fold what changes the history that models are sent: handoffs that lost, messages taken out, summaries."""

from __future__ import annotations

from msgspec import UNSET
from msgspec.structs import replace

from swarmkeep.domain.chain import Chain
from swarmkeep.domain.checking.known_ids import find_results
from swarmkeep.domain.envelope import RecordedEvent
from swarmkeep.domain.events import GuardrailTripped, HandoffIgnored
from swarmkeep.domain.facts.compaction import CompactionFailed, CompactionStarted, CompactionSummarised
from swarmkeep.domain.facts.history import MessageRemoved
from swarmkeep.domain.folding.compactions import apply_compaction, drop_summaries
from swarmkeep.domain.folding.removals import apply_message_removed
from swarmkeep.domain.messages import SUPERSEDED, Entry, find_message
from swarmkeep.domain.state import State

HistoryFact = (
    HandoffIgnored | GuardrailTripped | MessageRemoved | CompactionStarted | CompactionSummarised | CompactionFailed
)


def apply_history_event(state: State, event: RecordedEvent, fact: HistoryFact) -> State:
    match fact:
        case HandoffIgnored():
            return _apply_handoff_ignored(state, fact)
        case GuardrailTripped():
            return _apply_guardrail_tripped(state, event, fact)
        case MessageRemoved():
            return apply_message_removed(state, event, fact)
        case _:
            return apply_compaction(state, event, fact)


def _apply_handoff_ignored(state: State, fact: HandoffIgnored) -> State:
    # The result was recorded before it was known that a later call would hand over too. No model has seen it yet.
    places = () if fact.tool_call_id is None else find_results(state.messages).find(fact.tool_call_id)
    if not places:
        return state
    entry = state.messages[places[-1]]
    message = {**entry.message, "content": SUPERSEDED.format(agent=fact.to_agent)}
    tool = entry.tool and replace(entry.tool, status="superseded")
    return replace(state, messages=state.messages.replace_at(places[-1], replace(entry, message=message, tool=tool)))


def _apply_guardrail_tripped(state: State, event: RecordedEvent, fact: GuardrailTripped) -> State:
    run = state.run
    if run is None or run.id != event.run_id:
        return state
    run = replace(run, last_seq=event.seq, tripped=run.tripped or fact.stage in ("input", "output"))
    for seq in () if fact.messages is UNSET else fact.messages:
        state = drop_summaries(state, seq)
    return replace(state, messages=refuse_messages(state.messages, fact), run=run, last_change=event.seq)


def refuse_messages(messages: Chain[Entry], fact: GuardrailTripped) -> Chain[Entry]:
    """The messages, those marked that no model is sent any more."""
    for seq in () if fact.messages is UNSET else fact.messages:
        if (at := find_message(messages, seq)) is not None:
            messages = messages.replace_at(at, replace(messages[at], guardrail=fact.name))
    return messages
