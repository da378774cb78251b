"""Agents that clients make: how each is to be now, and how it was before.

What a run needs of one is recorded in the run. So nothing here is read to go on with a session, or to verify it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from sqlalchemy import Connection, Table, and_, delete, func, insert, select, update

from swarmkeep.events.codec import to_timestamp
from swarmkeep.events.errors import QuotaExceeded
from swarmkeep.store.audit import record_action
from swarmkeep.store.records import AuditAction, utc_now
from swarmkeep.store.statements import OnDatabase, split_parameters
from swarmkeep.store.tables import made_agent_versions, made_agents

MAX_AGENTS = 1_000
"""Of one tenant."""
KEPT_VERSIONS = 100
"""The last ones of each agent."""


class MadeAgent(msgspec.Struct, frozen=True, kw_only=True):
    """A version of an agent. Times are in seconds; `request` is the digest of the one that made the agent."""

    tenant: str
    id: str
    version: int = 1
    data: str
    created_at: int
    updated_at: int
    request: str = ""


class SqlMadeAgents(OnDatabase):
    """The agents that clients of each tenant have made."""

    async def add_made_agent(self, made: MadeAgent, *, by: str | None) -> MadeAgent:
        """Add an agent, and return it; or the one that there is under its id. Raises QuotaExceeded."""

        def job(connection: Connection) -> MadeAgent:
            if (known := _find(connection, made.tenant, made.id)) is not None:
                return known
            count = select(func.count()).where(made_agents.c.tenant == made.tenant)
            if (connection.scalar(count) or 0) >= MAX_AGENTS:
                raise QuotaExceeded(f"there are {MAX_AGENTS} agents, which is the most; delete some")
            row = msgspec.structs.asdict(made)
            connection.execute(insert(made_agents).values({name: row[name] for name in _COLUMNS}))
            _add_version(connection, made)
            _record(connection, "agent.created", made, by)
            return made

        return await self.database.write(job)

    async def find_made_agent(self, tenant: str, agent_id: str, version: int | None = None) -> MadeAgent | None:
        """The agent as it is, or as that version of it was."""
        return await self.database.read(lambda connection: _find(connection, tenant, agent_id, version))

    async def list_made_agents(self, tenant: str) -> list[str]:
        """The ids of a tenant's agents, in the order in which they were made."""
        query = select(made_agents.c.id).where(made_agents.c.tenant == tenant)
        query = query.order_by(made_agents.c.created_at, made_agents.c.id)
        return await self.database.read(lambda connection: list(connection.scalars(query)))

    async def read_made_agents(self, tenant: str, ids: Sequence[str]) -> dict[str, MadeAgent]:
        """Those of these agents that there are, by their ids."""

        def read(connection: Connection) -> dict[str, MadeAgent]:
            found: list[MadeAgent] = []
            for some in split_parameters(ids):
                # Of both tables, or PostgreSQL reads all versions that a tenant has.
                here = made_agents.c.id.in_(some), made_agent_versions.c.agent_id.in_(some)
                query = _CURRENT.where(made_agents.c.tenant == tenant, *here)
                found += map(_make, connection.execute(query).mappings())
            return {one.id: one for one in found}

        return await self.database.read(read)

    async def change_made_agent(self, known: MadeAgent, data: str, *, at: int, by: str | None) -> MadeAgent | None:
        """Add a version behind the last one that is known; None if there is another one by now, or no agent."""
        made = msgspec.structs.replace(known, version=known.version + 1, data=data, updated_at=at)

        def job(connection: Connection) -> MadeAgent | None:
            here = *_of(made_agents, made.tenant, made.id), made_agents.c.version == known.version
            move_on = update(made_agents).where(*here).values(version=made.version, updated_at=at)
            if not connection.execute(move_on).rowcount:
                return None
            _add_version(connection, made)
            old = made_agent_versions.c.version <= made.version - KEPT_VERSIONS
            connection.execute(delete(made_agent_versions).where(*_of(made_agent_versions, made.tenant, made.id), old))
            _record(connection, "agent.updated", made, by)
            return made

        return await self.database.write(job)

    async def delete_made_agent(self, tenant: str, agent_id: str, *, by: str | None) -> bool:
        """Delete an agent with all versions. False if there is none."""

        def job(connection: Connection) -> bool:
            known = _find(connection, tenant, agent_id)
            # Before its versions, so that none is added meanwhile.
            gone = delete(made_agents).where(*_of(made_agents, tenant, agent_id))
            if known is None or not connection.execute(gone).rowcount:
                return False
            connection.execute(delete(made_agent_versions).where(*_of(made_agent_versions, tenant, agent_id)))
            _record(connection, "agent.deleted", known, by)
            return True

        return await self.database.write(job)


_COLUMNS = tuple(column.name for column in made_agents.c)


def _select_versions(*on: Any) -> Any:
    of_agent = (
        made_agent_versions.c.tenant == made_agents.c.tenant,
        made_agent_versions.c.agent_id == made_agents.c.id,
    )
    joined = made_agents.join(made_agent_versions, and_(*of_agent, *on))
    shown = made_agent_versions.c
    head = [made_agents.c[name] for name in ("tenant", "id", "created_at", "request")]
    return select(*head, shown.version, shown.data, shown.updated_at).select_from(joined)


_CURRENT = _select_versions(made_agent_versions.c.version == made_agents.c.version)


def _of(table: Table, tenant: str, agent_id: str) -> tuple[Any, Any]:
    name = table.c.id if table is made_agents else table.c.agent_id
    return table.c.tenant == tenant, name == agent_id


def _find(connection: Connection, tenant: str, agent_id: str, version: int | None = None) -> MadeAgent | None:
    query = _CURRENT if version is None else _select_versions(made_agent_versions.c.version == version)
    row = connection.execute(query.where(*_of(made_agents, tenant, agent_id))).mappings().one_or_none()
    return None if row is None else _make(row)


def _make(row: Any) -> MadeAgent:
    return MadeAgent(**row)


def _add_version(connection: Connection, made: MadeAgent) -> None:
    row = {"tenant": made.tenant, "agent_id": made.id, "version": made.version}
    connection.execute(insert(made_agent_versions).values(**row, data=made.data, updated_at=made.updated_at))


def _record(connection: Connection, type: str, made: MadeAgent, by: str | None) -> None:
    data = {"agent_id": made.id, "version": made.version}
    record_action(connection, made.tenant, AuditAction(type=type, by=by), data, to_timestamp(utc_now()))
