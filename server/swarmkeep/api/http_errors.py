"""What only HTTP has to refuse."""

from __future__ import annotations

from swarmkeep.domain.errors import DomainError


class Unauthenticated(DomainError):
    """Nobody that the server knows. `challenge` is what `WWW-Authenticate` says (RFC 6750)."""

    code = "unauthenticated"

    def __init__(self, *, shown: bool = False, wanted: str = "API key") -> None:
        detail = f"this is no valid {wanted}" if shown else f"send your {wanted}: `Authorization: Bearer KEY`"
        super().__init__(detail)
        self.challenge = 'Bearer realm="swarmkeep"' + (', error="invalid_token"' if shown else "")


class Forbidden(DomainError):
    """What a read-only key may not do, or a web page of somebody else's with an open server."""

    code = "forbidden"


class RateLimited(DomainError):
    code = "rate_limited"

    def __init__(self, retry_after_seconds: int) -> None:
        super().__init__(f"these are more requests than are allowed; try again in {retry_after_seconds} s")
        self.retry_after_seconds = retry_after_seconds


class RequestTimeout(DomainError):
    """A body that does not arrive. What did arrive is not kept waiting in memory for the rest."""

    code = "request_timeout"


class UnsupportedMediaType(DomainError):
    code = "unsupported_media_type"
