"""Request ids: a caller's own, or one that is made."""

from __future__ import annotations

import os

from swarmkeep.api.access.asgi import Scope

HEADER = b"x-request-id"
_MAX_CHARACTERS = 128


def find_request_id(scope: Scope) -> str:
    """The id that the request came with, if it can stand in a header and a log line; else a new one."""
    sent = [value for name, value in scope["headers"] if name == HEADER]
    shown = sent[0].decode("latin-1") if len(sent) == 1 else ""
    return shown if _is_usable(shown) else f"req_{os.urandom(16).hex()}"


def _is_usable(text: str) -> bool:
    return 0 < len(text) <= _MAX_CHARACTERS and text.isascii() and text.isprintable()
