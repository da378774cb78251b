"""An agent as another one's function: what such a function is, and which agent it asks."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Annotated, Any, Protocol

from pydantic import Field

from swarmkeep.agent.guardrails import Guardrail
from swarmkeep.agent.options import tool

_INPUT = "What is asked, in full: nothing else of this conversation is known there."
_ATTRIBUTE = "__swarmkeep_asked_agent__"


class AskedAgent(Protocol):
    """All that a tool knows of the agent that it asks: who carries out a run's calls finds it by its name."""

    name: str


def make_asking_function(
    agent: AskedAgent,
    name: str,
    description: str,
    *,
    requires_approval: bool,
    timeout: float | None,
    guardrails: Sequence[Guardrail],
    concurrent: bool,
) -> Callable[[str], str]:
    """A function that stands for asking the agent: whoever carries out a run's calls does that, not the function."""

    def ask(input: Annotated[str, Field(description=_INPUT)]) -> str:
        raise TypeError(f"{name} asks agent {agent.name!r}, which only a run can do: give it to another agent")

    ask.__name__ = ask.__qualname__ = name
    ask.__doc__ = description
    setattr(ask, _ATTRIBUTE, agent)
    return tool(ask, requires_approval=requires_approval, timeout=timeout, guardrails=guardrails, concurrent=concurrent)


def find_asked_agent(function: Callable[..., Any]) -> AskedAgent | None:
    """The agent that a call of the function asks; None for a function like any other."""
    while isinstance(function, functools.partial):
        function = function.func
    return vars(function).get(_ATTRIBUTE) if isinstance(function, FunctionType) else None
