"""Leases on head rows: renewing them, and finding the sessions on which nobody holds one."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import ColumnElement, Connection, and_, false, func, or_, select, true, tuple_, update

from swarmkeep.store.ports.keys import SessionKey
from swarmkeep.store.ports.leases import Lease, SessionHead
from swarmkeep.store.sql.columns import database_now
from swarmkeep.store.sql.database import Database, OnDatabase
from swarmkeep.store.sql.prepared import MAX_PARAMETERS
from swarmkeep.store.sql.tables import IS_DUE, IS_RUNNING, of_session, sessions


class SqlLeases(OnDatabase):
    """Leases on a Database. With `only`, no other session is ever found abandoned."""

    def __init__(self, database: Database, *, only: SessionKey | None = None) -> None:
        OnDatabase.__init__(self, database)
        self._only = only

    async def renew(self, leases: Mapping[SessionKey, Lease], *, lease_seconds: float) -> set[SessionKey]:
        await self.database.write(lambda connection: renew_leases(connection, leases, lease_seconds))
        heads = await self.read_heads(leases)
        return {key for key, lease in leases.items() if key not in heads or heads[key].lease != lease}

    async def renew_from_anywhere(self, leases: Mapping[SessionKey, Lease], *, lease_seconds: float) -> None:
        await self.database.write_from_anywhere(lambda connection: renew_leases(connection, leases, lease_seconds))

    async def find_abandoned(self, *, limit: int = 100) -> list[SessionKey]:
        columns = sessions.c
        free = or_(columns.lease_owner.is_(None), columns.lease_expires_at <= database_now())
        return await self._find_in_turn(IS_RUNNING & free, columns.lease_expires_at, limit)

    async def find_due(self, *, limit: int = 100) -> list[SessionKey]:
        # A query of its own, which is run once: PostgreSQL would ask the clock again for each session that may be due.
        now = select(database_now()).scalar_subquery()
        return await self._find_in_turn(IS_DUE & (sessions.c.due_at <= now), sessions.c.due_at, limit)

    async def _find_in_turn(self, condition: Any, since: ColumnElement[Any], limit: int) -> list[SessionKey]:
        only = true() if self._only is None else is_one_of([self._only])
        return await self.database.read(lambda connection: find_in_turn(connection, condition & only, since, limit))

    async def read_clock(self) -> datetime:
        seconds = await self.database.read(lambda connection: connection.scalar(select(database_now())))
        return datetime.fromtimestamp(seconds or 0.0, UTC)

    async def ask_for_partial(self, key: SessionKey, owner: str) -> bool:
        asked = await self.database.write(lambda connection: ask_for_partial(connection, key, owner))
        if asked:
            self.database.notify(key)
        return asked

    async def answer_partial(self, key: SessionKey, lease: Lease, text: str) -> None:
        await self.database.write(lambda connection: answer_partial(connection, key, lease, text))

    async def read_heads(self, keys: Collection[SessionKey]) -> dict[SessionKey, SessionHead]:
        return await self.database.read(lambda connection: find_heads(connection, keys))


def renew_leases(connection: Connection, leases: Mapping[SessionKey, Lease], lease_seconds: float) -> None:
    """Extend those of these leases that are still held.

    Rows that somebody has locked are left out: an append that hangs must not take the other leases down with it, and
    what it does to its own lease is its own affair.
    """
    owners = sorted({lease.owner for lease in leases.values()})
    for some in split_keys(leases):
        mine = select(sessions.c.tenant, sessions.c.id).where(
            IS_RUNNING, is_one_of(some), sessions.c.lease_owner.in_(owners)
        )
        connection.execute(
            update(sessions)
            .where(_SESSION_NAME.in_(mine.with_for_update(skip_locked=True)))
            .values(lease_expires_at=database_now() + lease_seconds)
        )


def find_in_turn(connection: Connection, condition: Any, since: ColumnElement[Any], limit: int) -> list[SessionKey]:
    """The first session of each tenant, then the second of each, and so on.

    However many one tenant has, they take no more than its share of what is looked at.
    """
    tenant, name = sessions.c.tenant, sessions.c.id
    turn = func.row_number().over(partition_by=tenant, order_by=(since.nulls_first(), name))
    found = select(tenant, name, turn.label("turn"), since.label("since")).where(condition).subquery()
    rows = select(found.c.tenant, found.c.id).order_by(
        found.c.turn, found.c.since.nulls_first(), found.c.tenant, found.c.id
    )
    return [SessionKey(row.tenant, row.id) for row in connection.execute(rows.limit(limit))]


def ask_for_partial(connection: Connection, key: SessionKey, owner: str) -> bool:
    """Leave the wish in the session's row, if another owner's lease on it has not expired."""
    columns = sessions.c
    held = (columns.lease_owner.is_not(None), columns.lease_owner != owner, columns.lease_expires_at > database_now())
    wish = update(sessions).where(*of_session(sessions, key), IS_RUNNING, *held).values(partial="")
    return connection.execute(wish).rowcount == 1


def answer_partial(connection: Connection, key: SessionKey, lease: Lease, text: str) -> None:
    """Put the answer in the place of the wish."""
    columns = sessions.c
    held = (columns.lease_owner == lease.owner, columns.lease_epoch == lease.epoch, columns.partial == "")
    connection.execute(update(sessions).where(*of_session(sessions, key), *held).values(partial=text))


def find_heads(connection: Connection, keys: Collection[SessionKey]) -> dict[SessionKey, SessionHead]:
    """Where these sessions end."""
    columns = sessions.c
    wanted = (
        columns.tenant,
        columns.id,
        columns.head_seq,
        columns.head_hash,
        columns.lease_owner,
        columns.lease_epoch,
        columns.partial,
    )
    found: dict[SessionKey, SessionHead] = {}
    for some in split_keys(keys):
        rows = connection.execute(select(*wanted).where(is_one_of(some)))
        for tenant, name, seq, digest, owner, epoch, partial in rows:
            lease = None if owner is None else Lease(owner, epoch)
            found[SessionKey(tenant, name)] = SessionHead(seq, digest.hex(), lease, partial)
    return found


_SESSION_NAME = tuple_(sessions.c.tenant, sessions.c.id)
_KEYS_PER_STATEMENT = MAX_PARAMETERS // 2


def split_keys(keys: Iterable[SessionKey]) -> Iterator[list[SessionKey]]:
    left = list(keys)
    for start in range(0, len(left), _KEYS_PER_STATEMENT):
        yield left[start : start + _KEYS_PER_STATEMENT]


def is_one_of(keys: Iterable[SessionKey]) -> Any:
    """The condition that a session is one of these.

    Tenant by tenant: for a long list of pairs SQLite reads all sessions and looks each up in the list.
    """
    names = dict[str, list[str]]()
    for key in keys:
        names.setdefault(key.tenant, []).append(key.id)
    columns = sessions.c
    return or_(false(), *(and_(columns.tenant == tenant, columns.id.in_(ids)) for tenant, ids in names.items()))
