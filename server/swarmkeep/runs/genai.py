"""Conversations by GenAI's semantic conventions: texts as attributes of spans, and recorded runs as spans of OTLP.

Texts are there only where the operator asks for it, without secrets, and bounded.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from types import MappingProxyType
from typing import Any

import msgspec
from msgspec import UNSET

from swarmkeep.events.codec import Json, MalformedJson, decode, encode, encode_text, parse_timestamp
from swarmkeep.events.messages import Entry, read_tool_calls
from swarmkeep.events.records import read_usage
from swarmkeep.events.state import Run, State
from swarmkeep.models.failures import NO_SECRETS, Secrets

CAPTURE_VARIABLE = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
_CAPTURING = {"true", "1", "span_only", "span_and_event"}

MAX_TEXT_CHARACTERS = 8_192
MAX_TOTAL_CHARACTERS = 32_768
_CUT = "… (cut off)"


def is_content_wanted(environment: Mapping[str, str]) -> bool:
    return environment.get(CAPTURE_VARIABLE, "").strip().lower() in _CAPTURING


def describe_text(text: str, secrets: Secrets) -> str:
    """Describe a text as an attribute: masked before it is cut, so that no half of a secret stays."""
    # Encoded, and so that half a character, which a model may send, does not reach an exporter.
    return _replace_surrogates(_shorten(secrets.mask(text)))


def describe_instructions(text: str, secrets: Secrets) -> str:
    return encode_text([_make_text_part(text, secrets)])


def describe_input(entries: Sequence[Entry], secrets: Secrets) -> str:
    """The last messages of a request, as many as fit; the last one is always there, if shortened."""
    kept: list[str] = []
    left = MAX_TOTAL_CHARACTERS
    for entry in reversed(entries):
        text = encode_text(_describe_message(entry.chat_message, secrets))
        left -= len(text)
        if kept and left < 0:
            break
        kept.append(text)
    return f"[{','.join(reversed(kept))}]"


def describe_output(message: Json, finish_reason: str | None, secrets: Secrets) -> str:
    described = _describe_message({**message, "role": "assistant"}, secrets)
    return encode_text([{**described, "finish_reason": finish_reason or ""}])


def _describe_message(message: Json, secrets: Secrets) -> Json:
    if message["role"] == "tool":
        response = _shorten(secrets.mask(as_text(message.get("content"))))
        part = {"type": "tool_call_response", "id": message.get("tool_call_id"), "response": response}
        return {"role": "tool", "parts": [part]}
    return {"role": message["role"], "parts": _fit_parts(_list_parts(message, secrets))}


def _list_parts(message: Json, secrets: Secrets) -> list[Json]:
    content = message.get("content")
    parts = [_describe_part(part, secrets) for part in content] if isinstance(content, list) else []
    if isinstance(content, str) and content:
        parts.append(_make_text_part(content, secrets))
    for call_id, name, arguments in read_tool_calls(message):
        given = _describe_arguments(secrets.mask(arguments))
        parts.append({"type": "tool_call", "id": call_id, "name": name, "arguments": given})
    return parts


def _describe_arguments(text: str) -> str | msgspec.Raw:
    """As they are in JSON, or as text if they are none or too long."""
    if len(text) > MAX_TEXT_CHARACTERS:
        return _shorten(text)
    try:
        decode(text)
        return msgspec.Raw(text.encode())
    except (MalformedJson, UnicodeEncodeError):
        return text


def _describe_part(part: object, secrets: Secrets) -> Json:
    kind = part.get("type") if isinstance(part, dict) else None
    if isinstance(part, dict) and kind == "text":
        return _make_text_part(as_text(part.get("text")), secrets)
    # Pictures and files: that there was one.
    return {"type": kind if isinstance(kind, str) else "other"}


def _fit_parts(parts: list[Json]) -> list[Json]:
    """As many as fit."""
    fitting: list[Json] = []
    left = MAX_TOTAL_CHARACTERS
    for part in parts:
        left -= len(encode(part))
        if fitting and left < 0:
            break
        fitting.append(part)
    return fitting


def _make_text_part(text: str, secrets: Secrets) -> Json:
    return {"type": "text", "content": _shorten(secrets.mask(text))}


def as_text(content: Any) -> str:
    """A text as it is, nothing for null, and anything else as JSON."""
    return content if isinstance(content, str) else ("" if content is None else encode_text(content))


def _shorten(text: str) -> str:
    return text if len(text) <= MAX_TEXT_CHARACTERS else text[:MAX_TEXT_CHARACTERS] + _CUT


# Recorded runs as spans, in OTLP's JSON.

_INTERNAL, _CLIENT = 1, 3
_ERROR = 2
_FAILED = ("error", "timeout", "unknown_outcome", "denied", "refused")
_EPOCH = datetime.fromtimestamp(0, UTC)
_MOST_MILLISECONDS = 10.0**12
# A collector refuses times that its type does not hold, and with one span all that came with it.
_MOST_NANOSECONDS = 2**63 - 1


class Score(msgspec.Struct, frozen=True):
    """What a person thinks of an answer: `up` or `down`, why, and since when."""

    value: str
    comment: str
    at: str


NO_SCORES: Mapping[int, Score] = MappingProxyType({})
Attributes = Mapping[str, str | int | float | list[str] | None]


def export_spans(spans: Sequence[Json | msgspec.Raw]) -> Json:
    """Spans as the body of OTLP's JSON; they may be encoded."""
    scope = {"name": "swarmkeep", "version": version("swarmkeep")}
    resource = {"attributes": _write_attributes({"service.name": "swarmkeep"})}
    return {
        "resourceSpans": [{"resource": resource, "scopeSpans": [{"scope": scope, "spans": spans}]}] if spans else []
    }


def list_spans(
    session_id: str, state: State, run: Run, *, has_content: bool = False, scores: Mapping[int, Score] = NO_SCORES
) -> Iterator[Json]:
    """The spans of a run, as far as it has come: its own once it has ended, its model calls and tool calls.

    Their ids follow from the session's and the run's, so that they are the same however often they are made. `scores`
    are of answers, by their seq. With `has_content` they have what was said, each message once.
    """
    if run.finished_at is not None:
        yield _show_run(session_id, run, state, has_content=has_content)
    for at in range(run.first_message, run.last_message):
        entry = state.messages[at]
        if entry.run_id == run.id and entry.completion is not None:
            yield _show_chat(session_id, run, entry, scores.get(entry.seq), has_content=has_content)
        elif entry.run_id == run.id and entry.tool is not None and entry.tool.status != "external":
            yield _show_call(session_id, run, entry, has_content=has_content)


def _show_run(session_id: str, run: Run, state: State, *, has_content: bool) -> Json:
    usage, parent = run.usage, state.parent
    said = [state.messages[at] for at in range(run.first_message, run.last_message)] if has_content else []
    given = [entry for entry in said if entry.run_id == run.id and entry.completion is None and entry.tool is None]
    attributes = {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.name": run.agent,
        "gen_ai.usage.input_tokens": usage.prompt_tokens if usage.model_calls else None,
        "gen_ai.usage.output_tokens": usage.completion_tokens if usage.model_calls else None,
        "swarmkeep.stop_reason": run.stop_reason,
        "error.type": None if run.error is None else run.error.code,
        "gen_ai.input.messages": describe_input(given, NO_SECRETS) if given else None,
    }
    start, end = _read_time(run.created_at), _read_time(run.finished_at or run.created_at)
    span = _show_span(session_id, run, "", f"invoke_agent {run.agent}", _INTERNAL, start, end, attributes)
    if parent is None:
        return span
    # Each turn has a trace of its own; that of an asked agent says which call it was asked by.
    called = _name_trace(parent.session_id, parent.run_id)
    asked_by = {"traceId": called, "spanId": _name_span(parent.session_id, parent.run_id, parent.tool_call_id)}
    return {**span, "links": [asked_by]}


def _show_chat(session_id: str, run: Run, entry: Entry, score: Score | None, *, has_content: bool) -> Json:
    completion = entry.completion
    assert completion is not None
    usage = read_usage(completion.usage)
    model = completion.named_model
    first = completion.time_to_first_token_ms
    attributes = {
        "gen_ai.operation.name": "chat",
        "gen_ai.agent.name": _find_sender(entry),
        "gen_ai.request.model": model or None,
        "gen_ai.response.id": completion.id,
        "gen_ai.response.model": completion.model,
        "gen_ai.response.finish_reasons": None if completion.finish_reason is None else [completion.finish_reason],
        "gen_ai.response.time_to_first_chunk": None if first is UNSET else _limit(first) / 1000,
        "gen_ai.usage.input_tokens": usage.prompt_tokens,
        "gen_ai.usage.output_tokens": usage.completion_tokens,
        "swarmkeep.stop_reason": "abandoned" if completion.partial is True else None,
        "gen_ai.output.messages": (
            describe_output(entry.chat_message, completion.finish_reason, NO_SECRETS) if has_content else None
        ),
    }
    start, end = _find_times(entry, completion.duration_ms)
    span = _show_span(session_id, run, str(entry.seq), f"chat {model}".strip(), _CLIENT, start, end, attributes)
    return span if score is None else {**span, "events": [_show_score(score, has_content=has_content)]}


def _show_score(score: Score, *, has_content: bool) -> Json:
    attributes: Attributes = {
        "gen_ai.evaluation.name": "feedback",
        "gen_ai.evaluation.score.value": 1.0 if score.value == "up" else 0.0,
        "gen_ai.evaluation.score.label": score.value,
        "gen_ai.evaluation.explanation": describe_text(score.comment, NO_SECRETS) if has_content else None,
    }
    return {
        "name": "gen_ai.evaluation.result",
        "timeUnixNano": str(_read_time(score.at)),
        "attributes": _write_attributes(attributes),
    }


def _show_call(session_id: str, run: Run, entry: Entry, *, has_content: bool) -> Json:
    tool = entry.tool
    assert tool is not None
    call_id = str(entry.message.get("tool_call_id"))
    failed = "tool_error" if tool.status == "error" else tool.status
    attributes = {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": tool.name,
        "gen_ai.tool.type": "function",
        "gen_ai.tool.call.id": call_id,
        "swarmkeep.subagent.id": None if tool.session_id is UNSET else tool.session_id,
        "error.type": failed if tool.status in _FAILED else None,
        "gen_ai.tool.call.result": (
            describe_text(as_text(entry.message.get("content")), NO_SECRETS) if has_content else None
        ),
    }
    start, end = _find_times(entry, tool.duration_ms)
    return _show_span(session_id, run, call_id, f"execute_tool {tool.name}", _INTERNAL, start, end, attributes)


def _show_span(
    session_id: str, run: Run, name: str, title: str, kind: int, start: int, end: int, attributes: Attributes
) -> Json:
    """A span of a turn; `name` says which, and is empty for the turn's own."""
    shared = {"gen_ai.conversation.id": session_id, "swarmkeep.run.id": run.id}
    span: Json = {
        "traceId": _name_trace(session_id, run.id),
        "spanId": _name_span(session_id, run.id, name),
        "name": _replace_surrogates(title),
        "kind": kind,
        "startTimeUnixNano": str(start),
        "endTimeUnixNano": str(end),
        "attributes": _write_attributes({**attributes, **shared}),
        "status": {} if attributes.get("error.type") is None else {"code": _ERROR},
    }
    return {**span, "parentSpanId": _name_span(session_id, run.id, "")} if name else span


def _find_sender(entry: Entry) -> str | None:
    sender = entry.message.get("sender")
    return sender if isinstance(sender, str) else None


def _name_trace(session_id: str, run_id: str) -> str:
    return _digest(session_id, run_id)[:32]


def _name_span(session_id: str, run_id: str, name: str) -> str:
    return _digest(session_id, run_id, "span", name)[:16]


def _digest(*names: str) -> str:
    return hashlib.sha256("\n".join(names).encode(errors="surrogatepass")).hexdigest()


# Times, in nanoseconds. An imported log may tell any.


def _read_time(at: str) -> int:
    nanoseconds = ((parse_timestamp(at) or _EPOCH) - _EPOCH) // timedelta(microseconds=1) * 1000
    return max(0, min(nanoseconds, _MOST_NANOSECONDS))


def _find_times(entry: Entry, milliseconds: float) -> tuple[int, int]:
    """When what a message is the end of began and ended."""
    end = _read_time(entry.at)
    return max(0, end - int(_limit(milliseconds) * 1_000_000)), end


def _limit(milliseconds: float) -> float:
    return milliseconds if 0 <= milliseconds <= _MOST_MILLISECONDS else 0.0


def _write_attributes(attributes: Attributes) -> Sequence[Json]:
    """Those that are not None, as OTLP writes them."""
    return [{"key": key, "value": _write_value(value)} for key, value in attributes.items() if value is not None]


def _write_value(value: str | int | float | list[str]) -> Json:
    match value:
        case str():
            return {"stringValue": _replace_surrogates(value)}
        case int():
            return {"intValue": str(value)}
        case float():
            return {"doubleValue": value}
        case _:
            return {"arrayValue": {"values": [_write_value(each) for each in value]}}


def _replace_surrogates(text: str) -> str:
    """Write half characters, which models and imported logs may have in any name, as their escapes."""
    return text.encode("utf-8", "backslashreplace").decode()
