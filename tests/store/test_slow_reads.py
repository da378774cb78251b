"""A query whose cost its caller chose ends in its time, and the next one is answered."""

from __future__ import annotations

import pytest
from sqlalchemy import Connection, text

from swarmkeep.events.errors import Overloaded
from swarmkeep.events.records import UsageQuery
from swarmkeep.store.opening import open_store
from swarmkeep.store.postgres_connections import connect
from swarmkeep.store.tables import audit_log, sessions, usage_days
from swarmkeep.store.urls import PostgresServer, locate
from tests.store.conftest import Opener

ENDLESS = {
    "sqlite": "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n",
    "postgresql": "SELECT pg_sleep(600)",
}


def run_endless(connection: Connection) -> None:
    connection.execute(text(ENDLESS[connection.dialect.name]))


async def test_slow_query_ends(opener: Opener) -> None:
    store = opener()
    for _ in range(3):
        with pytest.raises(Overloaded, match="took too long"):
            await store.database.read(run_endless, seconds=0.05)
    # The connection is as it was: the next query has no limit, and is answered.
    assert await store.database.read(lambda connection: connection.scalar(text("SELECT 1"))) == 1
    assert (await store.list_sessions("default")).sessions == []


async def test_lists_and_sums_respect_set_limit(postgres_ready: str) -> None:
    server = locate(postgres_ready)
    assert isinstance(server, PostgresServer)
    other = await connect(server, {})
    store = open_store(postgres_ready, read_seconds=0.05)
    async with other.transaction():
        names = ", ".join(table.name for table in (sessions, usage_days, audit_log))
        await other.execute(f"LOCK TABLE {names} IN ACCESS EXCLUSIVE MODE")
        for slow in (store.list_sessions("t"), store.sum_usage("t", UsageQuery()), store.read_audit_log("t")):
            with pytest.raises(Overloaded, match="took too long"):
                await slow
    assert (await store.list_sessions("t")).sessions == []
    await store.close()
    await other.close()
