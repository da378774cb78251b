"""Counts what PostgreSQL is asked, on the wire: a door between a server's clients and its socket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

# "ReadyForQuery": the server has answered all that it was asked, and waits.
_READY = ord("Z")
_SOCKET = ".s.PGSQL.5432"


class RoundTrips:
    """`count`: how often the database has answered and waited for the next question. `url` leads through the door."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.count = 0

    def note(self, kind: int) -> None:
        self.count += kind == _READY


@asynccontextmanager
async def count_round_trips(url: str, folder: Path) -> AsyncIterator[RoundTrips]:
    """A door in `folder` to the server of `url`, which is reached by a socket in the folder that it names."""
    parts = urlsplit(url)
    behind = Path(parse_qs(parts.query)["host"][0]) / _SOCKET
    counted = RoundTrips(parts._replace(query=f"host={folder}").geturl())

    async def open_door(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server_reader, server_writer = await asyncio.open_unix_connection(str(behind))
        asking = asyncio.create_task(_pass_on(reader, server_writer))
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                header = await server_reader.readexactly(5)
                body = await server_reader.readexactly(int.from_bytes(header[1:], "big") - 4)
                counted.note(header[0])
                writer.write(header + body)
        writer.close()
        await asking

    door = await asyncio.start_unix_server(open_door, str(folder / _SOCKET))
    try:
        yield counted
    finally:
        door.close()


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while some := await reader.read(65536):
            writer.write(some)
    writer.close()
