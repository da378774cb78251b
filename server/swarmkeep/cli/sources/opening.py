"""Open the sessions that a command is about: on a server, or in its database."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from swarmkeep.cli.options import SourceOptions
from swarmkeep.cli.sources.source import Source


@contextmanager
def open_source(where: SourceOptions, *, writes: bool = False, creates: bool = False) -> Iterator[Source]:
    """The server or database that is meant; without `writes` nothing in it can be changed.

    `creates`: a SQLite file that is not there yet is made, or brought to this release's schema.
    """
    url = where.server_url
    with ExitStack() as opened:
        found: Source
        if url is not None:
            from swarmkeep.cli.sources.server import ServerSource, explain_unreachable

            opened.enter_context(explain_unreachable(url))
            found = ServerSource(url, where.api_key)
        else:
            from swarmkeep.cli.sources.database import DatabaseSource

            found = DatabaseSource(where.database_url, where.tenant, writes=writes, creates=creates)
        opened.callback(found.close)
        yield found
