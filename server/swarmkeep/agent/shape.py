"""Read a function's shape: its name, docstring and parameters, and whether it can be a tool."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import re
import typing
from collections.abc import Callable
from dataclasses import dataclass
from types import FunctionType, MethodType
from typing import Any, Literal

from swarmkeep.agent.errors import InvalidFunctionError
from swarmkeep.agent.hints import find_namespace, resolve_hint, takes_call_id

CONTEXT = "context_variables"
EMPTY: Any = inspect.Parameter.empty
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_SHOWN_CHARACTERS = 80


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter that a call can fill. `filled_by` says who does: the model, or the loop with a value of its own."""

    name: str
    filled_by: Literal["model", "context", "call_id"]
    hint: Any
    default: Any
    positional_only: bool

    @property
    def required(self) -> bool:
        return self.default is EMPTY


@dataclass(frozen=True, slots=True)
class Shape:
    """A function as a tool sees it."""

    name: str
    doc: str
    is_async: bool
    parameters: tuple[Parameter, ...]
    takes_keywords: bool  # it has **kwargs
    bound: frozenset[str]  # names that a partial has already filled

    @property
    def model_parameters(self) -> list[Parameter]:
        return [parameter for parameter in self.parameters if parameter.filled_by == "model"]


def read_shape(function: Callable[..., Any]) -> Shape:
    """Read a function's shape, once: callers keep it.

    Raises InvalidFunctionError if it cannot be a tool, FunctionSchemaError if a hint cannot be resolved.
    """
    inner, bound = unwrap_partial(function)
    name = _read_name(function, inner)
    if reason := _explain_refusal(inner, name):
        raise InvalidFunctionError(name if name and callable(inner) else _shorten_repr(function), reason)
    try:
        signature = inspect.signature(function)
    except (ValueError, TypeError, NameError) as error:
        raise InvalidFunctionError(name, f"its parameters cannot be read ({error})") from error
    parameters = [p for p in signature.parameters.values() if p.name not in bound]
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    namespace = find_namespace(inner)
    return Shape(
        name=name,
        doc=_read_doc(inner),
        is_async=_test_code(inspect.iscoroutinefunction, inner),
        parameters=tuple(_read_parameter(name, p, namespace) for p in parameters if p.kind not in variadic),
        takes_keywords=any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters),
        bound=bound,
    )


def unwrap_partial(function: Callable[..., Any]) -> tuple[Callable[..., Any], frozenset[str]]:
    """What a partial, or a partial of partials, calls in the end; and the names of the arguments given on the way."""
    bound: set[str] = set()
    while isinstance(function, functools.partial):
        bound.update(function.keywords)
        function = function.func
    return function, frozenset(bound)


def _read_parameter(function: str, parameter: inspect.Parameter, namespace: dict[str, Any]) -> Parameter:
    filled_by: Literal["model", "context", "call_id"] = "model"
    hint = EMPTY
    if parameter.name == CONTEXT:
        filled_by = "context"
    elif parameter.annotation is not EMPTY:
        hint = resolve_hint(function, parameter.name, parameter.annotation, namespace)
        filled_by = "call_id" if takes_call_id(hint) else "model"
    return Parameter(
        name=parameter.name,
        filled_by=filled_by,
        hint=hint,
        default=parameter.default,
        positional_only=parameter.kind is inspect.Parameter.POSITIONAL_ONLY,
    )


def _read_name(function: Callable[..., Any], inner: Callable[..., Any]) -> str:
    """Its own name, else that of what a partial wraps, else that of a callable object's type."""
    for candidate in (function, inner, type(inner)):
        name = getattr(candidate, "__name__", None)
        if isinstance(name, str):
            return name
    return ""


def _read_doc(inner: Callable[..., Any]) -> str:
    if inspect.isroutine(inner) or "__doc__" in getattr(inner, "__dict__", ()):
        return inner.__doc__ or ""  # functools.update_wrapper leaves an object the text of what it wraps
    call = type(inner).__call__
    text = (call.__doc__ if isinstance(call, FunctionType) else None) or type(inner).__doc__ or ""
    # A dataclass without a docstring is given its signature for one, which tells a model nothing.
    generated = dataclasses.is_dataclass(inner) and text.startswith(f"{type(inner).__name__}(")
    return "" if generated else text


def _explain_refusal(inner: object, name: str) -> str:
    """Why this cannot be a tool; empty if it can."""
    if isinstance(inner, type) or typing.get_origin(inner) is not None:
        return "it is a class; pass a function that makes one"
    if not callable(inner):
        return f"it is of type {type(inner).__name__}, which cannot be called"
    if name == "<lambda>":
        return "a lambda has no name that a model could call; write it with def"
    if not _NAME.fullmatch(name):
        return "a tool's name is 1 to 64 of the characters a-z A-Z 0-9 _ -"
    if _test_code(inspect.isgeneratorfunction, inner) or _test_code(inspect.isasyncgenfunction, inner):
        return "it is a generator; return one value instead of yielding several"
    return ""


def _test_code(test: Callable[[Any], bool], inner: Callable[..., Any]) -> bool:
    """Whether a test holds for a function, or for the `__call__` of a callable object."""
    return test(inner) or (not isinstance(inner, (FunctionType, MethodType)) and test(type(inner).__call__))


def _shorten_repr(function: object) -> str:
    text = repr(function)
    return text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "…"
