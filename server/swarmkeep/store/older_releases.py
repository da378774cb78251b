"""Mends what a server of the release before leaves undone, when it goes on for a while after a migration.

It does not know columns and tables that came after it. What it writes of events is whole, so all else can be made of
them: how a session's last run ended, when something happened in it last, which files are anybody's, and which sessions
are to be found by their words.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
from sqlalchemy import ColumnElement, Connection, and_, delete, exists, func, select, update

from swarmkeep.domain.errors import SessionNotFound
from swarmkeep.domain.views import find_last_run_status
from swarmkeep.store.opening import SqlStore
from swarmkeep.store.ports.keys import SessionKey
from swarmkeep.store.sql.contents import MARKS, collect_named, delete_unnamed
from swarmkeep.store.sql.heads import is_head
from swarmkeep.store.sql.reader import SqlEventReader
from swarmkeep.store.sql.searching.marks import add_marks, count_strays, delete_strays
from swarmkeep.store.sql.tables import files, of_session, sessions

# This release keeps the two alike in every session that does not run, so one of another release wrote last.
_IS_STALE: ColumnElement[bool] = and_(sessions.c.status != "running", sessions.c.active_at != sessions.c.updated_at)
_MARK = files.alias("mark")
# Those of a fork that is being made are marked, and removed by their mark.
_IS_NOBODYS: ColumnElement[bool] = and_(
    files.c.session_id != MARKS,
    ~exists().where(sessions.c.tenant == files.c.tenant, sessions.c.id == files.c.session_id),
    ~exists().where(_MARK.c.tenant == files.c.tenant, _MARK.c.session_id == MARKS, _MARK.c.hash == files.c.session_id),
)


class Leftovers(msgspec.Struct, frozen=True, kw_only=True):
    """`sessions` that stand wrong in lists, `files` of sessions that were deleted, and the number of these sessions of
    which there are `words` in the index."""

    sessions: int
    files: int
    words: int


async def mend_leftovers(
    store: SqlEventReader, *, mend: bool, on_step: Callable[[int, int | None], None] = lambda done, total: None
) -> Leftovers:
    """Find them, and mend them if asked to; servers go on meanwhile. Before the bytes of files are counted.

    `on_step` hears how many sessions are mended, of how many.
    """
    stale, stray, words = await store.database.read_snapshot(_find)
    if mend and stray:
        # What was deleted must not stay readable.
        await store.database.write(lambda connection: connection.execute(delete(files).where(_IS_NOBODYS)), erases=True)
    if mend:
        await store.database.write(_mend_index, erases=words > 0)
    for done, key in enumerate(stale if mend else ()):
        on_step(done, len(stale))
        await _mend_session(store, key)
    return Leftovers(sessions=len(stale), files=stray, words=words)


def _mend_index(connection: Connection) -> None:
    delete_strays(connection)
    add_marks(connection)


def _find(connection: Connection) -> tuple[Sequence[SessionKey], int, int]:
    stale = connection.execute(select(sessions.c.tenant, sessions.c.id).where(_IS_STALE))
    stray = connection.scalar(select(func.count()).select_from(files).where(_IS_NOBODYS))
    return [SessionKey(*row) for row in stale], stray or 0, count_strays(connection)


async def _mend_session(store: SqlEventReader, key: SessionKey) -> None:
    try:
        state = await store.state(key)
    except SessionNotFound:
        return

    def change(connection: Connection) -> None:
        values = {"active_at": sessions.c.updated_at, "last_run": find_last_run_status(state)}
        mine = and_(*of_session(sessions, key), is_head(state), _IS_STALE)
        # If it has gone on, whoever wrote knew better, or it is found the next time.
        if connection.execute(update(sessions).where(mine).values(values)).rowcount:
            delete_unnamed(connection, files, key, collect_named(state).files)

    await store.database.write(change, erases=True)


class Stamped(msgspec.Struct, frozen=True):
    """What was done with the stamps of all sessions: made anew, kept, and refused because something is wrong."""

    stamped: int
    kept: int
    refused: list[SessionKey]


async def stamp_sessions(store: SqlStore, *, unstamped: bool, on_step: Callable[[], object]) -> Stamped:
    """Sign every session's head with the first key: see `SqlEventLog.stamp`."""
    counts = {"stamped": 0, "kept": 0}
    refused: list[SessionKey] = []
    after: SessionKey | None = None
    while keys := await store.list_session_keys(after=after):
        for key in keys:
            outcome = await store.stamp(key, unstamped=unstamped)
            if outcome == "refused":
                refused.append(key)
            else:
                counts[outcome] += 1
            on_step()
        after = keys[-1]
    return Stamped(counts["stamped"], counts["kept"], refused)
