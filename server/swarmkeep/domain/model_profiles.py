"""What is known of models and their servers: a table, over which settings, agents and callers have the last word."""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import urlsplit

import msgspec

from swarmkeep.agent.model_profile import PROFILE_FIELDS, choose_fields
from swarmkeep.domain.codec import Json
from swarmkeep.domain.events import MessageRules

_MAX_NAME = 300
_DEFAULTS = {name: choices[0] for name, choices in PROFILE_FIELDS.items()}


class _Row(msgspec.Struct, frozen=True):
    """What holds for models of these names at these hosts; either may be left open."""

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
    # Calls of other models, after a handoff for example, are refused without. Google documents the placeholder.
    _Row(r"gemini-[3-9]", r"(^|\.)googleapis\.com$", {"missing_attachments": "signature"}),
    _Row("", r"(^|\.)(deepseek\.com|moonshot\.(ai|cn))$", {"missing_attachments": "reasoning"}),
)
_PATTERNS = [(re.compile(row.model), re.compile(row.host), row.fields) for row in _TABLE]


class ModelServer(msgspec.Struct, frozen=True):
    """Where models are asked: the host of its base URL, if it is known, and what its settings say of its models."""

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
    name = model.lower()[:_MAX_NAME]
    chosen = dict(_DEFAULTS)
    for models, hosts, fields in _PATTERNS:
        if models.search(name) and hosts.search(server.host):
            chosen |= fields
    for fields in (choose_fields(server.profiles, model), *overrides):
        chosen |= {field: value for field, value in fields.items() if value in PROFILE_FIELDS.get(field, ())}
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
