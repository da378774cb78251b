"""Functions of whoever asks for a run: they must not be taken for those of the agents, and what is chosen is there."""

from __future__ import annotations

from swarmkeep.agent import FunctionSchemaError, InvalidFunctionError
from swarmkeep.agent.output import OUTPUT_TOOL
from swarmkeep.domain.errors import InvalidRequest
from swarmkeep.domain.run_options import RunOptions
from swarmkeep.engine.agents.registry import Registry


def refuse_wrong_functions(options: RunOptions, registry: Registry) -> None:
    """Raise InvalidRequest for a function that has the name of one that an agent has, whichever is asked in the end;
    and for a choice of one that nobody has, which no model could be held to.
    """
    chosen = _list_chosen(options.tool_choice)
    if not options.caller_tools and not chosen:
        return
    owners = {name: agent.name for agent in registry for name in _list_names(registry, agent.name)}
    _refuse_taken_names(options, owners)
    # What tools their servers have is known when they are asked.
    if not any(agent.mcp_servers for agent in registry):
        _refuse_missing(chosen, {*owners, *options.caller_tool_names})


def _refuse_taken_names(options: RunOptions, owners: dict[str, str]) -> None:
    for place, tool in enumerate(options.caller_tools):
        owner = owners.get(tool.function.name)
        if owner is not None:
            raise InvalidRequest(
                f"the agent {owner!r} has a function {tool.function.name!r} of its own; choose another name",
                f"/tools/{place}",
            )


def _refuse_missing(chosen: list[str], names: set[str]) -> None:
    missing = next((name for name in chosen if name not in names), None)
    if missing is not None:
        raise InvalidRequest(
            f"there is no function {missing[:300]!r} to choose: neither here nor of an agent", "/tool_choice"
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
