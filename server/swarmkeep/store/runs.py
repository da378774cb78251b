"""The table of runs that are over: one row for each, written in the transaction of the event that ends it.

A run that goes on again after an interruption loses its row until it ends again. What a fork has copied counts where it
happened. The rows are made of the folded state alone, so that they can be made again at any time.

A page costs what it shows. Runs are in the order of an index; where filters are left that it does not have, so many of
its rows are looked at, and then the page ends with what it has found and a cursor.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from sqlalchemy import (
    BigInteger,
    Connection,
    and_,
    bindparam,
    case,
    delete,
    func,
    insert,
    literal,
    literal_column,
    select,
    tuple_,
)

from swarmkeep.events import run_table
from swarmkeep.events.codec import count_milliseconds
from swarmkeep.events.errors import InvalidRequest
from swarmkeep.events.records import ModelShare
from swarmkeep.events.state import Run, State
from swarmkeep.store.records import BAD_CURSOR, SessionKey, encode_cursor, parse_cursor
from swarmkeep.store.statements import OnDatabase, PreparedStatement
from swarmkeep.store.tables import HAS_ENDED_BADLY, IS_STREAMED, of_bound_session, runs, session_columns, usage

Row = dict[str, Any]

# Writing: the rows that an append, an import or a redaction leads to.

# Longer than any run can take.
_MAX_MILLISECONDS = float(2**40)
_MAX_COUNT = 2**63 - 1


def make_run_row(run: Run) -> Row:
    """The row of a run that is over, but for its session."""
    usage, first = run.usage, run.first_token_ms
    return {
        "seq": run.last_seq,
        "run_id": run.id,
        "agent": run.agent,
        "model": run.model,
        "status": run.status,
        "stop_reason": run.stop_reason or "",
        "error": "" if run.error is None else run.error.code,
        "created_at": run.created_at,
        "finished_at": run.finished_at or "",
        "latency_ms": _bound(count_milliseconds(run.created_at, run.finished_at or "") - run.waited_ms),
        "waited_ms": _bound(run.waited_ms),
        "first_token_ms": None if first is None else _bound(first),
        "model_calls": usage.model_calls,
        "tool_calls": run.tool_calls,
        "tool_errors": run.tool_errors,
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.total_tokens,
    }


def _bound(milliseconds: float) -> float:
    # As exact as clocks are: what is added up otherwise elsewhere is the same then.
    return round(max(0.0, min(float(milliseconds), _MAX_MILLISECONDS)), 3)


def make_run_rows(state: State, after: int = 0) -> list[Row]:
    """The rows of the session's own runs that ended after this event, in the order of their ends."""
    begin = max(after, state.forked_at)
    rows: list[Row] = []
    for run in reversed(state.finished):
        if run.last_seq <= begin:
            break
        rows.append(make_run_row(run))
    return rows[::-1]


def find_reopened(base: State, state: State) -> int | None:
    """The seq at which the run had ended that goes on again in what follows `base`; None if none does."""
    if state.finished is base.finished or not base.finished:
        return None
    place, last = len(base.finished) - 1, base.finished[-1].last_seq
    is_kept = len(state.finished) > place and state.finished[place].last_seq == last
    return None if is_kept else last


def name_rows(key: SessionKey, rows: Iterable[Row]) -> list[Row]:
    return [{**session_columns(key), **row} for row in rows]


def record_runs(connection: Connection, key: SessionKey, base: State, state: State) -> None:
    """Write the rows of the runs that ended after `base`, and remove that of one that goes on again."""
    if state.finished is base.finished:
        return
    reopened = find_reopened(base, state)
    if reopened is not None:
        _DELETE_ROW.execute(connection, {**session_columns(key), "at_seq": reopened})
    insert_runs(connection, name_rows(key, make_run_rows(state, base.seq)))


def rewrite_runs(connection: Connection, key: SessionKey, state: State) -> None:
    """Write all of a session's rows again."""
    _DELETE_ROWS.execute(connection, session_columns(key))
    insert_runs(connection, name_rows(key, make_run_rows(state)))


def insert_runs(connection: Connection, rows: Sequence[Row]) -> None:
    if rows:
        _INSERT.insert_many(connection, rows)


_INSERT = PreparedStatement.of_rows(insert(runs))
_DELETE_ROWS = PreparedStatement(delete(runs).where(*of_bound_session(runs)))
_DELETE_ROW = PreparedStatement(delete(runs).where(*of_bound_session(runs), runs.c.seq == bindparam("at_seq")))


# Reading: pages of runs.


class RunWalk(msgspec.Struct, frozen=True):
    """The limits of how many runs are looked at for a page."""

    runs_for_a_page: int = 1_000
    """Those of an index that are looked at for the filters that it does not have."""
    runs_to_sort: int = 1_000
    """Of no more than so many by the other filters, all are sorted by a figure."""


_WALK = RunWalk()


class SqlRunTable(OnDatabase):
    """The runs of a tenant that are over."""

    async def list_ended_runs(self, tenant: str, query: run_table.RunQuery, walk: RunWalk = _WALK) -> run_table.RunPage:
        """A page of them. It may have fewer than `limit`, or none, and yet a cursor.

        Raises InvalidRequest for a cursor that this store did not make of such a list.
        """
        return await self.database.read(
            lambda connection: list_ended_runs(connection, tenant, query, walk), seconds=self.read_seconds
        )

    async def sum_runs(self, tenant: str, query: run_table.FiguresQuery) -> run_table.FiguresPage:
        """Counts and percentiles of the runs that the filters leave, all of which are read."""
        return await self.database.read(
            lambda connection: sum_runs(connection, tenant, query), seconds=self.read_seconds
        )


def list_ended_runs(
    connection: Connection, tenant: str, query: run_table.RunQuery, walk: RunWalk = _WALK
) -> run_table.RunPage:
    before = None if query.cursor is None else _parse_place(query.cursor, query.sort)
    rows, after = _find_rows(connection, tenant, query, before, walk)
    if len(rows) > query.limit:
        rows, after = rows[: query.limit], rows[query.limit - 1]
    following = None if after is None else _make_cursor(after, query.sort)
    shares = _list_shares(connection, tenant, rows) if query.with_shares and rows else []
    return run_table.RunPage([_view(row) for row in rows], following, shares)


def _find_rows(
    connection: Connection, tenant: str, query: run_table.RunQuery, before: Any, walk: RunWalk
) -> tuple[Sequence[Any], Any]:
    """One row more than the page holds, if there are so many; and the last row that was looked at, if there may be
    more behind it."""
    chosen, rest = _choose_range(query)
    mine = [runs.c.tenant == tenant]
    if query.only.session is not None or (
        query.sort != "created_at" and query.only.list_given() and _is_small(connection, [*mine, *chosen], walk)
    ):
        # Found first: SQLite would rather read all runs of the tenant in the order of the list than sort these.
        few = select(runs).where(*mine, *chosen).cte("few").prefix_with("MATERIALIZED")
        return _read_page(connection, few, [_rebind(few, query, name) for name in rest], query, before), None
    if query.sort != "created_at":
        # Those without the figure are not in such a list. The filters are looked up in its order.
        rest = query.only.list_given()
        chosen = [IS_STREAMED] if query.sort == "first_token_ms" else []
    if not rest:
        return _read_page(connection, runs, [*mine, *chosen], query, before), None
    columns = _list_order(runs, query.sort)
    walked = select(runs).where(*mine, *chosen, *_list_behind(runs, query.sort, before))
    walked = walked.order_by(*(column.desc() for column in columns))
    some = walked.limit(_write(walk.runs_for_a_page)).subquery("some_runs")
    rows = _read_page(connection, some, [_rebind(some, query, name) for name in rest], query, None)
    if len(rows) > query.limit:
        return rows, None
    last = walked.with_only_columns(*columns).offset(_write(walk.runs_for_a_page - 1)).limit(_write(1))
    return rows, connection.execute(last).first()


def _choose_range(query: run_table.RunQuery) -> tuple[list[Any], list[str]]:
    """The conditions that an index by time has, and the names of the filters that are left."""
    only, given = query.only, query.only.list_given()
    times = [name for name in given if name.startswith("created_")]
    if only.session is not None:
        narrow = "session"
    elif only.status not in (None, "completed"):
        narrow = "status"
    else:
        narrow = "agent" if "agent" in given else ""
    names = [*times, *([narrow] if narrow else [])]
    chosen = [_rebind(runs, query, name) for name in names]
    if narrow == "status":
        chosen.append(HAS_ENDED_BADLY)
    return chosen, [name for name in given if name not in names]


def _rebind(source: Any, query: run_table.RunQuery, name: str) -> Any:
    """The condition of a filter, on the table or on some of its rows."""
    return _make_condition(source, name, getattr(query.only, name))


def _make_condition(source: Any, name: str, value: str) -> Any:
    if name == "session":
        return source.c.session_id == value
    if name == "created_after":
        return source.c.created_at >= value
    if name == "created_before":
        return source.c.created_at < value
    return source.c[name] == value


def _is_small(connection: Connection, where: Sequence[Any], walk: RunWalk) -> bool:
    some = select(runs.c.seq).where(*where).limit(_write(walk.runs_to_sort + 1)).subquery()
    return int(connection.scalar(select(func.count()).select_from(some)) or 0) <= walk.runs_to_sort


def _read_page(
    connection: Connection, source: Any, where: Sequence[Any], query: run_table.RunQuery, before: Any
) -> Any:
    columns = _list_order(source, query.sort)
    statement = select(source).where(*where, *_list_behind(source, query.sort, before))
    if query.sort == "first_token_ms":
        statement = statement.where(IS_STREAMED)
    ordered = statement.order_by(*(column.desc() for column in columns))
    return connection.execute(ordered.limit(_write(query.limit + 1))).all()


def _write(number: int) -> Any:
    # In plain words: of a parameter PostgreSQL would have to guess how few it means.
    return literal_column(str(number), BigInteger())


def _list_order(source: Any, sort: run_table.RunSort) -> list[Any]:
    return [source.c[sort], source.c.session_id, source.c.seq]


def _list_behind(source: Any, sort: run_table.RunSort, before: Sequence[Any] | None) -> list[Any]:
    if before is None:
        return []
    columns = _list_order(source, sort)
    place = [literal(value, column.type) for value, column in zip(before, columns, strict=True)]
    return [tuple_(*columns) < tuple_(*place)]


def _make_cursor(row: Any, sort: run_table.RunSort) -> str:
    return encode_cursor([sort, str(getattr(row, sort)), row.session_id, str(row.seq)])


def _parse_place(cursor: str, sort: run_table.RunSort) -> list[Any]:
    order, value, session_id, seq = parse_cursor(cursor, 4)
    figure = _parse_figure(value) if sort != "created_at" else value
    number = _parse_figure(seq)
    if order != sort or figure is None or number is None or number > _MAX_COUNT:
        raise InvalidRequest(BAD_CURSOR, "/cursor")
    return [figure if sort in ("created_at", "latency_ms", "first_token_ms") else int(figure), session_id, int(number)]


def _parse_figure(text: str) -> float | int | None:
    if len(text) > 40 or not text.isascii():
        return None
    try:
        number = int(text) if text.isdecimal() else float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) and 0 <= number <= _MAX_COUNT else None


def _view(row: Any) -> run_table.EndedRun:
    return run_table.EndedRun(
        id=row.run_id,
        session_id=row.session_id,
        agent=row.agent,
        model=row.model or None,
        status=row.status,
        stop_reason=row.stop_reason or None,
        error=row.error or None,
        created_at=row.created_at,
        finished_at=row.finished_at,
        **{name: getattr(row, name) for name in _FIGURES},
    )


_FIGURES = (
    "latency_ms", "waited_ms", "first_token_ms", "model_calls", "tool_calls", "tool_errors", "prompt_tokens",
    "completion_tokens", "total_tokens",
)  # fmt: skip
_OF_SHARES = ("model_calls", "prompt_tokens", "cached_tokens", "completion_tokens")


def _list_shares(connection: Connection, tenant: str, rows: Sequence[Any]) -> list[list[ModelShare]]:
    """Of each run, the part of each model."""
    columns = usage.c
    sums = [func.sum(columns[name]).label(name) for name in _OF_SHARES]
    statement = (
        select(columns.session_id, columns.run_id, columns.model, *sums)
        .where(columns.tenant == tenant, columns.run_id.in_({row.run_id for row in rows}), columns.model_calls > 0)
        # A run that was copied has its id in several sessions.
        .where(columns.session_id.in_({row.session_id for row in rows}))
        .group_by(columns.run_id, columns.session_id, columns.model)
    )
    found: dict[tuple[str, str], list[ModelShare]] = {}
    for row in connection.execute(statement):
        counts = {name: int(getattr(row, name) or 0) for name in _OF_SHARES}
        found.setdefault((row.session_id, row.run_id), []).append(ModelShare(model=row.model, **counts))
    return [found.get((row.session_id, row.run_id), []) for row in rows]


# Counts and percentiles, exact ones, of groups.

_PERCENTS = (50, 90, 99)
_STATUSES = ("completed", "failed", "cancelled", "interrupted")


def sum_runs(connection: Connection, tenant: str, query: run_table.FiguresQuery) -> run_table.FiguresPage:
    """One page of a tenant's groups, in the order of what they are grouped by."""
    statement = _build_figures(tenant, query)
    rows = connection.execute(statement.limit(_write(query.limit + 1))).all()
    shown = rows[: query.limit]
    size = len(query.by)
    following = encode_cursor([str(value) for value in shown[-1][:size]]) if len(rows) > query.limit else None
    return run_table.FiguresPage([_view_figures(query, row) for row in shown], following)


def _build_figures(tenant: str, query: run_table.FiguresQuery) -> Any:
    only = query.only
    given = [_make_condition(runs, name, getattr(only, name)) for name in only.list_given()]
    groups = [_build_group(name).label(name) for name in query.by]
    names = ("status", "latency_ms", "first_token_ms", "tool_errors", "total_tokens")
    found = select(*groups, *(runs.c[name] for name in names)).where(runs.c.tenant == tenant, *given)
    # Found first: the order of the groups is not that of an index.
    some = found.cte("some_runs").prefix_with("MATERIALIZED")
    by = [some.c[name] for name in query.by] or None
    ranked = select(
        *some.c,
        func.row_number().over(partition_by=by, order_by=some.c.latency_ms).label("latency_rank"),
        func.count().over(partition_by=by).label("latency_count"),
        func.row_number()
        .over(partition_by=by, order_by=[some.c.first_token_ms.is_(None), some.c.first_token_ms])
        .label("first_token_rank"),
        func.count(some.c.first_token_ms).over(partition_by=by).label("first_token_count"),
    ).subquery("ranked")
    chosen = [ranked.c[name] for name in query.by]
    counts = [func.sum(case((ranked.c.status == status, 1), else_=0)).label(status) for status in _STATUSES]
    sums = [func.sum(ranked.c[name]).label(name) for name in ("tool_errors", "total_tokens")]
    ranks = [_build_percentile(ranked, name, percent) for name in ("latency", "first_token") for percent in _PERCENTS]
    statement = select(*chosen, func.count().label("runs"), *counts, *sums, *ranks)
    if query.cursor is not None:
        last = parse_cursor(query.cursor, len(query.by)) if query.by else None
        if last is None:
            raise InvalidRequest(BAD_CURSOR, "/cursor")
        place = [literal(value, column.type) for value, column in zip(last, chosen, strict=True)]
        statement = statement.where(tuple_(*chosen) > tuple_(*place))
    return statement.group_by(*chosen).order_by(*chosen) if chosen else statement


def _build_group(name: str) -> Any:
    if name == "day":
        return func.substr(runs.c.created_at, literal_column("1"), literal_column("10"), type_=runs.c.created_at.type)
    return runs.c[name]


def _build_percentile(ranked: Any, name: str, percent: int) -> Any:
    # The nearest rank, counted in integers: both databases round alike then.
    rank = (ranked.c[f"{name}_count"] * _write(percent) + _write(99)) // _write(100)
    wanted = and_(ranked.c[f"{name}_rank"] == rank, ranked.c[f"{name}_count"] > 0)
    return func.max(case((wanted, ranked.c[f"{name}_ms"]))).label(f"{name}_p{percent}")


def _view_figures(query: run_table.FiguresQuery, row: Any) -> run_table.RunFigures:
    groups: Row = {name: getattr(row, name) for name in query.by}
    if groups.get("model") == "":
        groups["model"] = None
    counts: Row = {name: int(getattr(row, name) or 0) for name in ("runs", *_STATUSES, "tool_errors", "total_tokens")}
    return run_table.RunFigures(
        **groups,
        **counts,
        latency_ms=_view_percentiles(row, "latency"),
        first_token_ms=_view_percentiles(row, "first_token"),
    )


def _view_percentiles(row: Any, name: str) -> run_table.Percentiles:
    return run_table.Percentiles(**{f"p{percent}": getattr(row, f"{name}_p{percent}") for percent in _PERCENTS})
