"""Refused requests as log lines: failed sign-ins, what a key may not do, and floods."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, cast

from cachetools import LRUCache
from litestar import Litestar
from litestar.types import Message, Scope

from swarmkeep.api.auth.guards import client_address
from swarmkeep.store.ports.api_keys import parse_key_id

log = logging.getLogger(__name__)

_REFUSALS = {401: "unauthenticated", 403: "forbidden", 429: "too many requests"}
_PERIOD_SECONDS = 60.0
_MAX_ADDRESSES = 10_000


class RefusalLog:
    """Up to `lines` a minute for each address; what comes beyond is counted, and told with its next line."""

    def __init__(self, lines: int = 10, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._lines = lines
        self._clock = clock
        # When the minute began, and how many there were in it.
        self._counts: LRUCache[str, tuple[float, int]] = LRUCache(_MAX_ADDRESSES)

    def note(self, status: int, address: str, text: str) -> None:
        now = self._clock()
        began, count = self._counts.get(address, (now, 0))
        untold = max(0, count - self._lines)
        if now - began >= _PERIOD_SECONDS:
            began, count = now, 0
        else:
            untold = 0
        self._counts[address] = began, count + 1
        if count < self._lines:
            more = f"; {untold} more since its last line" if untold else ""
            log.warning("refused %s as %s: %s%s", text, _REFUSALS[status], address or "unknown address", more)


async def log_refusal(message: Message, scope: Scope) -> None:
    """Note an answer that refuses somebody, as it is sent."""
    # Only the start of an answer has a status, be it to a request or to a handshake.
    status = cast(dict[str, Any], message).get("status")
    refusals: RefusalLog | None = Litestar.from_scope(scope).state.get("refusals")
    if status in _REFUSALS and refusals is not None:
        refusals.note(status, client_address(scope), _describe_request(scope))


def _describe_request(scope: Scope) -> str:
    """The method and the path, with the key's id if one was shown: never the key."""
    shown = dict(scope["headers"]).get(b"authorization", b"").decode("latin-1").rpartition(" ")[2]
    key_id = parse_key_id(shown)
    method = cast(dict[str, Any], scope).get("method", "WebSocket")
    return f"{method} {scope['path'][:200]}" + (f" by {key_id}" if key_id else "")
