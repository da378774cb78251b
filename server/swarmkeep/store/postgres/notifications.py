"""Change notifications over PostgreSQL's NOTIFY: one connection sends which sessions changed, and receives the same
from other processes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from swarmkeep.store.ports import SessionKey, StoreUnavailable

log = logging.getLogger(__name__)

CHANNEL = "swarmkeep"

# PostgreSQL takes at most 7,999 bytes in one notification.
_MAX_BYTES = 7900
# Changes within this time are sent together: a server that appends a thousand times a second notifies a hundred.
_SEND_INTERVAL_SECONDS = 0.01
# Nobody else finds out that the other end is gone without a word.
_CHECK_SECONDS = 15.0
_SEND_TIMEOUT_SECONDS = 10.0
# Who says nothing for this long listens no more: each says something every _CHECK_SECONDS.
_SILENT_SECONDS = 2.5 * _CHECK_SECONDS
# Within this time those who listen already have answered a greeting.
_GREETING_SECONDS = 5.0
_RETRY_SECONDS = (0.1, 5.0)

Connect = Callable[[], Awaitable[Any]]
OnChange = Callable[[SessionKey], None]


class Notifications:
    """Sends and receives which sessions changed, over one connection of its own that comes back when it breaks.

    Never part of a transaction: a commit that notifies waits for every other one that does. And nothing is sent where
    nobody else listens: it would come back to this very process. So each greets the others, with an empty payload, when
    it begins, when it hears of a new one, and every few seconds.
    """

    def __init__(self, connect: Connect, *, greeting_seconds: float = _GREETING_SECONDS) -> None:
        self._connect = connect
        self._greeting_seconds = greeting_seconds
        self._pending: dict[SessionKey, None] = {}
        self._wake = asyncio.Event()
        self._open = False
        self._silent_at: dict[int, float] = {}
        """When each of the others, by its backend, is taken to listen no more."""
        self._greeted_at = 0.0

    def notify(self, key: SessionKey) -> None:
        """Notify other processes that a session changed; forgotten while there is no connection, or nobody else."""
        if self._open and self._has_listeners():
            self._pending[key] = None
            self._wake.set()

    def _has_listeners(self) -> bool:
        now = asyncio.get_running_loop().time()
        for pid in [pid for pid, at in self._silent_at.items() if at <= now]:
            del self._silent_at[pid]
        # Until there was time to answer nobody knows.
        return bool(self._silent_at) or now < self._greeted_at + self._greeting_seconds

    def _note_listener(self, pid: int) -> None:
        if pid not in self._silent_at:
            # It may not know of this one.
            self._wake.set()
        self._silent_at[pid] = asyncio.get_running_loop().time() + _SILENT_SECONDS

    async def run(self, on_change: OnChange) -> None:
        """Send and receive until cancelled."""
        pause, longest = _RETRY_SECONDS
        while True:
            try:
                async with self._connection(on_change) as connection:
                    pause = _RETRY_SECONDS[0]
                    await self._send_until_closed(connection)
            except Exception as error:
                # Whatever it is: those who are hinted to look by themselves as well, only later.
                log.debug("change notifications are off for %g s: %s", pause, error)
            await asyncio.sleep(pause)
            pause = min(2 * pause, longest)

    @contextlib.asynccontextmanager
    async def _connection(self, on_change: OnChange) -> Any:
        connection = await self._connect()
        try:
            mine = connection.get_server_pid()

            def receive(_: Any, pid: int, channel: str, payload: str) -> None:
                if pid != mine:
                    self._note_listener(pid)
                    for key in _decode_keys(payload):
                        on_change(key)

            connection.add_termination_listener(lambda _: self._wake.set())
            await connection.add_listener(CHANNEL, receive)
            self._greeted_at = asyncio.get_running_loop().time()
            self._open = True
            self._wake.set()
            yield connection
        finally:
            self._open = False
            self._pending.clear()
            self._silent_at.clear()
            connection.terminate()

    async def _send_until_closed(self, connection: Any) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_CHECK_SECONDS):
                    await self._wake.wait()
            self._wake.clear()
            if connection.is_closed():
                raise StoreUnavailable("the connection was closed")
            keys, self._pending = list(self._pending), {}
            async with asyncio.timeout(_SEND_TIMEOUT_SECONDS):
                for payload in _encode_payloads(keys) or ("",):
                    await connection.execute(f"SELECT pg_notify('{CHANNEL}', $1)", payload)
            await asyncio.sleep(_SEND_INTERVAL_SECONDS)


def _encode_payloads(keys: list[SessionKey]) -> list[str]:
    payloads: list[str] = []
    parts: list[str] = []
    size = 0
    for key in keys:
        # Text that only escapes can write is written with escapes.
        part = json.dumps([key.tenant, key.id], separators=(",", ":"))
        if len(part) > _MAX_BYTES:
            continue
        if parts and size + len(part) + 1 > _MAX_BYTES:
            payloads.append(f"[{','.join(parts)}]")
            parts, size = [], 0
        parts.append(part)
        size += len(part) + 1
    return [*payloads, f"[{','.join(parts)}]"] if parts else payloads


def _decode_keys(payload: str) -> Iterator[SessionKey]:
    """The sessions that a notification names; anybody may send one, so it may be anything."""
    try:
        pairs = json.loads(payload or "[]")
        for tenant, name in pairs:
            yield SessionKey(str(tenant), str(name))
    except (ValueError, TypeError):
        log.debug("ignoring a notification from another program: %.100r", payload)
