"""What only HTTP has to refuse."""

from __future__ import annotations

from swarmkeep.domain.errors import DomainError


class Forbidden(DomainError):
    """What a web page of somebody else's may not do with an open server."""

    code = "forbidden"


class UnsupportedMediaType(DomainError):
    code = "unsupported_media_type"
