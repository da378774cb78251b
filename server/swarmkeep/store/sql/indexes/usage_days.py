"""Keeps the sums of usage by day, agent and model, in the transactions that change it.

They are the tenant's and not one session's: so they are changed last, and their rows are locked for a moment only.
Each sum is in a few parts, and a session always adds to the same one, so that not all of a tenant's sessions wait for
one row.
"""

from __future__ import annotations

import functools
import zlib
from collections.abc import Iterable, Mapping
from typing import Any

from sqlalchemy import Connection, Select, bindparam, delete, func, select

from swarmkeep.store.ports.keys import SessionKey
from swarmkeep.store.sql.columns import as_text, unescape
from swarmkeep.store.sql.counting.usage import SUMS
from swarmkeep.store.sql.prepared import PreparedStatement, build_insert
from swarmkeep.store.sql.tables import of_bound_session, session_columns, usage, usage_days

PARTS = 8

# Of a row of a tenant's, in the order in which rows are changed.
_DAY_KEY = ("day", "agent", "model", "part")
_Group = tuple[str, str, str]
Sums = dict[_Group, list[float]]
"""Sums in the order of SUMS, by day, agent and model."""


def sum_rows(rows: Iterable[Mapping[str, Any]]) -> Sums:
    sums: Sums = {}
    for row in rows:
        group = sums.setdefault((row["day"], row["agent"], row["model"]), [0] * len(SUMS))
        for place, name in enumerate(SUMS):
            group[place] += row[name]
    return sums


def read_session_sums(connection: Connection, key: SessionKey) -> Sums:
    """What the rows of a session come to."""
    return {
        (_read(day), _read(agent), _read(model)): [
            _as_number(name, value) for name, value in zip(SUMS, values, strict=True)
        ]
        for day, agent, model, *values in _SESSION_SUMS.fetch_all(connection, session_columns(key))
    }


def _build_session_sums() -> Select[Any]:
    # Found first: SQLite would rather read all calls of the tenant in the order of the days than sort these.
    calls = select(usage).where(*of_bound_session(usage)).cte("calls").prefix_with("MATERIALIZED")
    names = (calls.c.day, calls.c.agent, calls.c.model)
    return select(*names, *(func.sum(calls.c[name]) for name in SUMS)).group_by(*names)


_SESSION_SUMS = PreparedStatement(_build_session_sums())


def _read(name: Any) -> str:
    return unescape(as_text(name))


def _as_number(name: str, value: Any) -> float:
    # PostgreSQL sums up integers to decimals, and SQLite whatever a column holds.
    return float(value or 0) if name.endswith("_ms") else int(value or 0)


def change_days(connection: Connection, key: SessionKey, before: Sums, after: Sums) -> None:
    """Put what a session has used now in the place of what it had. Nothing that takes long may come after it."""
    nothing = [0] * len(SUMS)
    changes: Sums = {}
    for group in before.keys() | after.keys():
        old, new = before.get(group, nothing), after.get(group, nothing)
        if old != new:
            changes[group] = [value - taken for value, taken in zip(new, old, strict=True)]
    if changes:
        rows = make_day_rows(key, changes)
        _prepare_addition(connection.dialect.name).insert_many(connection, rows)
        if before:
            # Of what is gone not even the names are left.
            for row in rows:
                _DELETE_EMPTY.execute(connection, row)


def add_sums(connection: Connection, used: Iterable[tuple[SessionKey, Sums]]) -> None:
    """`change_days` for new sessions of one tenant, with what each has used. Nothing that takes long may come after."""
    rows: dict[tuple[Any, ...], dict[str, Any]] = {}
    for key, sums in used:
        for row in make_day_rows(key, sums):
            same = rows.setdefault(tuple(row[name] for name in _DAY_KEY), row)
            if same is not row:
                same |= {name: same[name] + row[name] for name in SUMS}
    if rows:
        ordered = [rows[name] for name in sorted(rows)]
        _prepare_addition(connection.dialect.name).insert_many(connection, ordered)


def make_day_rows(key: SessionKey, sums: Sums) -> list[dict[str, Any]]:
    """The rows by which these sums are added to those that there are."""
    part = zlib.crc32(key.id.encode()) % PARTS
    return [
        {"tenant": key.tenant, "day": day, "agent": agent, "model": model, "part": part}
        | dict(zip(SUMS, values, strict=True))
        # In one order, or two that change the same rows may wait for one another.
        for (day, agent, model), values in sorted(sums.items())
    ]


@functools.cache
def _prepare_addition(dialect: str) -> PreparedStatement:
    return PreparedStatement.of_rows(add_to_days(build_insert(usage_days, dialect)))


def add_to_days(insert: Any) -> Any:
    """Have an insert (see `build_insert`) add to the rows that are there."""
    added = {name: usage_days.c[name] + insert.excluded[name] for name in SUMS}
    return insert.on_conflict_do_update(index_elements=list(usage_days.primary_key), set_=added)


_DELETE_EMPTY = PreparedStatement(
    delete(usage_days).where(
        *(column == bindparam(column.name) for column in usage_days.primary_key),
        usage_days.c.model_calls == 0,
        usage_days.c.tool_calls == 0,
    )
)
