"""Automations and their invocations: when each is due, and what one transaction moves on.

Several servers look for what is due at once. Each change states what it builds on, so that one of them makes it.
What tells a session something is deleted with it. What belongs to a person is encrypted by that person's key.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec
from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    Row,
    Select,
    Table,
    bindparam,
    delete,
    func,
    insert,
    literal_column,
    select,
    update,
)

from swarmkeep.events.errors import PersonErased, QuotaExceeded, SessionNotFound
from swarmkeep.store.person_keys import Erased, PersonKey, get_keyring, hold_key, read_text
from swarmkeep.store.records import SessionKey
from swarmkeep.store.statements import OnDatabase, PreparedStatement
from swarmkeep.store.tables import as_text, automations, invocations, of_session, sessions, unescape

T = TypeVar("T")

MAX_AUTOMATIONS = 1_000
"""Of one tenant."""
KEPT_INVOCATIONS = 200
"""The last ones of each automation; those that are not over are kept in any case."""


class StoredAutomation(msgspec.Struct, frozen=True):
    """An automation. `due_at`: the second at which it is due next; None if it is not by itself.

    `session_id` is the session that it tells something, `person_key` the key by which its data are encrypted.
    """

    tenant: str
    id: str
    data: str
    count: int = 0
    due_at: int | None = None
    session_id: str | None = None
    person_key: str | None = None


class StoredInvocation(msgspec.Struct, frozen=True):
    """One time of an automation. `due_at`: when its run is begun, or that is tried again; None once it is over."""

    tenant: str
    automation_id: str
    number: int
    data: str
    due_at: int | None = None
    session_id: str | None = None
    person_key: str | None = None


class Due(msgspec.Struct, frozen=True):
    """An automation that is due; or, with a number, one of its invocations."""

    tenant: str
    automation_id: str
    number: int
    due_at: int


Invoke = Callable[[StoredAutomation, bool], tuple[StoredAutomation, str, int | None] | None]
"""Gets an automation, and whether one of its invocations is not over; gives the automation as it is then, and the data
and the time of a new invocation. None if there is to be none."""


class SqlAutomations(OnDatabase):
    """The automations of each tenant. One whose key is lost or erased is as good as none."""

    async def add_automation(self, made: StoredAutomation) -> StoredAutomation:
        """Add an automation, and return it; or the one that there is under its id.

        Raises QuotaExceeded, and SessionNotFound and PersonErased for the session that it tells something.
        """

        def job(connection: Connection) -> StoredAutomation:
            if (known := _find(connection, made.tenant, made.id)) is not None:
                return known
            count = select(func.count()).where(automations.c.tenant == made.tenant)
            if (connection.scalar(count) or 0) >= MAX_AUTOMATIONS:
                raise QuotaExceeded(f"there are {MAX_AUTOMATIONS} automations, which is the most; delete some")
            _hold_session(connection, made)
            connection.execute(insert(automations).values(**_make_row(connection, made)))
            return made

        return await self.database.write(job)

    async def find_automation(self, tenant: str, automation_id: str) -> StoredAutomation | None:
        return await self.database.read(lambda connection: _find(connection, tenant, automation_id))

    async def list_automations(self, tenant: str) -> list[StoredAutomation]:
        """All of a tenant, by their ids."""
        query = select(automations).where(automations.c.tenant == tenant).order_by(automations.c.id)
        return await self.database.read(lambda connection: _read_all(connection, query, StoredAutomation))

    async def change_automation(
        self, tenant: str, automation_id: str, change: Callable[[StoredAutomation], StoredAutomation]
    ) -> StoredAutomation | None:
        """Replace an automation by what `change` makes of it; no other change comes between. None if there is none.

        Raises SessionNotFound and PersonErased for the session that it is to tell something.
        """

        def job(connection: Connection) -> StoredAutomation | None:
            known = _lock(connection, tenant, automation_id)
            if known is None:
                return None
            changed = change(known)
            if changed.session_id != known.session_id:
                _hold_session(connection, changed)
            _save(connection, changed)
            return changed

        return await self.database.write(job)

    async def delete_automation(self, tenant: str, automation_id: str) -> bool:
        """Delete an automation and its invocations. False if there is none."""
        here = _of(automations, tenant, automation_id)
        return await self.database.write(lambda connection: _delete(connection, here) > 0, erases=True)

    async def invoke_automation(self, tenant: str, automation_id: str, invoke: Invoke) -> StoredInvocation | None:
        """Add the invocation that `invoke` makes; no other change comes between. None if it makes none, or there is no
        such automation."""

        def job(connection: Connection) -> StoredInvocation | None:
            known = _lock(connection, tenant, automation_id)
            columns = invocations.c
            here = _of(invocations, tenant, automation_id)
            waiting = select(func.count(columns.due_at)).where(*here)
            made = None if known is None else invoke(known, bool(connection.scalar(waiting)))
            if known is None or made is None:
                return None
            automation, data, due_at = made
            number = known.count + 1
            _save(connection, msgspec.structs.replace(automation, count=number))
            added = StoredInvocation(
                tenant, automation_id, number, data, due_at, automation.session_id, automation.person_key
            )
            connection.execute(insert(invocations).values(**_make_row(connection, added)))
            old = columns.number <= number - KEPT_INVOCATIONS, columns.due_at.is_(None)
            connection.execute(delete(invocations).where(*here, *old))
            return added

        return await self.database.write(job)

    async def list_due_automations(self, now: int, limit: int) -> list[Due]:
        """Those of any tenant that are due, the earliest first."""
        return await self._list_due(_DUE_AUTOMATIONS, now, limit)

    async def list_due_invocations(self, now: int, limit: int) -> list[Due]:
        """Those of any tenant that are due, the earliest first."""
        return await self._list_due(_DUE_INVOCATIONS, now, limit)

    async def _list_due(self, statement: PreparedStatement, now: int, limit: int) -> list[Due]:
        given = {"now": now, "most": limit}
        rows = await self.database.read(lambda connection: statement.fetch_all(connection, given))
        return [Due(unescape(as_text(tenant)), unescape(as_text(id)), *numbers) for tenant, id, *numbers in rows]

    async def postpone(self, due: Due, due_at: int) -> bool:
        """Have something be due at another time. False if another process was faster."""
        change = update(invocations if due.number else automations).where(*_of_due(due)).values(due_at=due_at)
        return await self.database.write(lambda connection: connection.execute(change).rowcount == 1)

    async def find_due_invocation(self, due: Due) -> StoredInvocation | None:
        query = select(invocations).where(*_of_due(due))
        found = await self.database.read(lambda connection: _read_all(connection, query, StoredInvocation))
        return found[0] if found else None

    async def finish_invocation(self, invocation: StoredInvocation) -> None:
        """Have an invocation be over, with these data, unless it is due at another time: then another server has it."""

        def job(connection: Connection) -> None:
            data = _make_row(connection, invocation)["data"]
            connection.execute(update(invocations).where(*_of_due(invocation)).values(data=data, due_at=None))

        # It is gone with its person.
        with contextlib.suppress(PersonErased):
            await self.database.write(job)

    async def list_invocations(self, tenant: str, automation_id: str) -> list[StoredInvocation]:
        """The last ones of an automation, in order."""
        query = select(invocations).where(*_of(invocations, tenant, automation_id)).order_by(invocations.c.number)
        return await self.database.read(lambda connection: _read_all(connection, query, StoredInvocation))

    async def delete_invocations(self, tenant: str, automation_id: str, numbers: Sequence[int]) -> None:
        here = (*_of(invocations, tenant, automation_id), invocations.c.number.in_(numbers))
        await self.database.write(lambda connection: connection.execute(delete(invocations).where(*here)), erases=True)


def _prepare_due(table: Table, id: ColumnElement[str], number: ColumnElement[int]) -> PreparedStatement:
    # Every server asks for both each second.
    due_at = table.c.due_at
    due = select(table.c.tenant, id, number, due_at).where(due_at <= bindparam("now", type_=BigInteger()))
    return PreparedStatement(due.order_by(due_at).limit(bindparam("most")))


_DUE_AUTOMATIONS = _prepare_due(automations, automations.c.id, literal_column("0"))
_DUE_INVOCATIONS = _prepare_due(invocations, invocations.c.automation_id, invocations.c.number)


def _of(table: Table, tenant: str, automation_id: str) -> tuple[ColumnElement[bool], ...]:
    name = table.c.id if table is automations else table.c.automation_id
    return table.c.tenant == tenant, name == automation_id


def _of_due(due: Due | StoredInvocation) -> tuple[ColumnElement[bool], ...]:
    table = invocations if due.number else automations
    numbered = (invocations.c.number == due.number,) if due.number else ()
    return *_of(table, due.tenant, due.automation_id), *numbered, table.c.due_at == due.due_at


def _find(connection: Connection, tenant: str, automation_id: str, *, locked: bool = False) -> StoredAutomation | None:
    query = select(automations).where(*_of(automations, tenant, automation_id))
    found = _read_all(connection, query.with_for_update() if locked else query, StoredAutomation)
    return found[0] if found else None


def _lock(connection: Connection, tenant: str, automation_id: str) -> StoredAutomation | None:
    """Find an automation, and keep others from changing it."""
    key = select(automations.c.person_key).where(*_of(automations, tenant, automation_id))
    if (id := connection.scalar(key)) is not None:
        # First, as who erases a key goes on from it to its automations.
        with contextlib.suppress(PersonErased):
            hold_key(connection, id, None)
    return _find(connection, tenant, automation_id, locked=True)


def _read_all(connection: Connection, query: Select[Any], kind: type[T]) -> list[T]:
    return [made for row in connection.execute(query) if (made := _read(connection, row, kind)) is not None]


def _read(connection: Connection, row: Row[Any], kind: type[T]) -> T | None:
    """What is stored in a row; None without its key."""
    fields = dict(row._mapping)
    if row.person_key is not None:
        fields["data"] = read_text(connection, row.data, _about(fields))
        if isinstance(fields["data"], Erased) or fields["data"] == row.data:
            return None
    return kind(**fields)


def _make_row(connection: Connection, made: StoredAutomation | StoredInvocation) -> dict[str, Any]:
    """The row of what is to be stored. Raises PersonErased."""
    fields = msgspec.structs.asdict(made)
    if made.person_key is not None:
        hold_key(connection, made.person_key, made.session_id)
        key = get_keyring(connection).find(connection, [made.person_key]).get(made.person_key)
        if not isinstance(key, PersonKey):
            raise PersonErased(made.session_id)
        fields["data"] = key.encrypt_text(made.data.encode(errors="surrogatepass"), _about(fields))
    return fields


def _about(fields: Mapping[str, Any]) -> str:
    return (
        f"automation {fields['id']}" if "id" in fields else f"invocation {fields['automation_id']} {fields['number']}"
    )


def _save(connection: Connection, changed: StoredAutomation) -> None:
    key = "tenant", "id"
    row = {name: value for name, value in _make_row(connection, changed).items() if name not in key}
    connection.execute(update(automations).where(*_of(automations, changed.tenant, changed.id)).values(**row))


def _hold_session(connection: Connection, automation: StoredAutomation) -> None:
    """Keep the session that an automation tells something from being deleted until the transaction ends."""
    if automation.session_id is None:
        return
    here = of_session(sessions, SessionKey(automation.tenant, automation.session_id))
    if connection.scalar(select(sessions.c.id).where(*here).with_for_update(read=True, key_share=True)) is None:
        raise SessionNotFound(automation.session_id)


def delete_owned(connection: Connection, tenant: str, *, session_id: str = "", person_key: str = "") -> None:
    """Delete what tells a session something, or is encrypted by a key, and the invocations that did or are."""
    name, value = ("session_id", session_id) if session_id else ("person_key", person_key)
    _delete(connection, (automations.c.tenant == tenant, automations.c[name] == value))
    # Of automations that were changed since.
    connection.execute(delete(invocations).where(invocations.c.tenant == tenant, invocations.c[name] == value))


def _delete(connection: Connection, which: Sequence[ColumnElement[bool]]) -> int:
    # First: who invokes one holds its row, too.
    gone = connection.execute(delete(automations).where(*which).returning(automations.c.tenant, automations.c.id)).all()
    for tenant, automation_id in gone:
        connection.execute(delete(invocations).where(*_of(invocations, tenant, automation_id)))
    return len(gone)
