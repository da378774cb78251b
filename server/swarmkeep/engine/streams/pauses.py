"""Items that come from a generator, with signs of life while none comes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TypeVar

T = TypeVar("T")

# A reader that is slower than this holds up what it reads.
_MOST_AHEAD = 100


async def with_pauses(items: AsyncGenerator[T], seconds: float) -> AsyncGenerator[T | None]:
    """The items, and None whenever none has come for so long. They are made in a task of their own, which ends with
    the reader: what makes them may have time limits, and those are of a task."""
    made: asyncio.Queue[T] = asyncio.Queue(_MOST_AHEAD)
    maker = asyncio.create_task(_make(items, made))
    try:
        while not (maker.done() and made.empty()):
            if made.empty():
                getter = asyncio.ensure_future(made.get())
                try:
                    await asyncio.wait((getter, maker), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    # One that is cancelled takes nothing.
                    is_taken = getter.done() or not getter.cancel()
                if is_taken:
                    yield getter.result()
                elif not maker.done():
                    yield None
            else:
                yield made.get_nowait()
        await maker
    finally:
        maker.cancel()
        await asyncio.gather(maker, return_exceptions=True)


async def _make(items: AsyncGenerator[T], made: asyncio.Queue[T]) -> None:
    async with aclosing(items):
        async for item in items:
            await made.put(item)
