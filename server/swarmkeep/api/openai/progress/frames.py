"""A response as it comes about: server-sent events with OpenAI's types and numbers."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, suppress

from swarmkeep.api.auth.context import Principal
from swarmkeep.api.sse import frame
from swarmkeep.api.streams import PING, STOPPING, StreamCheck
from swarmkeep.domain.codec import Json, encode
from swarmkeep.domain.errors import SessionNotFound
from swarmkeep.engine.streams.items import Item
from swarmkeep.store.ports import SessionKey

DONE = b"data: [DONE]\n\n"

# What is sent of an item; and, if that was the last one, what the stream ends with.
Translate = Callable[[Item], tuple[bytes, bytes | None]]


def frame_event(event: Json) -> bytes:
    return frame(event["type"], encode(event))


async def write_frames(
    principal: Principal, key: SessionKey | None, items: AsyncGenerator[Item | None], translate: Translate
) -> AsyncGenerator[bytes]:
    """What `translate` makes of the items, with pings in between, up to its end.

    A stream that ends without `[DONE]` was cut off: by the end of the server, of the session, or of the caller's key.
    """
    check = StreamCheck(principal, key, stop=principal.service.drained)
    sent_at = time.monotonic()
    with suppress(SessionNotFound):
        async with aclosing(items):
            async for item in items:
                now = time.monotonic()
                if (item is None or check.is_due(now)) and not await check.passes(item):
                    break
                part, end = (b"", None) if item is None else translate(item)
                if part:
                    sent_at = now
                    yield part
                elif now - sent_at >= check.ping_seconds:
                    sent_at = now
                    yield PING
                if end is not None:
                    if end:
                        yield end
                    return
    if check.is_stopping:
        yield STOPPING
