"""Counts the sessions that are busy or in trouble, of many only so far as a bounded piece of an index goes."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, and_, func, literal_column, select

from swarmkeep.store.ports.index import CountedEnd, CountedStatus, SessionCount, SessionCounts
from swarmkeep.store.sql.indexes.session_search import is_child
from swarmkeep.store.sql.tables import HAS_TROUBLE, IS_BUSY, IS_DAMAGED, sessions

_STATUSES: tuple[CountedStatus, ...] = ("running", "waiting")
_ENDS: tuple[CountedEnd, ...] = ("failed", "interrupted")


def count_sessions(connection: Connection, tenant: str, *, children: bool, most: int) -> SessionCounts:
    """One statement, so that a session that moves on meanwhile is counted once."""
    ranges = [_find_range(tenant, IS_BUSY, sessions.c.status, status) for status in _STATUSES]
    ranges += [_find_range(tenant, HAS_TROUBLE, sessions.c.last_run, end) for end in _ENDS]
    ranges.append(and_(sessions.c.tenant == tenant, IS_DAMAGED))
    parts = [part for where in ranges for part in _count_piece(where, most)]
    found = connection.execute(select(*parts)).one()
    counts = [_make_count(walked, below, children, most) for walked, below in zip(found[::2], found[1::2], strict=True)]
    return SessionCounts(
        status=dict(zip(_STATUSES, counts[: len(_STATUSES)], strict=True)),
        last_run=dict(zip(_ENDS, counts[len(_STATUSES) : -1], strict=True)),
        damaged=counts[-1],
    )


def _find_range(tenant: str, part: Any, column: Any, value: str) -> Any:
    # Both databases find a partial index by its very words; of a parameter PostgreSQL may know nothing.
    return and_(sessions.c.tenant == tenant, part, column == literal_column(f"'{value}'"))


def _count_piece(where: Any, most: int) -> tuple[Any, Any]:
    """How many sessions the piece has, and how many of them are children."""
    piece = select(sessions.c.id).where(where).limit(literal_column(str(most + 1))).subquery()
    below = select(func.count()).select_from(piece).where(is_child(piece.c.id))
    return select(func.count()).select_from(piece).scalar_subquery(), below.scalar_subquery()


def _make_count(walked: int, below: int, children: bool, most: int) -> SessionCount:
    counted = walked if children else walked - below
    return SessionCount(count=min(counted, most), more=walked > most)
