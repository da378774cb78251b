"""Server-sent streams: a session as it goes on, one run until it ends, or which sessions change."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager, suppress
from functools import partial
from typing import TypeVar

from swarmkeep.events.codec import encode
from swarmkeep.events.errors import Overloaded, RunNotFound, SessionNotFound
from swarmkeep.events.facts import RecordedEvent
from swarmkeep.http.auth import Principal
from swarmkeep.http.sse import EVENT_STREAM, Begin, FrameWriter, StreamResponse, comment, frame
from swarmkeep.runs.feed import Changes
from swarmkeep.runs.hub import Feed, is_open
from swarmkeep.runs.reader import Batch, RunPosition
from swarmkeep.store.records import SessionKey, StoreUnavailable

T = TypeVar("T")

# List the frames to send for an item; and, if that was the last one, what the stream ends with.
Written = tuple[bytes, bytes | None]

PING = comment("ping")
STOPPING = comment("the server is shutting down")


def write_session_frames(
    principal: Principal, key: SessionKey, after: int, types: Sequence[str] = ()
) -> AsyncGenerator[bytes]:
    """Every event after `after`, and then what happens, until the session is deleted or the server stops.

    A session that has no event `after`, or is recreated, is given from its beginning.

    With `types`, events of these only, and nothing that passes.
    """
    check = StreamCheck(principal, key, stop=principal.service.stopping)
    frames = principal.service.share_frames(key)
    return _write_frames(check, frames, principal.reader.follow_batches(key, after=after), types=types)


def write_run_frames(
    principal: Principal, key: SessionKey, position: RunPosition, after: int | None, feed: Feed | None = None
) -> AsyncGenerator[bytes]:
    """The run's events after `after` and what its model says; last the run itself, once it has ended or waits.

    A `feed` was opened before the run began, so that nothing of it is missed.

    While the server stops, its own runs are seen to their end; another server's run is left without one.
    """
    check = StreamCheck(principal, key, stop=principal.service.drained)
    batches = principal.reader.follow_run_batches(key, position, after=after, feed=feed)
    make_last = partial(_make_done_frame, principal, key, position.run_id)
    return _write_frames(check, principal.service.share_frames(key), batches, make_last=make_last)


def write_change_frames(principal: Principal) -> AsyncGenerator[bytes]:
    """Write which of the tenant's sessions change, until the caller may not read them or the server stops."""
    check = StreamCheck(principal, None, stop=principal.service.stopping)
    engine = principal.engine
    following = engine.changes.follow(principal.tenant, silent_seconds=engine.limits.poll_seconds)

    def write(changes: Changes | None) -> Written:
        return b"" if changes is None else frame("sessions.changed", encode(changes)), None

    return write_parts(check, following, write)


@contextmanager
def open_feed(principal: Principal, key: SessionKey) -> Iterator[Feed | None]:
    """What a run does, from before it begins: a model that answers at once is seen to speak, too. A feed is the
    caller's to follow or close, unless this raises."""
    feed = principal.reader.open_feed(key)
    try:
        yield feed
    except BaseException:
        if feed is not None:
            feed.close()
        raise


class StreamCheck:
    """Decides whether a stream goes on: its session exists, the caller may read it, and `stop` is not set.

    Without a `key` there is no stored session to look for.
    """

    def __init__(self, principal: Principal, key: SessionKey | None, *, stop: asyncio.Event) -> None:
        self._principal = principal
        self._key = key
        self._stop = stop
        self._gone_seconds = principal.service.limits.gone_seconds
        self.ping_seconds = principal.service.limits.ping_seconds
        self._present_at = time.monotonic()
        # Often, because silence may follow, and cheap, because the answer is nearly always cached.
        self._recheck_seconds = self._gone_seconds / 4
        self.due_at = self._present_at + self._recheck_seconds
        """The time from which on the caller's permission is to be checked again, on the monotonic clock."""

    @property
    def is_stopping(self) -> bool:
        return self._stop.is_set()

    async def passes(self, items: object) -> bool:
        """Tell if the items, if there are any, may be shown, and the stream goes on. Asks the database now and then
        only, and whether the session exists once for all its readers."""
        now = time.monotonic()
        if now >= self.due_at:
            if not await self._principal.is_still_allowed():
                return False
            self.due_at = time.monotonic() + self._recheck_seconds
        if items:
            return True
        return not self.is_stopping and (now - self._present_at < self._gone_seconds or await self._is_present())

    async def _is_present(self) -> bool:
        if self._key is None:
            return True
        if not self._principal.engine.was_seen(self._key) and await self._principal.reader.head(self._key) is None:
            return False
        self._present_at = time.monotonic()
        return True


def make_event_stream(
    principal: Principal,
    frames: AsyncGenerator[bytes],
    headers: Mapping[str, str] | None = None,
    begin: Begin | None = None,
) -> StreamResponse:
    """Frames as an answer. It ends once the caller may not read any more, even one that takes nothing of it."""
    return StreamResponse(frames, EVENT_STREAM, headers, until=partial(wait_until_refused, principal), begin=begin)


async def wait_until_refused(principal: Principal) -> None:
    """Return some time after the caller lost access: by then streams that are read have ended by themselves."""
    seconds = principal.service.limits.refused_seconds
    allowed = True
    while allowed:
        await asyncio.sleep(seconds)
        # While the database is away this is unknown, and nothing new is shown either.
        with suppress(StoreUnavailable, Overloaded):
            allowed = await principal.is_still_allowed()
    await asyncio.sleep(seconds)


async def write_parts(
    check: StreamCheck,
    items: AsyncGenerator[T],
    write: Callable[[T], Written],
    make_last: Callable[[], Awaitable[bytes]] | None = None,
) -> AsyncGenerator[bytes]:
    """The items as `write` has them, with pings in between; one that is empty, or None, is a sign of life.

    Ends with the items, with their end, or when the check says so; then comes what `make_last` makes, but not after
    their end.
    """
    sent_at = time.monotonic()
    with suppress(SessionNotFound):
        async with aclosing(items):
            async for item in items:
                now = time.monotonic()
                if (not item or now >= check.due_at) and not await check.passes(item):
                    break
                part, end = write(item)
                if isinstance(item, list):
                    # A slow reader has the stream wait for long: what the part is made of need not wait, too.
                    item.clear()
                if not part and now - sent_at >= check.ping_seconds:
                    part = PING
                if part:
                    sent_at = now
                    yield part
                if end is not None:
                    if end:
                        yield end
                    return
    if check.is_stopping:
        yield STOPPING
    if make_last is not None and (last := await make_last()):
        yield last


def _write_frames(
    check: StreamCheck,
    frames: FrameWriter,
    batches: AsyncGenerator[Batch],
    *,
    types: Sequence[str] = (),
    make_last: Callable[[], Awaitable[bytes]] | None = None,
) -> AsyncGenerator[bytes]:
    """Each batch in one part."""

    def write(batch: Batch) -> Written:
        return frames.write(_select_events(batch, types) if types else batch), None

    return write_parts(check, batches, write, make_last)


def _select_events(batch: Batch, types: Sequence[str]) -> Batch:
    return [item for item in batch if isinstance(item, RecordedEvent) and item.type in types]


async def _make_done_frame(principal: Principal, key: SessionKey, run_id: str) -> bytes:
    """The frame of the run, if that has ended or waits and may be read; else nothing."""
    if not await principal.is_still_allowed():
        return b""
    try:
        run = await principal.reader.get_run(key, run_id)
    except (SessionNotFound, RunNotFound):
        return b""
    return b"" if is_open(run) else frame("done", encode(run))
