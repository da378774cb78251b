"""Finds the forks of a session. They begin with its first event, whose hash they share, and by that an index
has them."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, func, select, tuple_

from swarmkeep.store.ports.keys import SessionKey
from swarmkeep.store.sql.indexes.session_search import Place
from swarmkeep.store.sql.tables import IS_FIRST, events, of_session, sessions


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
