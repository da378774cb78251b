"""Finds a page of sessions by filters, the latest first: by when they were made, or by what happened last in them.

Each filter but `idle` is a range of an index in the order of the list. Where one filter says all, its range is the
list. Where several do, one range is walked, a bounded piece at a time, and each session in it is looked up in the
others: no index can hold every pair of filters, and a sort of all that match would cost what there is, not what is
shown. So a page may end before it is full, with a cursor to go on from.

By activity there is one range only, that of all sessions. It is walked, unless a filter leaves so few that they are
better read all, and sorted here. So are those that a search for words finds, in either order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
from sqlalchemy import Connection, Select, and_, func, literal, literal_column, or_, select, tuple_

from swarmkeep.domain.checking.inputs import CHILD_PREFIX
from swarmkeep.domain.finding.words import Term
from swarmkeep.domain.state import SessionStatus
from swarmkeep.store.labels import label_of
from swarmkeep.store.ports.index import EndedRunStatus, SessionOrder
from swarmkeep.store.sql.columns import Verbatim
from swarmkeep.store.sql.prepared import split_parameters
from swarmkeep.store.sql.searching.finding import find_places
from swarmkeep.store.sql.tables import HAS_TROUBLE, IS_BUSY, IS_DAMAGED, session_labels, sessions

Place = tuple[str, str]
"""The time and id of a session: where it stands in the list."""


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
    last_run: EndedRunStatus | None = None
    metadata: Mapping[str, str] = {}
    order: SessionOrder = "created"
    children: bool = True
    """Whether those are found, too, that agents began to ask others."""
    active_after: str | None = None
    active_before: str | None = None
    damaged: bool | None = None
    """Whether they were found damaged."""
    terms: tuple[Term, ...] | None = None
    """Words, of which one message, or id and metadata, have to have all."""


_WALK = Walk()


class Found(msgspec.Struct, frozen=True):
    """Sessions of a page in its order, and where the next page begins; None if there is none."""

    places: Sequence[Place]
    after: Place | None
    said: Mapping[str, Sequence[int]] = {}
    """Where each session, of the page or not, has the words that are searched for."""


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
    if wanted.terms is not None:
        said = find_places(connection, wanted.tenant, wanted.terms)
        page = _make_page(_sort(connection, wanted, list(said), before, limit + 1), limit)
        return msgspec.structs.replace(page, said=said)
    if wanted.order == "created":
        return _walk_range(
            connection, wanted, _choose_range(connection, _list_ranges(wanted), walk), limit, before, walk
        )
    *narrow, _ = _list_ranges(wanted)
    small = _find_small_range(connection, narrow, walk) if narrow else None
    if small is not None:
        return _make_page(_sort_by_activity(connection, wanted, small, before, walk), limit)
    columns = sessions.c
    is_listed = and_(_is_listed(wanted, columns), *_list_times(wanted, columns.active_at))
    by_activity = _Range((columns.active_at, columns.id), is_listed, frozenset({"active"}), _AT_HAND)
    return _walk_range(connection, wanted, by_activity, limit, before, walk)


def _sort_by_activity(
    connection: Connection, wanted: SessionFilter, small: _Range, before: Place | None, walk: Walk
) -> list[Place]:
    found = _walk_range(connection, wanted, small, walk.small_range, None, walk).places
    names = [name for _, name in found]
    if not names:
        return []
    columns = sessions.c
    rows = connection.execute(
        select(columns.active_at, columns.id).where(columns.tenant == wanted.tenant, columns.id.in_(names))
    )
    places: list[Place] = sorted(((at, name) for at, name in rows), reverse=True)
    return [place for place in places if before is None or place < before]


def _sort(
    connection: Connection, wanted: SessionFilter, names: Sequence[str], before: Place | None, count: int
) -> list[Place]:
    """The first of these sessions that match the filters, in the order of the list."""
    columns = sessions.c
    at = columns.active_at if wanted.order == "activity" else columns.created_at
    places: list[Place] = []
    for part in split_parameters(names):
        mine = and_(_is_listed(wanted, columns), columns.id.in_(part))
        some = _Range((at, columns.id), mine, frozenset(), _AT_HAND)
        piece = select(at.label("at"), columns.id.label("id"), *some.at_hand).where(mine).subquery("walked")
        conditions = [condition for _, condition in _list_conditions(wanted, some)]
        if before is not None:
            conditions.append(tuple_(*_WALKED_PLACE) < tuple_(*before))
        places += _run(connection, _select_matching(piece, conditions, count))
    return sorted(places, reverse=True)[:count]


def _walk_range(
    connection: Connection, wanted: SessionFilter, walked: _Range, limit: int, before: Place | None, walk: Walk
) -> Found:
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
    mine, place, at_hand = _is_listed(wanted, columns), (columns.created_at, columns.id), _AT_HAND
    if wanted.status not in (None, "idle"):
        # Both databases find a partial index by its very words; of a parameter PostgreSQL may know nothing.
        is_status = columns.status == literal_column(f"'{wanted.status}'")
        is_busy = and_(mine, IS_BUSY, is_status)
        if wanted.agent is not None:
            yield _Range(place, and_(is_busy, columns.agent == wanted.agent), frozenset({"agent", "status"}), at_hand)
        yield _Range(place, is_busy, frozenset({"status"}), at_hand)
    if wanted.damaged:
        yield _Range(place, and_(mine, IS_DAMAGED), frozenset({"damaged"}), at_hand)
    if wanted.last_run in ("failed", "interrupted"):
        ended = and_(mine, HAS_TROUBLE, columns.last_run == literal_column(f"'{wanted.last_run}'"))
        yield _Range(place, ended, frozenset({"last_run"}), at_hand)
    for name, text in wanted.metadata.items():
        labels = session_labels.c
        has_label = and_(_is_listed(wanted, labels), labels.label == label_of(name, text))
        yield _Range((labels.created_at, labels.session_id), has_label, frozenset({_label_name(name)}))
    if wanted.agent is not None:
        yield _Range(place, and_(mine, columns.agent == wanted.agent), frozenset({"agent"}), at_hand)
    yield _Range(place, mine, frozenset(), at_hand)


def _is_listed(wanted: SessionFilter, columns: Any) -> Any:
    """Told by the id, which every one of these ranges has at hand."""
    mine = columns.tenant == wanted.tenant
    if wanted.children:
        return mine
    name = columns.session_id if "session_id" in columns else columns.id
    return and_(mine, or_(name < _CHILD_IDS[0], name >= _CHILD_IDS[1]))


def is_child(name: Any) -> Any:
    """Whether it is the id of a session that an agent began to ask another."""
    return and_(name >= _CHILD_IDS[0], name < _CHILD_IDS[1])


# From the first id that an agent's session may have to the first behind all of them.
_CHILD_IDS = (f"{CHILD_PREFIX}_", f"{CHILD_PREFIX}{chr(ord('_') + 1)}")


def _list_conditions(wanted: SessionFilter, walked: _Range) -> Iterator[tuple[str, Any]]:
    """Each filter's name, and its condition on a session of the piece that is walked.

    What is not at hand is a scalar query by a key: a join or EXISTS would be turned into whatever is cheapest for all
    sessions.
    """
    for name, value in (("agent", wanted.agent), ("status", wanted.status), ("last_run", wanted.last_run)):
        if value is not None:
            column = sessions.c[name]
            found = literal_column(f"walked.{name}") if walked.at_hand else _look_up(wanted, column)
            yield name, found == literal(value, column.type)
    if wanted.damaged is not None:
        found = literal_column("walked.damaged_seq") if walked.at_hand else _look_up(wanted, sessions.c.damaged_seq)
        yield "damaged", found.is_not(None) if wanted.damaged else found.is_(None)
    times = literal_column("walked.active_at", Verbatim) if walked.at_hand else _look_up(wanted, sessions.c.active_at)
    if limits := _list_times(wanted, times):
        yield "active", and_(*limits)
    labels = session_labels.c
    for name, text in wanted.metadata.items():
        mine = (labels.tenant == wanted.tenant, labels.session_id == _WALKED_ID, labels.label == label_of(name, text))
        yield _label_name(name), select(literal_column("1")).where(*mine).scalar_subquery().is_not(None)


def _list_times(wanted: SessionFilter, active_at: Any) -> list[Any]:
    """The conditions that it was active in the time that is wanted."""
    limits = [active_at >= wanted.active_after] if wanted.active_after is not None else []
    return limits + ([active_at < wanted.active_before] if wanted.active_before is not None else [])


_WALKED_ID: Any = literal_column("walked.id")
_WALKED_PLACE: Any = (literal_column("walked.at", Verbatim), literal_column("walked.id", Verbatim))
_AT_HAND = (sessions.c.agent, sessions.c.status, sessions.c.last_run, sessions.c.active_at, sessions.c.damaged_seq)


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
    return first if len(narrow) == 1 else _find_small_range(connection, narrow, walk) or first


def _find_small_range(connection: Connection, ranges: Sequence[_Range], walk: Walk) -> _Range | None:
    counts = connection.execute(select(*(_count_some(one, walk.small_range) for one in ranges))).one()
    return next((found for found, count in zip(ranges, counts, strict=True) if count < walk.small_range), None)


def _count_some(walked: _Range, most: int) -> Any:
    some = _select_places(walked, None, most).subquery()
    return select(func.count()).select_from(some).scalar_subquery()


def _select_places(walked: _Range, before: Place | None, count: int) -> Select[Any]:
    at, name = walked.columns
    found = select(at.label("at"), name.label("id")).where(walked.where)
    if before is not None:
        found = found.where(tuple_(at, name) < tuple_(*before))
    # In plain words: of a parameter PostgreSQL would have to guess how few it means.
    return found.order_by(at.desc(), name.desc()).limit(literal_column(str(count)))


def _select_matching(piece: Any, conditions: Sequence[Any], count: int) -> Select[Any]:
    found = select(*_WALKED_PLACE).select_from(piece).where(*conditions)
    return found.order_by(*(column.desc() for column in _WALKED_PLACE)).limit(literal_column(str(count)))


def _find_end(connection: Connection, walked: _Range, before: Place | None, walk: Walk) -> Place | None:
    """The last session of a whole piece; None if the range ends within it."""
    last = _select_places(walked, before, 1).offset(literal_column(str(walk.sessions_at_once - 1)))
    return next(iter(_run(connection, last)), None)


def _run(connection: Connection, query: Select[Any]) -> list[Place]:
    return [(at, name) for at, name in connection.execute(query)]
