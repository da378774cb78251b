"""`@tool`: options that say how a function may be run."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast, overload

from swarmkeep.agent.guardrails import Guardrail, check_guardrails

_ATTRIBUTE = "__swarmkeep_tool_options__"

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class ToolOptions:
    """How a function may be run; the defaults are those of an undecorated function."""

    requires_approval: bool = False
    idempotent: bool = False
    timeout: float | None = None
    guardrails: tuple[Guardrail, ...] = ()
    concurrent: bool = False


@overload
def tool(
    function: F,
    /,
    *,
    requires_approval: bool = False,
    idempotent: bool = False,
    timeout: float | None = None,
    guardrails: Sequence[Guardrail] = (),
    concurrent: bool = False,
) -> F: ...


@overload
def tool(
    *,
    requires_approval: bool = False,
    idempotent: bool = False,
    timeout: float | None = None,
    guardrails: Sequence[Guardrail] = (),
    concurrent: bool = False,
) -> Callable[[F], F]: ...


def tool(
    function: F | None = None,
    /,
    *,
    requires_approval: bool = False,
    idempotent: bool = False,
    timeout: float | None = None,
    guardrails: Sequence[Guardrail] = (),
    concurrent: bool = False,
) -> F | Callable[[F], F]:
    """Say how a function may be run, as `@tool` or `@tool(timeout=20)`; it stays an ordinary function.

    `requires_approval`: a person decides before each call. `idempotent`: after a crash a call that has no result
    may run again, with the same tool call id. `timeout`: seconds after which the model is told that the call took
    too long. `guardrails` look at each call before it runs, and may refuse it. `concurrent`: of an agent with
    `concurrent_tools`, calls to it may run beside others of the same reply: it needs nothing that those change.

    Returns the function itself; what takes no attributes (a bound method, a built-in) comes back in a partial.

    Raises ValueError unless `timeout` is a positive number of seconds, and `guardrails` are functions.
    """
    if timeout is not None and not _is_positive_number(timeout):
        raise ValueError(f"timeout must be a positive, finite number of seconds, not {timeout!r}")
    options = ToolOptions(
        requires_approval=requires_approval,
        idempotent=idempotent,
        timeout=None if timeout is None else float(timeout),
        guardrails=tuple(check_guardrails(guardrails, "guardrails")),
        concurrent=concurrent,
    )
    if function is None:
        return lambda function: _attach_options(function, options)
    return _attach_options(function, options)


def get_options(function: Callable[..., Any]) -> ToolOptions:
    """The options given to a function, to what a partial wraps, or to a callable object's `__call__`."""
    while True:
        options = getattr(function, _ATTRIBUTE, None) or getattr(type(function).__call__, _ATTRIBUTE, None)
        if isinstance(options, ToolOptions):
            return options
        if not isinstance(function, functools.partial):
            return ToolOptions()
        function = function.func


def _attach_options(function: F, options: ToolOptions) -> F:
    if not callable(function):
        raise TypeError(f"tool() decorates a function, not {function!r}")
    try:
        setattr(function, _ATTRIBUTE, options)
    except (AttributeError, TypeError, ValueError):  # ValueError: a pydantic model
        wrapped = functools.partial(function)
        setattr(wrapped, _ATTRIBUTE, options)
        return cast("F", wrapped)
    return function


def _is_positive_number(timeout: object) -> bool:
    return (
        isinstance(timeout, (int, float)) and not isinstance(timeout, bool) and math.isfinite(timeout) and timeout > 0
    )
