"""Routes for the agents that are served."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import unquote

import msgspec
from litestar import Request, get
from litestar.di import NamedDependency
from litestar.params import PathParameter

from swarmkeep.agent import Agent
from swarmkeep.api.auth.context import Principal
from swarmkeep.api.errors import problem_specs
from swarmkeep.api.parameters import Cursor, Limit
from swarmkeep.domain.codec import Json
from swarmkeep.domain.errors import InvalidRequest
from swarmkeep.engine.agents.registry import Registry

AgentName = Annotated[str, PathParameter(description="The agent's name; any characters, slashes included.")]


class AgentView(msgspec.Struct, frozen=True, kw_only=True):
    """An agent. `instructions` is null where they are made anew for each turn; `handoffs` names the agents that it
    can hand over to, `approvals` the functions that run only once somebody approved."""

    name: str
    model: str
    instructions: str | None
    tools: list[Json]
    handoffs: list[str]
    tool_choice: str | Json | None
    parallel_tool_calls: bool
    approvals: list[str]


class AgentList(msgspec.Struct, frozen=True, kw_only=True):
    data: list[AgentView]
    next_cursor: str | None


def agent_view(registry: Registry, agent: Agent) -> AgentView:
    return AgentView(
        name=agent.name,
        model=registry.choose_model(agent),
        instructions=agent.instructions if isinstance(agent.instructions, str) else None,
        tools=agent.tool_schemas(),
        handoffs=registry.list_handoffs(agent),
        tool_choice=agent.tool_choice,
        parallel_tool_calls=agent.parallel_tool_calls,
        approvals=[name for name, tool in agent.tools().items() if tool.requires_approval],
    )


@get("/agents", operation_id="list_agents", summary="List the agents, the default one first", responses=problem_specs())
async def list_agents(principal: NamedDependency[Principal], limit: Limit = 50, cursor: Cursor = None) -> AgentList:
    registry = principal.engine.registry
    names = registry.names
    if cursor is not None and cursor not in names:
        raise InvalidRequest("the cursor is not one that this server returned", "/query/cursor")
    start = 0 if cursor is None else names.index(cursor) + 1
    page = names[start : start + limit]
    following = page[-1] if start + limit < len(names) else None
    return AgentList(data=[agent_view(registry, registry.get(name)) for name in page], next_cursor=following)


@get(
    "/agents/{name:path}",
    operation_id="get_agent",
    summary="Get an agent",
    responses=problem_specs("agent_not_found"),
)
async def get_agent(
    request: Request[Any, Any, Any], principal: NamedDependency[Principal], name: AgentName
) -> AgentView:
    # Not `name`, but as it was sent: a name may hold slashes, and routing tidies them.
    raw = request.scope["raw_path"].decode("latin-1")
    registry = principal.engine.registry
    return agent_view(registry, registry.get(unquote(raw.partition("/v1/agents/")[2])))


ROUTES = [list_agents, get_agent]
