"""The parameters of a model request that agents and runs may set; the others are made here, or stand elsewhere."""

from __future__ import annotations

import json
import re
from typing import Any

from swarmkeep.agent.values import copy_plain_object, quote

MAX_BYTES = 32_768
MAX_LEVELS = 32
_MAX_NAME = 64
EXTRA_BODY = "extra_body"
MAX_FORMAT_BYTES = 131_072
_FORMATS = {"text": {"type"}, "json_object": {"type"}, "json_schema": {"type", "json_schema"}}
_SCHEMA_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_SCHEMA_FIELDS: tuple[tuple[str, tuple[type, ...], str], ...] = (
    ("name", (str,), "a string"),
    ("schema", (dict, type(None)), "an object"),
    ("strict", (bool, type(None)), "a boolean"),
    ("description", (str, type(None)), "a string"),
)

# One parameter: the newer name of it first.
TOKEN_LIMITS = ("max_completion_tokens", "max_tokens")
# Names that no setting has, and why.
ELSEWHERE = {
    "model": "set the agent's or the run's `model`",
    "messages": "they are made from the session",
    "tools": "they are the agent's `functions`",
    "functions": "they are the agent's `functions`",
    "tool_choice": "set the agent's `tool_choice`",
    "function_call": "set the agent's `tool_choice`",
    "parallel_tool_calls": "set the agent's `parallel_tool_calls`",
    "stream": "set the run's `stream`",
    "stream_options": "they belong to the run's `stream`",
    "response_format": "set the agent's `output_type` or the run's `response_format`",
    "n": "a turn has one answer",
    "store": "the session's log keeps every request",
    "metadata": "use the session's `metadata`",
    "instructions": "they are the agent's or the run's `instructions`",
    "input": "it is the run's `input`",
    "timeout": "it is a setting of the server: SWARMKEEP_MODEL_TIMEOUT_SECONDS",
    "extra_headers": "only the body of a request can be set",
    "extra_query": "only the body of a request can be set",
}


class ModelSettingsError(ValueError):
    """A parameter cannot be set like this. `name` is the parameter, if it is about one."""

    def __init__(self, message: str, name: str = "") -> None:
        super().__init__(message)
        self.name = name


def check_model_settings(value: object, label: str = "model_settings") -> dict[str, Any]:
    """A copy of parameters for a model, as JSON. Raises ModelSettingsError, naming what is wrong."""
    settings = copy_json_object(value, label, max_bytes=MAX_BYTES)
    _refuse_names(settings, label)
    if all(settings.get(name) is not None for name in TOKEN_LIMITS):
        raise ModelSettingsError(
            f"{label} has max_tokens and max_completion_tokens, which are one limit; give one of them", "max_tokens"
        )
    extra = settings.get(EXTRA_BODY)
    if extra is not None:
        if not isinstance(extra, dict):
            raise ModelSettingsError(
                f"{label}.{EXTRA_BODY} must be an object, which is merged into the body", EXTRA_BODY
            )
        _refuse_names(extra, f"{label}.{EXTRA_BODY}")
    return settings


def check_response_format(value: object, label: str = "response_format") -> dict[str, Any]:
    """A copy of the parameter of that name, as Chat Completions has it. Raises ModelSettingsError."""
    found = copy_json_object(value, label, max_bytes=MAX_FORMAT_BYTES)
    kind = found.get("type")
    if not isinstance(kind, str) or kind not in _FORMATS:
        raise ModelSettingsError(f"{label}.type must be one of {', '.join(_FORMATS)}", "type")
    if unknown := found.keys() - _FORMATS[kind]:
        raise ModelSettingsError(f"{label} of type {kind} has no {min(unknown)}", min(unknown))
    if kind == "json_schema":
        _check_json_schema(found.get("json_schema"), f"{label}.json_schema")
    return found


def _check_json_schema(value: object, label: str) -> None:
    if not isinstance(value, dict):
        raise ModelSettingsError(f"{label} must be an object", "json_schema")
    for name, kind, words in _SCHEMA_FIELDS:
        if not isinstance(value.get(name), kind):
            raise ModelSettingsError(f"{label}.{name} must be {words}", f"json_schema/{name}")
    if not _SCHEMA_NAME.fullmatch(value["name"]):
        raise ModelSettingsError(
            f"{label}.name must have 1 to 64 of the characters a-z A-Z 0-9 _ -", "json_schema/name"
        )
    if unknown := value.keys() - {name for name, _, _ in _SCHEMA_FIELDS}:
        raise ModelSettingsError(f"{label} has no {quote(min(unknown))}", "json_schema")


def merge_settings(agent: dict[str, Any], run: dict[str, Any], tokens_parameter: str = "as_given") -> dict[str, Any]:
    """The parameters of an agent with those of a run over them, by name; what is null then is left out. Total: a log
    that came from elsewhere may hold anything.

    The limit of tokens has two names and is one parameter: the run's counts, under the name that the model takes.
    """
    merged = override_settings(_flatten(agent), _flatten(run))
    given = next((name for name in TOKEN_LIMITS if merged.get(name) is not None), None)
    if given is not None:
        sent, limit = given if tokens_parameter == "as_given" else tokens_parameter, merged[given]
        merged = dict((sent, limit) if name in TOKEN_LIMITS else (name, value) for name, value in merged.items())
    return {name: value for name, value in merged.items() if value is not None and name not in ELSEWHERE}


def override_settings(settings: dict[str, Any], changed: dict[str, Any]) -> dict[str, Any]:
    """Return settings with others over them. The limit of tokens has two names, and stays one setting."""
    gone = TOKEN_LIMITS if any(name in changed for name in TOKEN_LIMITS) else ()
    kept = {name: value for name, value in settings.items() if name in changed or name not in gone}
    return {**kept, **changed}


def _flatten(settings: dict[str, Any]) -> dict[str, Any]:
    extra = settings.get(EXTRA_BODY)
    named = {name: value for name, value in settings.items() if name != EXTRA_BODY}
    return {**named, **extra} if isinstance(extra, dict) else named


def copy_json_object(value: object, label: str, *, max_bytes: int) -> dict[str, Any]:
    """A copy of an object that goes into a request's body, if it is small and flat enough for that.

    Raises ModelSettingsError.
    """
    if not isinstance(value, dict):
        raise ModelSettingsError(f"{label} must be an object (a dict), not a {type(value).__name__}")
    try:
        copied = copy_plain_object(value, label)
    except ValueError as error:
        raise ModelSettingsError(str(error)) from error
    if _is_deeper_than(copied, MAX_LEVELS):
        raise ModelSettingsError(f"{label} is nested more than {MAX_LEVELS} levels deep")
    try:
        size = len(json.dumps(copied, ensure_ascii=False).encode())
    except UnicodeEncodeError:
        raise ModelSettingsError(f"{label} has text that is not valid Unicode") from None
    if size > max_bytes:
        raise ModelSettingsError(f"{label} has {size} bytes as JSON; at most {max_bytes} are allowed")
    return copied


def _refuse_names(settings: dict[str, Any], label: str) -> None:
    for name in settings:
        if not 0 < len(name) <= _MAX_NAME:
            raise ModelSettingsError(
                f"{label} has the name {quote(name)}; a name must have 1 to {_MAX_NAME} characters"
            )
        if name in ELSEWHERE:
            raise ModelSettingsError(f"{label} cannot set {name}: {ELSEWHERE[name]}", name)
        if name == EXTRA_BODY and label.endswith(EXTRA_BODY):
            raise ModelSettingsError(f"{label} cannot hold another {EXTRA_BODY}", name)


def _is_deeper_than(value: object, levels: int) -> bool:
    if not isinstance(value, (dict, list)):
        return False
    if levels == 0:
        return True
    items = value.values() if isinstance(value, dict) else value
    return any(_is_deeper_than(item, levels - 1) for item in items)
