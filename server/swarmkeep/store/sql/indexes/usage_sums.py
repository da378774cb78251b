"""Sums over a tenant's model and tool calls, in pages of groups."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import msgspec
from sqlalchemy import Connection, func, literal, literal_column, select, tuple_

from swarmkeep.domain.usage import ModelShare, UsageGroup, UsagePage, UsageQuery, UsageRow
from swarmkeep.store.cursors import encode_cursor, parse_cursor
from swarmkeep.store.sql.counting.usage import SUMS
from swarmkeep.store.sql.database import OnDatabase
from swarmkeep.store.sql.tables import usage, usage_days

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
    """UsageIndex on a Database."""

    async def sum_usage(self, tenant: str, query: UsageQuery) -> UsagePage:
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
    """What the row begins with, one for each of the columns."""
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

    Only of all calls: of a part of them nobody knows how many it takes.
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
