"""Rows as an attacker finds them: read, changed, removed and put in, past everything that keeps them in order."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Column, LargeBinary, Table, and_, delete, insert, select, update
from sqlalchemy.types import Double, Integer

from swarmkeep.store.opening import SqlStore
from swarmkeep.store.tables import SESSION_TABLES, sessions

Row = dict[str, Any]
TABLES = (sessions, *SESSION_TABLES)


async def read_rows(store: SqlStore, table: Table, **where: Any) -> list[Row]:
    """The rows with these values, in the order of their keys."""
    chosen = select(table).where(*(table.c[name] == value for name, value in where.items()))
    query = chosen.order_by(*table.primary_key)
    return await store.database.read(lambda connection: [dict(row._mapping) for row in connection.execute(query)])


def _match_row(table: Table, row: Row) -> Any:
    return and_(*(column == row[column.name] for column in table.primary_key))


async def change_row(store: SqlStore, table: Table, row: Row, **values: Any) -> None:
    statement = update(table).where(_match_row(table, row)).values(**values)
    assert await store.database.write(lambda connection: connection.execute(statement).rowcount) == 1


async def remove_row(store: SqlStore, table: Table, row: Row) -> None:
    statement = delete(table).where(_match_row(table, row))
    assert await store.database.write(lambda connection: connection.execute(statement).rowcount) == 1


async def insert_row(store: SqlStore, table: Table, row: Row) -> None:
    statement = insert(table).values(**row)
    await store.database.write(lambda connection: connection.execute(statement) and None)


def make_other_value(column: Column[Any], value: Any) -> Any:
    """A value that may stand in a column, and is not `value`."""
    if isinstance(column.type, LargeBinary):
        return b"other" if not value else bytes([value[0] ^ 1]) + value[1:]
    if isinstance(column.type, Integer | Double):
        # Not the next event's.
        return 7 if value is None else value + 1000
    return "other" if not value else f"{value}x"
