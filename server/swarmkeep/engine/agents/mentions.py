"""Finds the agents that an agent's functions mention in their code."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Iterator
from typing import Any

from swarmkeep.agent import Agent
from swarmkeep.agent.asked import find_asked_agent


def find_reachable(agent: Agent) -> Iterator[Agent]:
    seen: dict[int, Agent] = {id(agent): agent}
    waiting = [agent]
    while waiting:
        for other in find_mentioned(waiting.pop()):
            if id(other) not in seen:
                seen[id(other)] = other
                waiting.append(other)
                yield other


def find_mentioned(agent: Agent) -> Iterator[Agent]:
    for function in agent.functions:
        yield from find_agents_in(function)


def find_handed_over(agent: Agent) -> Iterator[Agent]:
    """The agents that its functions mention, and do not ask."""
    for function in agent.functions:
        if find_asked_agent(function) is None:
            yield from find_agents_in(function)


def find_agents_in(function: Callable[..., Any]) -> Iterator[Agent]:
    """The agents that a function's code refers to: as globals, in its closure, or bound to it.

    Read from the code, not by calling it: a function with an effect must not run to draw a graph.
    """
    bound = [*getattr(function, "args", ()), *getattr(function, "keywords", {}).values()]
    plain = getattr(function, "func", function)
    if not isinstance(plain, types.FunctionType):
        # An agent may be kept by a method's object, or by an object that is called itself.
        bound += list(getattr(getattr(plain, "__self__", plain), "__dict__", {}).values())
    if not isinstance(plain, types.FunctionType | types.MethodType):
        plain = vars(type(plain)).get("__call__")
    plain = inspect.unwrap(getattr(plain, "__func__", plain))
    if isinstance(plain, types.FunctionType):
        bound += list(_iterate_referenced(plain, plain.__code__))
        bound += [cell.cell_contents for cell in plain.__closure__ or () if _is_filled(cell)]
    for value in bound:
        yield from _pick_agents(value)


def _iterate_referenced(function: types.FunctionType, code: types.CodeType) -> Iterator[Any]:
    for name in code.co_names:
        if name in function.__globals__:
            yield function.__globals__[name]
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _iterate_referenced(function, constant)


def _is_filled(cell: types.CellType) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False


def _pick_agents(value: Any) -> Iterator[Agent]:
    values = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else [value]
    for item in values:
        if isinstance(item, Agent):
            yield item
