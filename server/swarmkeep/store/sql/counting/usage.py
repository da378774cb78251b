"""Usage of model and tool calls: an index of the events, one row for each call, written with the event.

It can be rebuilt. A call is counted where it was made: what a fork shares with its original has no rows in the fork.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from sqlalchemy import Connection, delete, func, insert, literal, select, tuple_

from swarmkeep.domain.envelope import RecordedEvent
from swarmkeep.domain.events import CompletionRecord, MessageAdded, SessionForked
from swarmkeep.domain.usage import UsageGroup, UsagePage, UsageQuery, UsageRow
from swarmkeep.store.cursors import encode_cursor, parse_cursor
from swarmkeep.store.ports.keys import SessionKey
from swarmkeep.store.sql.database import OnDatabase
from swarmkeep.store.sql.prepared import PreparedStatement
from swarmkeep.store.sql.tables import of_session, session_columns, usage

Row = dict[str, Any]
# Above what any call can take; a sum of many still fits a database's integer.
_MAX_FIGURE = 2**40


_COLUMNS = {
    "day": usage.c.day,
    "agent": usage.c.agent,
    "model": usage.c.model,
    "session": usage.c.session_id,
    "run": usage.c.run_id,
}
_FIELDS = {"session": "session_id", "run": "run_id"}
_MAY_BE_NULL = ("model", "run")
_SUMS = (
    "model_calls", "tool_calls", "prompt_tokens", "completion_tokens", "total_tokens", "cached_tokens",
    "reasoning_tokens", "model_ms", "tool_ms",
)  # fmt: skip
_INSERT = PreparedStatement(insert(usage), [column.name for column in usage.c])


class SqlUsageIndex(OnDatabase):
    """UsageIndex on a Database."""

    async def sum_usage(self, tenant: str, query: UsageQuery) -> UsagePage:
        return await self.database.read(
            lambda connection: sum_usage(connection, tenant, query), seconds=self.read_seconds
        )


def record_usage(connection: Connection, key: SessionKey, events: Iterable[RecordedEvent]) -> None:
    """Write the rows of these events, which have just been recorded."""
    rows: list[Row] = []
    for event in events:
        if isinstance(event.fact, SessionForked):
            rows.clear()
            mine = of_session(usage, key)
            connection.execute(delete(usage).where(*mine))
        elif (row := make_usage_row(event)) is not None:
            rows.append({**session_columns(key), **row})
    if rows:
        _INSERT.execute_many(connection, rows)


def rewrite_usage(connection: Connection, key: SessionKey, events: Iterable[RecordedEvent]) -> None:
    """Write the rows of these events anew, as far as they have some."""
    mine = of_session(usage, key)
    for event in events:
        if connection.execute(delete(usage).where(*mine, usage.c.seq == event.seq)).rowcount:
            record_usage(connection, key, [event])


def make_usage_row(event: RecordedEvent) -> Row | None:
    """The row of an event that is a call; None for any other."""
    fact = event.fact
    if not isinstance(fact, MessageAdded) or (fact.completion is None and fact.tool is None):
        return None
    row: Row = {"seq": event.seq, "day": event.at[:10], "run_id": event.run_id or "", "agent": event.agent, "model": ""}
    row |= dict.fromkeys(_SUMS, 0)
    if fact.completion is not None:
        row |= _count_model_call(fact.completion)
    elif fact.tool is not None:
        row |= {"tool_calls": 1, "tool_ms": _read_duration(fact.tool.duration_ms)}
    return row


def _count_model_call(completion: CompletionRecord) -> Row:
    reported = completion.usage or {}
    requested = completion.request.params.get("model") if completion.request is not None else None
    return {
        "model": completion.model or (requested if isinstance(requested, str) else "") or "",
        "model_calls": 1,
        "prompt_tokens": _read_count(reported, "prompt_tokens"),
        "completion_tokens": _read_count(reported, "completion_tokens"),
        "total_tokens": _read_count(reported, "total_tokens"),
        "cached_tokens": _read_count(reported.get("prompt_tokens_details"), "cached_tokens"),
        "reasoning_tokens": _read_count(reported.get("completion_tokens_details"), "reasoning_tokens"),
        "model_ms": _read_duration(completion.duration_ms),
    }


def _read_count(reported: object, name: str) -> int:
    value = reported.get(name) if isinstance(reported, dict) else None
    return max(0, min(value, _MAX_FIGURE)) if isinstance(value, int) and not isinstance(value, bool) else 0


def _read_duration(milliseconds: float) -> float:
    return max(0.0, min(float(milliseconds), float(_MAX_FIGURE)))


def sum_usage(connection: Connection, tenant: str, query: UsageQuery) -> UsagePage:
    """One page of a tenant's groups, in the order of what they are grouped by."""
    by = query.by
    chosen = [_COLUMNS[name] for name in by]
    sums = [func.sum(usage.c[name]).label(name) for name in _SUMS]
    statement = select(*chosen, *sums).where(usage.c.tenant == tenant)
    for name, value in query.only.items():
        statement = statement.where(_COLUMNS[name] == value)
    if query.first_day is not None:
        statement = statement.where(usage.c.day >= query.first_day)
    if query.last_day is not None:
        statement = statement.where(usage.c.day <= query.last_day)
    if chosen:
        if query.cursor is not None:
            values = zip(parse_cursor(query.cursor, len(by)), chosen, strict=True)
            last = [literal(value, column.type) for value, column in values]
            statement = statement.where(tuple_(*chosen) > tuple_(*last))
        statement = statement.group_by(*chosen).order_by(*chosen).limit(query.limit + 1)
    rows = connection.execute(statement).all()
    shown = rows[: query.limit]
    following = encode_cursor(shown[-1][: len(by)]) if len(rows) > query.limit else None
    return UsagePage([_make_result_row(by, row) for row in shown], following)


def _make_result_row(by: Sequence[UsageGroup], row: Any) -> UsageRow:
    values = list(zip(by, row, strict=False))
    groups = {_FIELDS.get(name, name): (value or None if name in _MAY_BE_NULL else value) for name, value in values}
    counts = dict(zip(_SUMS, (value or 0 for value in row[len(by) :]), strict=True))
    figures = {name: round(float(n), 3) if name.endswith("_ms") else int(n) for name, n in counts.items()}
    return msgspec.convert({**groups, **figures}, UsageRow)
