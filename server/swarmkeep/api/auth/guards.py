"""Guards that run before a request's body is read: API key, host and origin."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from litestar.connection import ASGIConnection
from litestar.datastructures import Headers
from litestar.handlers import BaseRouteHandler

from swarmkeep.api.auth.context import Principal
from swarmkeep.api.auth.permissions import Permission
from swarmkeep.api.auth.refusal_log import REFUSALS, RefusalLog
from swarmkeep.api.http_errors import Forbidden, Unauthenticated
from swarmkeep.api.service import Service
from swarmkeep.logs.context import bind_fields
from swarmkeep.store.ports.api_keys import ApiKey, parse_key_id

AnyConnection = ASGIConnection[Any, Any, Any, Any]

_LOGGED_PARAMETERS = {"session_id", "run_id"}
_MAX_ID_CHARACTERS = 128

# A handler's `opt` that names the permissions of which its caller needs one. What says nothing needs `read` if it is a
# GET, and else `write`, so that a new route is not open to more than it should be.
PERMISSION = "permission"
# A handler's `opt` that says that it calls `authenticate` and `refuse_other_sites` itself: a WebSocket is
# refused in the handshake, and may show its key in another place.
OWN_AUTH = "own_auth"


async def require_key(connection: AnyConnection, handler: BaseRouteHandler) -> None:
    """Let in whoever has a key, once there is one, and note whose it is.

    Raises Unauthenticated, RateLimited, Forbidden, StoreUnavailable.
    """
    if handler.opt.get(OWN_AUTH):
        return
    service: Service = connection.app.state.service
    headers = connection.headers.getall("authorization", [])
    key = await authenticate(service, headers, get_client_address(connection.scope))
    connection.scope["auth"] = key
    principal = Principal(service, key)
    note_caller(principal, connection.path_params)
    principal.require(*_get_needed_permissions(connection, handler))


def note_caller(principal: Principal, path_parameters: Mapping[str, Any]) -> None:
    """From here on, log lines of the request say whose it is and what it is about."""
    about = {
        name: str(path_parameters[name])[:_MAX_ID_CHARACTERS] for name in _LOGGED_PARAMETERS & path_parameters.keys()
    }
    bind_fields(tenant=principal.tenant, key=principal.name, **about)


async def authenticate(service: Service, authorization: list[str], address: str) -> ApiKey | None:
    """The key in a request's `Authorization` headers; None as long as the server asks for none. Counts the request.

    Raises Unauthenticated, RateLimited, StoreUnavailable.
    """
    secret = _read_bearer_secret(authorization)
    locked = await service.keyring.is_locked()
    if locked and secret and not service.keyring.was_used(secret):
        # Keys that are only tried out cost a look into the database each; those in use are not held up by them.
        service.refuse_exhausted(address)
    key = await service.keyring.find_key(secret) if locked and secret else None
    service.count_request(key, address)
    if locked and key is None:
        raise Unauthenticated(key_given=bool(secret))
    return key


def get_client_address(scope: Mapping[str, Any]) -> str:
    """Where a request comes from: who connected, or what a proxy says that was named to the server."""
    client = scope.get("client")
    return "" if client is None else client[0]


def _read_bearer_secret(authorization: list[str]) -> str:
    """The text after `Bearer`; empty without one, and for several headers, because nobody could say which counts."""
    scheme, _, secret = authorization[0].strip().partition(" ") if len(authorization) == 1 else ("", "", "")
    return secret.strip() if scheme.lower() == "bearer" else ""


def _get_needed_permissions(connection: AnyConnection, handler: BaseRouteHandler) -> tuple[Permission, ...]:
    reads = connection.scope.get("method") in ("GET", "HEAD")
    needed: tuple[Permission, ...] = handler.opt.get(PERMISSION, ("read",) if reads else ("write",))
    return needed


async def guard_against_other_sites(connection: AnyConnection, handler: BaseRouteHandler) -> None:
    """The guard of all routes. Raises Forbidden."""
    if not handler.opt.get(OWN_AUTH):
        await refuse_other_sites(connection.app.state.service, connection.headers)


async def refuse_other_sites(service: Service, headers: Headers) -> None:
    """Keep web pages out of an open server: any page can send requests to localhost, or have its name point there.

    Where a key is needed no page has one by itself, so that any name and any origin will do. Raises Forbidden.
    """
    foreign = _describe_foreign_request(service, headers)
    if foreign and not await service.keyring.is_locked():
        raise Forbidden(foreign)


def _describe_foreign_request(service: Service, headers: Headers) -> str:
    """Why a request is not from this machine, or not from a page of ours; empty if it may well be."""
    if any(_strip_port(host) not in service.hosts for host in headers.getall("host", [])):
        return (
            "without API keys the server answers only to its own name; use 127.0.0.1 or localhost, or name this host "
            "in SWARMKEEP_ALLOWED_HOSTS"
        )
    if not is_allowed_origin(service, headers) or _is_embedded_elsewhere(headers):
        return "without API keys the server does not accept requests from other sites' pages"
    return ""


def is_allowed_origin(service: Service, headers: Headers) -> bool:
    """Whether a request is from no web page, from the server's own, or from one that may call it."""
    origin = headers.get("origin")
    own = origin is None or headers.getall("host", []) == [origin.partition("://")[2]]
    return own or bool(service.origins & {origin, "*"})


def _is_embedded_elsewhere(headers: Headers) -> bool:
    """Whether another site's page loads this without an `Origin`: as a picture or a script, to learn whether it exists.

    Browsers say so (https://www.w3.org/TR/fetch-metadata/). Following a link from another site is allowed.
    """
    return (
        headers.get("origin") is None
        and headers.get("sec-fetch-site") in ("cross-site", "same-site")
        and (headers.get("sec-fetch-mode"), headers.get("sec-fetch-dest")) != ("navigate", "document")
    )


def _strip_port(host: str) -> str:
    name, _, port = host.rpartition(":")
    return (name if name and port.isdecimal() else host).lower()


def log_refusal(refusals: RefusalLog, status: int | None, scope: Mapping[str, Any]) -> None:
    """Note an answer that refuses somebody."""
    if status in REFUSALS:
        refusals.note(status, get_client_address(scope), _describe_request(scope))


def _describe_request(scope: Mapping[str, Any]) -> str:
    """The method and the path, with the key's id if one was shown: never the key."""
    shown = dict(scope["headers"]).get(b"authorization", b"").decode("latin-1").rpartition(" ")[2]
    key_id = parse_key_id(shown)
    return f"{scope.get('method', 'WebSocket')} {scope['path'][:200]}" + (f" by {key_id}" if key_id else "")
