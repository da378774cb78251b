"""Forgets long addresses. The framework keeps what it has read of the last 1,024, however long they are, for as long as
the process lives; of paths before anybody has shown a key."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib import import_module
from operator import attrgetter
from typing import Any

from litestar import Litestar

from swarmkeep.api.access.asgi import Application, Receive, Scope, Send

# Longer than any that this server's own client and page send, but for the ids of an export.
_LONG_BYTES = 1_000
# Functions of the framework that keep what they were called with; some have private names.
_CACHES = (
    ("litestar._parsers", "parse_query_string"),
    ("litestar._kwargs.extractors", "create_query_default_dict"),
    ("litestar._asgi.routing_trie.traversal", "parse_path_params"),
    ("litestar.datastructures", "URL._new"),
    ("litestar.datastructures", "URL.from_components"),
)


def find_address_caches(app: Litestar) -> list[Callable[[], None]]:
    """What empties each cache of addresses; not of those that a later release of the framework names otherwise."""
    found: list[Any] = [app.asgi_router.handle_routing]
    for module, name in _CACHES:
        try:
            found.append(attrgetter(name)(import_module(module)))
        except (ImportError, AttributeError):
            continue
    return [cached.cache_clear for cached in found if hasattr(cached, "cache_clear")]


class LongAddresses:
    """An ASGI application around another, whose caches of addresses are emptied by `clears` after a long one."""

    def __init__(
        self, app: Application, clears: Iterable[Callable[[], None]], *, long_bytes: int = _LONG_BYTES
    ) -> None:
        self._app = app
        self._clears = tuple(clears)
        self._long_bytes = long_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        host = next((value for name, value in scope["headers"] if name == b"host"), b"")
        size = len(host) + len(scope["path"]) + len(scope["query_string"])
        try:
            await self._app(scope, receive, send)
        finally:
            if size > self._long_bytes:
                for clear in self._clears:
                    clear()
