"""The one loop without an event loop: what never suspends is run by a blocking caller."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Coroutine, Generator
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")
ASYNC_CLIENT_MESSAGE = "the client is asynchronous: use AsyncSwarm with it"


def run_blocking(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never suspends: with a blocking client and inline tools, the one loop is synchronous."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]
    error = TypeError(ASYNC_CLIENT_MESSAGE)
    # Thrown in where it waits, it ends every generator on its way out; closing the coroutine would not.
    with suppress(StopIteration):
        coroutine.throw(error)
    raise error


def iterate_blocking(items: AsyncGenerator[T]) -> Generator[T, None, None]:
    """The items of a generator that never suspends; it is closed when the reader stops."""
    try:
        while True:
            try:
                yield run_blocking(_advance_once(items))
            except StopAsyncIteration:
                return
    finally:
        run_blocking(_close(items))


async def _advance_once(items: AsyncGenerator[T]) -> T:
    return await anext(items)


async def _close(items: AsyncGenerator[Any]) -> None:
    await items.aclose()
