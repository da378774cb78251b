"""A plain append as one statement, for a database that changes several tables with one: PostgreSQL.

It is made of the same inserts and updates as the general way (`writes`), each of which takes its rows from the head row
that was moved on: without that, nothing is written. One round trip takes the place of six, and of the
transaction's two.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from sqlalchemy import BigInteger, Insert, Table, bindparam, column, func, insert, select, true, values
from sqlalchemy.sql.selectable import CTE

from swarmkeep.store.sql.columns import stored_bytes
from swarmkeep.store.sql.counting.totals import add_to_totals
from swarmkeep.store.sql.heads import LeaseMode, build_head_update
from swarmkeep.store.sql.indexes.usage_days import add_to_days
from swarmkeep.store.sql.prepared import PreparedStatement, build_insert, build_insert_if_absent
from swarmkeep.store.sql.searching.marks import build_marks, move_mark
from swarmkeep.store.sql.tables import blobs, events, idempotency, sessions, totals, usage, usage_days

_DIALECT = "postgresql"
_OF_SESSION = ("tenant", "session_id")


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """What a plain append consists of. Parts that it does not have cost nothing."""

    mode: LeaseMode
    running: bool
    event_count: int
    call_count: int
    day_count: int
    text_count: int
    has_record: bool
    has_quota: bool
    changes_index: bool


@functools.cache
def prepare_append(shape: Shape) -> PreparedStatement:
    """The statement: a row with the lease's epoch, or none if it was refused."""
    head = _build_head(shape)
    parts: list[CTE] = [_build_inserts(insert(events), head, shape.event_count).cte("new_events")]
    if shape.call_count:
        parts.append(_build_inserts(insert(usage), head, shape.call_count).cte("new_usage"))
    texts = _build_texts(head, shape.text_count) if shape.text_count else None
    if texts is not None:
        parts.append(texts)
    if shape.changes_index:
        parts.append(_build_mark(head).cte("new_mark"))
    if shape.has_record:
        parts.append(_build_record(head).cte("new_record"))
    totals_changed = _build_totals(head, texts).cte("new_totals")
    parts.append(totals_changed)
    if shape.day_count:
        parts.append(_build_days(head, totals_changed, shape.day_count).cte("new_days"))
    return PreparedStatement(select(head.c.lease_epoch).add_cte(*parts))


def name_parameters(table: Table, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The parameters of rows that the statement inserts into a table."""
    names = _name_columns(table)
    return {f"{table.name}_{number}_{name}": row[name] for number, row in enumerate(rows) for name in names}


@functools.cache
def _name_columns(table: Table) -> list[str]:
    """Those that do not name the session, which the head row gives."""
    return [each.name for each in table.c if each.name not in _OF_SESSION]


def _build_head(shape: Shape) -> CTE:
    statement = build_head_update(shape.mode, shape.running)
    if shape.has_quota:
        stored = select(func.coalesce(func.sum(totals.c.bytes), 0)).where(totals.c.tenant == bindparam("tenant_"))
        statement = statement.where(stored.scalar_subquery() <= bindparam("spare_bytes", type_=BigInteger()))
    moved = sessions.c
    return statement.returning(moved.tenant, moved.id, moved.head_seq, moved.lease_epoch).cte("head")


def _build_inserts(into: Any, head: CTE, count: int) -> Any:
    rows = _build_rows(into.table, count)
    source = select(head.c.tenant, head.c.id, *rows.c).select_from(head.join(rows, true()))
    return into.from_select([*_OF_SESSION, *rows.c.keys()], source)


def _build_rows(table: Table, count: int) -> Any:
    # Arrays would do for any number of rows, but the driver examines every item of one by itself: 4 % of a turn.
    types = {name: table.c[name].type for name in _name_columns(table)}
    return values(*(column(name, of) for name, of in types.items()), name=f"{table.name}_rows").data(
        [
            tuple(bindparam(f"{table.name}_{number}_{name}", type_=of) for name, of in types.items())
            for number in range(count)
        ]
    )


def _build_texts(head: CTE, count: int) -> CTE:
    absent = _build_inserts(build_insert_if_absent(blobs, _DIALECT), head, count)
    texts: CTE = absent.returning(stored_bytes(blobs.c.text).label("size")).cte("new_texts")
    return texts


def _build_record(head: CTE) -> Insert:
    # A key that was used before is an error here, because the head has moved by then. It undoes the whole statement.
    names = ("key", "digest", "run_id")
    given = [bindparam(f"record_{name}", type_=idempotency.c[name].type) for name in names]
    source = select(head.c.tenant, head.c.id, *given, head.c.head_seq)
    return insert(idempotency).from_select([*_OF_SESSION, *names, "seq"], source)


def _build_mark(head: CTE) -> Any:
    return move_mark(build_marks(_DIALECT, head))


def _build_totals(head: CTE, texts: CTE | None) -> Any:
    given = {name: bindparam(f"totals_{name}", type_=each.type) for name, each in totals.c.items()}
    row: dict[str, Any] = {**given, "tenant": head.c.tenant}
    if texts is not None:
        row["bytes"] = given["bytes"] + select(func.coalesce(func.sum(texts.c.size), 0)).scalar_subquery()
    source = select(*row.values()).select_from(head)
    return add_to_totals(build_insert(totals, _DIALECT).from_select(list(row), source)).returning(totals.c.tenant)


def _build_days(head: CTE, totals_changed: CTE, count: int) -> Any:
    rows = _build_rows(usage_days, count)
    # Behind the totals, as in `writes`: whoever changes both the other way round may wait for ever.
    source = select(head.c.tenant, *rows.c).select_from(head.join(totals_changed, true()).join(rows, true()))
    return add_to_days(build_insert(usage_days, _DIALECT).from_select(["tenant", *rows.c.keys()], source))
