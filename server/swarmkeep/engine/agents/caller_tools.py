"""Functions of whoever asks for a run: they must not be taken for those of the agents."""

from __future__ import annotations

from swarmkeep.agent import FunctionSchemaError, InvalidFunctionError
from swarmkeep.agent.output import OUTPUT_TOOL
from swarmkeep.domain.errors import InvalidRequest
from swarmkeep.domain.run_options import RunOptions
from swarmkeep.engine.agents.registry import Registry


def refuse_taken_names(options: RunOptions, registry: Registry) -> None:
    """Raise InvalidRequest for a function that has the name of one that an agent has, whichever is asked in the end."""
    if not options.caller_tools:
        return
    owners = {name: agent.name for agent in registry for name in _list_names(registry, agent.name)}
    for place, tool in enumerate(options.caller_tools):
        owner = owners.get(tool.function.name)
        if owner is not None:
            raise InvalidRequest(
                f"the agent {owner!r} has a function {tool.function.name!r} of its own; choose another name",
                f"/tools/{place}",
            )


def _list_names(registry: Registry, agent: str) -> list[str]:
    found = registry.get(agent)
    takes_output = [OUTPUT_TOOL] if found.output_type is not None and found.output_mode == "tool" else []
    try:
        return [*found.tools(), *takes_output]
    except (FunctionSchemaError, InvalidFunctionError):
        # None of its functions can be called.
        return []
