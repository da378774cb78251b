"""Errors that only HTTP can raise."""

from __future__ import annotations

from swarmkeep.domain.errors import DomainError


class Unauthenticated(DomainError):
    """Nobody that the server knows. `challenge` is what `WWW-Authenticate` says (RFC 6750)."""

    code = "unauthenticated"

    def __init__(self, *, key_given: bool = False, credential: str = "API key") -> None:
        detail = (
            f"the {credential} is not valid" if key_given else f"send your {credential}: `Authorization: Bearer KEY`"
        )
        super().__init__(detail)
        self.challenge = 'Bearer realm="swarmkeep"' + (', error="invalid_token"' if key_given else "")


class Forbidden(DomainError):
    """What a read-only key may not do, or a web page of somebody else's with an open server."""

    code = "forbidden"


class RateLimited(DomainError):
    code = "rate_limited"

    def __init__(self, retry_after_seconds: int) -> None:
        super().__init__(f"too many requests; try again in {retry_after_seconds} s")
        self.retry_after_seconds = retry_after_seconds


class RequestTimeout(DomainError):
    """A body that does not arrive. What did arrive is not kept waiting in memory for the rest."""

    code = "request_timeout"


class UnsupportedMediaType(DomainError):
    code = "unsupported_media_type"
