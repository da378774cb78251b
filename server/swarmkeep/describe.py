"""Describe each type of event in words: speaker, headline, text, tone."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, Literal, assert_never

import msgspec
from msgspec import UNSET, UnsetType

from swarmkeep.events import facts
from swarmkeep.events.codec import Json, encode, encode_text, parse_timestamp
from swarmkeep.events.fold import evolve
from swarmkeep.events.messages import find_message, read_tool_calls
from swarmkeep.events.patch import escape_pointer_part
from swarmkeep.events.records import RunOptions, Usage, read_usage, sum_usage
from swarmkeep.events.state import State
from swarmkeep.events.wording import format_call, format_calls, format_json, join_content, pluralize, put_name_first

# Compare two JSON values place by place, for people and for programs.


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """A place where two values differ."""

    path: str
    """A pointer (RFC 6901), or "" for the whole."""
    before: Any = UNSET
    """The value there, if there was one; null is a value."""
    after: Any = UNSET
    """The same afterwards."""


def find_changes(before: Any, after: Any, path: str = "") -> tuple[Change, ...]:
    """Every place where two JSON values differ. Types count: 1, 1.0 and true are different. Lists are one place."""
    return tuple(_find_changes(before, after, path))


def _find_changes(before: Any, after: Any, path: str) -> Iterator[Change]:
    # What is the same object is not looked into: of two states that follow one another nearly all is.
    if before is after:
        return
    if isinstance(before, dict) and isinstance(after, dict):
        changed = [key for key, value in before.items() if after.get(key, UNSET) is not value]
        for key in [*changed, *(key for key in after if key not in before)]:
            yield from _find_changes(
                before.get(key, UNSET), after.get(key, UNSET), f"{path}/{escape_pointer_part(key)}"
            )
    elif before is UNSET or after is UNSET or encode(before) != encode(after):
        yield Change(path=path, before=before, after=after)


# One event as it is shown to people, whichever way it is shown.

Tone = Literal["plain", "good", "notice", "bad"]


class TimelineEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One event of a timeline.

    `speaker` is the one who speaks or acts (a user, an agent, a tool), or empty; `headline` a line about it; `text`
    the whole message; `calls` the calls that it is about, as Python writes calls; `changes` its changes of context
    variables or metadata. `model`, `usage` and `duration_ms` are of a model call, a tool call or a run. `warning` says
    why there is less to tell than there was.
    """

    seq: int
    at: str
    type: str
    run_id: str | None = None
    agent: str = ""
    speaker: str = ""
    headline: str = ""
    text: str = ""
    calls: tuple[str, ...] = ()
    changes: tuple[Change, ...] = ()
    tone: Tone = "plain"
    model: str | None = None
    usage: Usage | None = None
    duration_ms: float | None = None
    warning: str = ""


def list_figures(entry: TimelineEntry) -> list[str]:
    """List its cost: the model, tokens, model calls of a run, and time."""
    figures = [entry.model] if entry.model else []
    usage, took = entry.usage, entry.duration_ms
    if usage is not None and usage.total_tokens:
        figures.append(format_tokens(usage))
    if usage is not None and usage.model_calls > 1:
        figures.append(f"{usage.model_calls} model calls")
    if took is not None:
        figures.append(f"{took / 1000:.1f} s" if took >= 1000 else f"{took:.0f} ms")
    return figures


def format_tokens(usage: Usage) -> str:
    return f"{pluralize(usage.total_tokens, 'token')} ({usage.prompt_tokens} in, {usage.completion_tokens} out)"


# Describe what happens to a run in words: its beginning, waits, decisions and end.

MakeEntry = Callable[..., TimelineEntry]
"""Makes the entry of one event; all that does not depend on the event is given already."""


def _describe_run_event(
    make_entry: MakeEntry,
    before: State,
    event: facts.RecordedEvent,
    fact: facts.RunQueued | facts.RunStarted | facts.RunWaiting | facts.RunResumed | facts.ApprovalRequested
    | facts.ApprovalDecided | facts.RunCompleted | facts.RunFailed | facts.RunCancelled | facts.RunInterrupted,
) -> TimelineEntry:  # fmt: skip
    match fact:
        case facts.RunStarted():
            return _describe_begin(make_entry, fact, "starts a run", "a run starts")
        case facts.RunQueued():
            said = "\n".join(join_content(message.get("content")) for message in fact.messages)
            return _describe_begin(make_entry, fact, "queues a run", "a run is queued", text=said)
        case facts.RunWaiting():
            return make_entry(
                headline=_describe_wait(fact.pending), calls=_list_pending_calls(fact.pending), tone="notice"
            )
        case facts.RunResumed():
            return _describe_resume(make_entry, fact)
        case facts.ApprovalRequested():
            until = f" until {fact.expires_at}" if fact.expires_at else ""
            call = format_call(fact.name, fact.arguments)
            return make_entry(headline=f"an approval is asked for{until}", calls=(call,), tone="notice")
        case facts.ApprovalDecided():
            return _describe_decision(make_entry, before, fact)
        case facts.RunCompleted() | facts.RunFailed() | facts.RunCancelled() | facts.RunInterrupted():
            return _describe_end(make_entry, before, event, fact)
        case _:
            assert_never(fact)


def _describe_begin(
    make_entry: MakeEntry, fact: facts.RunStarted | facts.RunQueued, done: str, happened: str, text: str = ""
) -> TimelineEntry:
    """Name the one who began a run, if that is known; `happened` says it without anybody."""
    speaker = put_name_first(fact.by) if fact.by else ""
    said = (done if speaker else happened, *_describe_options(fact.options))
    return make_entry(speaker=speaker, headline=" ".join(said), text=text)


def _describe_options(options: RunOptions) -> tuple[str, ...]:
    """Describe the options of a run that are not as usual."""
    said = []
    if options.model:
        said.append(f"with the model {options.model}")
    if options.max_turns is not None:
        said.append(f"for at most {pluralize(options.max_turns, 'turn')}")
    if not options.execute_tools:
        said.append("without running its tools")
    if options.caller_tools:
        said.append(f"with functions of the caller: {', '.join(sorted(options.caller_tool_names))}")
    if options.model_settings:
        said.append(f"with {encode_text(options.model_settings)}")
    if options.response_format:
        said.append(f"for an answer of the form {options.response_format.get('type')}")
    if options.instructions:
        said.append("with instructions of its own")
    return tuple(said)


def _describe_wait(pending: tuple[facts.PendingCall, ...]) -> str:
    below = [str(call.session_id or "of another agent") for call in pending if call.reason == "session"]
    if below:
        return f"the run waits for a decision in session{'s' if len(below) > 1 else ''} {', '.join(below)}:"
    if any(call.reason == "person" for call in pending):
        return f"the run waits for the person who has taken over{'' if len(pending) == 1 else ', and for a decision:'}"
    approval = any(call.reason == "approval" for call in pending)
    return f"the run waits for {'an approval' if approval else 'results from outside'}:"


def _list_pending_calls(pending: tuple[facts.PendingCall, ...]) -> tuple[str, ...]:
    return tuple(format_call(call.name, call.arguments) for call in pending if call.reason != "person")


def _describe_resume(make_entry: MakeEntry, fact: facts.RunResumed) -> TimelineEntry:
    if fact.reason == "recovery":
        return make_entry(headline="the run is taken over, and continues where it was cut off", tone="notice")
    if fact.reason == "person":
        return make_entry(headline="the run continues with the agent")
    what = {"approval": "a decision", "session": "what was decided in another session"}.get(fact.reason, "results")
    return make_entry(headline=f"the run continues with {what}")


def _describe_decision(make_entry: MakeEntry, before: State, fact: facts.ApprovalDecided) -> TimelineEntry:
    name = find_call_name(before, fact.tool_call_id) or fact.tool_call_id
    approved = fact.decision == "approve"
    edited = None if fact.arguments is UNSET else fact.arguments
    return make_entry(
        speaker=name_actor(fact.by),
        headline=f"{'approves' if approved else 'denies'} {name}{'' if edited is None else ', with other arguments:'}",
        text=fact.reason or "",
        calls=() if edited is None else (format_call(name, edited),),
        tone="good" if approved else "bad",
    )


_END_HEADLINES: dict[type[facts.RunEnded], str] = {
    facts.RunCompleted: "the run is completed",
    facts.RunFailed: "the run failed",
    facts.RunCancelled: "the run was cancelled",
    facts.RunInterrupted: "the run was interrupted",
}


def _describe_end(
    make_entry: MakeEntry,
    before: State,
    event: facts.RecordedEvent,
    fact: facts.RunCompleted | facts.RunFailed | facts.RunCancelled | facts.RunInterrupted,
) -> TimelineEntry:
    why = f" ({fact.stop_reason})" if isinstance(fact, facts.RunCompleted) and fact.stop_reason != "end_turn" else ""
    error = fact.error
    return make_entry(
        headline=_END_HEADLINES[type(fact)] + why,
        text="" if error is None else f"{error.code}: {error.message}",
        tone="plain" if isinstance(fact, facts.RunCompleted) else "bad",
        usage=fact.usage,
        duration_ms=_measure_run(before, event),
    )


def _measure_run(before: State, event: facts.RecordedEvent) -> float | None:
    """Measure the duration of the run that the event ends, in milliseconds."""
    if before.run is None or before.run.id != event.run_id:
        return None
    started, ended = parse_timestamp(before.run.created_at), parse_timestamp(event.at)
    return None if started is None or ended is None else round((ended - started).total_seconds() * 1000, 3)


def name_actor(by: str | None) -> str:
    return put_name_first(by) if by else "somebody"


def find_call_name(state: State, call_id: str | None) -> str:
    calls = () if state.run is None else state.run.calls
    return next((call.name for call in calls if call.id == call_id), "")


# Describe what changes what models are sent: compactions, and other tools.

_REASONS = {"asked": "it was asked for", "too_long": "the model's provider found the request too long"}


def _describe_history_event(
    make_entry: MakeEntry,
    fact: facts.CompactionStarted | facts.CompactionSummarised | facts.CompactionFailed | facts.ToolsListed,
) -> TimelineEntry:
    match fact:
        case facts.CompactionStarted():
            return _describe_start(make_entry, fact)
        case facts.CompactionSummarised():
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
        case facts.CompactionFailed():
            headline = "no summary was made; the conversation continues without one"
            return make_entry(headline=headline, text=f"{fact.code}: {fact.message}", tone="bad")
        case facts.ToolsListed():
            return _describe_listing(make_entry, fact)
        case _:
            assert_never(fact)


def _describe_listing(make_entry: MakeEntry, fact: facts.ToolsListed) -> TimelineEntry:
    if fact.error is not UNSET:
        return make_entry(speaker=fact.server, headline="cannot list its tools", text=fact.error, tone="bad")
    names = ", ".join(tool.name for tool in fact.tools)
    return make_entry(speaker=fact.server, headline=f"offers {names or 'no tools'}", tone="notice")


def _describe_start(make_entry: MakeEntry, fact: facts.CompactionStarted) -> TimelineEntry:
    counted = "about " if fact.estimated else ""
    full = f"the last request took {counted}{fact.prompt_tokens} of {fact.of_tokens} tokens"
    done = []
    if fact.shortened:
        done.append(f"results {', '.join(map(str, fact.shortened))} to {fact.result_characters} characters each")
    if fact.last_seq:
        done.append(f"what was said up to message {fact.last_seq} to a summary")
    headline = f"the history is shortened for the model, because {_REASONS.get(fact.reason, full)}"
    return make_entry(
        speaker=name_actor(fact.by) if fact.by else "", headline=headline, text=";\n".join(done), tone="notice"
    )


def describe(make_entry: MakeEntry, before: State, event: facts.RecordedEvent) -> TimelineEntry:
    """The entry of an event, given the state before it. Total."""
    fact = event.fact
    if isinstance(fact, Deed):
        return _describe_deed(make_entry, before, event, fact)
    match fact:
        case facts.MessageAdded():
            return _describe_message(make_entry, before, fact)
        case facts.ToolStarted():
            return _describe_tool_start(make_entry, event, fact)
        case facts.HandoffMade() | facts.HandoffIgnored():
            ignored = f"does not hand over to {fact.to_agent}: a later call of the same reply handed over instead"
            done = f"hands over to {fact.to_agent}" if isinstance(fact, facts.HandoffMade) else ignored
            return make_entry(speaker=fact.from_agent, headline=done, tone="notice")
        case facts.ContextUpdated():
            name = find_call_name(before, fact.tool_call_id)
            return make_entry(speaker=name, headline="changes the context" if name else "the context is changed")
        case facts.CompactionStarted() | facts.CompactionSummarised() | facts.CompactionFailed() | facts.ToolsListed():
            return _describe_history_event(make_entry, fact)
        case facts.GuardrailTripped():
            return _describe_refusal(make_entry, before, fact)
        case facts.SessionCreated() | facts.SessionForked() | facts.SessionUpdated() | facts.SessionRedacted():
            return _describe_session_event(make_entry, fact)
        case facts.UnknownFact():
            return _describe_unknown(make_entry, event, fact)
        case _:
            return _describe_run_event(make_entry, before, event, fact)


def _describe_message(make_entry: MakeEntry, before: State, fact: facts.MessageAdded) -> TimelineEntry:
    message = fact.message
    role = str(message.get("role") or "")
    text = join_content(message.get("content"))
    sender = str(message.get("sender") or role or "somebody")
    if role == "tool":
        return _describe_result(make_entry, before, message, fact, text)
    if fact.correction is not UNSET:
        return make_entry(
            speaker=sender, text=text, headline=f"sends the answer back ({fact.correction})", tone="notice"
        )
    if fact.person is not UNSET:
        said = "answers in the agent's place" if role == "assistant" else "tells the agent"
        return make_entry(speaker=put_name_first(fact.person), text=text, headline=said, tone="notice")
    if role != "assistant":
        return make_entry(speaker=sender, text=text, headline="" if role in (sender, "user") else f"({role})")
    completion = fact.completion
    calls = tuple(format_calls(message))
    if completion is None:
        headline = "" if fact.guardrail is UNSET else f"gives the answer of the guardrail {fact.guardrail}"
        return make_entry(speaker=sender, text=text, calls=calls, headline=headline)
    cut = completion.partial is True
    return make_entry(
        speaker=sender,
        text=text or join_content(message.get("refusal")),
        calls=calls,
        headline="was cut off" if cut else "",
        tone="bad" if cut else "plain",
        model=completion.model,
        usage=sum_usage(Usage(), read_usage(completion.usage)),
        duration_ms=None if cut else completion.duration_ms,
    )


_REFUSED = {
    "input": "refuses what was said",
    "history": "refuses what was brought along: the run goes on without it",
    "output": "refuses the answer: it is not shown to anybody",
}


def _describe_refusal(make_entry: MakeEntry, before: State, fact: facts.GuardrailTripped) -> TimelineEntry:
    name = None if fact.tool_call_id is UNSET else find_call_name(before, fact.tool_call_id)
    headline = _REFUSED.get(fact.stage) or f"refuses the call of {name or 'a function'}"
    text = fact.message if fact.error is UNSET else f"{fact.message} ({fact.error})"
    return make_entry(speaker=fact.name, headline=headline, text=text, tone="bad")


_TOOL_HEADLINES = {
    "ok": "answers",
    "error": "fails",
    "timeout": "did not answer in time",
    "unknown_outcome": "was cut off: its outcome is unknown",
    "denied": "was denied, and did not run",
    "refused": "was refused by a guardrail, and did not run",
    "superseded": "answers, but its handoff is ignored",
    "external": "is answered from outside",
}


def _describe_result(
    make_entry: MakeEntry, before: State, message: Json, fact: facts.MessageAdded, text: str
) -> TimelineEntry:
    tool = fact.tool
    if tool is None:
        return make_entry(speaker=str(message.get("tool_name") or "tool"), headline="answers", text=text)
    calm = tool.status in ("ok", "external", "superseded")
    timed = tool.status in ("ok", "error", "timeout")
    headline = _TOOL_HEADLINES.get(tool.status, tool.status)
    if tool.output is True:
        headline = "takes the answer"
    elif fact.correction is not UNSET:
        headline = f"sends the answer back ({fact.correction})"
    elif tool.handoff is not UNSET:
        headline = f"returns the agent {tool.handoff}"
    return make_entry(
        speaker=tool.name,
        headline=headline,
        text=text,
        calls=_find_call_among_others(before, message.get("tool_call_id")),
        tone="plain" if calm else "bad",
        duration_ms=tool.duration_ms if timed else None,
    )


def _find_call_among_others(before: State, call_id: object) -> tuple[str, ...]:
    """The call that is answered, where calls ran at once: the function's name may be that of several."""
    calls = () if before.run is None else before.run.calls
    ended = next((place for place, call in enumerate(calls) if call.id == call_id), len(calls))
    # In turn, none that has started is open beside it, and none after it has ended.
    beside = (call for place, call in enumerate(calls) if place != ended and (place > ended or not call.done))
    if ended == len(calls) or not any(call.attempts for call in beside):
        return ()
    return (format_call(calls[ended].name, calls[ended].arguments),)


def _describe_tool_start(make_entry: MakeEntry, event: facts.RecordedEvent, fact: facts.ToolStarted) -> TimelineEntry:
    call = format_call(fact.name, fact.arguments)
    if fact.attempt > 1:
        headline = f"starts again, with the same id: attempt {fact.attempt}"
        return make_entry(speaker=event.agent, headline=headline, calls=(call,), tone="notice")
    headline = "calls" if fact.session_id is UNSET else f"asks another agent, in session {fact.session_id}, by"
    return make_entry(speaker=event.agent, headline=headline, calls=(call,))


def _describe_session_event(
    make_entry: MakeEntry,
    fact: facts.SessionCreated | facts.SessionForked | facts.SessionUpdated | facts.SessionRedacted,
) -> TimelineEntry:
    match fact:
        case facts.SessionCreated():
            asked = "" if fact.parent is UNSET else f", which session {fact.parent.session_id} asks"
            return make_entry(headline=f"the conversation begins with {fact.agent}{asked}")
        case facts.SessionForked():
            text = f"from here on this is a fork of {fact.from_session_id}, which shares events 1 to {fact.from_seq}"
            return make_entry(headline=text, tone="notice")
        case facts.SessionUpdated():
            new = "" if fact.agent is UNSET else f"{fact.agent} becomes the active agent"
            return make_entry(headline=new or "the metadata is changed", tone="notice" if new else "plain")
        case facts.SessionRedacted():
            seqs = ", ".join(map(str, fact.seqs))
            speaker = "" if fact.by is None else put_name_first(fact.by)
            headline = f"redacts {seqs}" if speaker else f"redacted: {seqs}"
            return make_entry(speaker=speaker, headline=headline, text=fact.reason, tone="notice")
        case _:
            assert_never(fact)


Deed = (
    facts.SessionImported | facts.SessionTakenOver | facts.SessionHandedBack | facts.SessionHeld
    | facts.SessionReleased | facts.SessionAssigned | facts.NoteAdded | facts.FeedbackAdded
    | facts.MessageRemoved | facts.RunHidden
)  # fmt: skip
"""What people do to a session, beside what they say in it."""


def _describe_deed(make_entry: MakeEntry, before: State, event: facts.RecordedEvent, fact: Deed) -> TimelineEntry:
    headline, text = _name_deed(before, event, fact)
    by_function = isinstance(fact, facts.SessionAssigned) and fact.tool_call_id is not UNSET
    speaker = event.agent if by_function else name_actor(fact.by)
    return make_entry(speaker=speaker, headline=headline, text=text or "", tone="notice")


def _name_deed(before: State, event: facts.RecordedEvent, fact: Deed) -> tuple[str, str | UnsetType]:
    """Name a deed, and what was said about it."""
    match fact:
        case facts.SessionImported():
            digest = f", SHA-256 {fact.digest}" if fact.digest else ""
            what = f"imported events 1 to {fact.last_seq}, so none of it was decided here"
            return what, f"the file: {fact.source}{digest}"
        case facts.SessionTakenOver() | facts.SessionHandedBack():
            taken = isinstance(fact, facts.SessionTakenOver)
            what = "takes the conversation over from" if taken else "hands the conversation back to"
            return f"{what} the agent", fact.note
        case facts.SessionHeld():
            return "puts the session on hold: nothing of it is redacted or deleted", fact.reason
        case facts.SessionReleased():
            return "lifts the hold", ""
        case facts.SessionAssigned(to=to):
            left = "leaves the session to no one in particular"
            return left if to is None else f"assigns the session to {to}", fact.reason
        case facts.NoteAdded():
            return "notes for colleagues", fact.text
        case facts.FeedbackAdded():
            found = {"up": "finds the answer good", "down": "does not find the answer good"}
            return f"{found.get(fact.value, 'rates it')} (event {fact.seq})", fact.comment
        case facts.MessageRemoved():
            return _name_removal(before, fact), ""
        case facts.RunHidden():
            part = "" if fact.part is UNSET else f"part {fact.part} of "
            return f"makes {part}run {event.run_id} unfindable as a response", ""
        case _:
            assert_never(fact)


def _name_removal(before: State, fact: facts.MessageRemoved) -> str:
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
    return f"takes out {what}{more}: from here on it is not sent to models"


def _describe_unknown(make_entry: MakeEntry, event: facts.RecordedEvent, fact: facts.UnknownFact) -> TimelineEntry:
    if event.type not in facts.FACTS:
        warning = "this release does not know this type of event"
    elif fact.data is None:
        warning = "its content is gone: it was redacted, or damaged"
    else:
        warning = "this release does not know the form of its content"
    return make_entry(text="" if fact.data is None else json.dumps(fact.data, ensure_ascii=False), warning=warning)


# One event by itself, without the state before it: in a line of a log, or of a chat.


def describe_alone(event: facts.RecordedEvent) -> TimelineEntry:
    make_entry = partial(TimelineEntry, seq=event.seq, at=event.at, type=event.type, run_id=event.run_id)
    return describe(partial(make_entry, agent=event.agent), State(), event)


def join_entry(entry: TimelineEntry) -> str:
    """Join the words of an entry that is not a message."""
    said = _join_parts(" ", entry.speaker, entry.headline.removesuffix(":"))
    return _join_parts(": ", said, "; ".join(entry.calls), entry.text)


def summarize(event: facts.RecordedEvent) -> str:
    """Sum up an event in a line that has its type and agent: what these say already is left out."""
    entry, fact = describe_alone(event), event.fact
    match fact:
        case facts.MessageAdded(message={"role": "tool"}, tool=tool):
            status = "" if tool is None or tool.status == "ok" else f" ({tool.status})"
            return f"{entry.speaker}{status} → {entry.text}"
        case facts.MessageAdded(message=message) if not entry.headline:
            return f"{message.get('role')}: {_join_parts(' ', entry.text, '; '.join(entry.calls))}"
        case facts.ToolStarted(attempt=1):
            return entry.calls[0] if fact.session_id is UNSET else f"{entry.calls[0]}, in session {fact.session_id}"
        case facts.HandoffMade() | facts.HandoffIgnored():
            return f"{fact.from_agent} → {fact.to_agent}"
        case facts.RunStarted() | facts.RunQueued() if not entry.speaker:
            return _join_parts(": ", " ".join(_describe_options(fact.options)), entry.text)
        case facts.RunEnded():
            return _join_parts(": ", fact.stop_reason, entry.text)
        case _:
            return _sum_up_changes(fact) or join_entry(entry)


def _sum_up_changes(fact: facts.SessionEvent) -> str:
    """Show what an event sets or changes, as JSON: by itself it says no more."""
    match fact:
        case facts.SessionCreated():
            asked = "" if fact.parent is UNSET else f"asked by {fact.parent.session_id}"
            return _join_parts(" ", f"with {fact.agent}", asked, format_json(fact.context_variables))
        case facts.SessionUpdated():
            agent = "" if fact.agent is UNSET else f"agent {fact.agent}"
            return _join_parts(", ", agent, "" if fact.metadata is UNSET else f"metadata {format_json(fact.metadata)}")
        case facts.ContextUpdated():
            return format_json(fact.patch)
        case facts.UnknownFact():
            return format_json(fact.data)
        case _:
            return ""


def _join_parts(separator: str, *parts: str) -> str:
    return separator.join(part for part in parts if part)


# A timeline: one entry per event, which terminals, pages and programs show in their own way.


def build_timeline(events: Iterable[facts.RecordedEvent], state: State | None = None) -> Iterator[TimelineEntry]:
    """An entry for each event, in order; `events` follow `state` in the log, by default from its beginning."""
    before = State() if state is None else state
    for event in events:
        after = evolve(before, event)
        yield build_entry(before, event, after)
        before = after


def build_entry(before: State, event: facts.RecordedEvent, after: State) -> TimelineEntry:
    """The entry of one event, given the states before and after it."""
    make_entry = partial(
        TimelineEntry,
        seq=event.seq,
        at=event.at,
        type=event.type,
        run_id=event.run_id,
        agent=event.agent,
        changes=_find_state_changes(before, after),
        warning=_describe_loss(before, event),
    )
    return describe(make_entry, before, event)


def _find_state_changes(before: State, after: State) -> tuple[Change, ...]:
    found = find_changes(before.context_variables, after.context_variables, "/context_variables")
    return found + find_changes(before.metadata, after.metadata, "/metadata")


def _describe_loss(before: State, event: facts.RecordedEvent) -> str:
    if event.seq == before.seq + 1:
        return "its content was redacted" if facts.is_redacted(event) else ""
    return f"the log goes from event {before.seq} to event {event.seq}: what was between them is missing"
