"""Functions of whoever asks for a run: they must not be taken for those of the agents, and what is chosen is there."""

from __future__ import annotations

from swarmkeep.agent import FunctionSchemaError, InvalidFunctionError
from swarmkeep.agent.output import OUTPUT_TOOL
from swarmkeep.domain.errors import InvalidRequest
from swarmkeep.domain.run_options import RunOptions
from swarmkeep.engine.agents.registry import Registry

_NAMED_OWNERS = 5


def refuse_wrong_functions(options: RunOptions, registry: Registry) -> None:
    """Raise InvalidRequest for a function that has the name of one that an agent has, whichever is asked in the end;
    and for a choice of one that nobody has, which no model could be held to.
    """
    chosen = _list_chosen(options.tool_choice)
    if not options.caller_tools and not chosen:
        return
    owners: dict[str, list[str]] = {}
    for agent in registry:
        for name in _list_names(registry, agent.name):
            owners.setdefault(name, []).append(agent.name)
    _refuse_taken_names(options, owners)
    # What tools their servers have is known when they are asked.
    if not any(agent.mcp_servers for agent in registry):
        _refuse_missing(chosen, {*owners, *options.caller_tool_names})


def _refuse_taken_names(options: RunOptions, owners: dict[str, list[str]]) -> None:
    for place, tool in enumerate(options.caller_tools):
        found = owners.get(tool.function.name)
        if found is not None:
            raise InvalidRequest(
                f"{_describe_owners(found)} a function {tool.function.name!r} already; choose another name",
                f"/tools/{place}",
            )


def _describe_owners(agents: list[str]) -> str:
    """Those that have a function, as the beginning of a sentence about it."""
    named = ", ".join(map(repr, agents[:_NAMED_OWNERS]))
    more = f" and {len(agents) - _NAMED_OWNERS} more" if len(agents) > _NAMED_OWNERS else ""
    return f"the agent {named} has" if len(agents) == 1 else f"the agents {named}{more} have"


def _refuse_missing(chosen: list[str], names: set[str]) -> None:
    missing = next((name for name in chosen if name not in names), None)
    if missing is not None:
        raise InvalidRequest(
            f"there is no function {missing[:300]!r} to choose, neither in `tools` nor of an agent", "/tool_choice"
        )


def _list_chosen(choice: object) -> list[str]:
    """The functions that a choice names."""
    match choice:
        case {"type": "function", "function": {"name": str(name)}}:
            return [name]
        case {"type": "allowed_tools", "allowed_tools": {"tools": list(tools)}}:
            return [name for tool in tools for name in _list_chosen(tool)]
        case _:
            return []


def _list_names(registry: Registry, agent: str) -> list[str]:
    found = registry.get(agent)
    takes_output = [OUTPUT_TOOL] if found.output_type is not None and found.output_mode == "tool" else []
    try:
        return [*found.tools(), *takes_output]
    except (FunctionSchemaError, InvalidFunctionError):
        # None of its functions can be called.
        return []
