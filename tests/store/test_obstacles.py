"""What in a PostgreSQL database, or its role, will be in a server's way."""

from __future__ import annotations

import os
from urllib.parse import urlencode

import pytest
from sqlalchemy import Connection, text

from swarmkeep.store import schema
from swarmkeep.store.opening import open_store
from swarmkeep.store.postgres_connections import Obstacle, find_obstacles
from swarmkeep.store.records import StoreUnavailable
from swarmkeep.store.tables import metadata
from tests.store.test_connections import expect_failure
from tests.support.postgres import Postgres, replace_database


def add_options(url: str, *settings: str) -> str:
    options = " ".join(f"-c {setting}" for setting in settings)
    return f"{url}{'&' if '?' in url else '?'}{urlencode({'options': options})}"


async def test_role_without_rights_is_told(postgres_ready: str) -> None:
    # Every server has this role, which may see nothing of anybody's tables.
    url = add_options(postgres_ready, "role=pg_signal_backend")
    assert "permission denied for table" in await expect_failure(url)
    [obstacle] = schema.find_obstacles(url, servers=1)
    assert obstacle.is_fatal
    assert "'pg_signal_backend' may not read and change 27 tables, such as api_keys" in obstacle.description
    assert schema.find_obstacles(postgres_ready, servers=1) == []


async def test_obstructing_settings_are_reported(postgres_ready: str) -> None:
    url = add_options(postgres_ready, "statement_timeout=2s", "default_transaction_read_only=on")
    found = schema.find_obstacles(url, servers=1000)
    assert not any(obstacle.is_fatal for obstacle in found)
    read_only, timeout, connections = (obstacle.description for obstacle in found)
    assert "takes no writes" in read_only
    assert "statement_timeout is 2000 ms" in timeout
    assert "uses up to 11000" in connections


async def test_row_level_security_is_told(postgres_ready: str) -> None:
    store = open_store(postgres_ready)
    found: list[Obstacle] = []

    def look(connection: Connection) -> None:
        connection.execute(text("ALTER TABLE usage ENABLE ROW LEVEL SECURITY"))
        connection.execute(text("GRANT ALL ON ALL TABLES IN SCHEMA public TO pg_signal_backend"))
        connection.execute(text("SET LOCAL ROLE pg_signal_backend"))
        found.extend(find_obstacles(connection, metadata.tables))
        raise NotImplementedError

    with pytest.raises(NotImplementedError):
        await store.database.write(look)
    await store.close()
    [obstacle] = found
    assert obstacle.is_fatal
    assert "row-level security is on for the table usage" in obstacle.description


def test_lossy_encoding_is_refused(postgres: Postgres) -> None:
    url = replace_database(postgres.url, f"latin_{os.getpid()}")
    postgres.drop(url)
    postgres.execute(f"CREATE DATABASE latin_{os.getpid()} ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0")
    try:
        with pytest.raises(StoreUnavailable, match="its encoding is LATIN1"):
            schema.upgrade(url)
        assert schema.current(url) is None
        assert [obstacle.is_fatal for obstacle in schema.find_obstacles(url, servers=1)] == [True]
    finally:
        postgres.drop(url)
