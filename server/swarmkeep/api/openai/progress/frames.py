"""A response as it comes about: server-sent events with OpenAI's types and numbers."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable

from swarmkeep.api.auth.context import Principal
from swarmkeep.api.sse import frame
from swarmkeep.api.streams import StreamCheck, Written, write_parts
from swarmkeep.domain.codec import Json, encode
from swarmkeep.engine.streams.items import Item
from swarmkeep.store.ports import SessionKey

DONE = b"data: [DONE]\n\n"

Translate = Callable[[Item], Written]


def frame_event(event: Json) -> bytes:
    return frame(event["type"], encode(event))


def write_frames(
    principal: Principal, key: SessionKey | None, items: AsyncGenerator[Item | None], translate: Translate
) -> AsyncGenerator[bytes]:
    """What `translate` makes of the items, with pings in between, up to its end.

    A stream that ends without `[DONE]` was cut off: by the end of the server, of the session, or of the caller's key.
    """
    check = StreamCheck(principal, key, stop=principal.service.drained)
    return write_parts(check, items, lambda item: (b"", None) if item is None else translate(item))
