"""Who may come in: guards that run before anything of a request is read."""

from __future__ import annotations

from typing import Any

from litestar.connection import ASGIConnection
from litestar.datastructures import Headers
from litestar.handlers import BaseRouteHandler
from litestar.types import Scope

from swarmkeep.api.access import Caller, Service
from swarmkeep.api.refusals import Forbidden, Unauthenticated
from swarmkeep.store.keys import ApiKey

Connection = ASGIConnection[Any, Any, Any, Any]

# A handler's `opt` that says of a POST that it changes nothing, so that read-only keys may send it.
ONLY_READS = "only_reads"
# A handler's `opt` that says that it asks `key_shown` and `refuse_other_sites` itself: a WebSocket tells its refusals
# over the connection, which a guard cannot.
OWN_DOOR = "own_door"


async def admit(connection: Connection, handler: BaseRouteHandler) -> None:
    """Let in whoever has a key, once there is one, and note whose it is.

    Raises Unauthenticated, RateLimited, Forbidden, StoreUnavailable.
    """
    if handler.opt.get(OWN_DOOR):
        return
    service: Service = connection.app.state.service
    headers = connection.headers.getall("authorization", [])
    key = await key_shown(service, headers, address_of(connection.scope))
    connection.scope["auth"] = key
    if not _only_reads(connection, handler):
        Caller(service, key).refuse_reader()


async def key_shown(service: Service, authorization: list[str], address: str) -> ApiKey | None:
    """The key in a request's `Authorization` headers; None as long as the server asks for none. Counts the request.

    Raises Unauthenticated, RateLimited, StoreUnavailable.
    """
    secret = _secret(authorization)
    locked = await service.keyring.is_locked()
    key = await service.keyring.holder(secret) if locked and secret else None
    service.count(key, address)
    if locked and key is None:
        raise Unauthenticated(shown=bool(secret))
    return key


def address_of(scope: Scope) -> str:
    """Where a request comes from, as the nearest proxy on this machine tells, if there is one."""
    client = scope.get("client")
    return "" if client is None else client[0]


def _secret(authorization: list[str]) -> str:
    """What stands after `Bearer`; empty for nothing, and for two of them, of which nobody could say which counts."""
    scheme, _, secret = authorization[0].strip().partition(" ") if len(authorization) == 1 else ("", "", "")
    return secret.strip() if scheme.lower() == "bearer" else ""


def _only_reads(connection: Connection, handler: BaseRouteHandler) -> bool:
    reads: bool = handler.opt.get(ONLY_READS, connection.scope.get("method") in ("GET", "HEAD"))
    return reads


async def keep_out_other_sites(connection: Connection, handler: BaseRouteHandler) -> None:
    """The guard of all routes. Raises Forbidden."""
    if not handler.opt.get(OWN_DOOR):
        await refuse_other_sites(connection.app.state.service, connection.headers)


async def refuse_other_sites(service: Service, headers: Headers) -> None:
    """Keep web pages out of an open server: any page can send requests to localhost, or have its name point there.

    Where a key is needed no page has one by itself, so that any name and any origin will do. Raises Forbidden.
    """
    foreign = _foreign(service, headers)
    if foreign and not await service.keyring.is_locked():
        raise Forbidden(foreign)


def _foreign(service: Service, headers: Headers) -> str:
    """Why a request is not from this machine, or not from a page of ours; empty if it may well be."""
    if any(_name_of(host) not in service.hosts for host in headers.getall("host", [])):
        return (
            "without API keys the server answers only to its own name; use 127.0.0.1 or localhost, or name this host "
            "in SWARMKEEP_ALLOWED_HOSTS"
        )
    if not is_ours(service, headers):
        return "without API keys the server takes no requests from other sites' pages"
    return ""


def is_ours(service: Service, headers: Headers) -> bool:
    """Whether a request is from no web page, from the server's own, or from one that may call it."""
    origin = headers.get("origin")
    own = origin is None or headers.getall("host", []) == [origin.partition("://")[2]]
    return own or bool(service.origins & {origin, "*"})


def _name_of(host: str) -> str:
    name, _, port = host.rpartition(":")
    return (name if name and port.isdecimal() else host).lower()
