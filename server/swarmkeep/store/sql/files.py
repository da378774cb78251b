"""The content of files and pictures: one row for each content that a session's messages refer to."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Sequence

from sqlalchemy import Connection, delete, func, insert, literal, select

from swarmkeep.store.file_cache import FileCache
from swarmkeep.store.ports.keys import SessionKey
from swarmkeep.store.sql.columns import as_bytes
from swarmkeep.store.sql.database import Database, OnDatabase
from swarmkeep.store.sql.prepared import MAX_PARAMETERS, prepare_insert_if_absent
from swarmkeep.store.sql.tables import files, of_session, session_columns

FILE_CACHE_BYTES = 32 * 1024 * 1024


class SqlFiles(OnDatabase):
    """The part of an EventReader that is about files."""

    def __init__(self, database: Database) -> None:
        OnDatabase.__init__(self, database)
        self._files = FileCache(FILE_CACHE_BYTES)

    async def read_files(self, key: SessionKey, hashes: Sequence[str], *, fresh: bool = True) -> dict[str, bytes]:
        known = {} if fresh else self._files.get_all(key, hashes)
        missing = [name for name in hashes if name not in known]
        if not missing:
            return known
        found = await self.database.read(lambda connection: find_files(connection, key, missing))
        if not fresh:
            self._files.put_all(key, found)
        return known | found


def insert_file(connection: Connection, key: SessionKey, name: str, content: bytes) -> int:
    """Keep content under its hash; gives the bytes that were added, 0 if it was there."""
    row = {**session_columns(key), "hash": name, "content": content}
    added = prepare_insert_if_absent(files, connection.dialect.name).execute(connection, row)
    return len(content) if added else 0


def find_files(connection: Connection, key: SessionKey, hashes: Sequence[str]) -> dict[str, bytes]:
    """Content by its hash; what is not there is left out."""
    found: dict[str, bytes] = {}
    for start in range(0, len(hashes), MAX_PARAMETERS):
        wanted = files.c.hash.in_(list(hashes[start : start + MAX_PARAMETERS]))
        rows = connection.execute(select(files.c.hash, files.c.content).where(*of_session(files, key), wanted))
        found |= {row.hash: bytes(row.content) for row in rows}
    return found


def copy_files(connection: Connection, source: SessionKey, target: SessionKey, hashes: Sequence[str]) -> None:
    """Copy content to another session of the same tenant."""
    for start in range(0, len(hashes), MAX_PARAMETERS):
        rows = select(
            literal(target.tenant, files.c.tenant.type),
            literal(target.id, files.c.session_id.type),
            files.c.hash,
            files.c.content,
        ).where(*of_session(files, source), files.c.hash.in_(list(hashes[start : start + MAX_PARAMETERS])))
        connection.execute(insert(files).from_select(["tenant", "session_id", "hash", "content"], rows))


def delete_unnamed_files(connection: Connection, key: SessionKey, named: Collection[str]) -> None:
    """Remove what no event of the session refers to."""
    stray = sorted(set(_list_hashes(connection, key)) - set(named))
    for start in range(0, len(stray), MAX_PARAMETERS):
        some = files.c.hash.in_(stray[start : start + MAX_PARAMETERS])
        connection.execute(delete(files).where(*of_session(files, key), some))


def measure_files(connection: Connection, key: SessionKey) -> int:
    """The bytes of a session's files."""
    # Of a column of bytes neither database reads the content to tell its length.
    return int(connection.scalar(select(func.sum(func.length(files.c.content))).where(*of_session(files, key))) or 0)


def check_files(connection: Connection, key: SessionKey) -> Iterator[tuple[str, bool]]:
    """Each hash, and whether the content is what it names; one file at a time is in memory."""
    for name in _list_hashes(connection, key):
        content = connection.scalar(select(files.c.content).where(*of_session(files, key), files.c.hash == name))
        yield name, content is not None and hashlib.sha256(as_bytes(content)).hexdigest() == name


def _list_hashes(connection: Connection, key: SessionKey) -> Sequence[str]:
    return connection.scalars(select(files.c.hash).where(*of_session(files, key)).order_by(files.c.hash)).all()
