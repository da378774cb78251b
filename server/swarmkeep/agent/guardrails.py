"""Guardrails: functions that look at what is about to pass, and may refuse it."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

_MAX_CHARACTERS = 10_000


@dataclass(frozen=True, slots=True)
class Refusal:
    """The result of a guardrail for content that must not pass. `message` is said in its place: to people, or, of a
    call, to the model.

    Raises ValueError for a message that is empty, longer than 10,000 characters, or no text that can be stored.
    """

    message: str

    def __post_init__(self) -> None:
        if not isinstance(self.message, str) or not self.message.strip():
            raise ValueError("a refusal needs a message")
        if len(self.message) > _MAX_CHARACTERS:
            raise ValueError(f"the message of a refusal has at most {_MAX_CHARACTERS:,} characters")
        self.message.encode()


# What is about to pass, and a copy of the context variables.
Guardrail: TypeAlias = Callable[[Any, dict[str, Any]], Refusal | Awaitable[Refusal | None] | None]


def check_guardrails(value: object, where: str) -> list[Guardrail]:
    """A list of guardrails. Raises ValueError for anything else."""
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise ValueError(f"{where} must be a list of functions, not a {type(value).__name__}")
    for function in value:
        if not callable(function):
            raise ValueError(f"{where}: {function!r} is not a function")
        _check_parameters(function, where)
    return list(value)


def _check_parameters(function: Guardrail, where: str) -> None:
    try:
        signature = inspect.signature(function)
    except (ValueError, TypeError):  # some built-ins do not tell
        return
    try:
        signature.bind(None, {})
    except TypeError:
        text = "takes what is checked and the context variables, by position"
        raise ValueError(f"{where}: {name_guardrail(function)} must be a function that {text}") from None


def name_guardrail(function: Guardrail) -> str:
    """The name that the log has for a guardrail."""
    inner: Any = function
    while isinstance(inner, functools.partial):
        inner = inner.func
    name = getattr(inner, "__name__", None)
    return name if isinstance(name, str) else type(inner).__name__


def runs_in_replays(function: Guardrail) -> bool:
    """Tell if `check` may run it; not so if it asks something outside, which its `runs_in_replays = False` says."""
    inner: Any = function
    while getattr(inner, "runs_in_replays", True) is not False:
        if not isinstance(inner, functools.partial):
            return True
        inner = inner.func
    return False
