"""A database with this release's schema, of each kind in turn, and stores on it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack

import pytest

from swarmkeep.store.opening import SqlStore, open_store


@pytest.fixture
def url(ready_url: str) -> str:
    """The database that the tests of this package run on."""
    return ready_url


Opener = Callable[..., SqlStore]


@pytest.fixture
async def opener(url: str) -> AsyncIterator[Opener]:
    """Opens stores on the database, as several processes would, and closes them at the end."""
    async with AsyncExitStack() as stack:

        def open_another(**options: object) -> SqlStore:
            store = open_store(url, **options)  # type: ignore[arg-type]
            stack.push_async_callback(store.close)
            return store

        yield open_another


@pytest.fixture
async def store(opener: Opener) -> SqlStore:
    return opener()
