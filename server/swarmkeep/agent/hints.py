"""Type hints of a function's parameters, resolved one by one."""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable
from types import GenericAlias, MethodType, UnionType
from typing import Annotated, Any, NewType, Union

from swarmkeep.agent.errors import FunctionSchemaError

# A parameter with this hint receives the id of the call, which stays the same when the call is tried again.
ToolCallId = NewType("ToolCallId", str)


def resolve_hint(function: str, parameter: str, hint: Any, namespace: dict[str, Any]) -> Any:
    """A hint with the names in its strings looked up.

    Each hint is resolved alone: a return hint or another parameter's hint that cannot be resolved does no harm.

    Raises FunctionSchemaError if it names something that is not there.
    """
    if isinstance(hint, type) and not isinstance(hint, GenericAlias):
        return hint

    def probe() -> None: ...

    probe.__annotations__ = {"hint": hint}
    try:
        return typing.get_type_hints(probe, namespace, include_extras=True)["hint"]
    except Exception as error:  # a hint in a string is code: evaluating it can raise anything
        raise FunctionSchemaError(function, parameter, f"its hint {hint!r} cannot be resolved ({error})") from error


def find_namespace(function: Callable[..., Any]) -> dict[str, Any]:
    """The names that a function's hints may use: its module's, and those that it closes over."""
    inner: Any = inspect.unwrap(function)
    while isinstance(inner, (functools.partial, MethodType)):
        inner = inspect.unwrap(inner.func if isinstance(inner, functools.partial) else inner.__func__)
    if not hasattr(inner, "__globals__"):
        inner = inspect.unwrap(type(inner).__call__)
    # ToolCallId comes first, so that it resolves when it is imported for type checkers only.
    namespace: dict[str, Any] = {"ToolCallId": ToolCallId, **getattr(inner, "__globals__", {})}
    closed_over = getattr(getattr(inner, "__code__", None), "co_freevars", ())
    for name, cell in zip(closed_over, getattr(inner, "__closure__", None) or (), strict=False):
        try:
            namespace[name] = cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    return namespace


def takes_call_id(hint: Any) -> bool:
    """Whether a hint is ToolCallId, also inside Annotated, Optional or another union."""
    if hint is ToolCallId:
        return True
    origin = typing.get_origin(hint)
    if origin is Annotated:
        return takes_call_id(typing.get_args(hint)[0])
    return (origin is Union or origin is UnionType) and any(takes_call_id(part) for part in typing.get_args(hint))
