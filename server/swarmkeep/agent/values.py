"""Check, copy and write values as JSON."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from typing import Any, cast

from pydantic import BaseModel, JsonValue

# Errors of the agent package: each carries its data, and a sentence that says what to do.


class NotJsonError(ValueError):
    """A value holds something that JSON cannot.

    `path` leads to it from the value's label, as in `context_variables.cart[2].when`; `type_name` is its type.
    """

    def __init__(self, path: str, type_name: str, problem: str = "") -> None:
        super().__init__(f"{path} {problem or f'is of type {type_name}, which JSON cannot hold'}")
        self.path = path
        self.type_name = type_name


class InvalidFunctionError(ValueError):
    """Something in an agent's functions cannot be a tool. `agent` is None outside an agent."""

    def __init__(self, function: str, reason: str, *, agent: str | None = None) -> None:
        super().__init__(
            f"{function} cannot be a tool: {reason}"
            if agent is None
            else f"agent {agent!r} cannot use {function} as a tool: {reason}"
        )
        self.function = function
        self.reason = reason
        self.agent = agent


class FunctionSchemaError(ValueError):
    """A parameter's type hint has no JSON Schema, so a model could not be told what to pass."""

    def __init__(self, function: str, parameter: str, reason: str) -> None:
        super().__init__(f"parameter {parameter!r} of {function}: {reason}")
        self.function = function
        self.parameter = parameter
        self.reason = reason


class ToolArgumentsError(ValueError):
    """A model called a function with arguments that it does not take.

    The sentence is written for the model to read. `problems` has one entry for each thing wrong.
    """

    def __init__(self, function: str, problems: list[str]) -> None:
        super().__init__(f"{function} was not called, its arguments are wrong: {'; '.join(problems)}")
        self.function = function
        self.problems = problems


__all__ = ["MAX_DEPTH", "JsonValue", "copy_plain_object", "quote", "to_json_text", "to_plain_json", "to_text"]

MAX_DEPTH = 200
_SHOWN_PATH_PARTS = 10
_SHOWN_KEY_CHARACTERS = 60
# No integer of up to this many bits can reach Python's limit on decimal digits, which is never below 640.
_ALWAYS_PRINTABLE_BITS = 2_000

_Unwrap = Callable[[object], object]


class _NotPlain(Exception):
    """Travels up from the offending value, collecting the keys and containers it passes."""

    def __init__(self, type_name: str, problem: str = "", *, too_deep: bool = False) -> None:
        super().__init__(problem)
        self.type_name = type_name
        self.problem = problem
        self.too_deep = too_deep
        self.parents: list[tuple[str | int, object]] = []


def to_plain_json(value: object, label: str = "value") -> JsonValue:
    """A deep copy of a value, made of nothing but what JSON holds.

    Text may hold NUL and lone surrogates, integers may have any size that can be written in decimal. Tuples
    become lists; subclasses of str, int, float, list and dict become the plain type. `label` begins the path in
    the error.

    Raises NotJsonError for any other type, NaN and infinities, keys that are not strings, a container that
    contains itself, and anything nested more than 200 levels deep.
    """
    return _copy_checked(value, label, _refuse)


def to_json_text(value: object, label: str = "value") -> str:
    """A value as JSON text, where pydantic models and dataclass instances count as objects, at any level.

    Raises NotJsonError as `plain_json` does.
    """
    return json.dumps(_copy_checked(value, label, _read_fields), ensure_ascii=False)


def to_text(value: object, label: str = "value") -> str:
    """Return a value as the text that the model reads: text as it is; dict, list, model and dataclass as JSON; else
    `str(value)`.

    Raises NotJsonError if the value has no such text.
    """
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, (dict, list, BaseModel)) or _is_dataclass_instance(value):
        return to_json_text(value, label)
    try:
        return str(value)
    except Exception as error:
        raise NotJsonError(
            label, type(value).__name__, f"has no text: str() raised {_describe_error(error)}"
        ) from error


def quote(text: str) -> str:
    """Text in JSON quotes, cut when long; plain ASCII, so that any message can be stored and sent."""
    return json.dumps(text if len(text) <= _SHOWN_KEY_CHARACTERS else text[:_SHOWN_KEY_CHARACTERS] + "…")


def _copy_checked(value: object, label: str, unwrap: _Unwrap) -> JsonValue:
    try:
        return _copy(value, 0, unwrap)
    except _NotPlain as found:
        parents = found.parents[::-1]
        problem = found.problem
        if found.too_deep:
            parents, problem = _explain_depth(parents)
        path = _format_path(label, [key for key, _ in parents])
        raise NotJsonError(path, found.type_name, problem) from found.__cause__


def _copy(value: object, depth: int, unwrap: _Unwrap) -> JsonValue:
    kind = type(value)
    if value is None or kind is str or kind is bool:
        return value  # type: ignore[return-value]
    if isinstance(value, (str, int, float)):
        return _copy_scalar(value)
    if not isinstance(value, (dict, list, tuple)):
        return _copy(unwrap(value), depth, unwrap)
    if depth == MAX_DEPTH:
        raise _NotPlain(kind.__name__, too_deep=True)
    if isinstance(value, dict):
        return _copy_object(value, depth + 1, unwrap)
    copied: list[JsonValue] = []
    for index, item in enumerate(value):
        try:
            copied.append(_copy(item, depth + 1, unwrap))
        except _NotPlain as found:
            found.parents.append((index, value))
            raise
    return copied


def _copy_object(value: dict[object, object], depth: int, unwrap: _Unwrap) -> JsonValue:
    copied: dict[str, JsonValue] = {}
    for key, item in value.items():
        if not isinstance(key, str):
            name = type(key).__name__
            raise _NotPlain(name, f"has a key of type {name}; the keys of a JSON object are strings")
        try:
            copied[str.__str__(key)] = _copy(item, depth, unwrap)
        except _NotPlain as found:
            found.parents.append((str.__str__(key), value))
            raise
    return copied


def _copy_scalar(value: str | int | float) -> JsonValue:
    # The base class's own method gives the plain value of a subclass (an Enum's, say), even if that overrides it.
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, float):
        number = float.__float__(value)
        if not math.isfinite(number):
            raise _NotPlain(type(value).__name__, f"is the float {number}, which JSON cannot hold")
        return number
    whole = int.__int__(value)
    if whole.bit_length() > _ALWAYS_PRINTABLE_BITS:
        try:
            int.__repr__(whole)
        except ValueError:
            raise _NotPlain(type(value).__name__, "is an integer with too many digits to be written") from None
    return whole


def _refuse(value: object) -> object:
    raise _NotPlain(type(value).__name__)


def _read_fields(value: object) -> object:
    """One level of a dataclass, or the whole of a pydantic model, as JSON data."""
    if isinstance(value, BaseModel):
        try:
            return value.model_dump(mode="json", warnings=False)
        except Exception as error:
            raise _NotPlain(type(value).__name__, f"cannot be written as JSON: {_describe_error(error)}") from error
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return _refuse(value)


def _is_dataclass_instance(value: object) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def _describe_error(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _explain_depth(parents: list[tuple[str | int, object]]) -> tuple[list[tuple[str | int, object]], str]:
    """Tell a cycle from mere depth: a container met twice on the way down contains itself."""
    seen: set[int] = set()
    for index, (_, container) in enumerate(parents):
        if id(container) in seen:
            return parents[:index], "contains itself, which JSON cannot hold"
        seen.add(id(container))
    return parents, f"is nested more than {MAX_DEPTH} levels deep"


def _format_path(label: str, keys: list[str | int]) -> str:
    steps = "".join(_format_step(key) for key in keys[:_SHOWN_PATH_PARTS])
    return label + steps + ("…" if len(keys) > _SHOWN_PATH_PARTS else "")


def _format_step(key: str | int) -> str:
    if isinstance(key, int):
        return f"[{key}]"
    return f".{key}" if key.isidentifier() and len(key) <= _SHOWN_KEY_CHARACTERS else f"[{quote(key)}]"


def copy_plain_object(value: Mapping[str, Any], label: str = "value") -> dict[str, Any]:
    """A deep copy that holds JSON only. Raises NotJsonError, naming the place under `label`, otherwise."""
    return cast(dict[str, Any], to_plain_json(dict(value), label))


# The parameters of a model request that agents and runs may set; the others are made here, or stand elsewhere.

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
    "logprobs": "they would not be recorded: an answer is its text and its calls",
    "top_logprobs": "they would not be recorded: an answer is its text and its calls",
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
    if not agent and not run:
        return {}
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


# Describe how a model is to be asked: the few things in which servers of Chat Completions differ.

# The first of each is what holds for a model of which nothing is known.
PROFILE_FIELDS: dict[str, tuple[str, ...]] = {
    "parallel_tool_calls": ("send", "omit"),
    "stream_options": ("send", "omit"),
    "tokens_parameter": ("as_given", "max_tokens", "max_completion_tokens"),
    "system_messages": ("anywhere", "one_leading"),
    "developer_role": ("developer", "system"),
    "content_parts": ("parts", "text"),
    "attachments": ("send_back", "omit"),
    "missing_attachments": ("omit", "signature", "reasoning"),
}
_MOST_PATTERNS = 100
_MAX_PATTERN = 200


class ModelProfileError(ValueError):
    """A model profile cannot be like this. `name` is the field, if it is about one."""

    def __init__(self, message: str, name: str = "") -> None:
        super().__init__(message)
        self.name = name


def check_model_profile(value: object, label: str = "model_profile") -> dict[str, str]:
    """Return a copy of a profile's fields. Raises ModelProfileError, naming what is wrong."""
    if not isinstance(value, dict):
        raise ModelProfileError(f"{label} must be an object (a dict), not a {type(value).__name__}")
    for name, choice in value.items():
        choices = PROFILE_FIELDS.get(name) if isinstance(name, str) else None
        if choices is None:
            raise ModelProfileError(f"{label} has no field {quote(str(name))}; it has {', '.join(PROFILE_FIELDS)}")
        if choice not in choices:
            raise ModelProfileError(f"{label}.{name} must be one of {', '.join(choices)}", name)
    return dict(value)


def check_profile_setting(value: object, label: str = "model_profile") -> dict[str, Any]:
    """Return a copy of the profiles of a server's models: fields that hold for all of them, and objects of fields under
    patterns of model names, such as `qwen*`. Raises ModelProfileError."""
    if not isinstance(value, dict):
        raise ModelProfileError(f"{label} must be an object, not a {type(value).__name__}")
    patterns = {name: fields for name, fields in value.items() if isinstance(fields, dict)}
    if len(patterns) > _MOST_PATTERNS or any(len(name) > _MAX_PATTERN for name in patterns):
        raise ModelProfileError(
            f"{label} may have {_MOST_PATTERNS} patterns of model names, of {_MAX_PATTERN} characters each"
        )
    common = check_model_profile({name: item for name, item in value.items() if name not in patterns}, label)
    return {**common, **{name: check_model_profile(item, f"{label}[{quote(name)}]") for name, item in patterns.items()}}


def choose_fields(setting: dict[str, Any], model: str) -> dict[str, str]:
    """Return what a server's profiles say of a model; the last pattern that fits its name counts. Total."""
    chosen: dict[str, str] = {name: value for name, value in setting.items() if isinstance(value, str)}
    for pattern, fields in setting.items():
        if isinstance(fields, dict) and fnmatchcase(model.lower()[:_MAX_PATTERN], pattern.lower()):
            chosen |= fields
    return chosen


# Names of people and queues that look after a conversation.

MAX_ASSIGNEE = 200
# What lists call those without one.
UNASSIGNED = "none"


def check_assignee(name: str) -> str:
    """Return the name itself. Raises ValueError, which says what a name may be."""
    if not 0 < len(name) <= MAX_ASSIGNEE or name != name.strip() or not name.isprintable() or name == UNASSIGNED:
        raise ValueError(
            f"name a person or a queue in 1 to {MAX_ASSIGNEE} characters, on one line without spaces around them; "
            f"`{UNASSIGNED}` stands for sessions without one"
        )
    return name
