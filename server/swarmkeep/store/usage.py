"""Count each tenant's storage and usage, in the transaction of what is counted; and sum calls over time, in pages."""

from __future__ import annotations

import functools
import math
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, time, timedelta
from typing import Any

import msgspec
from sqlalchemy import (
    ColumnElement,
    Connection,
    Select,
    Table,
    and_,
    bindparam,
    case,
    delete,
    func,
    insert,
    literal,
    literal_column,
    or_,
    select,
    tuple_,
    update,
)

from swarmkeep.events.facts import CompactionSummarised, MessageAdded, RecordedEvent, SessionForked
from swarmkeep.events.records import (
    CompletionRecord,
    ModelShare,
    UsageGroup,
    UsagePage,
    UsageQuery,
    UsageRow,
    read_count,
)
from swarmkeep.store.hashing import SealedEvent
from swarmkeep.store.records import Clock, SessionKey, StorageQuota, TenantTotals, encode_cursor, parse_cursor, utc_now
from swarmkeep.store.statements import Database, OnDatabase, PreparedStatement, build_insert, prepare_insert_if_absent
from swarmkeep.store.tables import (
    as_text,
    blobs,
    database_tomorrow,
    events,
    files,
    of_bound_session,
    of_session,
    session_columns,
    sessions,
    stored_bytes,
    totals,
    unescape,
    usage,
    usage_days,
)

# Usage of model and tool calls: an index of the events, one row for each call, written with the event.

Row = dict[str, Any]
# Longer than any call can take.
_MAX_MILLISECONDS = float(2**40)

SUMS = (
    "model_calls", "tool_calls", "prompt_tokens", "completion_tokens", "total_tokens", "cached_tokens",
    "reasoning_tokens", "model_ms", "tool_ms",
)  # fmt: skip
_INSERT = PreparedStatement.of_rows(insert(usage))


def record_usage(connection: Connection, key: SessionKey, events: Iterable[RecordedEvent]) -> list[Row]:
    """Write the rows of these events, which have just been recorded, and return them."""
    rows: list[Row] = []
    for event in events:
        if isinstance(event.fact, SessionForked):
            rows.clear()
            mine = of_session(usage, key)
            connection.execute(delete(usage).where(*mine))
        elif (row := make_usage_row(event)) is not None:
            rows.append({**session_columns(key), **row})
    if rows:
        _INSERT.insert_many(connection, rows)
    return rows


def insert_usage(connection: Connection, rows: Sequence[Row]) -> None:
    if rows:
        _INSERT.insert_many(connection, rows)


def rewrite_usage(connection: Connection, key: SessionKey, events: Iterable[RecordedEvent]) -> None:
    """Rewrite the rows of these events, as far as they have some."""
    for event in events:
        if _DELETE_CALL.execute(connection, {**session_columns(key), "at_seq": event.seq}):
            record_usage(connection, key, [event])


_DELETE_CALL = PreparedStatement(delete(usage).where(*of_bound_session(usage), usage.c.seq == bindparam("at_seq")))


def make_usage_row(event: RecordedEvent) -> Row | None:
    """The row of an event that is a call; None for any other."""
    fact = event.fact
    completion = fact.completion if isinstance(fact, MessageAdded | CompactionSummarised) else None
    tool = fact.tool if isinstance(fact, MessageAdded) else None
    if completion is None and tool is None:
        return None
    row: Row = {"seq": event.seq, "day": event.at[:10], "run_id": event.run_id or "", "agent": event.agent, "model": ""}
    row |= dict.fromkeys(SUMS, 0)
    if completion is not None:
        row |= _count_model_call(completion)
    elif tool is not None:
        row |= {"tool_calls": 1, "tool_ms": _read_duration(tool.duration_ms)}
    return row


def _count_model_call(completion: CompletionRecord) -> Row:
    reported = completion.usage or {}
    return {
        "model": completion.named_model,
        "model_calls": 1,
        "prompt_tokens": read_count(reported.get("prompt_tokens")),
        "completion_tokens": read_count(reported.get("completion_tokens")),
        "total_tokens": read_count(reported.get("total_tokens")),
        "cached_tokens": _read_count(reported.get("prompt_tokens_details"), "cached_tokens"),
        "reasoning_tokens": _read_count(reported.get("completion_tokens_details"), "reasoning_tokens"),
        "model_ms": _read_duration(completion.duration_ms),
    }


def _read_count(reported: object, name: str) -> int:
    return read_count(reported.get(name)) if isinstance(reported, dict) else 0


def _read_duration(milliseconds: float) -> float:
    return max(0.0, min(float(milliseconds), _MAX_MILLISECONDS))


# All that takes bytes. Of a column of bytes neither database reads the content to tell its length.
SIZES: tuple[tuple[Table, ColumnElement[int]], ...] = (
    (events, func.sum(stored_bytes(events.c.payload))),
    (blobs, func.sum(stored_bytes(blobs.c.text))),
    (files, func.sum(func.length(files.c.content))),
)
_SLICES = 64
_NO_DAY = ""


class Growth(msgspec.Struct, frozen=True, kw_only=True):
    """By how much a tenant's totals change."""

    sessions: int = 0
    bytes: int = 0
    day: str = _NO_DAY
    tokens: int = 0


class TotalsDrift(msgspec.Struct, frozen=True, kw_only=True):
    """A tenant whose counters are not what its rows say."""

    tenant: str
    counted_sessions: int
    sessions: int
    counted_bytes: int
    bytes: int


class SqlTotals(OnDatabase):
    """The counts by tenant."""

    def __init__(self, database: Database, *, clock: Clock = utc_now) -> None:
        super().__init__(database)
        self._clock = clock

    async def read_totals(self, tenant: str) -> TenantTotals:
        """The tenant's totals; the tokens are those of today."""
        now = self._clock().astimezone(UTC)
        day, midnight = now.date(), datetime.combine(now.date() + timedelta(days=1), time(), UTC)
        found = await self.database.read(lambda connection: sum_totals(connection, tenant, day.isoformat()))
        return msgspec.structs.replace(found, seconds_left=math.ceil((midnight - now).total_seconds()))

    async def list_totals(self) -> dict[str, TenantTotals]:
        """Sessions and bytes of every tenant that has had any."""
        return await self.database.read(_list_totals)


def _list_totals(connection: Connection) -> dict[str, TenantTotals]:
    tenants = connection.scalars(select(totals.c.tenant).distinct().order_by(totals.c.tenant)).all()
    return {tenant: sum_totals(connection, tenant) for tenant in tenants}


def count_change(connection: Connection, key: SessionKey, growth: Growth, quota: StorageQuota | None = None) -> None:
    """Count what this transaction changes in a session. Raises QuotaExceeded where that is more than there may be."""
    if growth == Growth():
        return
    _prepare_count(connection.dialect.name).execute(connection, make_totals_row(key, growth))
    if quota is not None:
        quota.check(sum_totals(connection, key.tenant), is_new_session=growth.sessions > 0)


def count_changes(
    connection: Connection, grown: Sequence[tuple[SessionKey, Growth]], quota: StorageQuota | None
) -> None:
    """`count_change` for new sessions of one tenant, one row for each slice."""
    rows: dict[int, dict[str, Any]] = {}
    for key, growth in grown:
        row = make_totals_row(key, growth)
        same = rows.setdefault(row["slice"], {**row, "sessions": 0, "bytes": 0})
        same["sessions"] += growth.sessions
        same["bytes"] += growth.bytes
    # In one order, or two that change the same rows may wait for one another.
    _prepare_count(connection.dialect.name).insert_many(connection, [rows[name] for name in sorted(rows)])
    if quota is not None:
        quota.check(sum_totals(connection, grown[0][0].tenant), is_new_session=True)


def make_totals_row(key: SessionKey, growth: Growth) -> dict[str, Any]:
    return {"tenant": key.tenant, "slice": zlib.crc32(key.id.encode()) % _SLICES, **msgspec.structs.asdict(growth)}


@functools.cache
def _prepare_count(dialect: str) -> PreparedStatement:
    return PreparedStatement.of_rows(add_to_totals(build_insert(totals, dialect)))


def add_to_totals(given: Any) -> Any:
    """Have an insert (see `build_insert`) add to the row that is there."""
    new, old = given.excluded, totals.c
    # Of a day that is over nothing is kept, and what comes late of it is not counted any more. A day that has not come
    # is that of a clock which was wrong: until it comes, nothing would be counted. Which has come is said by the
    # database, because a clock that is behind must not end the day of all others.
    is_day = new.day != literal_column(f"'{_NO_DAY}'")
    begins = and_(is_day, or_(new.day > old.day, old.day > database_tomorrow()))
    tokens = case((new.day == old.day, old.tokens + new.tokens), (begins, new.tokens), else_=old.tokens)
    return given.on_conflict_do_update(
        index_elements=[old.tenant, old.slice],
        set_={
            "sessions": old.sessions + new.sessions,
            "bytes": old.bytes + new.bytes,
            "day": case((begins, new.day), else_=old.day),
            "tokens": tokens,
        },
    )


def sum_totals(connection: Connection, tenant: str, day: str = _NO_DAY) -> TenantTotals:
    """A tenant's totals, with the tokens of a day."""
    [row] = _SUM.fetch_all(connection, {"tenant_": tenant, "day_": day})
    return TenantTotals(sessions=int(row[0] or 0), bytes=int(row[1] or 0), day=day, tokens=int(row[2] or 0))


_SUM = PreparedStatement(
    select(
        func.sum(totals.c.sessions),
        func.sum(totals.c.bytes),
        func.sum(case((totals.c.day == bindparam("day_", type_=totals.c.day.type), totals.c.tokens), else_=0)),
    ).where(totals.c.tenant == bindparam("tenant_", type_=totals.c.tenant.type))
)


def count_tokens(rows: Iterable[Row]) -> tuple[str, int]:
    """The day of the model calls among these rows of usage, and what they took; an empty day if none is."""
    day, tokens = _NO_DAY, 0
    for row in rows:
        if row["model_calls"]:
            day = row["day"]
            tokens += max(row["total_tokens"], row["prompt_tokens"] + row["completion_tokens"])
    return day, tokens


def measure_events(recorded: Iterable[SealedEvent]) -> int:
    """The bytes of these events' payloads, as they are stored."""
    return sum([len((one.encrypted or one.event.payload).encode()) for one in recorded])


def measure_session(connection: Connection, key: SessionKey) -> int:
    """The bytes of a session's payloads, texts and files, as they are stored."""
    row = session_columns(key)
    return sum(int(size or 0) for sums in _SESSION_SIZES for (size,) in sums.fetch_all(connection, row))


_SESSION_SIZES = [PreparedStatement(select(size).where(*of_bound_session(table))) for table, size in SIZES]


# Recounts: sessions and bytes by what is stored, and counters set right where they differ.

# The number of sessions, and all that takes bytes.
COUNTED: tuple[tuple[Table, ColumnElement[int]], ...] = ((sessions, func.count()), *SIZES)
# The slice of no session, which holds what recounts have added and taken away.
_CORRECTIONS = -1


class _Correction(msgspec.Struct, frozen=True):
    """A tenant's drift, and what the corrections were when it was found: two that mend at once must not both."""

    drift: TotalsDrift
    sessions: int
    bytes: int


async def recount_totals(
    database: Database, *, mend: bool, on_table: Callable[[], None] = lambda: None
) -> list[TotalsDrift]:
    """Find the tenants whose counters are not what is stored, and mend them if asked to; servers go on meanwhile.

    Counters and rows are compared as they were at one moment, and only the difference is added: what is recorded
    meanwhile stays counted. Tokens are left as they are, because those of deleted sessions are counted, too.
    `on_table` is called as each of the tables in COUNTED has been read.
    """
    found = await database.read_snapshot(lambda connection: _find_corrections(connection, on_table))
    if mend and found:
        await database.write(lambda connection: _correct(connection, found))
    return [one.drift for one in found]


def _find_corrections(connection: Connection, on_table: Callable[[], None]) -> list[_Correction]:
    kept = select(totals.c.tenant, totals.c.sessions, totals.c.bytes).where(totals.c.slice == _CORRECTIONS)
    before = {tenant: (count, size) for tenant, count, size in connection.execute(kept)}
    drifts = _find_drifts(connection, on_table)
    return [_Correction(drift, *before.get(drift.tenant, (0, 0))) for drift in drifts]


def _find_drifts(connection: Connection, on_table: Callable[[], None]) -> list[TotalsDrift]:
    figures = []
    for table, figure in COUNTED:
        figures.append(_group_by_tenant(connection, table, figure))
        on_table()
    counts, *sizes = figures
    tenants = {*connection.scalars(select(totals.c.tenant).distinct())}.union(*figures)
    found = []
    for tenant in sorted(tenants):
        counted = sum_totals(connection, tenant)
        drift = TotalsDrift(
            tenant=tenant,
            counted_sessions=counted.sessions,
            sessions=counts.get(tenant, 0),
            counted_bytes=counted.bytes,
            bytes=sum(size.get(tenant, 0) for size in sizes),
        )
        if (drift.sessions, drift.bytes) != (drift.counted_sessions, drift.counted_bytes):
            found.append(drift)
    return found


def _group_by_tenant(connection: Connection, table: Any, figure: Any) -> Mapping[str, int]:
    rows = connection.execute(select(table.c.tenant, figure).group_by(table.c.tenant))
    return {tenant: int(value or 0) for tenant, value in rows}


def _correct(connection: Connection, corrections: list[_Correction]) -> None:
    for one in corrections:
        drift = one.drift
        empty = {"tenant": drift.tenant, "slice": _CORRECTIONS, "sessions": 0, "bytes": 0, "day": "", "tokens": 0}
        prepare_insert_if_absent(totals, connection.dialect.name).execute(connection, empty)
        connection.execute(
            update(totals)
            .where(
                totals.c.tenant == drift.tenant,
                totals.c.slice == _CORRECTIONS,
                totals.c.sessions == one.sessions,
                totals.c.bytes == one.bytes,
            )
            .values(
                sessions=one.sessions + drift.sessions - drift.counted_sessions,
                bytes=one.bytes + drift.bytes - drift.counted_bytes,
            )
        )


# Sums over a tenant's model and tool calls, in pages of groups.

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
