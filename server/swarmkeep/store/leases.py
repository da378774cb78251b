"""Leases on head rows: renewing them, and finding the sessions without one."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Subquery,
    and_,
    bindparam,
    column,
    func,
    or_,
    select,
    text,
    true,
    tuple_,
    update,
)

from swarmkeep.events.codec import encode_text
from swarmkeep.store.records import Lease, SessionHead, SessionKey
from swarmkeep.store.statements import Database, OnDatabase, PreparedStatement
from swarmkeep.store.tables import (
    IS_DUE,
    IS_RUNNING,
    IS_SOUND,
    as_bytes,
    as_text,
    database_now,
    escape,
    of_session,
    sessions,
    unescape,
)


class SqlLeases(OnDatabase):
    """The leases of all sessions."""

    def __init__(self, database: Database, *, only: SessionKey | None = None) -> None:
        OnDatabase.__init__(self, database)
        self._only = only

    async def renew(self, leases: Mapping[SessionKey, Lease], *, lease_seconds: float) -> set[SessionKey]:
        """Extend these leases, by the database's clock. Returns the sessions on which they are not held any more."""
        await self.database.write(lambda connection: renew_leases(connection, leases, lease_seconds))
        heads = await self.read_heads(leases)
        return {key for key, lease in leases.items() if key not in heads or heads[key].lease != lease}

    async def renew_from_anywhere(self, leases: Mapping[SessionKey, Lease], *, lease_seconds: float) -> None:
        """Extend these leases, those of them that are still held, from another event loop than the store's."""
        await self.database.write_from_anywhere(lambda connection: renew_leases(connection, leases, lease_seconds))

    async def find_abandoned(self, *, limit: int = 100) -> list[SessionKey]:
        """Find sessions that are running without an unexpired lease on them: of each tenant in its turn, the
        longest abandoned first.
        """
        columns = sessions.c
        free = or_(columns.lease_owner.is_(None), columns.lease_expires_at <= database_now())
        return await self._find_in_turn(IS_RUNNING & IS_SOUND & free, columns.lease_expires_at, limit)

    async def find_due(self, *, limit: int = 100) -> list[SessionKey]:
        # A query of its own, which is run once: PostgreSQL would ask the clock again for each session that may be due.
        """Sessions that have become due (see `State.due_at`): of each tenant in its turn, the longest due first."""
        now = select(database_now()).scalar_subquery()
        return await self._find_in_turn(IS_DUE & IS_SOUND & (sessions.c.due_at <= now), sessions.c.due_at, limit)

    async def _find_in_turn(self, condition: Any, since: ColumnElement[Any], limit: int) -> list[SessionKey]:
        only = true() if self._only is None else and_(*of_session(sessions, self._only))
        return await self.database.read(lambda connection: find_in_turn(connection, condition & only, since, limit))

    async def read_clock(self) -> datetime:
        """The present in UTC by the database's clock: the only one that all servers share."""
        seconds = await self.database.read(lambda connection: connection.scalar(select(database_now())))
        return datetime.fromtimestamp(seconds or 0.0, UTC)

    async def ask_for_partial(self, key: SessionKey, owner: str) -> bool:
        """Ask the process that advances a session what its model has said so far: `SessionHead.partial` is the answer.

        False if no process but `owner`, who asks, advances it. The wish ends with the run, or when it is taken over.
        """
        columns = sessions.c
        # Neither is true if no process holds one: then both are null.
        held = (columns.lease_owner != owner, columns.lease_expires_at > database_now())
        wish = update(sessions).where(*of_session(sessions, key), IS_RUNNING, *held).values(partial="")
        asked = await self.database.write(lambda connection: connection.execute(wish).rowcount == 1)
        if asked:
            self.database.notify(key)
        return asked

    async def answer_partial(self, key: SessionKey, lease: Lease, text: str) -> None:
        """Answer that, if it is still asked and the lease is still held."""
        columns = sessions.c
        held = (columns.lease_owner == lease.owner, columns.lease_epoch == lease.epoch, columns.partial == "")
        answer = update(sessions).where(*of_session(sessions, key), *held).values(partial=text)
        await self.database.write(lambda connection: connection.execute(answer).rowcount)

    async def read_heads(self, keys: Collection[SessionKey]) -> dict[SessionKey, SessionHead]:
        """Read where these sessions end by now; those that do not exist are left out."""
        return await self.database.read(lambda connection: find_heads(connection, keys))


def renew_leases(connection: Connection, leases: Mapping[SessionKey, Lease], lease_seconds: float) -> None:
    """Extend those of these leases that are still held.

    Rows that another transaction has locked are left out: an append that hangs must not take the other leases down
    with it, and what it does to its own lease is its own affair.
    """
    statement = _prepare_renewal(connection.dialect.name)
    for named in _render_named([(*_name(key), escape(lease.owner), lease.epoch) for key, lease in leases.items()]):
        statement.execute(connection, {"named": named, "seconds": lease_seconds})


@functools.cache
def _prepare_renewal(dialect: str) -> PreparedStatement:
    columns, named = sessions.c, _build_named(dialect)
    held = (columns.lease_owner == named.c.owner, columns.lease_epoch == named.c.epoch)
    mine = select(columns.tenant, columns.id).join_from(named, sessions, and_(_is_named(named), *held))
    free = mine.where(IS_RUNNING).with_for_update(skip_locked=True, of=sessions)
    until = database_now() + bindparam("seconds", type_=columns.lease_expires_at.type)
    return PreparedStatement(
        update(sessions).where(tuple_(columns.tenant, columns.id).in_(free)).values(lease_expires_at=until)
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


def find_heads(connection: Connection, keys: Collection[SessionKey]) -> dict[SessionKey, SessionHead]:
    """Find where these sessions end."""
    statement = _prepare_heads(connection.dialect.name)
    found: dict[SessionKey, SessionHead] = {}
    for named in _render_named([_name(key) for key in keys]):
        rows = statement.fetch_all(connection, {"named": named})
        for tenant, name, seq, digest, owner, epoch, partial in rows:
            lease = None if owner is None else Lease(unescape(as_text(owner)), epoch)
            said = None if partial is None else unescape(as_text(partial))
            key = SessionKey(unescape(as_text(tenant)), unescape(as_text(name)))
            found[key] = SessionHead(seq, as_bytes(digest).hex(), lease, said)
    return found


@functools.cache
def _prepare_heads(dialect: str) -> PreparedStatement:
    columns, named = sessions.c, _build_named(dialect)
    wanted = (
        columns.tenant,
        columns.id,
        columns.head_seq,
        columns.head_hash,
        columns.lease_owner,
        columns.lease_epoch,
        columns.partial,
    )
    return PreparedStatement(select(*wanted).join_from(named, sessions, _is_named(named)))


# In one statement, whose rows take a few milliseconds to read.
_SESSIONS_AT_ONCE = 1000


def _name(key: SessionKey) -> tuple[str, str]:
    return escape(key.tenant), escape(key.id)


def _render_named(sessions: Sequence[tuple[Any, ...]]) -> Iterator[str]:
    """The parameter of `_build_named`, for as many statements as it takes."""
    for start in range(0, len(sessions), _SESSIONS_AT_ONCE):
        yield encode_text(sessions[start : start + _SESSIONS_AT_ONCE])


def _build_named(dialect: str) -> Subquery:
    """Sessions as rows, out of lists in JSON: tenant, id, and where a lease matters its owner and epoch.

    They are one parameter, so that the statement is the same however many they are.
    """
    if dialect == "sqlite":
        rows = text(
            "SELECT json_extract(value, '$[0]') AS tenant, json_extract(value, '$[1]') AS id,"
            " json_extract(value, '$[2]') AS owner, json_extract(value, '$[3]') AS epoch FROM json_each(:named)"
        )
    else:
        rows = text(
            "SELECT value ->> 0 AS tenant, value ->> 1 AS id, value ->> 2 AS owner,"
            " CAST(value ->> 3 AS bigint) AS epoch"
            " FROM json_array_elements(CAST(CAST(:named AS text) AS json)) AS value"
        )
    return rows.columns(column("tenant"), column("id"), column("owner"), column("epoch")).subquery("named")


def _is_named(named: Subquery) -> ColumnElement[bool]:
    return and_(sessions.c.tenant == named.c.tenant, sessions.c.id == named.c.id)
