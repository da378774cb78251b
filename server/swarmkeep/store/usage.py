"""Sums over a tenant's model and tool calls, in pages of groups."""

from __future__ import annotations

import functools
import math
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
from sqlalchemy import Connection, Select, bindparam, delete, func, literal, literal_column, select, tuple_

from swarmkeep.events.usage import ModelShare, UsageGroup, UsagePage, UsageQuery, UsageRow
from swarmkeep.store.records import SessionKey, encode_cursor, parse_cursor
from swarmkeep.store.statements import OnDatabase, PreparedStatement, build_insert
from swarmkeep.store.tables import as_text, of_bound_session, session_columns, unescape, usage, usage_days
from swarmkeep.store.totals import SUMS

_COLUMNS: dict[UsageGroup, str] = {
    "day": "day",
    "agent": "agent",
    "model": "model",
    "session": "session_id",
    "run": "run_id",
}
_OF_SINGLE_CALLS: frozenset[UsageGroup] = frozenset({"session", "run"})
# So many calls are sorted at once.
_FEW_CALLS = 10_000
_MAY_BE_NULL = ("model", "run")
_OF_SHARES = ("model_calls", "prompt_tokens", "cached_tokens", "completion_tokens")


class SqlUsageIndex(OnDatabase):
    """Sums over a tenant's model and tool calls."""

    async def sum_usage(self, tenant: str, query: UsageQuery) -> UsagePage:
        """Sums of what calls took. Raises InvalidRequest for a cursor that this store did not make."""
        return await self.database.read(
            lambda connection: sum_usage(connection, tenant, query), seconds=self.read_seconds
        )


def sum_usage(connection: Connection, tenant: str, query: UsageQuery) -> UsagePage:
    """One page of a tenant's groups, in the order of what they are grouped by.

    What tells no sessions or runs apart is summed up already, day by day. Pages that begin with one of those, of all
    calls, read the calls that they show. What is left reads all calls that the filters leave.
    """
    by = query.by
    source = _choose_source(connection, tenant, query)
    chosen = [source.c[_COLUMNS[name]] for name in by]
    sums = [func.sum(source.c[name]).label(name) for name in SUMS]
    statement = select(*chosen, *sums).where(*_list_conditions(source, tenant, query))
    if chosen:
        last = None if query.cursor is None else parse_cursor(query.cursor, len(by))
        if last is not None:
            statement = statement.where(tuple_(*chosen) > tuple_(*_make_literals(last, chosen)))
        if source is usage and by[0] in _OF_SINGLE_CALLS and _is_of_all(query):
            statement = statement.where(_within_page(connection, tenant, query, last))
        # In plain words: of a parameter PostgreSQL would have to guess how few it means.
        most: Any = literal_column(str(query.limit + 1))
        statement = statement.group_by(*chosen).order_by(*chosen).limit(most)
        # Of calls that are gone one part may hold what another one takes off again.
        statement = statement.having(func.sum(source.c.model_calls) + func.sum(source.c.tool_calls) > 0)
    rows = connection.execute(statement).all()
    shown = rows[: query.limit]
    following = encode_cursor(shown[-1][: len(by)]) if len(rows) > query.limit else None
    shares = _list_shares(connection, source, tenant, query, shown) if query.with_shares and shown else []
    return UsagePage([_make_result_row(by, row) for row in shown], following, shares)


def _list_shares(
    connection: Connection, source: Any, tenant: str, query: UsageQuery, shown: Sequence[Any]
) -> list[list[ModelShare]]:
    """Of each of these groups, which follow one another, the part of each model."""
    size = len(query.by)
    chosen = [source.c[_COLUMNS[name]] for name in query.by]
    sums = [func.sum(source.c[name]) for name in _OF_SHARES]
    statement = select(*chosen, source.c.model.label("of_model"), *sums)
    statement = statement.where(*_list_conditions(source, tenant, query))
    if chosen:
        first, last = _make_literals(shown[0], chosen), _make_literals(shown[-1], chosen)
        # Of the first alone, too: what the pairs of several are between, not every database looks up in an index.
        statement = statement.where(chosen[0] >= first[0], chosen[0] <= last[0])
        if size > 1:
            # A day may have far more groups than the page shows.
            statement = statement.where(tuple_(*chosen) >= tuple_(*first), tuple_(*chosen) <= tuple_(*last))
    statement = statement.group_by(*chosen, source.c.model).having(func.sum(source.c.model_calls) > 0)
    found: dict[tuple[Any, ...], list[ModelShare]] = {tuple(row[:size]): [] for row in shown}
    for row in connection.execute(statement):
        group = found.get(tuple(row[:size]))
        if group is not None:
            counts = dict(zip(_OF_SHARES, map(int, row[size + 1 :]), strict=True))
            group.append(ModelShare(model=row.of_model, **counts))
    return list(found.values())


def _make_literals(row: Sequence[Any], columns: Sequence[Any]) -> list[Any]:
    """Make the literals that the row begins with, one for each of the columns."""
    return [literal(value, column.type) for value, column in zip(row, columns, strict=False)]


def _list_conditions(source: Any, tenant: str, query: UsageQuery) -> list[Any]:
    only = [source.c[_COLUMNS[name]] == value for name, value in query.only.items()]
    return [source.c.tenant == tenant, *only, *_list_day_conditions(source, query)]


def _choose_source(connection: Connection, tenant: str, query: UsageQuery) -> Any:
    if not _OF_SINGLE_CALLS.intersection((*query.by, *query.only)):
        return usage_days
    if "session" in query.only:
        narrow = [usage.c.session_id == query.only["session"]]
    elif _count_calls_of_days(connection, tenant, query) <= _FEW_CALLS:
        narrow = _list_day_conditions(usage, query)
    else:
        return usage
    # Found first: or else all calls of a tenant would be read in the order of the groups, rather than sort these.
    return select(usage).where(usage.c.tenant == tenant, *narrow).cte("calls").prefix_with("MATERIALIZED")


def _count_calls_of_days(connection: Connection, tenant: str, query: UsageQuery) -> float:
    conditions = _list_day_conditions(usage_days, query)
    if not conditions:
        return math.inf
    count: Any = func.sum(usage_days.c.model_calls + usage_days.c.tool_calls)
    return int(connection.scalar(select(count).where(usage_days.c.tenant == tenant, *conditions)) or 0)


def _list_day_conditions(source: Any, query: UsageQuery) -> list[Any]:
    conditions = []
    if query.first_day is not None:
        conditions.append(source.c.day >= query.first_day)
    if query.last_day is not None:
        conditions.append(source.c.day <= query.last_day)
    return conditions


def _is_of_all(query: UsageQuery) -> bool:
    return not query.only and query.first_day is None and query.last_day is None


def _within_page(connection: Connection, tenant: str, query: UsageQuery, last: Sequence[str] | None) -> Any:
    """The condition that leaves as many sessions or runs as may fill the page, and one more.

    Only of all calls: it is unknown how many a part of them takes.
    """
    first = usage.c[_COLUMNS[query.by[0]]]
    names = select(first.label("name")).where(usage.c.tenant == tenant).distinct()
    if last is not None:
        names = names.where(first >= literal(last[0], first.type))
    # One more than those that are shown and the one that the cursor may have begun.
    some = names.order_by(first).limit(literal_column(str(query.limit + 2))).subquery()
    return first <= literal(connection.scalar(select(func.max(some.c.name))) or "", first.type)


def _make_result_row(by: Sequence[UsageGroup], row: Any) -> UsageRow:
    values = list(zip(by, row, strict=False))
    fields = {"session": "session_id", "run": "run_id"}
    groups = {fields.get(name, name): (value or None if name in _MAY_BE_NULL else value) for name, value in values}
    counts = dict(zip(SUMS, (value or 0 for value in row[len(by) :]), strict=True))
    # Sums that were added to and taken from may end a little below nothing.
    figures = {name: max(0.0, round(float(n), 3)) if name.endswith("_ms") else int(n) for name, n in counts.items()}
    return msgspec.convert({**groups, **figures}, UsageRow)


# The sums of usage by day, agent and model, kept in the transactions that change it.

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
    """Read the sums of the rows of a session."""
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
    # PostgreSQL sums up integers to decimals, and SQLite any values that a column holds.
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
