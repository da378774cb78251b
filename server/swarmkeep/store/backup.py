"""A whole database as one file, taken while servers use it, and put into an empty database of either kind.

The file is gzip-compressed JSON lines: a header; for each table its columns, then a line for each row, values as they
are stored; and last the number of rows and the SHA-256 of all lines before. Text is kept as it is in the database, so
hashes and commitments are exact.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, BinaryIO

import msgspec
from sqlalchemy import Connection, MetaData, Table, func, insert, select, tuple_
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError, StatementError

from swarmkeep.events.codec import Json, MalformedJson, decode, encode
from swarmkeep.store import schema
from swarmkeep.store.search import add_marks
from swarmkeep.store.tables import LATEST_REVISION, current_revision, refuse_unknown, require_latest
from swarmkeep.store.urls import locate

FORMAT = "swarmkeep-backup"
_VERSION = 1
_ROWS_AT_ONCE = 500
# Rows that may be megabytes.
_LARGE_ROWS_AT_ONCE = {"files": 4}
# Rows of large payloads are put into the database in smaller groups.
_CHARACTERS_AT_ONCE = 4_000_000
# The words that sessions are found by are made again from the events.
_LEFT_OUT = ("alembic_version", "search", "search_marks")
_MAX_LINE_BYTES = 1_000_000_000


class BadBackup(Exception):
    """The file cannot be restored: it is not a whole backup, or the database is not empty. Nothing was changed."""


class BackupSummary(msgspec.Struct, frozen=True):
    """The contents of a backup: rows by their table, and the database's revision."""

    revision: str
    rows: dict[str, int]


def write_backup(url: str, file: BinaryIO, at: str, *, on_row: Callable[[], None] = lambda: None) -> BackupSummary:
    """Write all rows of a database, as they are at one moment. `at` is the time to note. May take minutes.

    `on_row` is called after each row.

    Raises BadDatabaseUrl, StoreUnavailable, SchemaBehind.
    """

    def job(connection: Connection) -> BackupSummary:
        require_latest(connection, locate(url).display)
        # It is done again from the beginning where the first attempt met text that is not UTF-8.
        file.seek(0)
        file.truncate()
        with gzip.GzipFile(fileobj=file, mode="wb", filename="", mtime=0, compresslevel=6) as packed:
            writer = _Writer(packed)
            writer.write({"format": FORMAT, "version": _VERSION, "revision": LATEST_REVISION, "at": at})
            tables = _reflect_tables(connection)
            rows = {str(table.name): _write_table(connection, table, writer, on_row) for table in tables}
            writer.write_end(sum(rows.values()))
        return BackupSummary(LATEST_REVISION, rows)

    return schema.read_at_one_moment(url, job)


def restore_backup(url: str, file: BinaryIO) -> BackupSummary:
    """Fill an empty database from a backup, and migrate it to this release's schema: all of it, or nothing.

    Raises BadBackup, BadDatabaseUrl, StoreUnavailable, SchemaBehind.
    """
    lines = _read_lines(file)
    header = next(lines, None)
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise BadBackup("the file is not a backup of Swarmkeep")
    revision = header.get("revision")
    if header.get("version") != _VERSION or not isinstance(revision, str):
        raise BadBackup(f"this release cannot read backups of version {header.get('version')}")
    refuse_unknown(revision, "the backup's database")

    def job(connection: Connection) -> BackupSummary:
        _require_empty(connection)
        schema.migrate_to(connection, revision)
        tables = {str(table.name): table for table in _reflect_tables(connection)}
        rows = _insert_rows(connection, tables, lines)
        schema.migrate_to(connection, "head")
        add_marks(connection)
        return BackupSummary(revision, rows)

    return schema.change_at_once(url, job)


class _Writer:
    def __init__(self, file: gzip.GzipFile) -> None:
        self._file = file
        self._digest = hashlib.sha256()

    def write(self, value: Any) -> None:
        line = encode(value) + b"\n"
        self._digest.update(line)
        self._file.write(line)

    def write_end(self, rows: int) -> None:
        self._file.write(encode({"rows": rows, "sha256": self._digest.hexdigest()}) + b"\n")


def _reflect_tables(connection: Connection) -> list[Table]:
    """The tables as the database describes them, so that values come and go as they are stored."""
    found = MetaData()
    found.reflect(connection, only=lambda name, _: not schema.is_of_search_index(name))
    return [table for name, table in sorted(found.tables.items()) if name not in _LEFT_OUT]


def _write_table(connection: Connection, table: Table, writer: _Writer, on_row: Callable[[], None]) -> int:
    writer.write({"table": str(table.name), "columns": [str(column.name) for column in table.columns]})
    count = 0
    for row in _page_rows(connection, table):
        writer.write([_pack(value) for value in row])
        count += 1
        on_row()
    return count


def _page_rows(connection: Connection, table: Table) -> Iterator[Sequence[Any]]:
    """Every row, in the order of the primary key, page by page: no large result is held anywhere."""
    key = list(table.primary_key.columns)
    places = [list(table.columns).index(column) for column in key]
    query = select(table).order_by(*key).limit(_LARGE_ROWS_AT_ONCE.get(str(table.name), _ROWS_AT_ONCE))
    page = connection.execute(query).all()
    while page:
        yield from page
        last = [page[-1][place] for place in places]
        page = connection.execute(query.where(tuple_(*key) > tuple_(*last))).all()


def _pack(value: Any) -> Any:
    return {"b": base64.b64encode(value).decode()} if isinstance(value, bytes) else value


def _unpack(value: Any) -> Any:
    return base64.b64decode(value["b"], validate=True) if isinstance(value, dict) else value


def _read_lines(file: BinaryIO) -> Iterator[Any]:
    """The values of all lines but the last, which is checked. Raises BadBackup."""
    digest, count = hashlib.sha256(), 0
    waiting: bytes | None = None
    try:
        with gzip.GzipFile(fileobj=file) as packed:
            while line := packed.readline(_MAX_LINE_BYTES):
                if waiting is not None:
                    digest.update(waiting)
                    value = decode(waiting)
                    count += isinstance(value, list)
                    yield value
                waiting = line
        end = decode(waiting or b"null")
    except gzip.BadGzipFile as error:
        what = "not a backup of Swarmkeep" if waiting is None else "damaged"
        raise BadBackup(f"the file is {what}: {error}") from None
    except (OSError, EOFError, zlib.error, MalformedJson) as error:
        raise BadBackup(f"the file is damaged or was cut off: {error}") from None
    if end != {"rows": count, "sha256": digest.hexdigest()}:
        raise BadBackup("the file was changed or cut off: it does not match the digest in its last line")


def _require_empty(connection: Connection) -> None:
    if current_revision(connection) is None:
        return
    for table in _reflect_tables(connection):
        if connection.scalar(select(func.count()).select_from(select(table.c[0]).limit(1).subquery())):
            raise BadBackup(f"the database is not empty: there are rows in {table.name}; restore into an empty one")


def _insert_rows(connection: Connection, tables: dict[str, Table], lines: Iterator[Any]) -> dict[str, int]:
    rows: dict[str, int] = {}
    batch, size = list[Json](), 0
    table: Table | None = None
    columns: list[str] = []

    def flush() -> None:
        nonlocal size
        if batch and table is not None:
            try:
                connection.execute(insert(table), batch)
            except StatementError as error:
                # What the database itself says is another matter, but for values that it does not take.
                if isinstance(error, DBAPIError) and not isinstance(error, DataError | IntegrityError):
                    raise
                raise BadBackup(f"the file has a row that cannot be in its table, {table.name}") from None
            rows[table.name] += len(batch)
        batch.clear()
        size = 0

    for value in lines:
        if isinstance(value, dict):
            flush()
            table, columns = _find_table(tables, value)
            rows[table.name] = 0
            continue
        if not isinstance(value, list) or table is None or len(value) != len(columns):
            raise BadBackup("the file has a row that belongs to no table")
        batch.append(dict(zip(columns, map(_unpack, value), strict=True)))
        size += sum(map(_count_characters, value))
        if len(batch) == _ROWS_AT_ONCE or size > _CHARACTERS_AT_ONCE:
            flush()
    flush()
    return rows


def _count_characters(value: Any) -> int:
    text = value["b"] if isinstance(value, dict) else value
    return len(text) if isinstance(text, str) else 0


def _find_table(tables: dict[str, Table], heading: Json) -> tuple[Table, list[str]]:
    table = tables.get(str(heading.get("table")))
    columns = heading.get("columns")
    if table is None or not isinstance(columns, list) or set(columns) != set(table.columns.keys()):
        raise BadBackup(f"the file has a table {heading.get('table')!r}, which its revision does not have")
    return table, columns
