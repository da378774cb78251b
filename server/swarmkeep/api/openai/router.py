"""The routes below `/openai/v1`."""

from __future__ import annotations

from litestar import Router
from litestar.types import ControllerRouterHandler

from swarmkeep.api.auth.guards import require_key
from swarmkeep.api.openai.chat import routes as chat
from swarmkeep.api.openai.errors import PREFIX
from swarmkeep.api.openai.routes import compaction, conversations, input_tokens, models, responses
from swarmkeep.api.openai.routes.document import make_document_route
from swarmkeep.api.openai.socket import connection as socket

ROUTES: list[ControllerRouterHandler] = [
    *models.ROUTES,
    *chat.ROUTES,
    *responses.ROUTES,
    *input_tokens.ROUTES,
    *compaction.ROUTES,
    *conversations.ROUTES,
]


def make_router() -> Router:
    """They are not in `/openapi.json`: they have a document of their own."""
    return Router(
        "/",
        route_handlers=[
            Router(PREFIX, guards=[require_key], route_handlers=[*ROUTES, *socket.ROUTES], include_in_schema=False),
            Router(PREFIX, route_handlers=[make_document_route(ROUTES)]),
        ],
    )
