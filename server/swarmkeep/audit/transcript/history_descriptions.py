"""Describe in words what changes what models are sent of a history: messages taken out, and compactions."""

from __future__ import annotations

from typing import assert_never

from msgspec import UNSET

from swarmkeep.audit.transcript.entry import TimelineEntry
from swarmkeep.audit.transcript.run_descriptions import MakeEntry, name_actor
from swarmkeep.domain.facts.compaction import CompactionFailed, CompactionStarted, CompactionSummarised
from swarmkeep.domain.facts.history import MessageRemoved
from swarmkeep.domain.facts.records import read_usage
from swarmkeep.domain.facts.tools import ToolsListed
from swarmkeep.domain.messages import find_message, read_tool_calls
from swarmkeep.domain.state import State

HistoryFact = MessageRemoved | CompactionStarted | CompactionSummarised | CompactionFailed | ToolsListed
_REASONS = {"asked": "it was asked for", "too_long": "the model's provider found the request too long"}


def describe_history_event(make_entry: MakeEntry, before: State, fact: HistoryFact) -> TimelineEntry:
    match fact:
        case MessageRemoved():
            return _describe_removal(make_entry, before, fact)
        case CompactionStarted():
            return _describe_start(make_entry, fact)
        case CompactionSummarised():
            completion = fact.completion
            headline = f"models are sent a summary of messages {fact.first_seq} to {fact.last_seq} in their place"
            return make_entry(
                headline=headline,
                text=fact.summary,
                tone="notice",
                model=None if completion is None else completion.model,
                usage=None if completion is None else read_usage(completion.usage),
                duration_ms=None if completion is None else completion.duration_ms,
            )
        case CompactionFailed():
            headline = "no summary was made; the conversation continues without one"
            return make_entry(headline=headline, text=f"{fact.code}: {fact.message}", tone="bad")
        case ToolsListed():
            return _describe_listing(make_entry, fact)
        case _:
            assert_never(fact)


def _describe_listing(make_entry: MakeEntry, fact: ToolsListed) -> TimelineEntry:
    if fact.error is not UNSET:
        return make_entry(speaker=fact.server, headline="cannot list its tools", text=fact.error, tone="bad")
    names = ", ".join(tool.name for tool in fact.tools)
    return make_entry(speaker=fact.server, headline=f"offers {names or 'no tools'}", tone="notice")


def _describe_start(make_entry: MakeEntry, fact: CompactionStarted) -> TimelineEntry:
    counted = "about " if fact.estimated else ""
    full = f"the last request took {counted}{fact.prompt_tokens} of {fact.of_tokens} tokens"
    done = []
    if fact.shortened:
        done.append(f"results {', '.join(map(str, fact.shortened))} to {fact.result_characters} characters each")
    if fact.last_seq:
        done.append(f"what was said up to message {fact.last_seq} to a summary")
    headline = f"the history is shortened for the model, because {_REASONS.get(fact.reason, full)}"
    return make_entry(
        speaker=name_actor(fact.by) if fact.by else "", headline=headline, text="\n".join(done), tone="notice"
    )


def _describe_removal(make_entry: MakeEntry, before: State, fact: MessageRemoved) -> TimelineEntry:
    what = f"message {fact.message_seq}"
    if fact.tool_call_id is not None:
        at = find_message(before.messages, fact.message_seq)
        calls = [] if at is None else read_tool_calls(before.messages[at].message)
        name = next((name for call_id, name, _ in calls if call_id == fact.tool_call_id), fact.tool_call_id)
        what = f"the call of {name} out of {what}"
    if fact.content is True:
        what = f"what {what} says"
    others = [str(seq) for seq in fact.seqs if seq != fact.message_seq]
    more = f", and with it {', '.join(others)}" if others else ""
    headline = f"takes out {what}{more}: from here on it is not sent to models"
    return make_entry(speaker=name_actor(fact.by), headline=headline, tone="notice")
