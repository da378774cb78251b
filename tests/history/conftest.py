"""Stores on each kind of database in turn; `other` is on one of the other kind, and empty as well."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from swarmkeep.store.opening import SqlStore, open_store


@pytest.fixture(params=["sqlite", "postgres"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def store(kind: str, request: pytest.FixtureRequest) -> AsyncIterator[SqlStore]:
    """A store on each kind of database in turn. Tests never ask which."""
    opened = open_store(request.getfixturevalue(f"{kind}_ready"))
    yield opened
    await opened.close()


@pytest.fixture
async def other(kind: str, request: pytest.FixtureRequest) -> AsyncIterator[SqlStore]:
    """A store on the kind of database that `store` is not on."""
    opened = open_store(request.getfixturevalue(f"{'postgres' if kind == 'sqlite' else 'sqlite'}_ready"))
    yield opened
    await opened.close()
