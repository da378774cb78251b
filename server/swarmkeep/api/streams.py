"""Server-sent streams: a session as it goes on, or one run until it ends."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing, suppress
from functools import partial

from swarmkeep.api.auth.context import Principal
from swarmkeep.api.sse import comment, frame, item_frame
from swarmkeep.domain.codec import encode
from swarmkeep.domain.envelope import RecordedEvent
from swarmkeep.domain.errors import Overloaded, RunNotFound, SessionNotFound
from swarmkeep.engine.loop import Item
from swarmkeep.engine.reader import RunPosition, is_open
from swarmkeep.engine.streams.feed import Feed
from swarmkeep.store.ports import SessionKey, StoreUnavailable

PING = comment("ping")
STOPPING = comment("the server is shutting down")


def session_frames(
    principal: Principal, key: SessionKey, after: int, types: Sequence[str] = ()
) -> AsyncGenerator[bytes]:
    """Every event after `after`, and then what happens, until the session is deleted or the server stops.

    One that has no event `after`, or is made anew, is given from its beginning.

    With `types`, events of these only, and nothing that passes.
    """
    check = StreamCheck(principal, key, leave=principal.service.stopping)
    return _write_frames(check, principal.reader.follow(key, after=after), types=types)


def run_frames(
    principal: Principal, key: SessionKey, position: RunPosition, after: int | None, feed: Feed | None = None
) -> AsyncGenerator[bytes]:
    """The run's events after `after` and what its model says; last the run itself, once it has ended or waits.

    A `feed` was opened before the run began, so that nothing of it is missed.

    While the server stops, its own runs are seen to their end; another server's run is left without one.
    """
    check = StreamCheck(principal, key, leave=principal.service.drained)
    items = principal.reader.follow_run(key, position, after=after, feed=feed)
    return _write_frames(check, items, make_last=partial(_make_done_frame, principal, key, position.run_id))


class StreamCheck:
    """Whether a stream goes on: the session is there, the caller may read it, and nobody is asked to leave."""

    def __init__(self, principal: Principal, key: SessionKey, *, leave: asyncio.Event) -> None:
        self._principal = principal
        self._key = key
        self._leave = leave
        self._gone_seconds = principal.service.limits.gone_seconds
        self.ping_seconds = principal.service.limits.ping_seconds
        self._allowed_at = self._present_at = time.monotonic()

    @property
    def is_leaving(self) -> bool:
        return self._leave.is_set()

    async def passes(self, item: Item | None) -> bool:
        """Whether the item may be shown, and the stream goes on. Looks into the database now and then only."""
        now = time.monotonic()
        if now - self._allowed_at >= self._gone_seconds:
            if not await self._principal.is_still_allowed():
                return False
            self._allowed_at = time.monotonic()
        if item is not None:
            return True
        return not self.is_leaving and (now - self._present_at < self._gone_seconds or await self._is_present())

    async def _is_present(self) -> bool:
        head = await self._principal.reader.head(self._key)
        self._present_at = time.monotonic()
        return head is not None


async def wait_until_refused(principal: Principal) -> None:
    """Return a while after the caller was to be let in no more: streams that are read have ended by themselves then."""
    seconds = principal.service.limits.refused_seconds
    allowed = True
    while allowed:
        await asyncio.sleep(seconds)
        # While the database is away nobody knows, and nothing new is shown either.
        with suppress(StoreUnavailable, Overloaded):
            allowed = await principal.is_still_allowed()
    await asyncio.sleep(seconds)


async def _write_frames(
    check: StreamCheck,
    items: AsyncGenerator[Item | None],
    *,
    types: Sequence[str] = (),
    make_last: Callable[[], Awaitable[bytes]] | None = None,
) -> AsyncGenerator[bytes]:
    """The items as frames, with pings in between; ends when the check says so, or with the items."""
    heard = time.monotonic()
    with suppress(SessionNotFound):
        async with aclosing(items):
            async for item in items:
                if not await check.passes(item):
                    break
                wanted = item is not None and (not types or (isinstance(item, RecordedEvent) and item.type in types))
                part = item_frame(item) if item is not None and wanted else b""
                now = time.monotonic()
                if not part and now - heard >= check.ping_seconds:
                    part = PING
                if part:
                    heard = now
                    yield part
    if check.is_leaving:
        yield STOPPING
    if make_last is not None and (last := await make_last()):
        yield last


async def _make_done_frame(principal: Principal, key: SessionKey, run_id: str) -> bytes:
    """The run, if it does not go on and may be read; else nothing."""
    if not await principal.is_still_allowed():
        return b""
    try:
        run = await principal.reader.get_run(key, run_id)
    except (SessionNotFound, RunNotFound):
        return b""
    return b"" if is_open(run) else frame("done", encode(run))
