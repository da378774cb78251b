"""Routes for the agents that are served."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import unquote

import msgspec
from litestar import Request, get
from litestar.di import NamedDependency
from litestar.params import PathParameter

from swarmkeep.events.errors import InvalidRequest
from swarmkeep.http.auth import Principal
from swarmkeep.http.errors import problem_specs
from swarmkeep.http.parameters import Cursor, Limit
from swarmkeep.runs.agent_views import AgentView, view_agent
from swarmkeep.store.records import BAD_CURSOR

AgentName = Annotated[str, PathParameter(description="The agent's name; any characters, slashes included.")]


class AgentList(msgspec.Struct, frozen=True, kw_only=True):
    data: list[AgentView]
    next_cursor: str | None


@get("/agents", summary="List the agents, the default one first", responses=problem_specs())
async def list_agents(principal: NamedDependency[Principal], limit: Limit = 50, cursor: Cursor = None) -> AgentList:
    registry = principal.engine.registry
    names = registry.names
    if cursor is not None and cursor not in names:
        raise InvalidRequest(BAD_CURSOR, "/query/cursor")
    start = 0 if cursor is None else names.index(cursor) + 1
    page = names[start : start + limit]
    following = page[-1] if start + limit < len(names) else None
    is_offline = principal.service.is_offline
    shown = [view_agent(registry, registry.get(name), is_offline=is_offline) for name in page]
    return AgentList(data=shown, next_cursor=following)


@get("/agents/{name:path}", summary="Get an agent", responses=problem_specs("agent_not_found"))
async def get_agent(
    request: Request[Any, Any, Any], principal: NamedDependency[Principal], name: AgentName
) -> AgentView:
    """Write spaces in the name as `%20`."""
    registry = principal.engine.registry
    agent = registry.get(read_name(request, "/v1/agents/"))
    return view_agent(registry, agent, is_offline=principal.service.is_offline)


def read_name(request: Request[Any, Any, Any], prefix: str) -> str:
    """The rest of the path as it was sent: a name may hold slashes, and routing tidies them in what handlers get."""
    return unquote(request.scope["raw_path"].decode("latin-1").partition(prefix)[2])


ROUTES = [list_agents, get_agent]
