"""Routes for models, which are the agents."""

from __future__ import annotations

from typing import Annotated, Any

from litestar import Request, get
from litestar.di import NamedDependency
from litestar.params import QueryParameter

from swarmkeep.api.auth.context import Principal
from swarmkeep.api.openai.errors import PREFIX
from swarmkeep.api.openai.run_request import find_agent
from swarmkeep.api.routes.agents import AgentName, read_name
from swarmkeep.domain.codec import Json

ForUser = Annotated[str | None, QueryParameter(description="Has no effect: the API key counts.")]


def show_model(name: str) -> Json:
    # Agents are not dated.
    return {"id": name, "object": "model", "created": 0, "owned_by": "swarmkeep"}


@get("/models", operation_id="list_models", summary="List the agents")
async def list_models(principal: NamedDependency[Principal], user: ForUser = None) -> dict[str, Any]:
    return {"object": "list", "data": [show_model(name) for name in principal.engine.registry.names]}


@get("/models/{name:path}", operation_id="get_model", summary="Get an agent")
async def get_model(
    request: Request[Any, Any, Any], principal: NamedDependency[Principal], name: AgentName
) -> dict[str, Any]:
    return show_model(find_agent(principal, read_name(request, f"{PREFIX}/models/")))


ROUTES = [list_models, get_model]
