"""What a stream shows: a session as it goes on, or one run to its end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, suppress

from swarmkeep.api.auth.context import Principal
from swarmkeep.api.sse import comment, frame, item_frame
from swarmkeep.domain.codec import encode
from swarmkeep.domain.envelope import RecordedEvent
from swarmkeep.domain.errors import RunNotFound, SessionNotFound
from swarmkeep.engine.loop import Item
from swarmkeep.engine.reader import RunPosition, is_open
from swarmkeep.store.ports import SessionKey

PING = comment("ping")
STOPPING = comment("the server is shutting down")

# Half of what is promised: an idle stream looks at the clock only now and then.
PING_SECONDS = 7.5
# How soon a reader learns that the session was deleted: nothing else tells, for its rows are simply gone. And how soon
# one whose key was revoked hears no more.
RECHECK_SECONDS = 2.0


async def session_frames(
    caller: Principal, key: SessionKey, after: int, types: Sequence[str] = ()
) -> AsyncGenerator[bytes]:
    """Every event after `after`, and then what happens, until the session is deleted or the server stops.

    With `types`, events of these only, and nothing that passes.
    """
    items = caller.reader.follow(key, after=after)
    async with aclosing(_frames(caller, key, items, leave=caller.service.stopping, types=types)) as frames:
        async for part in frames:
            yield part


async def run_frames(caller: Principal, key: SessionKey, feed: RunPosition, after: int | None) -> AsyncGenerator[bytes]:
    """The run's events after `after` and what its model says; last the run itself, once it has ended or waits.

    While the server stops, its own runs are seen to their end; another server's run is left without one.
    """
    items = caller.reader.follow_run(key, feed, after=after)
    async with aclosing(_frames(caller, key, items, leave=caller.service.drained)) as frames:
        async for part in frames:
            yield part
    if not await caller.is_still_allowed():
        return
    try:
        run = await caller.reader.get_run(key, feed.run_id)
    except (SessionNotFound, RunNotFound):
        return
    if not is_open(run):
        yield frame("done", encode(run))


async def _frames(
    caller: Principal,
    key: SessionKey,
    items: AsyncGenerator[Item | None],
    *,
    leave: asyncio.Event,
    types: Sequence[str] = (),
) -> AsyncGenerator[bytes]:
    """The items as frames, and a ping where there are none; ends when the session is gone, and at `leave`."""
    heard = time.monotonic()
    with suppress(SessionNotFound):
        async with aclosing(readable_items(caller, key, items, leave)) as present:
            async for item in present:
                wanted = item is not None and (not types or (isinstance(item, RecordedEvent) and item.type in types))
                part = item_frame(item) if item is not None and wanted else b""
                now = time.monotonic()
                if not part and now - heard >= PING_SECONDS:
                    part = PING
                if part:
                    heard = now
                    yield part
    if leave.is_set():
        yield STOPPING


async def readable_items(
    caller: Principal, key: SessionKey, items: AsyncGenerator[Item | None], leave: asyncio.Event
) -> AsyncGenerator[Item | None]:
    """The items, for as long as it is still the same session, the caller may read it and nobody is asked to leave."""
    last, looked = 0, time.monotonic()
    asked = looked
    async with aclosing(items):
        async for item in items:
            if time.monotonic() - asked >= RECHECK_SECONDS:
                if not await caller.is_still_allowed():
                    return
                asked = time.monotonic()
            if isinstance(item, RecordedEvent):
                last = item.seq
            elif item is None and leave.is_set():
                return
            elif item is None and time.monotonic() - looked >= RECHECK_SECONDS:
                # A session with fewer events than were seen is another one that has got the id.
                head = await caller.reader.head(key)
                if head is None or head.seq < last:
                    return
                looked = time.monotonic()
            yield item
