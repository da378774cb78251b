"""The feed: the events of all of a tenant's sessions in one order, which readers can take up again at any place.

No database tells in which order transactions were committed: a number that is taken while events are recorded may
appear after a greater one, and a reader would have passed it. So the numbers are given later, by the reader: what
was recorded since becomes a row for each session, under a lock that is held until the commit. Who sees a number sees
all smaller ones. A turn writes nothing here, and a tenant whose feed is not read has none.
"""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec
from sqlalchemy import Connection, Select, Text, delete, exists, func, insert, select, tuple_, type_coerce, update

from swarmkeep.events.codec import decode
from swarmkeep.events.errors import ConsumerNotFound, InvalidRequest
from swarmkeep.events.facts import RecordedEvent
from swarmkeep.events.state import Origin
from swarmkeep.store.contents import list_archived
from swarmkeep.store.person_keys import attach_keys, find_stand_in
from swarmkeep.store.reading import EVENT_COLUMNS, MAX_BIGINT, PAYLOAD, decode_event
from swarmkeep.store.records import SessionKey, label_of
from swarmkeep.store.statements import OnDatabase, build_insert, build_insert_if_absent, split_parameters
from swarmkeep.store.tables import (
    IS_BUSY,
    as_text,
    events,
    feed,
    feed_positions,
    session_labels,
    sessions,
    stored_bytes,
    unescape,
)

MAX_CONSUMERS = 1_000
"""Of one tenant."""

# Of one transaction, during which other publications of the tenant wait.
_SESSIONS_AT_ONCE = 200
# Of one row of the feed, so that a page is made of a few of them.
_EVENTS_IN_ROW = 1_000
# How far one read looks for events of the wanted kind.
_ROWS_AT_ONCE = 1_000
# The name under which the end of the feed stands among the positions of consumers.
_END = ""


class FeedCursor(msgspec.Struct, frozen=True, order=True):
    """A place in the feed: behind event `seq` of row `position`, where 0 is before its first."""

    position: int
    seq: int

    def __str__(self) -> str:
        return f"{self.position}-{self.seq}"


BEGINNING = FeedCursor(1, 0)
_CURSOR = re.compile(r"([0-9]{1,16})-([0-9]{1,16})", re.ASCII)
PlacedEvent = tuple[FeedCursor, RecordedEvent]
"""An event, and the place behind it."""


def parse_feed_cursor(text: str, pointer: str) -> FeedCursor:
    """Raises InvalidRequest for text that is no place in a feed."""
    found = _CURSOR.fullmatch(text)
    if found is None or not int(found[1]):
        raise InvalidRequest("must be the `cursor` of an event of the feed, or its `next_cursor`", pointer)
    return FeedCursor(int(found[1]), int(found[2]))


class FeedFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Of these types, recorded while one of these agents was active, and of sessions that have this metadata now; of
    any, where nothing is said."""

    types: Sequence[str] = ()
    agents: Sequence[str] = ()
    metadata: Mapping[str, str] = {}


EVERYTHING = FeedFilter()


class FeedPage(msgspec.Struct, frozen=True):
    """Events with the place behind each, and the place to go on from. `is_last`: nothing that has a number follows."""

    events: list[PlacedEvent]
    cursor: FeedCursor
    is_last: bool


class Consumer(msgspec.Struct, frozen=True, kw_only=True):
    """A reader's place in the feed, kept by its name. `lag`: how many rows of the feed follow it."""

    tenant: str
    name: str
    cursor: FeedCursor
    updated_at: str
    lag: int


class SqlFeed(OnDatabase):
    """The feed of each tenant, and the places of its consumers. Several processes may publish at once."""

    async def publish(
        self, tenant: str, *, ids: Collection[str] = (), since: str | None = None, seconds: float = 1.0
    ) -> bool:
        """Give numbers to what was recorded: in these sessions, in those that are running, and in those in which
        something happened at `since` or later; in any, without one. Stops after about so many `seconds`.

        False if there may be more. Events keep their order within a session. A fork's begin behind those it has copied.
        """
        until = time.monotonic() + seconds
        place: tuple[str, str] | None = None
        if ids:
            for some in split_parameters(ids):
                await self.database.write(lambda connection: _publish(connection, tenant, some))  # noqa: B023
        while time.monotonic() < until:
            last = place
            found = await self.database.read_snapshot(lambda connection: _find_changed(connection, tenant, since, last))  # noqa: B023
            names = [name for _, name in found]
            if names:
                await self.database.write(lambda connection: _publish(connection, tenant, names))  # noqa: B023
            if len(found) < _SESSIONS_AT_ONCE:
                return True
            place = max(found)
        return False

    async def read_feed(
        self,
        tenant: str,
        after: FeedCursor,
        wanted: FeedFilter,
        *,
        limit: int,
        max_bytes: int,
        before: int | None = None,
    ) -> FeedPage:
        """Events behind a place and in rows `before` one, up to the one that fills so many bytes. It may have none
        though more follow: one read looks at a part of the feed only.

        Raises InvalidRequest for a place beyond the end.
        """
        return await self.database.read(
            lambda connection: _read_page(connection, tenant, after, wanted, limit, max_bytes, before),
            seconds=self.read_seconds,
        )

    async def list_archived_in_feed(self, tenant: str, after: FeedCursor) -> list[tuple[int, SessionKey]]:
        """The archived sessions whose events the next read would have to show, in the order of their first rows."""
        upto = after.position + _ROWS_AT_ONCE
        here = select(feed.c.session_id, feed.c.position).where(
            feed.c.tenant == tenant, feed.c.position >= after.position, feed.c.position <= upto
        )

        def find(connection: Connection) -> list[tuple[int, SessionKey]]:
            first: dict[str, int] = {}
            for name, position in connection.execute(here):
                first[name] = min(position, first.get(name, position))
            return sorted(
                ((first[key.id], key) for key in list_archived(connection, tenant, first)), key=lambda one: one[0]
            )

        return await self.database.read(find)

    async def find_feed_end(self, tenant: str) -> FeedCursor:
        """The place behind everything that has a number."""
        return await self.database.read(lambda connection: FeedCursor(_read_end(connection, tenant) + 1, 0))

    async def list_consumers(self, tenant: str | None = None) -> list[Consumer]:
        """The consumers of a tenant, by name; without one, of all tenants, but no more than one tenant may have."""
        return await self.database.read(lambda connection: _list_consumers(connection, tenant))

    async def read_consumer(self, tenant: str, name: str) -> Consumer:
        """Raises ConsumerNotFound."""
        found = await self.database.read(lambda connection: _list_consumers(connection, tenant, name))
        if not found:
            raise ConsumerNotFound(name)
        return found[0]

    async def move_consumer(self, tenant: str, name: str, cursor: FeedCursor, at: str) -> Consumer:
        """Keep a consumer's place, forward or back; a new name makes one. Raises InvalidRequest for a place beyond the
        end, and where there are too many consumers."""
        return await self.database.write(lambda connection: _move_consumer(connection, tenant, name, cursor, at))

    async def delete_consumer(self, tenant: str, name: str) -> None:
        """Raises ConsumerNotFound."""
        where = (feed_positions.c.tenant == tenant, feed_positions.c.name == name)
        gone = await self.database.write(lambda connection: connection.execute(delete(feed_positions).where(*where)))
        if not gone.rowcount:
            raise ConsumerNotFound(name)


# Publication: what was recorded since is found without a lock, and looked at again under it.


def _find_changed(
    connection: Connection, tenant: str, since: str | None, after: tuple[str, str] | None
) -> list[tuple[str, str]]:
    """Sessions that end behind what was published of them, each with the time that they are in the order of."""
    is_behind = ~exists().where(
        feed.c.tenant == sessions.c.tenant, feed.c.session_id == sessions.c.id, feed.c.upto_seq >= sessions.c.head_seq
    )
    at = sessions.c.created_at if since is None else sessions.c.active_at
    page = select(at, sessions.c.id).where(sessions.c.tenant == tenant, is_behind)
    page = page.order_by(at, sessions.c.id).limit(_SESSIONS_AT_ONCE)
    if after is not None:
        page = page.where(tuple_(at, sessions.c.id) > tuple_(*after))
    if since is None:
        return [(row[0], row[1]) for row in connection.execute(page)]
    # While a run is running the time is that of its beginning.
    running = select(at, sessions.c.id).where(
        sessions.c.tenant == tenant, IS_BUSY, sessions.c.status == "running", is_behind, at < since
    )
    found = [(row[0], row[1]) for row in connection.execute(page.where(at >= since))]
    if after is None:
        found += [(row[0], row[1]) for row in connection.execute(running.limit(_SESSIONS_AT_ONCE))]
    return found


class _Forked(msgspec.Struct, frozen=True):
    """The part of a stored view that says what a fork has copied."""

    forked_from: Origin | None = None


def _publish(connection: Connection, tenant: str, names: Sequence[str]) -> None:
    """Add rows to the feed for what was recorded in these sessions, in the order given."""
    end = _lock_end(connection, tenant)
    here = (sessions.c.tenant == tenant, sessions.c.id.in_(names))
    # Against a deletion at the same moment, which takes the session's rows of the feed with it. Appends go on.
    heads = select(sessions.c.id, sessions.c.head_seq, sessions.c.view).where(*here)
    heads = heads.with_for_update(read=True, key_share=True)
    ends = {row.id: row for row in connection.execute(heads)}
    published = select(feed.c.session_id, func.max(feed.c.upto_seq).label("seq")).where(
        feed.c.tenant == tenant, feed.c.session_id.in_(names)
    )
    known = {row.session_id: row.seq for row in connection.execute(published.group_by(feed.c.session_id))}
    rows: list[dict[str, Any]] = []
    for name in dict.fromkeys(names):
        if name not in ends:
            continue
        seq = known[name] if name in known else _find_copied(ends[name].view)
        while seq < ends[name].head_seq:
            upto = min(seq + _EVENTS_IN_ROW, ends[name].head_seq)
            rows.append({"tenant": tenant, "session_id": name, "after_seq": seq, "upto_seq": upto})
            seq = upto
    if not rows:
        return
    numbered = [{**row, "position": number} for number, row in enumerate(rows, start=end + 1)]
    connection.execute(insert(feed), numbered)
    connection.execute(_of_consumer(update(feed_positions), tenant, _END).values(position=end + len(rows)))


def _lock_end(connection: Connection, tenant: str) -> int:
    """The last number that was given, which none but this transaction moves on until it ends."""
    row = {"tenant": tenant, "name": _END, "position": 0, "seq": 0, "updated_at": ""}
    connection.execute(build_insert_if_absent(feed_positions, connection.dialect.name).values(row))
    lock = _of_consumer(select(feed_positions.c.position), tenant, _END).with_for_update()
    return connection.scalar(lock) or 0


def _find_copied(view: Any) -> int:
    """The last event that a session has copied from the one it was forked from; they are in the feed as that one's."""
    try:
        forked_from = decode(find_stand_in(as_text(view)), _Forked).forked_from
    except (ValueError, TypeError):
        return 0
    return 0 if forked_from is None else forked_from.seq


# Reading.


def _read_page(
    connection: Connection,
    tenant: str,
    after: FeedCursor,
    wanted: FeedFilter,
    limit: int,
    max_bytes: int,
    before: int | None,
) -> FeedPage:
    end = _read_end(connection, tenant)
    _refuse_beyond(after, end, "/query/after")
    last_row = end if before is None else min(end, before - 1)
    upto = FeedCursor(min(last_row, after.position + _ROWS_AT_ONCE), MAX_BIGINT)
    sizes = _select(tenant, after, upto, wanted, (events.c.seq, stored_bytes(events.c.payload))).limit(limit)
    last = _find_page_end(connection.execute(sizes).all(), limit, max_bytes)
    page = _select(tenant, after, last or upto, wanted, EVENT_COLUMNS).limit(limit)
    found = [
        (FeedCursor(position, row[0]), decode_event(unescape(as_text(name)), row))
        for position, name, *row in attach_keys(connection, connection.execute(page).all(), 2 + PAYLOAD)
        # A seq of another type is damage, which `verify` names.
        if type(row[0]) is int
    ]
    if last is not None:
        return FeedPage(found, last, False)
    return FeedPage(found, max(after, FeedCursor(upto.position + 1, 0)), upto.position == end)


def _find_page_end(sizes: Sequence[Sequence[Any]], limit: int, max_bytes: int) -> FeedCursor | None:
    """The event that fills a page, None if none does. Looked for first: to read all until there is enough would take
    it into memory."""
    size = 0
    for number, (position, _, seq, payload_bytes) in enumerate(sizes, start=1):
        size += payload_bytes or 0
        if (number == limit or size >= max_bytes) and isinstance(seq, int):
            return FeedCursor(position, seq)
    return None


def _select(
    tenant: str, after: FeedCursor, upto: FeedCursor, wanted: FeedFilter, columns: Sequence[Any]
) -> Select[Any]:
    """Events behind one place and up to another, in the feed's order."""
    names = type_coerce(feed.c.session_id, Text)
    in_row = (
        (events.c.tenant == feed.c.tenant)
        & (events.c.session_id == feed.c.session_id)
        & (events.c.seq > feed.c.after_seq)
        & (events.c.seq <= feed.c.upto_seq)
    )
    statement = (
        select(feed.c.position, names, *columns)
        .select_from(feed.join(events, in_row))
        .where(feed.c.tenant == tenant, feed.c.position >= after.position, feed.c.position <= upto.position)
        .where((feed.c.position > after.position) | (events.c.seq > after.seq))
        .where((feed.c.position < upto.position) | (events.c.seq <= upto.seq))
        .order_by(feed.c.position, events.c.seq)
    )
    if wanted.types:
        statement = statement.where(events.c.type.in_(list(wanted.types)))
    if wanted.agents:
        statement = statement.where(events.c.agent.in_(list(wanted.agents)))
    for key, value in wanted.metadata.items():
        labelled = exists().where(
            session_labels.c.tenant == feed.c.tenant,
            session_labels.c.session_id == feed.c.session_id,
            session_labels.c.label == label_of(key, value),
        )
        statement = statement.where(labelled)
    return statement


def _read_end(connection: Connection, tenant: str) -> int:
    return connection.scalar(_of_consumer(select(feed_positions.c.position), tenant, _END)) or 0


def _refuse_beyond(place: FeedCursor, end: int, pointer: str) -> None:
    # What a cursor of another database, or of this one before an older copy took its place, would be behind of.
    if place.position > end + 1:
        detail = "the cursor is behind the end of the feed: it is of another database, or an older copy took its place"
        raise InvalidRequest(f"{detail}; begin at a place that you know, or at the beginning", pointer)


# The places of consumers.


def _of_consumer(statement: Any, tenant: str, name: str) -> Any:
    return statement.where(feed_positions.c.tenant == tenant, feed_positions.c.name == name)


def _list_consumers(connection: Connection, tenant: str | None, name: str | None = None) -> list[Consumer]:
    end = feed_positions.alias("end_of_feed")
    statement = (
        select(feed_positions, end.c.position.label("last"))
        .select_from(feed_positions.outerjoin(end, (end.c.tenant == feed_positions.c.tenant) & (end.c.name == _END)))
        .where(feed_positions.c.name > _END)
        .order_by(feed_positions.c.tenant, feed_positions.c.name)
        .limit(MAX_CONSUMERS)
    )
    if tenant is not None:
        statement = statement.where(feed_positions.c.tenant == tenant)
    if name is not None:
        statement = statement.where(feed_positions.c.name == name)
    return [_view_consumer(row, row.last or 0) for row in connection.execute(statement)]


def _view_consumer(row: Any, end: int) -> Consumer:
    cursor = FeedCursor(row.position, row.seq)
    return Consumer(
        tenant=row.tenant,
        name=row.name,
        cursor=cursor,
        updated_at=row.updated_at,
        lag=max(0, end + 1 - cursor.position),
    )


def _move_consumer(connection: Connection, tenant: str, name: str, cursor: FeedCursor, at: str) -> Consumer:
    _refuse_beyond(cursor, _read_end(connection, tenant), "/cursor")
    moved = {"position": cursor.position, "seq": cursor.seq, "updated_at": at}
    if not connection.execute(_of_consumer(update(feed_positions), tenant, name).values(moved)).rowcount:
        count = select(func.count()).where(feed_positions.c.tenant == tenant, feed_positions.c.name > _END)
        if (connection.scalar(count) or 0) >= MAX_CONSUMERS:
            detail = f"there are {MAX_CONSUMERS} consumers, which is the most; delete those that are not used"
            raise InvalidRequest(detail, "/name")
        add = build_insert(feed_positions, connection.dialect.name).values(tenant=tenant, name=name, **moved)
        connection.execute(add.on_conflict_do_update(index_elements=["tenant", "name"], set_=moved))
    return _list_consumers(connection, tenant, name)[0]
