"""The session list: head rows as lists show them."""

from __future__ import annotations

import asyncio
import functools
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType
from sqlalchemy import Connection, Select, and_, func, literal, literal_column, or_, select, tuple_

from swarmkeep.agent.values import UNASSIGNED
from swarmkeep.events.codec import decode, encode
from swarmkeep.events.facts import Parent
from swarmkeep.events.records import Usage
from swarmkeep.events.run_table import EndedRunStatus
from swarmkeep.events.state import CHILD_PREFIX, SessionStatus, Verdict
from swarmkeep.events.views import ListedSession, SessionSummary
from swarmkeep.events.words import Term
from swarmkeep.store.person_keys import get_keyring, read_view
from swarmkeep.store.records import (
    CountedEnd,
    CountedStatus,
    SessionCount,
    SessionCounts,
    SessionKey,
    SessionOrder,
    SessionPage,
    label_of,
    make_session_cursor,
    parse_session_cursor,
)
from swarmkeep.store.search import Budget, Candidate, fill_matches, find_places, read_candidates
from swarmkeep.store.statements import OnDatabase, split_parameters
from swarmkeep.store.tables import (
    HAS_TROUBLE,
    IS_ASSIGNED,
    IS_BUSY,
    IS_DAMAGED,
    IS_FIRST,
    IS_RATED,
    IS_WAITING,
    Verbatim,
    as_bytes,
    database_now,
    events,
    of_session,
    session_labels,
    sessions,
    stored_bytes,
    usage,
)

# Pages of sessions by filters: by when they were made, or by what happened last in them, the latest first or last.

Place = tuple[str, str]
"""The time and id of a session: where it stands in the list."""


class Walk(msgspec.Struct, frozen=True):
    """The limits of how far the sessions of one filter are looked up in the others."""

    sessions_at_once: int = 500
    sessions_for_a_page: int = 5_000
    small_range: int = 500
    """A range of fewer sessions is walked before any other."""


class SessionFilter(msgspec.Struct, frozen=True):
    """The choice of a tenant's sessions, and their order."""

    tenant: str
    agent: str | None = None
    status: SessionStatus | None = None
    last_run: EndedRunStatus | None = None
    """How the last run ended, of sessions in which none is active."""
    metadata: Mapping[str, str] | None = None
    """Top-level values: text as it is, others as their JSON."""
    order: SessionOrder = "created"
    """By their creation, or by what happened last in them: while a run is running that is its beginning. A session in
    which something happens moves, so that pages by activity may show it twice or not at all. The latest comes first,
    but for the order `oldest_activity`."""
    children: bool = True
    """Whether those are found, too, that agents began to ask others."""
    active_after: str | None = None
    active_before: str | None = None
    """Times of what happened last; this one is not included."""
    damaged: bool | None = None
    """Whether they were found damaged."""
    assignee: str | None = None
    """The name that looks after them; `none` for those without one."""
    feedback: Verdict | None = None
    """What people think of its answers: `down` if one is not found good, `up` for others that were rated."""
    terms: tuple[Term, ...] | None = None
    """Words, of which one message, or id and metadata, have to have all, as far as they are indexed."""


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
    ascending: bool = False


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
    by_activity = _make_range_by_activity(wanted)
    *ranges, _ = _list_ranges(wanted)
    # What this one answers itself, and in order, is no reason to sort.
    narrow = [one for one in ranges if not one.answers <= by_activity.answers]
    small = _find_small_range(connection, narrow, walk) if narrow else None
    if small is not None:
        return _make_page(_sort_by_activity(connection, wanted, small, before, walk), limit)
    return _walk_range(connection, wanted, by_activity, limit, before, walk)


def _make_range_by_activity(wanted: SessionFilter) -> _Range:
    columns = sessions.c
    place = (columns.active_at, columns.id)
    where = and_(_is_listed(wanted, columns), *_list_times(wanted, columns.active_at))
    if wanted.status == "waiting":
        return _Range(place, and_(where, IS_WAITING), frozenset({"active", "status"}), _AT_HAND, _is_ascending(wanted))
    return _Range(place, where, frozenset({"active"}), _AT_HAND, _is_ascending(wanted))


def _is_ascending(wanted: SessionFilter) -> bool:
    return wanted.order == "oldest_activity"


def _is_behind(place: Any, before: Any, ascending: bool) -> Any:
    return place > before if ascending else place < before


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
    ascending = _is_ascending(wanted)
    places: list[Place] = sorted(((at, name) for at, name in rows), reverse=not ascending)
    return [place for place in places if before is None or _is_behind(place, before, ascending)]


def _sort(
    connection: Connection, wanted: SessionFilter, names: Sequence[str], before: Place | None, count: int
) -> list[Place]:
    """The first of these sessions that match the filters, in the order of the list."""
    columns = sessions.c
    at = columns.created_at if wanted.order == "created" else columns.active_at
    ascending = _is_ascending(wanted)
    places: list[Place] = []
    for part in split_parameters(names):
        mine = and_(_is_listed(wanted, columns), columns.id.in_(part))
        some = _Range((at, columns.id), mine, frozenset(), _AT_HAND)
        piece = select(at.label("at"), columns.id.label("id"), *some.at_hand).where(mine).subquery("walked")
        conditions = [condition for _, condition in _list_conditions(wanted, some)]
        if before is not None:
            conditions.append(_is_behind(tuple_(*_WALKED_PLACE), tuple_(*before), ascending))
        places += _run(connection, _select_matching(piece, conditions, count, ascending))
    return sorted(places, reverse=not ascending)[:count]


def _walk_range(
    connection: Connection, wanted: SessionFilter, walked: _Range, limit: int, before: Place | None, walk: Walk
) -> Found:
    others = [condition for name, condition in _list_conditions(wanted, walked) if name not in walked.answers]
    if not others:
        return _make_page(_run(connection, _select_places(walked, before, limit + 1)), limit)
    places: list[Place] = []
    for _ in range(walk.sessions_for_a_page // walk.sessions_at_once):
        piece = _select_places(walked, before, walk.sessions_at_once).add_columns(*walked.at_hand).subquery("walked")
        places += _run(connection, _select_matching(piece, others, limit + 1 - len(places), walked.ascending))
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
    if wanted.assignee not in (None, UNASSIGNED):
        assigned = and_(mine, IS_ASSIGNED, columns.assignee == wanted.assignee)
        yield _Range(place, assigned, frozenset({"assignee"}), at_hand)
    if wanted.feedback is not None:
        rated = and_(mine, IS_RATED, columns.feedback == literal_column(f"'{wanted.feedback}'"))
        yield _Range(place, rated, frozenset({"feedback"}), at_hand)
    if wanted.last_run in ("failed", "interrupted"):
        ended = and_(mine, HAS_TROUBLE, columns.last_run == literal_column(f"'{wanted.last_run}'"))
        yield _Range(place, ended, frozenset({"last_run"}), at_hand)
    for name, text in (wanted.metadata or {}).items():
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
    """Tell if it is the id of a session that an agent began to ask another."""
    return and_(name >= _CHILD_IDS[0], name < _CHILD_IDS[1])


# From the first id that an agent's session may have to the first behind all of them.
_CHILD_IDS = (f"{CHILD_PREFIX}_", f"{CHILD_PREFIX}{chr(ord('_') + 1)}")


def _list_conditions(wanted: SessionFilter, walked: _Range) -> Iterator[tuple[str, Any]]:
    """Each filter's name, and its condition on a session of the piece that is walked.

    A condition not at hand is a scalar query by a key: a join or EXISTS would be turned into the plan that is
    cheapest for all sessions.
    """
    for name in ("agent", "status", "last_run", "feedback"):
        value = getattr(wanted, name)
        if value is not None:
            column = sessions.c[name]
            found = literal_column(f"walked.{name}") if walked.at_hand else _look_up(wanted, column)
            yield name, found == literal(value, column.type)
    if wanted.damaged is not None:
        found = literal_column("walked.damaged_seq") if walked.at_hand else _look_up(wanted, sessions.c.damaged_seq)
        yield "damaged", found.is_not(None) if wanted.damaged else found.is_(None)
    if wanted.assignee is not None:
        column = sessions.c.assignee
        found = literal_column("walked.assignee", Verbatim) if walked.at_hand else _look_up(wanted, column)
        yield "assignee", found.is_(None) if wanted.assignee == UNASSIGNED else found == wanted.assignee
    times = literal_column("walked.active_at", Verbatim) if walked.at_hand else _look_up(wanted, sessions.c.active_at)
    if limits := _list_times(wanted, times):
        yield "active", and_(*limits)
    labels = session_labels.c
    for name, text in (wanted.metadata or {}).items():
        mine = (labels.tenant == wanted.tenant, labels.session_id == _WALKED_ID, labels.label == label_of(name, text))
        yield _label_name(name), select(literal_column("1")).where(*mine).scalar_subquery().is_not(None)


def _list_times(wanted: SessionFilter, active_at: Any) -> list[Any]:
    """The conditions that it was active in the time that is wanted."""
    limits = [active_at >= wanted.active_after] if wanted.active_after is not None else []
    return limits + ([active_at < wanted.active_before] if wanted.active_before is not None else [])


_WALKED_ID: Any = literal_column("walked.id")
_WALKED_PLACE: Any = (literal_column("walked.at", Verbatim), literal_column("walked.id", Verbatim))
_AT_HAND = (
    sessions.c.agent,
    sessions.c.status,
    sessions.c.last_run,
    sessions.c.active_at,
    sessions.c.damaged_seq,
    sessions.c.assignee,
    sessions.c.feedback,
)


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
        found = found.where(_is_behind(tuple_(at, name), tuple_(*before), walked.ascending))
    # In plain words: of a parameter PostgreSQL would have to guess how few it means.
    return found.order_by(*_sort_by((at, name), walked.ascending)).limit(literal_column(str(count)))


def _select_matching(piece: Any, conditions: Sequence[Any], count: int, ascending: bool) -> Select[Any]:
    found = select(*_WALKED_PLACE).select_from(piece).where(*conditions)
    return found.order_by(*_sort_by(_WALKED_PLACE, ascending)).limit(literal_column(str(count)))


def _sort_by(place: Iterable[Any], ascending: bool) -> list[Any]:
    return [column.asc() if ascending else column.desc() for column in place]


def _find_end(connection: Connection, walked: _Range, before: Place | None, walk: Walk) -> Place | None:
    """The last session of a whole piece; None if the range ends within it."""
    last = _select_places(walked, before, 1).offset(literal_column(str(walk.sessions_at_once - 1)))
    return next(iter(_run(connection, last)), None)


def _run(connection: Connection, query: Select[Any]) -> list[Place]:
    return [(at, name) for at, name in connection.execute(query)]


# Counts of the sessions that are busy or in trouble; of many, only a bounded piece of an index is counted.

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
    """Count the sessions of the piece, and those of them that are children."""
    piece = select(sessions.c.id).where(where).limit(literal_column(str(most + 1))).subquery()
    below = select(func.count()).select_from(piece).where(is_child(piece.c.id))
    return select(func.count()).select_from(piece).scalar_subquery(), below.scalar_subquery()


def _make_count(walked: int, below: int, children: bool, most: int) -> SessionCount:
    counted = walked if children else walked - below
    return SessionCount(count=min(counted, most), more=walked > most)


# Finds the forks of a session. They begin with its first event, whose hash they share, and by that an index has
# them.


def find_family(connection: Connection, key: SessionKey, *, limit: int, before: Place | None) -> Sequence[Place]:
    """The latest sessions that begin with the same event: forks of this one, their forks, and what it is a fork of."""
    first = connection.scalar(select(events.c.hash).where(*of_session(events, key), events.c.seq == 1))
    if first is None:
        return []
    begins = (events.c.tenant == key.tenant, IS_FIRST, events.c.hash == first)
    # As it is, SQLite would walk all of a tenant's sessions in the order of their creation to save a sort of a few.
    at = func.coalesce(sessions.c.created_at, "")
    query = (
        select(at.label("at"), sessions.c.id)
        .join(events, (events.c.session_id == sessions.c.id) & (events.c.tenant == sessions.c.tenant))
        .where(sessions.c.tenant == key.tenant, *begins, sessions.c.id != key.id)
        .order_by(at.desc(), sessions.c.id.desc())
        .limit(limit)
    )
    if before is not None:
        query = query.where(tuple_(at, sessions.c.id) < tuple_(*before))
    return [(row.at, row.id) for row in connection.execute(query)]


_Found = tuple[ListedSession, list[Candidate]]


class SqlSessionIndex(OnDatabase):
    """The list of a tenant's sessions."""

    async def list_sessions(
        self,
        wanted: SessionFilter,
        *,
        limit: int = 50,
        cursor: str | None = None,
        include_context: bool = False,
        max_bytes: int = sys.maxsize,
    ) -> SessionPage:
        """List the sessions that are wanted, in the order that is.

        Their context variables are read only with `include_context`. A page ends early once it has `max_bytes` of JSON.
        With `terms`, each session says where it has them.

        Raises InvalidRequest for a cursor that this store did not make.
        """
        query = functools.partial(
            list_candidates,
            wanted=wanted,
            limit=limit,
            before=parse_session_cursor(cursor, wanted.order),
            include_context=include_context,
            max_bytes=max_bytes,
        )
        found, after = await self.database.read(query, seconds=self.read_seconds)
        if wanted.terms is None:
            return SessionPage([session for session, _ in found], after)
        # Not in the read: much text is looked through, for which others must not wait.
        return SessionPage(await asyncio.to_thread(fill_matches, found, wanted.terms), after)

    async def count_sessions(self, tenant: str, *, children: bool = False, most: int = 1_000) -> SessionCounts:
        """Count the sessions that are busy or in trouble. Of each kind `most` are looked at, and without `children`
        those of them left out that agents began to ask others."""
        return await self.database.read(
            lambda connection: count_sessions(connection, tenant, children=children, most=most),
            seconds=self.read_seconds,
        )

    async def list_forks(
        self, key: SessionKey, *, limit: int = 50, cursor: str | None = None, max_bytes: int = sys.maxsize
    ) -> SessionPage:
        """The sessions that were forked from this one itself, the latest first; none if there is no such session.

        A page may have fewer than `limit`, or none, and yet a cursor: forks of forks are passed over.
        Raises InvalidRequest for a cursor that this store did not make.
        """
        before = parse_session_cursor(cursor, "created")

        def query(connection: Connection) -> SessionPage:
            places = find_family(connection, key, limit=limit, before=before)
            shown, cut = _read_page(connection, key.tenant, places, False, max_bytes)
            after = places[-1] if cut is None and len(places) == limit else cut
            forks = [one for one in shown if one.forked_from is not None and one.forked_from.session_id == key.id]
            return SessionPage(forks, None if after is None else make_session_cursor(after, "created"))

        return await self.database.read(query, seconds=self.read_seconds)


def list_candidates(
    connection: Connection,
    wanted: SessionFilter,
    *,
    limit: int,
    before: tuple[str, str] | None,
    include_context: bool,
    max_bytes: int,
) -> tuple[list[_Found], str | None]:
    """One page of a tenant's sessions, and where the next begins; `before` is the last one's time and id on the page
    before. If it is searched for words, each with where it may have them.
    """
    found = find_sessions(connection, wanted, limit=limit, before=before)
    shown, cut = _read_page(connection, wanted.tenant, found.places, include_context, max_bytes)
    budget = Budget()
    terms = wanted.terms or ()
    candidates = [
        (one, read_candidates(connection, SessionKey(wanted.tenant, one.id), found.said.get(one.id, ()), terms, budget))
        for one in shown
    ]
    after = found.after if cut is None else cut
    return candidates, None if after is None else make_session_cursor(after, wanted.order)


def _read_page(
    connection: Connection, tenant: str, places: Sequence[Place], include_context: bool, max_bytes: int
) -> tuple[list[ListedSession], Place | None]:
    """The sessions at these places; and where it ends, if their JSON is too much for a page."""
    shown: list[ListedSession] = []
    size = 0
    for place, listed in _read_views(connection, tenant, places, include_context, max_bytes):
        shown.append(listed)
        size += len(encode(listed))
        if size >= max_bytes and place != places[-1]:
            return shown, place
    return shown, None


def _read_views(
    connection: Connection, tenant: str, places: Sequence[Place], include_context: bool, max_bytes: int
) -> Iterator[tuple[Place, ListedSession]]:
    """The sessions that were found, of whose stored views no more than `max_bytes` or one are in memory at a time."""
    for part in _divide(places, _read_view_sizes(connection, tenant, places), max_bytes):
        rows = {row.id: row for row in _select_by_id(connection, tenant, part, (sessions.c.view, *_LISTED_COLUMNS))}
        # All at once, and not one after the other below.
        get_keyring(connection).find(connection, [row.person_key for row in rows.values() if row.person_key])
        for place in part:
            # One that is not there any more was deleted at this very moment.
            if place[1] in rows:
                row = rows[place[1]]
                view = row.view if row.person_key is None else read_view(connection, row.view)
                yield place, _decode_view(row, view, include_context)


def _read_view_sizes(connection: Connection, tenant: str, places: Sequence[Place]) -> dict[str, int]:
    columns = (sessions.c.id, stored_bytes(sessions.c.view).label("size"))
    return {row.id: row.size for row in _select_by_id(connection, tenant, places, columns)}


def _select_by_id(connection: Connection, tenant: str, places: Sequence[Place], columns: Iterable[Any]) -> Any:
    names = [name for _, name in places]
    return connection.execute(select(*columns).where(sessions.c.tenant == tenant, sessions.c.id.in_(names)))


def _divide(places: Sequence[Place], sizes: Mapping[str, int], max_bytes: int) -> Iterator[list[Place]]:
    part: list[Place] = []
    total = 0
    for place in places:
        size = sizes.get(place[1], 0)
        if part and total + size > max_bytes:
            yield part
            part, total = [], 0
        part.append(place)
        total += size
    if part:
        yield part


_LISTED_COLUMNS = (
    sessions.c.id,
    sessions.c.status,
    sessions.c.agent,
    sessions.c.head_seq,
    sessions.c.head_hash,
    sessions.c.created_at,
    sessions.c.updated_at,
    sessions.c.last_run,
    sessions.c.damaged_seq,
    sessions.c.person_key,
)


def _decode_view(row: Any, view: Any, include_context: bool) -> ListedSession:
    """Decode a session as its head row shows it; as far as the other columns go, if the view was damaged."""
    try:
        if include_context:
            found = decode(view, ListedSession)
        else:
            found = ListedSession(**msgspec.structs.asdict(decode(view, SessionSummary)))
        damaged = UNSET if row.damaged_seq is None else row.damaged_seq
        return msgspec.structs.replace(found, last_run_status=row.last_run, damaged_seq=damaged)
    except (ValueError, TypeError):
        return ListedSession(
            id=row.id,
            status=row.status,
            agent=row.agent,
            context_variables={} if include_context else msgspec.UNSET,
            metadata={},
            seq=row.head_seq,
            hash=as_bytes(row.head_hash).hex(),
            active_run_id=None,
            message_count=0,
            usage=Usage(),
            forked_from=None,
            created_at=row.created_at,
            updated_at=row.updated_at,
            last_run_status=row.last_run,
        )


# Active runs: made from the sessions that are busy, their leases, and the usage of the runs.


ActiveStatus = Literal["running", "waiting"]


class ActiveRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run that is active or waits, with its session."""

    id: str
    """The run."""
    session_id: str
    """Its session."""
    title: str | None
    """The session's title."""
    status: ActiveStatus
    """`running` or `waiting`."""
    agent: str
    """The active agent."""
    since: str
    """When it began, or continued after a wait; for a waiting run, when something was last recorded."""
    seq: int
    """The session's last event."""
    server: str | None
    """The process that has the session's lease, by an id that it makes as it starts; null while there is none."""
    lease_epoch: int
    """How often the lease has gone to another process."""
    lease_seconds: float | None
    """How long the lease lasts if it is not renewed; below 0 once the run is to be taken over."""
    queued_runs: int
    """How many runs wait in the session for their turn."""
    model_calls: int
    """Its own so far."""
    tool_calls: int
    """Its own so far."""
    prompt_tokens: int
    """Of its own calls so far."""
    completion_tokens: int
    """Of its own calls so far."""
    total_tokens: int
    """Of its own calls so far."""
    parent: Parent | UnsetType = UNSET
    """If an agent made the session to ask another one: that call."""


class ActiveRunPage(msgspec.Struct, frozen=True):
    runs: list[ActiveRun]
    next_cursor: str | None


class SqlActiveRuns(OnDatabase):
    """The list of a tenant's active runs."""

    async def list_active_runs(
        self,
        tenant: str,
        status: ActiveStatus,
        *,
        limit: int = 50,
        cursor: str | None = None,
        max_bytes: int = sys.maxsize,
    ) -> ActiveRunPage:
        """Runs in that state, those first whose sessions were made last. A page may have fewer than `limit`, or none,
        and yet a cursor.

        Raises InvalidRequest for a cursor that this store did not make.
        """
        before = parse_session_cursor(cursor, "created")
        wanted = SessionFilter(tenant=tenant, status=status)

        def query(connection: Connection) -> ActiveRunPage:
            found, after = list_candidates(
                connection, wanted, limit=limit, before=before, include_context=False, max_bytes=max_bytes
            )
            # A damaged view names no run.
            busy = [one for one, _ in found if one.active_run_id is not None]
            leases = _read_leases(connection, tenant, busy) if busy else {}
            sums = _sum_calls(connection, tenant, busy) if busy else {}
            # What the list said and what the lease says are read at the same moment only on some databases: a session
            # that has been deleted between the two is left out.
            runs = [_make_run(one, status, leases[one.id], sums) for one in busy if one.id in leases]
            return ActiveRunPage(runs, after)

        return await self.database.read(query, seconds=self.read_seconds)


def _make_run(listed: ListedSession, status: ActiveStatus, lease: Any, sums: dict[tuple[str, str], Any]) -> ActiveRun:
    run_id = str(listed.active_run_id)
    counted = sums.get((listed.id, run_id))
    return ActiveRun(
        id=run_id,
        session_id=listed.id,
        title=None if listed.title is UNSET else listed.title,
        status=status,
        agent=listed.agent,
        since=lease.active_at or listed.updated_at,
        seq=listed.seq,
        server=lease.lease_owner,
        lease_epoch=lease.lease_epoch,
        lease_seconds=None if lease.lease_owner is None else lease.left,
        queued_runs=0 if listed.queued_runs is UNSET else listed.queued_runs,
        parent=listed.parent,
        **{name: 0 if counted is None else int(getattr(counted, name)) for name in _COUNTED},
    )


_COUNTED = ("model_calls", "tool_calls", "prompt_tokens", "completion_tokens", "total_tokens")


def _read_leases(connection: Connection, tenant: str, busy: Iterable[ListedSession]) -> dict[str, Any]:
    columns = sessions.c
    statement = select(
        columns.id,
        columns.active_at,
        columns.lease_owner,
        columns.lease_epoch,
        (columns.lease_expires_at - database_now()).label("left"),
    ).where(columns.tenant == tenant, columns.id.in_([one.id for one in busy]))
    return {row.id: row for row in connection.execute(statement)}


def _sum_calls(connection: Connection, tenant: str, busy: Iterable[ListedSession]) -> dict[tuple[str, str], Any]:
    """By session and run: an import may have given a session runs that another one has, too."""
    columns = usage.c
    sums = [func.sum(columns[name]).label(name) for name in _COUNTED]
    statement = (
        select(columns.session_id, columns.run_id, *sums)
        .where(columns.tenant == tenant, columns.run_id.in_([one.active_run_id for one in busy]))
        .group_by(columns.run_id, columns.session_id)
    )
    return {(row.session_id, row.run_id): row for row in connection.execute(statement)}
