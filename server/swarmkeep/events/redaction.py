"""Make the payload that stands in for a removed one.

A stand-in is a fact of the same type, so that the fold needs no case for it: what people and models wrote is replaced,
and what holds a log together stays. That is roles, the ids of calls, names of agents and functions, statuses, token
counts and durations; of a changed object the names of its keys, whose values are forgotten.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, TypeVar

from msgspec import UNSET, UnsetType, to_builtins
from msgspec.structs import replace

from swarmkeep.events import facts
from swarmkeep.events.codec import Json, MalformedJson, decode, encode_text
from swarmkeep.events.messages import ROLES, read_tool_calls
from swarmkeep.events.records import CallerFunction, CallerTool, CompletionRecord, ContextChange, RunOptions, ToolRecord

# What stands where there is no text.
Absent = TypeVar("Absent", None, UnsetType)

REDACTED = "[redacted]"
_ARGUMENTS = "{}"
# Names that programmers give. Anything else in the place of a name may be a person's text.
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.:/-]{0,63}", re.ASCII)


def redact_payload(event: facts.RecordedEvent) -> str:
    """The text that takes the payload's place: a payload of the same type, with `redacted` beside its fields."""
    fact = event.fact
    if isinstance(fact, facts.UnknownFact):
        return encode_text({"redacted": True})
    return encode_text({**to_builtins(_redact_fact(fact, event.agent), str_keys=True), "redacted": True})


def is_stand_in(event: facts.RecordedEvent) -> bool:
    """Tell if the event's payload is one that redaction can leave of an event like this: redacted, it says the same.

    A release that knew fewer fields left them out, so members may be missing; none may be added.
    """
    try:
        value = decode(event.payload)
    except MalformedJson:
        return False
    # Members that are there twice, and text between them, are shown to some readers and not to others.
    if encode_text(value) != event.payload or not isinstance(value, dict) or value.get("redacted") is not True:
        return False
    if (
        isinstance(event.fact, facts.UnknownFact)
        and event.type in facts.FACTS
        and event.version <= facts.FACTS[event.type].version
    ):
        return False
    return _is_part_of(value, decode(redact_payload(event)))


def _is_part_of(value: Any, whole: Any) -> bool:
    if isinstance(value, dict) and isinstance(whole, dict):
        return value.keys() <= whole.keys() and all(_is_part_of(item, whole[key]) for key, item in value.items())
    if isinstance(value, list) and isinstance(whole, list):
        return len(value) == len(whole) and all(map(_is_part_of, value, whole))
    return type(value) is type(whole) and bool(value == whole)


def _redact_fact(fact: facts.Fact, agent: str) -> facts.Fact:
    match fact:
        case facts.MessageAdded():
            completion = None if fact.completion is None else _redact_completion(fact.completion)
            tool = None if fact.tool is None else _redact_tool(fact.tool)
            message = _redact_message(fact.message, agent)
            guardrail = UNSET if fact.guardrail is UNSET else _redact_name(fact.guardrail)
            return facts.MessageAdded(
                message=message,
                completion=completion,
                tool=tool,
                correction=fact.correction,
                guardrail=guardrail,
                person=_redact_text(fact.person),
            )
        case facts.SessionCreated():
            parent = UNSET if fact.parent is UNSET else replace(fact.parent, session_id=REDACTED)
            return replace(fact, context_variables={}, metadata={}, parent=parent)
        case facts.SessionUpdated():
            return replace(fact, metadata=_forget_values(fact.metadata))
        case facts.SessionForked():
            return replace(fact, from_session_id=REDACTED)
        case facts.SessionImported():
            # A short file can be guessed by its digest.
            return replace(fact, digest="")
        case (
            facts.CompactionStarted()
            | facts.CompactionSummarised()
            | facts.CompactionFailed()
            | facts.ToolsListed()
            | facts.SessionTakenOver()
            | facts.SessionHandedBack()
            | facts.SessionHeld()
            | facts.SessionReleased()
            | facts.SessionAssigned()
            | facts.NoteAdded()
            | facts.FeedbackAdded()
        ):
            return _redact_history_fact(fact)
        case facts.MessageRemoved() | facts.RunHidden():
            return replace(fact, by=_redact_text(fact.by))
        case facts.SessionRedacted():
            # Who removed what, and what stands there now, is what the chain is checked by.
            return replace(fact, reason=REDACTED)
        case facts.ContextUpdated():
            return facts.ContextUpdated(patch=_forget_values(fact.patch), tool_call_id=fact.tool_call_id)
        case _:
            return _redact_run_fact(fact)


def _redact_history_fact(
    fact: facts.CompactionStarted | facts.CompactionSummarised | facts.CompactionFailed | facts.ToolsListed
    | facts.SessionTakenOver | facts.SessionHandedBack | facts.SessionHeld | facts.SessionReleased
    | facts.SessionAssigned | facts.NoteAdded | facts.FeedbackAdded,
) -> facts.Fact:  # fmt: skip
    match fact:
        case facts.SessionTakenOver() | facts.SessionHandedBack():
            return replace(fact, by=_redact_text(fact.by), note=_redact_text(fact.note))
        case facts.SessionHeld():
            return replace(fact, by=_redact_text(fact.by), reason=REDACTED)
        case facts.SessionReleased():
            return replace(fact, by=_redact_text(fact.by))
        case facts.SessionAssigned():
            # A session that a removed name looks after would be found by no one: so it is found as one without.
            return replace(fact, to=None, by=_redact_text(fact.by), reason=_redact_text(fact.reason))
        case facts.NoteAdded():
            return replace(fact, text=REDACTED, by=_redact_text(fact.by))
        case facts.FeedbackAdded():
            # What a later release may put there is a text.
            value = fact.value if fact.value in ("up", "down") else REDACTED
            return replace(fact, value=value, comment=_redact_text(fact.comment), by=_redact_text(fact.by))
        case facts.ToolsListed():
            return _redact_listing(fact)
        case facts.CompactionStarted():
            return replace(fact, instructions=_redact_text(fact.instructions), by=_redact_text(fact.by))
        case facts.CompactionSummarised():
            completion = None if fact.completion is None else _redact_completion(fact.completion)
            return replace(fact, summary="", completion=completion)
        case _:
            return replace(fact, message=REDACTED)


def _redact_listing(fact: facts.ToolsListed) -> facts.ToolsListed:
    # Without their schemas they are not offered any more: they are listed again.
    tools = tuple(facts.ListedTool(name=_redact_name(tool.name)) for tool in fact.tools)
    return facts.ToolsListed(server=_redact_name(fact.server), tools=tools, error=_redact_text(fact.error))


def _redact_run_fact(fact: facts.Fact) -> facts.Fact:
    match fact:
        case facts.RunStarted():
            return facts.RunStarted(options=_redact_options(fact.options), by=_redact_text(fact.by))
        case facts.RunQueued():
            messages = tuple({"role": _redact_role(message), "content": REDACTED} for message in fact.messages)
            options, by = _redact_options(fact.options), _redact_text(fact.by)
            return facts.RunQueued(options=options, messages=messages, agent=fact.agent, by=by)
        case facts.GuardrailTripped():
            # A short text can be guessed by its digest.
            error = _redact_text(fact.error)
            return replace(fact, name=_redact_name(fact.name), message=REDACTED, error=error, digest=UNSET)
        case facts.ToolStarted():
            return replace(fact, name=_redact_name(fact.name), arguments=_ARGUMENTS)
        case facts.ApprovalRequested():
            return replace(fact, name=_redact_name(fact.name), arguments=_ARGUMENTS)
        case facts.ApprovalDecided():
            arguments = UNSET if fact.arguments is UNSET else _ARGUMENTS
            return replace(fact, reason=_redact_text(fact.reason), by=_redact_text(fact.by), arguments=arguments)
        case facts.RunWaiting():
            return facts.RunWaiting(pending=tuple(map(_redact_pending, fact.pending)))
        case facts.RunResumed():
            return replace(fact, options=UNSET if fact.options is UNSET else _redact_options(fact.options))
        case facts.RunEnded():
            return replace(fact, error=None if fact.error is None else replace(fact.error, message=REDACTED))
        case _:
            return fact


def _redact_message(message: Json, agent: str) -> Json:
    role = _redact_role(message)
    kept: Json = {"role": role, "content": None if message.get("content") is None else REDACTED}
    calls = read_tool_calls(message)
    if calls:
        kept["tool_calls"] = [
            {"id": call_id, "type": "function", "function": {"name": _redact_name(name), "arguments": _ARGUMENTS}}
            for call_id, name, _ in calls
        ]
    if isinstance(message.get("tool_call_id"), str):
        kept["tool_call_id"] = message["tool_call_id"]
    if isinstance(message.get("tool_name"), str):
        kept["tool_name"] = _redact_name(message["tool_name"])
    if "sender" in message:
        kept["sender"] = message["sender"] if message["sender"] in (role, agent) else REDACTED
    return kept


def _redact_role(message: Json) -> str:
    role = message.get("role")
    return role if role in ROLES else REDACTED


def _redact_completion(record: CompletionRecord) -> CompletionRecord:
    requested = None if record.request is None else record.request.params.get("model")
    model = record.model or (requested if isinstance(requested, str) else None)
    return CompletionRecord(
        model=model and _redact_name(model),
        finish_reason=record.finish_reason and _redact_name(record.finish_reason),
        usage=None if record.usage is None else _keep_counts(record.usage),
        duration_ms=record.duration_ms,
        partial=record.partial,
        time_to_first_token_ms=record.time_to_first_token_ms,
    )


def _keep_counts(usage: Json) -> Json:
    """The numbers of tokens that a provider reported, with those in details."""
    counts: Json = {}
    for name, value in usage.items():
        if not _NAME.fullmatch(name):
            continue
        if isinstance(value, int):
            counts[name] = value
        elif isinstance(value, dict):
            counts[name] = {key: count for key, count in value.items() if _NAME.fullmatch(key) and type(count) is int}
    return counts


def _redact_tool(record: ToolRecord) -> ToolRecord:
    held = record.context
    if held is not UNSET:
        values = {} if held.values is UNSET else held.values
        held = ContextChange(patch=_forget_values({**held.patch, **values}))
    return replace(record, name=_redact_name(record.name), context=held, files=UNSET)


def _redact_pending(call: facts.PendingCall) -> facts.PendingCall:
    if call.reason == "person":
        return facts.PendingCall(tool_call_id="", name="", arguments="", reason="person")
    below = () if call.approvals is UNSET else call.approvals
    # A file may bring digests, by which short arguments could be guessed.
    approvals = [
        replace(each, agent=REDACTED, name=_redact_name(each.name), arguments=_ARGUMENTS, arguments_digest=UNSET)
        for each in below
    ]
    return replace(
        call,
        name=_redact_name(call.name),
        arguments=_ARGUMENTS,
        approvals=tuple(approvals) if approvals else UNSET,
        arguments_digest=UNSET,
    )


def _redact_options(options: RunOptions) -> RunOptions:
    names = [CallerTool(function=CallerFunction(name=_redact_name(name))) for name in options.caller_tool_names]
    return replace(
        options,
        model=options.model and _redact_name(options.model),
        tools=tuple(names) if names else UNSET,
        tool_choice=UNSET,
        model_settings=UNSET,
        model_profile=UNSET,
        instructions=UNSET,
        response_format=UNSET,
        request=UNSET,
    )


def _forget_values(patch: Json | UnsetType) -> Any:
    """A merge patch that removes what this one set: else what it had replaced would be back."""
    if patch is UNSET:
        return UNSET
    assert isinstance(patch, Mapping)
    return {key: None for key in patch if _NAME.fullmatch(key)}


def _redact_name(name: str) -> str:
    return name if _NAME.fullmatch(name) else REDACTED


def _redact_text(text: str | Absent) -> str | Absent:
    return REDACTED if isinstance(text, str) else text
