"""Who calls, and what is there for them: the one dependency of every handler."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterable
from typing import Any

from litestar import Request

from swarmkeep.api.refusals import Forbidden
from swarmkeep.domain.errors import InvalidRequest, SessionNotFound
from swarmkeep.engine.engine import Engine
from swarmkeep.engine.inputs import checked_id
from swarmkeep.engine.once import Once
from swarmkeep.store.port import DEFAULT_TENANT, SessionKey


class Service:
    """One process's engine, and whether it is being stopped.

    `hosts` are the names by which an open server may be addressed (None is any), `origins` the other sites whose
    pages may call it. `stopping` is set when the server is told to stop, `drained` when the last of its runs has ended.
    """

    def __init__(
        self, engine: Engine, *, hosts: frozenset[str] | None = None, origins: frozenset[str] = frozenset()
    ) -> None:
        self.engine = engine
        self.hosts = hosts
        self.origins = origins
        self.stopping = asyncio.Event()
        self.drained = asyncio.Event()

    async def drain(self) -> None:
        """Take no more runs, let streams end, and return once the running runs have ended or were interrupted."""
        self.stopping.set()
        try:
            await self.engine.drain()
        finally:
            self.drained.set()


_KEY_LENGTH = 255


class Caller:
    """Whoever sent a request, and the engine as they may use it."""

    def __init__(self, service: Service, tenant: str, request: Request[Any, Any, Any] | None = None) -> None:
        self.service = service
        self.tenant = tenant
        self.engine = service.engine
        self._request = request

    async def once(self) -> Once | None:
        """The request's `Idempotency-Key`, if it has one, with a digest of all that the request says.

        Raises InvalidRequest.
        """
        if self._request is None or (key := self._request.headers.get("idempotency-key")) is None:
            return None
        if not (0 < len(key) <= _KEY_LENGTH and key.isascii() and key.isprintable()):
            detail = f"an idempotency key is 1 to {_KEY_LENGTH} printable ASCII characters"
            raise InvalidRequest(detail, "/header/Idempotency-Key")
        said = "\n".join((self._request.method, self._request.url.path, self._request.headers.get("if-match", "")))
        body = await self._request.body()
        return Once(key, hashlib.sha256(said.encode() + b"\n" + body).hexdigest())

    def key(self, session_id: str) -> SessionKey:
        """The caller's session of that id; one that no session can have is not worth a look.

        Raises SessionNotFound.
        """
        try:
            return SessionKey(self.tenant, checked_id(session_id))
        except InvalidRequest:
            raise SessionNotFound(session_id) from None


def identify(request: Request[Any, Any, Any]) -> Caller:
    """The caller of a request. Every call to a session goes through here: this is where API keys are looked up."""
    return Caller(request.app.state.service, DEFAULT_TENANT, request)


def has_api_keys() -> bool:
    """Whether callers have to show an API key. Without any, the server is open, and for this machine only."""
    return False


def refuse_other_sites(service: Service, headers: Iterable[tuple[bytes, bytes]]) -> None:
    """Keep web pages out of an open server: any page can send requests to localhost, or have its name point there.

    Raises Forbidden.
    """
    if service.hosts is None:
        return
    given = dict(headers)
    host, origin = given.get(b"host", b"").decode("latin-1"), given.get(b"origin")
    if host and _name_of(host) not in service.hosts:
        raise Forbidden("without API keys the server answers only to its own name; use 127.0.0.1 or localhost")
    if origin is not None and not is_ours(service, origin.decode("latin-1"), host):
        raise Forbidden("without API keys the server takes no requests from other sites' pages")


def is_ours(service: Service, origin: str, host: str) -> bool:
    """Whether a page of that origin is the server's own, or one that may call it."""
    return origin.partition("://")[2] == host or bool(service.origins & {origin, "*"})


def _name_of(host: str) -> str:
    name, _, port = host.rpartition(":")
    return (name if name and port.isdecimal() else host).lower()
