"""Who may open a live connection, and from where it goes on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import parse_qsl

from litestar.types import Send, WebSocketScope
from litestar.types.asgi_types import WebSocketResponseStartEvent

from swarmkeep.api.access import Caller, Service, is_ours, refuse_other_sites
from swarmkeep.api.errors import PROBLEM_JSON
from swarmkeep.api.queries import MAX_SEQ
from swarmkeep.api.refusals import Forbidden
from swarmkeep.domain.codec import encode
from swarmkeep.domain.errors import InvalidRequest
from swarmkeep.store.port import DEFAULT_TENANT

SUBPROTOCOL = "swarmkeep"


def refuse_other_pages(service: Service, headers: Iterable[tuple[bytes, bytes]]) -> None:
    """Browsers let any page open a WebSocket anywhere, and only say whose it is. Programs send no `Origin`.

    Raises Forbidden.
    """
    listed = list(headers)
    refuse_other_sites(service, listed)
    given = dict(listed)
    origin = given.get(b"origin")
    if origin is not None and not is_ours(service, origin.decode("latin-1"), given.get(b"host", b"").decode("latin-1")):
        raise Forbidden("this connection takes no other sites' pages; SWARMKEEP_CORS_ORIGINS names those that may")


async def turn_away(send: Send, problem: Mapping[str, Any]) -> None:
    """Answer the handshake with a problem document instead of a connection."""
    body, status = encode(problem), int(problem["status"])
    start: WebSocketResponseStartEvent = {
        "type": "websocket.http.response.start",
        "status": status,
        "headers": [(b"content-type", PROBLEM_JSON.encode()), (b"content-length", b"%d" % len(body))],
    }
    await send(start)
    await send({"type": "websocket.http.response.body", "body": body, "more_body": False})


async def caller_of(service: Service, scope: WebSocketScope) -> Caller:
    """Who opened the connection."""
    return Caller(service, DEFAULT_TENANT)


def after_of(scope: WebSocketScope) -> int:
    """The last seq that the reader has seen; by default none. Raises InvalidRequest."""
    pairs = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
    for name, _ in pairs:
        if name != "after":
            raise InvalidRequest(f"there is no query parameter {name!r} here; known: after", f"/query/{name}")
    after = dict(pairs).get("after", "0")
    number = int(after) if after.isascii() and after.isdecimal() and len(after) < 20 else -1
    if not 0 <= number <= MAX_SEQ:
        raise InvalidRequest("after: the seq of the last event seen", "/query/after")
    return number
