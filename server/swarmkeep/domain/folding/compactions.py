"""Fold compactions: what models are sent in the place of messages."""

from __future__ import annotations

from typing import assert_never

from msgspec.structs import replace

from swarmkeep.domain.envelope import RecordedEvent
from swarmkeep.domain.facts.compaction import CompactionFailed, CompactionStarted, CompactionSummarised
from swarmkeep.domain.facts.records import read_usage, sum_usage
from swarmkeep.domain.messages import find_message
from swarmkeep.domain.state import OpenCompaction, State, Summary


def apply_compaction(
    state: State, event: RecordedEvent, fact: CompactionStarted | CompactionSummarised | CompactionFailed
) -> State:
    match fact:
        case CompactionStarted():
            return _apply_started(state, event, fact)
        case CompactionSummarised():
            return _apply_summarised(state, event, fact)
        case CompactionFailed():
            return replace(state, compaction=None)
        case _:
            assert_never(fact)


def _apply_started(state: State, event: RecordedEvent, fact: CompactionStarted) -> State:
    messages = state.messages
    for seq in fact.shortened:
        at = find_message(messages, seq)
        if at is not None and fact.result_characters > 0:
            messages = messages.replace_at(at, replace(messages[at], shortened=fact.result_characters))
    opened = OpenCompaction(seq=event.seq, fact=fact) if 0 < fact.last_seq < event.seq else None
    return replace(state, messages=messages, compaction=opened, compacted_at=event.seq, last_change=event.seq)


def _apply_summarised(state: State, event: RecordedEvent, fact: CompactionSummarised) -> State:
    last_seq = min(fact.last_seq, event.seq - 1)
    if state.compaction is not None and last_seq >= state.compaction.fact.last_seq:
        state = replace(state, compaction=None)
    if fact.completion is not None:
        state = replace(state, usage=sum_usage(state.usage, read_usage(fact.completion.usage)))
        if state.run is not None and state.run.id == event.run_id:
            run = replace(state.run, usage=sum_usage(state.run.usage, read_usage(fact.completion.usage)))
            state = replace(state, run=run)
        request = fact.completion.request
        if request is not None:
            state = replace(state, other_texts=state.other_texts.append(request.instructions))
    covered = 0 if state.summary is None else state.summary.last_seq
    # One without a text was redacted.
    if not fact.summary or last_seq <= covered:
        return state
    summary = Summary(seq=event.seq, at=event.at, first_seq=fact.first_seq, last_seq=last_seq, text=fact.summary)
    return replace(state, summaries=state.summaries.append(summary), last_change=event.seq)


def drop_summaries(state: State, seq: int) -> State:
    """Without the summaries of this message: what was taken out is not sent in other words either."""
    summaries = state.summaries
    while len(summaries) and summaries[-1].first_seq <= seq <= summaries[-1].last_seq:
        summaries = summaries.drop_last()
    return state if summaries is state.summaries else replace(state, summaries=summaries)
