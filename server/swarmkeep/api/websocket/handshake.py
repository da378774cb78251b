"""The WebSocket handshake: origin, API key, and where the stream starts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from litestar.datastructures import Headers
from litestar.types import Send, WebSocketScope
from litestar.types.asgi_types import WebSocketResponseStartEvent

from swarmkeep.api.auth.context import Principal
from swarmkeep.api.auth.guards import (
    authenticate,
    get_client_address,
    is_allowed_origin,
    note_caller,
    refuse_other_sites,
)
from swarmkeep.api.errors import PROBLEM_JSON
from swarmkeep.api.http_errors import Forbidden, Unauthenticated
from swarmkeep.api.parameters import parse_seq, read_query
from swarmkeep.api.service import Service
from swarmkeep.domain.codec import encode

SUBPROTOCOL = "swarmkeep"


# A page cannot send headers with a handshake, but it can offer subprotocols: this one, and one that holds its key.
_BEARER_PREFIX = "bearer."


async def refuse_other_pages(service: Service, scope: WebSocketScope) -> None:
    """Browsers let any page open a WebSocket anywhere, and only say whose it is. Programs send no `Origin`.

    Raises Forbidden.
    """
    headers = Headers.from_scope(scope)
    await refuse_other_sites(service, headers)
    if not is_allowed_origin(service, headers):
        raise Forbidden(
            "pages of other sites may not open this connection; allow their origin with SWARMKEEP_CORS_ORIGINS"
        )


async def refuse_handshake(
    send: Send, status: int, document: Mapping[str, Any], headers: Mapping[str, str], media_type: str = PROBLEM_JSON
) -> None:
    """Answer the handshake with a document that says why, instead of a connection."""
    body = encode(document)
    start: WebSocketResponseStartEvent = {
        "type": "websocket.http.response.start",
        "status": status,
        "headers": [
            (b"content-type", media_type.encode()),
            (b"content-length", b"%d" % len(body)),
            *((name.lower().encode(), value.encode()) for name, value in headers.items()),
        ],
    }
    await send(start)
    await send({"type": "websocket.http.response.body", "body": body, "more_body": False})


async def authenticate_handshake(service: Service, scope: WebSocketScope) -> Principal:
    """Who opens the connection, and may at least watch.

    Raises Unauthenticated, RateLimited, Forbidden, StoreUnavailable.
    """
    shown = Headers.from_scope(scope).getall("authorization", [])
    offered = [name.removeprefix(_BEARER_PREFIX) for name in scope["subprotocols"] if name.startswith(_BEARER_PREFIX)]
    shown += [f"Bearer {secret}" for secret in offered]
    principal = Principal(service, await authenticate(service, shown, get_client_address(scope)))
    note_caller(principal, scope["path_params"])
    principal.require("read")
    return principal


async def authorize_command(principal: Principal, scope: WebSocketScope) -> None:
    """A command is a request of its own: it may come long after the handshake, and be one too many.

    Raises Unauthenticated, RateLimited, Forbidden, StoreUnavailable.
    """
    if not await principal.is_still_allowed():
        raise Unauthenticated(key_given=principal.api_key is not None)
    principal.service.count_request(principal.api_key, get_client_address(scope))
    principal.require("run", "approve")


def parse_after(scope: WebSocketScope) -> int:
    """The last seq that the reader has seen; by default none. Raises InvalidRequest."""
    after = dict(read_query(scope, {"after": False})).get("after", "0")
    return parse_seq(after, "/query/after", "`after` must be the seq of the last event seen")
