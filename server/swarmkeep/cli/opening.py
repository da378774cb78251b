"""Open the sessions that a command is about: on a server, or in its database."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, TypeAlias, TypeVar, Unpack

from swarmkeep.cli.sources import SourceOptions
from swarmkeep.cli.terminal import say

if TYPE_CHECKING:
    from swarmkeep.cli.database_source import DatabaseSource
    from swarmkeep.cli.server_source import ServerSource
    from swarmkeep.store.opening import SqlStore, StoreOptions

    Source: TypeAlias = DatabaseSource | ServerSource


T = TypeVar("T")


@contextmanager
def open_source(where: SourceOptions, *, writes: bool = False, creates: bool = False) -> Iterator[Source]:
    """The server or database that is meant; without `writes` nothing in it can be changed.

    `creates`: a SQLite file that is not there yet is made, or brought to this release's schema.
    """
    url = where.server_url
    with ExitStack() as opened:
        found: Source
        if url is not None:
            from swarmkeep.cli.server_source import ServerSource, explain_unreachable

            opened.enter_context(explain_unreachable(url))
            found = ServerSource(url, where.api_key)
        else:
            from swarmkeep.cli.database_source import DatabaseSource

            found = DatabaseSource(where.database_url, where.tenant, writes=writes, creates=creates)
        opened.callback(found.close)
        yield found


def warn_if_damaged(found: Source, session_id: str) -> None:
    """For commands that show a log as far as it goes: say where it is not what was recorded."""
    verification = found.verify(session_id)
    if not verification.valid:
        first = verification.problems[0]
        say(
            f"warning: this session does not verify: {first.detail} ({first.code}); "
            f"`swarmkeep verify {session_id}` says more"
        )


def run_on_store(
    url: str, job: Callable[[SqlStore], Awaitable[T]], *, read_only: bool = False, **options: Unpack[StoreOptions]
) -> T:
    """Do something with a database itself, whose schema has to be this release's."""
    import asyncio

    from swarmkeep.store.opening import open_store

    async def carry_out() -> T:
        store = open_store(url, read_only=read_only, **options)
        try:
            await store.ping()
            return await job(store)
        finally:
            await store.close()

    return asyncio.run(carry_out())
