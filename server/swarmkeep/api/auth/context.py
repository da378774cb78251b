"""The auth context of a request: who calls, and what they may use. The one dependency of every handler."""

from __future__ import annotations

import hashlib
from typing import Any

from litestar import Request

from swarmkeep.api.auth.permissions import PERMISSIONS, Permission
from swarmkeep.api.http_errors import Forbidden, Unauthenticated
from swarmkeep.api.service import Service
from swarmkeep.domain.checking.inputs import check_id
from swarmkeep.domain.errors import InvalidRequest, SessionNotFound
from swarmkeep.engine.idempotency import IdempotentRequest
from swarmkeep.store.ports import DEFAULT_TENANT, SessionKey
from swarmkeep.store.ports.api_keys import ApiKey

_MAX_KEY_CHARACTERS = 255


class Principal:
    """Whoever sent a request. Without a key it is nobody known.

    `engine` carries out commands, `reader` reads sessions and runs; `store` is for what audits, sums up or transfers.
    """

    def __init__(
        self, service: Service, key_used: ApiKey | None, request: Request[Any, Any, Any] | None = None
    ) -> None:
        self.service = service
        self.engine = service.engine
        self.reader = service.engine.reader
        self.store = service.engine.store
        self.api_key = key_used
        self._request = request

    @property
    def tenant(self) -> str:
        """Whose sessions they are.

        Raises Unauthenticated where a key is needed and none was asked for: by a route outside `/v1`.
        """
        if self.api_key is not None:
            return self.api_key.tenant
        if self.service.keyring.has_keys:
            raise Unauthenticated
        return DEFAULT_TENANT

    @property
    def name(self) -> str | None:
        """Who this is, for events that say who did something; None while the server is open."""
        return None if self.api_key is None else self.api_key.label

    async def is_still_allowed(self) -> bool:
        """Whether they would still be let in: asked again and again by what goes on for long, as streams do."""
        keyring = self.service.keyring
        if self.api_key is None:
            return not await keyring.is_locked()
        return await keyring.is_valid(self.api_key)

    def require(self, *permissions: Permission) -> None:
        """Whether they may do what needs one of these permissions; while the server is open, anybody may but make keys.

        Raises Forbidden.
        """
        if self.api_key is None and permissions == ("keys",):
            # Whoever asked first would lock out all others.
            raise Forbidden(
                "the server has no API keys yet; make the first one with `swarmkeep keys create`, on its database"
            )
        if self.api_key is not None and PERMISSIONS[self.api_key.role].isdisjoint(permissions):
            needed = " or ".join(f"`{permission}`" for permission in permissions)
            raise Forbidden(f"this needs the permission {needed}, which the API key's role `{self.api_key.role}` lacks")

    def may(self, permission: Permission) -> bool:
        """Whether they may do what needs this permission."""
        return self.api_key is None or permission in PERMISSIONS[self.api_key.role]

    async def read_idempotency(self) -> IdempotentRequest | None:
        """The request's `Idempotency-Key`, if it has one, with a digest of all that the request says.

        Raises InvalidRequest.
        """
        if self._request is None or (key := self._request.headers.get("idempotency-key")) is None:
            return None
        if not (0 < len(key) <= _MAX_KEY_CHARACTERS and key.isascii() and key.isprintable()):
            detail = f"an idempotency key must be 1 to {_MAX_KEY_CHARACTERS} printable ASCII characters"
            raise InvalidRequest(detail, "/header/Idempotency-Key")
        said = "\n".join((self._request.method, self._request.url.path, self._request.headers.get("if-match", "")))
        body = await self._request.body()
        return IdempotentRequest(key, hashlib.sha256(said.encode() + b"\n" + body).hexdigest())

    def session_key(self, session_id: str) -> SessionKey:
        """The caller's session of that id; one that no session can have is not worth a look.

        Raises SessionNotFound.
        """
        try:
            return SessionKey(self.tenant, check_id(session_id))
        except InvalidRequest:
            raise SessionNotFound(session_id) from None


def identify_principal(request: Request[Any, Any, Any]) -> Principal:
    """The caller of a request. All access to sessions goes through here; `require_key` has set the key."""
    return Principal(request.app.state.service, request.scope.get("auth"), request)
