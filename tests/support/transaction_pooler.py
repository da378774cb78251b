"""A pooler between clients and PostgreSQL that lends out a connection for one transaction at a time, as pgbouncer does.

It gives each transaction another connection than the one before, so that whoever counts on a connection of its own
finds out at once. Notifications are not passed on, nor are settings of a session.
"""

from __future__ import annotations

import asyncio
import struct
from types import TracebackType
from typing import Self

from sqlalchemy import make_url

_ENCRYPTION_REQUESTS = (80877103, 80877104)
_PROTOCOL = 196608


class _Server:
    """A connection to PostgreSQL. `greeting` is what it said of itself at first: its parameters."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.greeting = b""

    async def start(self, user: str, database: str) -> None:
        fields = f"user\0{user}\0database\0{database}\0\0".encode()
        self.writer.write(struct.pack("!ii", 8 + len(fields), _PROTOCOL) + fields)
        while (message := await read_message(self.reader))[:1] != b"Z":
            assert message[:1] != b"E", message
            self.greeting += message if message[:1] == b"S" else b""

    async def relay(self, client: asyncio.StreamWriter | None) -> None:
        """Pass on what comes, up to the moment when no transaction is open any more."""
        while True:
            answer = await read_message(self.reader)
            if client is not None:
                client.write(answer)
            if answer[:1] == b"Z" and answer[5:6] == b"I":
                return


class TransactionPooler:
    """A pooler of so many connections to a database; `url` leads to it while the block lasts."""

    def __init__(self, database_url: str, connections: int = 3) -> None:
        self._database = make_url(database_url)
        self._count = connections
        # First in, first out: nobody gets the connection again that it has just had.
        self._free: asyncio.Queue[_Server] = asyncio.Queue()
        self._servers: list[_Server] = []
        self._clients: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        for _ in range(self._count):
            server = _Server(*await self._connect())
            await server.start(self._database.username or "postgres", self._database.database or "")
            self._servers.append(server)
            self._free.put_nowait(server)
        self._listener = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return self

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        host = str(self._database.query.get("host") or self._database.host)
        port = self._database.port or 5432
        if host.startswith("/"):
            return await asyncio.open_unix_connection(f"{host}/.s.PGSQL.{port}")
        return await asyncio.open_connection(host, port)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.close()
        for client in self._clients:
            client.cancel()
        await asyncio.gather(*self._clients, return_exceptions=True)
        for server in self._servers:
            server.writer.close()

    @property
    def url(self) -> str:
        port = self._listener.sockets[0].getsockname()[1]
        user, database = self._database.username or "postgres", self._database.database
        return f"postgresql://{user}@127.0.0.1:{port}/{database}?statement_cache_size=0"

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer))
        self._clients.add(task)
        task.add_done_callback(self._clients.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        lent: _Server | None = None
        transaction: asyncio.Task[None] | None = None
        try:
            await self._greet(reader, writer)
            # Clients send one thing at a time, so what comes after the end of a transaction belongs to the next one.
            while (message := await read_message(reader))[:1] != b"X":
                if lent is None or transaction is None or transaction.done():
                    lent = await self._free.get()
                    transaction = asyncio.create_task(self._relay(lent, writer))
                lent.writer.write(message)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()
            if lent is not None and transaction is not None and not transaction.done():
                # The client is gone in the middle of it.
                transaction.cancel()
                lent.writer.write(make_query("ROLLBACK"))
                await self._relay(lent, None)

    async def _relay(self, server: _Server, client: asyncio.StreamWriter | None) -> None:
        await server.relay(client)
        self._free.put_nowait(server)

    async def _greet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            size, code = struct.unpack("!ii", await reader.readexactly(8))
            await reader.readexactly(size - 8)
            if code not in _ENCRYPTION_REQUESTS:
                break
            writer.write(b"N")
        writer.write(b"R" + struct.pack("!ii", 8, 0) + self._servers[0].greeting)
        writer.write(b"K" + struct.pack("!iii", 12, 1, 1) + b"Z" + struct.pack("!i", 5) + b"I")


async def read_message(reader: asyncio.StreamReader) -> bytes:
    """The next message, with its type and its length."""
    head = await reader.readexactly(5)
    return head + await reader.readexactly(struct.unpack("!i", head[1:])[0] - 4)


def make_query(statement: str) -> bytes:
    return b"Q" + struct.pack("!i", 5 + len(statement)) + statement.encode() + b"\0"
