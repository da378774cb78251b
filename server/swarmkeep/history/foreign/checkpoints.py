"""Checkpoints of LangGraph's PostgresSaver, copied into a file such as its SqliteSaver writes, to be read like one.

Of each thread the file gets the first checkpoint, which says when it began, and the last, with the values that the
saver keeps beside it. The database is only read, as it is at one moment.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec

from swarmkeep.events.codec import Json
from swarmkeep.events.errors import InvalidImport
from swarmkeep.history.foreign.conversation import as_dict
from swarmkeep.history.foreign.databases import refuse_deltas
from swarmkeep.history.foreign.documents import MAX_FILE_BYTES, decode_text
from swarmkeep.store.postgres_connections import connect
from swarmkeep.store.urls import PostgresServer

_TABLE = """CREATE TABLE checkpoints (thread_id TEXT NOT NULL, checkpoint_ns TEXT NOT NULL, checkpoint_id TEXT NOT NULL,
type TEXT, checkpoint BLOB, PRIMARY KEY (thread_id, checkpoint_ns, checkpoint_id))"""
# Those of graphs within graphs have names before their ids.
_THREADS = "SELECT DISTINCT thread_id FROM checkpoints WHERE checkpoint_ns = '' ORDER BY thread_id"
_COUNT = f"SELECT count(*) FROM ({_THREADS}) AS threads"
_END = """SELECT checkpoint_id, checkpoint::text AS checkpoint, metadata::text AS metadata FROM checkpoints
WHERE thread_id = $1 AND checkpoint_ns = '' ORDER BY checkpoint_id COLLATE "C" {} LIMIT 1"""
_VALUES = """SELECT channel, type, CASE WHEN octet_length(blob) <= $4 THEN blob END AS blob,
octet_length(blob) AS size FROM checkpoint_blobs
JOIN unnest($2::text[], $3::text[]) AS wanted (name, number) ON channel = name AND version = number
WHERE thread_id = $1 AND checkpoint_ns = ''"""


async def copy_checkpoints(server: PostgresServer, path: Path, on_thread: Callable[[int, int], None]) -> None:
    """Write the file. `on_thread` is told how many threads are done, and of how many.

    Raises StoreUnavailable, and InvalidImport for a database that has no such checkpoints, or some that cannot be read.
    """
    connection = await connect(server, {}, command_seconds=None)
    from asyncpg import InterfaceError, PostgresError  # type: ignore[import-untyped]

    try:
        with closing(sqlite3.connect(path)) as target:
            target.execute(_TABLE)
            async with connection.transaction(isolation="repeatable_read", readonly=True):
                await _copy_threads(connection, target, on_thread)
            target.commit()
    except (PostgresError, InterfaceError, OSError) as error:
        reason = f"the database at {server.display} cannot be read as one of LangGraph's PostgresSaver: {error}"
        raise InvalidImport(reason) from None
    finally:
        await connection.close()


async def _copy_threads(connection: Any, target: sqlite3.Connection, on_thread: Callable[[int, int], None]) -> None:
    first = await connection.prepare(_END.format(""))
    last = await connection.prepare(_END.format("DESC"))
    values = await connection.prepare(_VALUES)
    count, done = await connection.fetchval(_COUNT), 0
    async for row in connection.cursor(_THREADS):
        thread = row["thread_id"]
        what = f"thread {thread!r}"
        began, ended = await first.fetchrow(thread), await last.fetchrow(thread)
        start = as_dict(decode_text(began["checkpoint"], f"the checkpoint of {what}"))
        copied = {began["checkpoint_id"]: msgspec.msgpack.encode({"ts": start.get("ts")})}
        copied[ended["checkpoint_id"]] = await _pack_checkpoint(values, thread, ended, what)
        for checkpoint_id, packed in copied.items():
            target.execute("INSERT INTO checkpoints VALUES (?, '', ?, 'msgpack', ?)", (thread, checkpoint_id, packed))
        done += 1
        on_thread(done, count)


async def _pack_checkpoint(values: Any, thread: str, row: Any, what: str) -> bytes:
    """The last checkpoint with all of its values. Raises InvalidImport."""
    checkpoint = as_dict(decode_text(row["checkpoint"], f"the checkpoint of {what}"))
    refuse_deltas(row["metadata"], what)
    versions = as_dict(checkpoint.get("channel_versions"))
    # The smallest values stand in the checkpoint itself.
    channels: Json = dict(as_dict(checkpoint.get("channel_values")))
    names, numbers = list(versions), [str(version) for version in versions.values()]
    size = 0
    for found in await values.fetch(thread, names, numbers, MAX_FILE_BYTES):
        size += found["size"] or 0
        if size > MAX_FILE_BYTES:
            raise InvalidImport(f"the checkpoint of {what} has more than {MAX_FILE_BYTES} bytes")
        if found["type"] != "empty":
            channels[found["channel"]] = _read_value(found, what)
    kept = {name: checkpoint.get(name) for name in ("id", "ts")}
    try:
        return msgspec.msgpack.encode({**kept, "channel_values": channels})
    except (OverflowError, TypeError, ValueError, RecursionError) as error:
        raise InvalidImport(f"the checkpoint of {what} cannot be read: {error}") from None


def _read_value(found: Any, what: str) -> Any:
    kind, blob = found["type"], found["blob"] or b""
    match kind:
        case "msgpack":
            return msgspec.Raw(blob)
        case "null":
            return None
        case "bytes" | "bytearray":
            return blob
        case "json":
            return decode_text(blob, f"the channel {found['channel']!r} of {what}")
    raise InvalidImport(
        f"the channel {found['channel']!r} of {what} is written as {kind!r}, which cannot be read; use msgpack or JSON"
    )
