"""Look up the properties of models and their servers: a table, over which settings, agents and callers have the last
word."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

import msgspec

from swarmkeep.agent.values import PROFILE_FIELDS, choose_fields
from swarmkeep.events.codec import Json, convert, count_levels, encode, replace_surrogates
from swarmkeep.events.records import MessageRules

# Keep the data that a model attached to its message and to its calls: opaque, kept beside them, and sent back to
# that model only.

PROVIDER = "provider"
MAX_ATTACHED_BYTES = 1_000_000
"""Of one message. Reasoning is the longest; what it is cut from is of no use to its model."""
MAX_ATTACHED_LEVELS = 32
_MOST_DROPPED = 20
_MAX_NAME = 100
# What Chat Completions itself has: each is kept in its own place, or of no use to the model that said it.
_MESSAGE_KEYS = frozenset(
    ("role", "content", "tool_calls", "refusal", "name", "sender", "annotations", "audio", "function_call", "parsed")
)
_CALL_KEYS = frozenset(("id", "type", "index", "function"))
_FUNCTION_KEYS = frozenset(("name", "arguments", "parsed_arguments"))
# DeepSeek and Kimi look for the key, with any value.
_SENT_EMPTY = frozenset(("reasoning_content",))
# What Google documents for calls that have none of their own.
_PLACEHOLDER = {"google": {"thought_signature": "skip_thought_signature_validator"}}


class Attached(msgspec.Struct, frozen=True, omit_defaults=True):
    """`message`: keys of the message that came with it; its content, where that was more than a text. `calls`: keys of
    its calls, by their ids. `model` and `server` are where they came from. `dropped`: what was too much to be kept."""

    model: str
    server: str = ""
    message: Json = {}
    calls: dict[str, Json] = {}
    dropped: list[str] = []


def attach(message: Json, calls: Sequence[tuple[str, Json]], model: str, server: str) -> Json | None:
    """Return what is to be kept of a reply beside what it says, or None if there is nothing.

    `calls` are its calls as they came, with the ids under which they are kept.
    """
    keeper = _Keeper()
    kept = keeper.keep("", {key: value for key, value in message.items() if key not in _MESSAGE_KEYS})
    content = message.get("content")
    if isinstance(content, list) and not is_plain_text(parts := _list_filled_parts(content)):
        kept |= keeper.keep("", {"content": parts})
    kept_calls = {}
    for call_id, call in calls:
        if extra := keeper.keep(f"{call_id[:_MAX_NAME]}.", _list_extra(call)):
            kept_calls[call_id] = extra
    if not (kept or kept_calls or keeper.dropped):
        return None
    found: Json = msgspec.to_builtins(Attached(model, server, kept, kept_calls, keeper.dropped))
    return found


def list_own_keys(message: Json) -> Json:
    """Return of a reply what Chat Completions itself has."""
    return {key: value for key, value in message.items() if key in _MESSAGE_KEYS}


class _Keeper:
    """Keeps values as long as there is room; one that there is none for is dropped whole, and named."""

    def __init__(self) -> None:
        self.dropped: list[str] = []
        self._room = MAX_ATTACHED_BYTES

    def keep(self, place: str, values: Json) -> Json:
        kept = {}
        for key, value in values.items():
            if value is None or (value in ("", [], {}) and key not in _SENT_EMPTY):
                continue
            size = len(encode(value)) + len(key)
            if size <= self._room and count_levels(value) <= MAX_ATTACHED_LEVELS:
                self._room -= size
                kept[key] = value
            elif len(self.dropped) < _MOST_DROPPED:
                self.dropped.append(f"{place}{key[:_MAX_NAME]}")
        return kept


def _list_extra(call: Json) -> Json:
    extra = {key: value for key, value in call.items() if key not in _CALL_KEYS}
    function = call.get("function")
    if isinstance(function, dict) and (more := {key: function[key] for key in function if key not in _FUNCTION_KEYS}):
        extra["function"] = {key: value for key, value in more.items() if value is not None}
    return extra


def is_plain_text(content: Sequence[Any]) -> bool:
    """Return whether content in parts is nothing but texts, none of them empty."""
    return all(map(_is_text, content))


def _is_text(part: Any) -> bool:
    match part:
        case {"type": "text", "text": str(text), **rest}:
            return bool(text) and not rest
        case _:
            return False


def _list_filled_parts(content: Sequence[Any]) -> list[Json]:
    """Return content in parts without those that say nothing or not what they are: no server takes them back."""
    return [part for part in content if _has_type(part) and any(part[key] for key in part if key != "type")]


def _has_type(part: Any) -> bool:
    return isinstance(part, dict) and isinstance(part.get("type"), str)


def _join_texts(parts: Sequence[Any]) -> str:
    texts = (part.get("text") for part in parts if isinstance(part, dict))
    return "".join(text for text in texts if isinstance(text, str))


def read_attached(message: Json) -> Attached | None:
    """Return what came with a message; None for anything else that stands in its place. Total."""
    if message.get("role") != "assistant" or not isinstance(message.get(PROVIDER), dict):
        return None
    try:
        return convert(message[PROVIDER], Attached)
    except (msgspec.ValidationError, RecursionError):
        return None


def hide_attached(message: Json) -> Json:
    """Return the message as readers of texts get it."""
    if not isinstance(message.get(PROVIDER), dict) or message.get("role") != "assistant":
        return message
    return {key: value for key, value in message.items() if key != PROVIDER}


def remove_attached(message: Json, call_ids: Sequence[str] | None = None) -> Json:
    """Return the message without what came with these of its calls; by default, without what came with its words."""
    found = read_attached(message)
    if found is None:
        return hide_attached(message)
    if call_ids is None:
        left = msgspec.structs.replace(found, message={})
    else:
        left = msgspec.structs.replace(
            found, calls={key: found.calls[key] for key in found.calls.keys() - set(call_ids)}
        )
    return {**message, PROVIDER: msgspec.to_builtins(left)}


def send_back(sent: Json, message: Json, rules: MessageRules) -> Json:
    """Return an assistant's message for a request with what came with it, if it came from whom the request is for.

    `sent` is the message without. Nothing of it takes the place of what readers see: of content in parts, the text is
    the same. The same object, where nothing is added.
    """
    found = read_attached(message)
    if found is None or not _is_from(found, rules):
        return _mark_calls(sent, rules)
    if len(encode(message[PROVIDER])) > 2 * MAX_ATTACHED_BYTES or count_levels(message[PROVIDER]) > 64:
        # Recorded elsewhere, by other bounds.
        return _mark_calls(sent, rules)
    extra = {key: value for key, value in found.message.items() if key not in _MESSAGE_KEYS}
    content = found.message.get("content")
    parts = content if isinstance(content, list) and all(map(_has_type, content)) else []
    if parts and _join_texts(parts) == (sent.get("content") or ""):
        extra["content"] = parts
    if found.calls and "tool_calls" in sent:
        extra["tool_calls"] = [_complete_call(call, found.calls.get(call["id"], {})) for call in sent["tool_calls"]]
    if not extra:
        return sent
    merged = {**sent, **extra}
    return merged if is_encodable(extra) else replace_surrogates(merged)


def _is_from(found: Attached, rules: MessageRules) -> bool:
    same_server = not found.server or not rules.server or found.server == rules.server
    return rules.attachments == "send_back" and found.model == rules.model and same_server


def _complete_call(call: Json, extra: Json) -> Json:
    more = {key: value for key, value in extra.items() if key not in _CALL_KEYS}
    function = extra.get("function")
    if isinstance(function, dict):
        own = {key: value for key, value in function.items() if key not in _FUNCTION_KEYS}
        return {**call, "function": {**call["function"], **own}, **more}
    return {**call, **more}


def _mark_calls(sent: Json, rules: MessageRules) -> Json:
    """Return the message with a stand-in for what its calls lack, where a server refuses calls of others without."""
    if rules.missing_attachments == "omit" or not sent.get("tool_calls"):
        return sent
    if rules.missing_attachments == "reasoning":
        return {**sent, "reasoning_content": ""}
    first, *others = sent["tool_calls"]
    return {**sent, "tool_calls": [{**first, "extra_content": _PLACEHOLDER}, *others]}


def is_encodable(value: object) -> bool:
    """Return whether the value is JSON in UTF-8, without lone surrogates."""
    try:
        msgspec.json.encode(value)
    except UnicodeEncodeError:
        return False
    return True


_MODEL_PROFILES_MAX_NAME = 300
_DEFAULTS = {name: choices[0] for name, choices in PROFILE_FIELDS.items()}


class _Row(msgspec.Struct, frozen=True):
    """The properties of models of these names at these hosts; either may be left open."""

    model: str
    host: str
    fields: Mapping[str, str]


# Names are compared in small letters, hosts without their ports. Later rows count before earlier ones.
_TABLE = (
    # They answer 400 to the other name of the limit; the smaller ones to `parallel_tool_calls`, too.
    _Row(r"(^|/)(o\d|gpt-[5-9])", "", {"tokens_parameter": "max_completion_tokens"}),
    _Row(r"(^|/)o\d", "", {"parallel_tool_calls": "omit"}),
    # Its chat template, as vLLM and llama.cpp use it, raises an exception for a system message that is not the first.
    _Row(r"qwen", "", {"system_messages": "one_leading"}),
    # They know neither the newer name of the limit nor the role `developer`, and refuse what they do not know.
    _Row("", r"(^|\.)(deepseek\.com|mistral\.ai)$", {"tokens_parameter": "max_tokens", "developer_role": "system"}),
    # They refuse the reasoning that came with their own replies (karthink/gptel#774, NousResearch/hermes-agent#34716).
    _Row("", r"(^|\.)(groq\.com|cerebras\.ai)$", {"attachments": "omit"}),
    # Calls of other models, after a handoff for example, are refused without. Google documents the placeholder.
    _Row(r"gemini-[3-9]", r"(^|\.)googleapis\.com$", {"missing_attachments": "signature"}),
    _Row("", r"(^|\.)(deepseek\.com|moonshot\.(ai|cn))$", {"missing_attachments": "reasoning"}),
)
_PATTERNS = [(re.compile(row.model), re.compile(row.host), row.fields) for row in _TABLE]


class ModelServer(msgspec.Struct, frozen=True):
    """The place where models are asked: the host of its base URL, if it is known, and what its settings say of its
    models."""

    host: str = ""
    profiles: Json = {}


def make_model_server(base_url: object, profiles: Json | None = None) -> ModelServer:
    """Return the server of a base URL; of anything else, one that is not known."""
    try:
        host = urlsplit(str(base_url or "")).hostname or ""
    except ValueError:
        host = ""
    return ModelServer(host, profiles or {})


def choose_profile(model: str, server: ModelServer, *overrides: Mapping[str, str]) -> dict[str, str]:
    """Return all fields of a model's profile: of the table, the server's settings and these, the last that says
    something. Total: a log that came from elsewhere may hold anything."""
    chosen = dict(_look_up(model.lower()[:_MODEL_PROFILES_MAX_NAME], server.host))
    for fields in (choose_fields(server.profiles, model), *overrides):
        chosen |= {field: value for field, value in fields.items() if value in PROFILE_FIELDS.get(field, ())}
    return chosen


# Asked for with each turn; a server's models are few.
@functools.lru_cache(256)
def _look_up(name: str, host: str) -> Mapping[str, str]:
    """Return what the table says of a model."""
    chosen = dict(_DEFAULTS)
    for models, hosts, fields in _PATTERNS:
        if models.search(name) and hosts.search(host):
            chosen |= fields
    return chosen


def make_rules(model: str, server: ModelServer, profile: Mapping[str, str]) -> MessageRules:
    """Return the rules by which messages for this model are rendered."""
    return MessageRules(
        # 2: parts that are not of Chat Completions are converted, or words stand in their place.
        version=2,
        model=model,
        server=server.host,
        system_messages=profile["system_messages"],
        developer_role=profile["developer_role"],
        content_parts=profile["content_parts"],
        attachments=profile["attachments"],
        missing_attachments=profile["missing_attachments"],
    )
