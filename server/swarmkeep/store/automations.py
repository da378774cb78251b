"""Automations and their invocations: when each is due, and what one transaction moves on.

Several servers look for what is due at once. Each change states what it builds on, so that one of them makes it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from sqlalchemy import BigInteger, Connection, Table, bindparam, delete, func, insert, select, update

from swarmkeep.events.errors import QuotaExceeded
from swarmkeep.store.statements import OnDatabase, PreparedStatement
from swarmkeep.store.tables import as_text, automations, invocations, unescape

MAX_AUTOMATIONS = 1_000
"""Of one tenant."""
KEPT_INVOCATIONS = 200
"""The last ones of each automation; those that are not over are kept in any case."""


class StoredAutomation(msgspec.Struct, frozen=True):
    """An automation. `due_at`: the second at which it is due next; None if it is not by itself."""

    tenant: str
    id: str
    data: str
    count: int = 0
    due_at: int | None = None


class StoredInvocation(msgspec.Struct, frozen=True):
    """One time of an automation. `due_at`: when its run is begun, or that is tried again; None once it is over."""

    tenant: str
    automation_id: str
    number: int
    data: str
    due_at: int | None = None


Invoke = Callable[[StoredAutomation, bool], tuple[StoredAutomation, str, int | None] | None]
"""Gets an automation, and whether one of its invocations is not over; gives the automation as it is then, and the data
and the time of a new invocation. None if there is to be none."""


class SqlAutomations(OnDatabase):
    """The automations of each tenant."""

    async def add_automation(self, made: StoredAutomation) -> StoredAutomation:
        """Add an automation, and return it; or the one that there is under its id. Raises QuotaExceeded."""

        def job(connection: Connection) -> StoredAutomation:
            if (known := _find(connection, made.tenant, made.id)) is not None:
                return known
            count = select(func.count()).where(automations.c.tenant == made.tenant)
            if (connection.scalar(count) or 0) >= MAX_AUTOMATIONS:
                raise QuotaExceeded(f"there are {MAX_AUTOMATIONS} automations, which is the most; delete some")
            connection.execute(insert(automations).values(**msgspec.structs.asdict(made)))
            return made

        return await self.database.write(job)

    async def find_automation(self, tenant: str, automation_id: str) -> StoredAutomation | None:
        return await self.database.read(lambda connection: _find(connection, tenant, automation_id))

    async def list_automations(self, tenant: str) -> list[StoredAutomation]:
        """All of a tenant, by their ids."""
        query = select(automations).where(automations.c.tenant == tenant).order_by(automations.c.id)
        return await self.database.read(lambda connection: [_make(row) for row in connection.execute(query)])

    async def change_automation(
        self, tenant: str, automation_id: str, change: Callable[[StoredAutomation], StoredAutomation]
    ) -> StoredAutomation | None:
        """Replace an automation by what `change` makes of it; no other change comes between. None if there is none."""

        def job(connection: Connection) -> StoredAutomation | None:
            known = _find(connection, tenant, automation_id, locked=True)
            if known is None:
                return None
            changed = change(known)
            _save(connection, changed)
            return changed

        return await self.database.write(job)

    async def delete_automation(self, tenant: str, automation_id: str) -> bool:
        """Delete an automation and its invocations. False if there is none."""

        def job(connection: Connection) -> bool:
            if _find(connection, tenant, automation_id, locked=True) is None:
                return False
            connection.execute(delete(invocations).where(*_of(invocations, tenant, automation_id)))
            connection.execute(delete(automations).where(*_of(automations, tenant, automation_id)))
            return True

        return await self.database.write(job, erases=True)

    async def invoke_automation(self, tenant: str, automation_id: str, invoke: Invoke) -> StoredInvocation | None:
        """Add the invocation that `invoke` makes; no other change comes between. None if it makes none, or there is no
        such automation."""

        def job(connection: Connection) -> StoredInvocation | None:
            known = _find(connection, tenant, automation_id, locked=True)
            columns = invocations.c
            here = _of(invocations, tenant, automation_id)
            waiting = select(func.count(columns.due_at)).where(*here)
            made = None if known is None else invoke(known, bool(connection.scalar(waiting)))
            if known is None or made is None:
                return None
            automation, data, due_at = made
            number = known.count + 1
            _save(connection, msgspec.structs.replace(automation, count=number))
            added = StoredInvocation(tenant, automation_id, number, data, due_at)
            connection.execute(insert(invocations).values(**msgspec.structs.asdict(added)))
            old = columns.number <= number - KEPT_INVOCATIONS, columns.due_at.is_(None)
            connection.execute(delete(invocations).where(*here, *old))
            return added

        return await self.database.write(job)

    async def list_due_automations(self, now: int, limit: int) -> list[StoredAutomation]:
        """Those of any tenant that are due, the earliest first."""
        return [StoredAutomation(*row) for row in await self._list_due(_DUE_AUTOMATIONS, now, limit)]

    async def list_due_invocations(self, now: int, limit: int) -> list[StoredInvocation]:
        """Those of any tenant that are due, the earliest first."""
        return [StoredInvocation(*row) for row in await self._list_due(_DUE_INVOCATIONS, now, limit)]

    async def _list_due(self, statement: PreparedStatement, now: int, limit: int) -> list[list[Any]]:
        given = {"now": now, "most": limit}
        rows = await self.database.read(lambda connection: statement.fetch_all(connection, given))
        return [[value if isinstance(value, int) else unescape(as_text(value)) for value in row] for row in rows]

    async def list_invocations(self, tenant: str, automation_id: str) -> list[StoredInvocation]:
        """The last ones of an automation, in order."""
        query = select(invocations).where(*_of(invocations, tenant, automation_id)).order_by(invocations.c.number)
        return await self.database.read(lambda connection: [_make_invocation(row) for row in connection.execute(query)])

    async def delete_invocations(self, tenant: str, automation_id: str, numbers: Sequence[int]) -> None:
        here = (*_of(invocations, tenant, automation_id), invocations.c.number.in_(numbers))
        await self.database.write(lambda connection: connection.execute(delete(invocations).where(*here)), erases=True)

    async def postpone_invocation(self, invocation: StoredInvocation, due_at: int | None, data: str = "") -> bool:
        """Have an invocation be due at another time, or over, with new data if there are any. False if another process
        was faster."""
        columns = invocations.c
        here = _of(invocations, invocation.tenant, invocation.automation_id)
        change = update(invocations).where(
            *here, columns.number == invocation.number, columns.due_at == invocation.due_at
        )
        change = change.values(due_at=due_at, **({"data": data} if data else {}))
        return await self.database.write(lambda connection: connection.execute(change).rowcount == 1)


def _prepare_due(table: Table) -> PreparedStatement:
    # Every server asks for both each second.
    due = table.c.due_at <= bindparam("now", type_=BigInteger())
    return PreparedStatement(select(*table.c).where(due).order_by(table.c.due_at).limit(bindparam("most")))


_DUE_AUTOMATIONS, _DUE_INVOCATIONS = _prepare_due(automations), _prepare_due(invocations)


def _of(table: Table, tenant: str, automation_id: str) -> tuple[Any, Any]:
    name = table.c.id if table is automations else table.c.automation_id
    return table.c.tenant == tenant, name == automation_id


def _find(connection: Connection, tenant: str, automation_id: str, *, locked: bool = False) -> StoredAutomation | None:
    query = select(automations).where(*_of(automations, tenant, automation_id))
    row = connection.execute(query.with_for_update() if locked else query).one_or_none()
    return None if row is None else _make(row)


def _save(connection: Connection, changed: StoredAutomation) -> None:
    change = update(automations).where(*_of(automations, changed.tenant, changed.id))
    connection.execute(change.values(data=changed.data, count=changed.count, due_at=changed.due_at))


def _make(row: Any) -> StoredAutomation:
    return StoredAutomation(row.tenant, row.id, row.data, row._mapping["count"], row.due_at)


def _make_invocation(row: Any) -> StoredInvocation:
    return StoredInvocation(row.tenant, row.automation_id, row.number, row.data, row.due_at)
