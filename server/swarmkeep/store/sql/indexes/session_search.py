"""Finds a page of sessions by filters, newest first.

Each filter but `idle` is a range of an index in the order of the list. Where one filter says all, its range is the
list. Where several do, one range is walked, a bounded piece at a time, and each session in it is looked up in the
others: no index can hold every pair of filters, and a sort of all that match would cost what there is, not what is
shown. So a page may end before it is full, with a cursor to go on from.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
from sqlalchemy import Connection, Select, and_, func, literal, literal_column, select, tuple_

from swarmkeep.domain.state import SessionStatus
from swarmkeep.store.labels import label_of
from swarmkeep.store.sql.columns import Verbatim
from swarmkeep.store.sql.tables import IS_BUSY, session_labels, sessions

Place = tuple[str, str]
"""The creation time and id of a session: where it stands in the list."""


class Walk(msgspec.Struct, frozen=True):
    """How far the sessions of one filter are looked up in the others."""

    sessions_at_once: int = 500
    sessions_for_a_page: int = 5_000
    small_range: int = 500
    """A range of fewer sessions is walked before any other."""


class SessionFilter(msgspec.Struct, frozen=True, kw_only=True):
    tenant: str
    agent: str | None = None
    status: SessionStatus | None = None
    metadata: Mapping[str, str] = {}


_WALK = Walk()


class Found(msgspec.Struct, frozen=True):
    """Sessions of a page in its order, and where the next page begins; None if there is none."""

    places: Sequence[Place]
    after: Place | None


class _Range(msgspec.Struct, frozen=True):
    """The sessions of some filters in the order of the list, with what else is at hand of each."""

    columns: tuple[Any, Any]
    where: Any
    answers: frozenset[str] = frozenset()
    at_hand: tuple[Any, ...] = ()


def find_sessions(
    connection: Connection, wanted: SessionFilter, *, limit: int, before: Place | None, walk: Walk = _WALK
) -> Found:
    """Up to `limit` sessions after the place `before`."""
    walked = _choose_range(connection, _list_ranges(wanted), walk)
    others = [condition for name, condition in _list_conditions(wanted, walked) if name not in walked.answers]
    if not others:
        return _make_page(_run(connection, _select_places(walked, before, limit + 1)), limit)
    places: list[Place] = []
    for _ in range(walk.sessions_for_a_page // walk.sessions_at_once):
        piece = _select_places(walked, before, walk.sessions_at_once).add_columns(*walked.at_hand).subquery("walked")
        places += _run(connection, _select_matching(piece, others, limit + 1 - len(places)))
        end = None if len(places) > limit else _find_end(connection, walked, before, walk)
        if end is None:
            return _make_page(places, limit)
        before = end
    return Found(places, before)


def _make_page(places: Sequence[Place], limit: int) -> Found:
    return Found(places[:limit], places[limit - 1] if len(places) > limit else None)


def _list_ranges(wanted: SessionFilter) -> Iterator[_Range]:
    """Those that can be walked, the one of all sessions last."""
    columns = sessions.c
    mine, place, at_hand = (
        columns.tenant == wanted.tenant,
        (columns.created_at, columns.id),
        (columns.agent, columns.status),
    )
    if wanted.status not in (None, "idle"):
        # Both databases find a partial index by its very words; of a parameter PostgreSQL may know nothing.
        is_status = columns.status == literal_column(f"'{wanted.status}'")
        is_busy = and_(mine, IS_BUSY, is_status)
        if wanted.agent is not None:
            yield _Range(place, and_(is_busy, columns.agent == wanted.agent), frozenset({"agent", "status"}), at_hand)
        yield _Range(place, is_busy, frozenset({"status"}), at_hand)
    for name, text in wanted.metadata.items():
        labels = session_labels.c
        has_label = and_(labels.tenant == wanted.tenant, labels.label == label_of(name, text))
        yield _Range((labels.created_at, labels.session_id), has_label, frozenset({_label_name(name)}))
    if wanted.agent is not None:
        yield _Range(place, and_(mine, columns.agent == wanted.agent), frozenset({"agent"}), at_hand)
    yield _Range(place, mine, frozenset(), at_hand)


def _list_conditions(wanted: SessionFilter, walked: _Range) -> Iterator[tuple[str, Any]]:
    """Each filter's name, and its condition on a session of the piece that is walked.

    What is not at hand is a scalar query by a key: a join or EXISTS would be turned into whatever is cheapest for all
    sessions.
    """
    for name, value in (("agent", wanted.agent), ("status", wanted.status)):
        if value is not None:
            column = sessions.c[name]
            found = literal_column(f"walked.{name}") if walked.at_hand else _look_up(wanted, column)
            yield name, found == literal(value, column.type)
    labels = session_labels.c
    for name, text in wanted.metadata.items():
        mine = (labels.tenant == wanted.tenant, labels.session_id == _WALKED_ID, labels.label == label_of(name, text))
        yield _label_name(name), select(literal_column("1")).where(*mine).scalar_subquery().is_not(None)


_WALKED_ID: Any = literal_column("walked.id")
_WALKED_PLACE: Any = (literal_column("walked.created_at", Verbatim), literal_column("walked.id", Verbatim))


def _label_name(metadata_key: str) -> str:
    return f"metadata.{metadata_key}"


def _look_up(wanted: SessionFilter, column: Any) -> Any:
    return select(column).where(sessions.c.tenant == wanted.tenant, sessions.c.id == _WALKED_ID).scalar_subquery()


def _choose_range(connection: Connection, ranges: Iterator[_Range], walk: Walk) -> _Range:
    """The first that is small; if none is, the first of all."""
    first, *others = ranges
    narrow = [first, *others[:-1]]
    # One that answers for agent and status stands before those that answer for one of them: none of these is smaller.
    narrow = [one for one in narrow if one is first or not one.answers <= first.answers]
    if len(narrow) == 1:
        return first
    counts = connection.execute(select(*(_count_some(one, walk.small_range) for one in narrow))).one()
    return next((found for found, count in zip(narrow, counts, strict=True) if count < walk.small_range), first)


def _count_some(walked: _Range, most: int) -> Any:
    some = _select_places(walked, None, most).subquery()
    return select(func.count()).select_from(some).scalar_subquery()


def _select_places(walked: _Range, before: Place | None, count: int) -> Select[Any]:
    created_at, name = walked.columns
    found = select(created_at.label("created_at"), name.label("id")).where(walked.where)
    if before is not None:
        found = found.where(tuple_(created_at, name) < tuple_(*before))
    # In plain words: of a parameter PostgreSQL would have to guess how few it means.
    return found.order_by(created_at.desc(), name.desc()).limit(literal_column(str(count)))


def _select_matching(piece: Any, conditions: Sequence[Any], count: int) -> Select[Any]:
    found = select(*_WALKED_PLACE).select_from(piece).where(*conditions)
    return found.order_by(*(column.desc() for column in _WALKED_PLACE)).limit(literal_column(str(count)))


def _find_end(connection: Connection, walked: _Range, before: Place | None, walk: Walk) -> Place | None:
    """The last session of a whole piece; None if the range ends within it."""
    last = _select_places(walked, before, 1).offset(literal_column(str(walk.sessions_at_once - 1)))
    return next(iter(_run(connection, last)), None)


def _run(connection: Connection, query: Select[Any]) -> list[Place]:
    return [(created_at, name) for created_at, name in connection.execute(query)]
