"""Check, copy and write values as JSON."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Mapping
from typing import Any, cast

from pydantic import BaseModel, JsonValue

from swarmkeep.agent.errors import NotJsonError

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
    """What the model reads of a value: text as it is; dict, list, model and dataclass as JSON; else `str(value)`.

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
    # The base class's own method gives the plain value of a subclass (an Enum's, say), whatever it overrides.
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
