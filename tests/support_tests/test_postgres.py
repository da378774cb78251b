"""PostgreSQL for tests: empty for each, and one that may be killed."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess

import asyncpg
import pytest

from tests.support.postgres import Postgres, end, new_home, postgres_for_tests, private_postgres, replace_database


async def _list_tables(url: str) -> list[str]:
    connection = await asyncpg.connect(url)
    try:
        rows = await connection.fetch("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
        return [row["tablename"] for row in rows]
    finally:
        await connection.close()


async def _rows(url: str) -> int:
    connection = await asyncpg.connect(url)
    try:
        return int(await connection.fetchval("SELECT count(*) FROM ready"))
    finally:
        await connection.close()


async def _execute(url: str, statement: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()


async def test_each_test_gets_an_empty_database(database_url: str) -> None:
    if database_url.startswith("sqlite:///"):
        with sqlite3.connect(database_url.removeprefix("sqlite:///")) as connection:
            assert connection.execute("SELECT count(*) FROM sqlite_schema").fetchone() == (0,)
        connection.close()
    else:
        assert await _list_tables(database_url) == []
        await _execute(database_url, "CREATE TABLE left_behind (id integer)")


async def test_other_tests_leave_no_table(postgres_url: str) -> None:
    assert await _list_tables(postgres_url) == []


async def test_template_is_prepared_once_and_copied(postgres: Postgres) -> None:
    prepared: list[str] = []

    def prepare(url: str) -> None:
        prepared.append(url)
        asyncio.run(_execute(url, "CREATE TABLE ready (id integer)"))

    for _ in range(2):
        name = await asyncio.to_thread(postgres.template, "support", prepare)
        url = postgres.create(name)
        assert await _list_tables(url) == ["ready"]
        postgres.drop(url)
    assert len(prepared) == 1


def test_emptied_database_equals_new_one(postgres: Postgres) -> None:
    def prepare(url: str) -> None:
        asyncio.run(_execute(url, "CREATE TABLE ready (id integer)"))

    url = postgres.reused("emptied", prepare)
    asyncio.run(_execute(url, "INSERT INTO ready VALUES (1)"))
    assert postgres.reused("emptied", prepare) == url
    assert asyncio.run(_rows(url)) == 0
    asyncio.run(_execute(url, "ALTER TABLE ready ADD COLUMN changed integer"))
    other = postgres.reused("emptied", prepare)
    assert other != url
    assert asyncio.run(_list_tables(other)) == ["ready"]


def test_emptying_database_cuts_off_connections(postgres: Postgres) -> None:
    async def hold(url: str) -> None:
        connection = await asyncpg.connect(url)
        await connection.execute("BEGIN; LOCK TABLE ready")
        assert await asyncio.to_thread(postgres.reused, "held", prepare) == url
        with pytest.raises((asyncpg.InterfaceError, asyncpg.PostgresConnectionError)):
            await connection.execute("COMMIT")

    def prepare(url: str) -> None:
        asyncio.run(_execute(url, "CREATE TABLE ready (id integer)"))

    asyncio.run(hold(postgres.reused("held", prepare)))


def test_shared_server_starts_and_ends_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SWARMKEEP_TEST_DATABASE_URL", raising=False)
    home = new_home()
    with postgres_for_tests(home) as one, postgres_for_tests(home) as other:
        assert one.url == other.url
    url = other.url
    assert asyncio.run(_list_tables(url)) == []
    end(home)
    assert not home.exists()
    with pytest.raises((ConnectionRefusedError, FileNotFoundError)):
        asyncio.run(_list_tables(url))


@pytest.mark.long
def test_next_run_ends_killed_runs_remains(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SWARMKEEP_TEST_DATABASE_URL", raising=False)
    with subprocess.Popen(["sleep", "60"]) as run:
        left = new_home()
        left = left.rename(left.with_name(f"swarmkeep-pg-{run.pid}-left"))
        with postgres_for_tests(left) as server:
            url = server.url
        run.kill()
    end(new_home())
    assert not left.exists()
    with pytest.raises((ConnectionRefusedError, FileNotFoundError)):
        asyncio.run(_list_tables(url))


@pytest.mark.long
def test_private_server_crashes_and_returns() -> None:
    with private_postgres() as server:
        url = server.create()
        asyncio.run(_execute(url, "CREATE TABLE kept (id integer)"))
        server.stop_immediately()
        with pytest.raises((ConnectionRefusedError, FileNotFoundError)):
            asyncio.run(_list_tables(url))
        server.start()
        assert asyncio.run(_list_tables(url)) == ["kept"]
        server.drop(url)


@pytest.mark.parametrize(
    ("url", "other"),
    [
        ("postgresql://postgres:@/db?host=/tmp/xyz", "postgresql://postgres:@/new?host=/tmp/xyz"),
        ("postgresql:///db?host=/tmp/xyz", "postgresql:///new?host=/tmp/xyz"),
        ("postgresql://me:secret@db.example:5433/db", "postgresql://me:secret@db.example:5433/new"),
        ("postgresql://db.example", "postgresql://db.example/new"),
    ],
)
def test_only_url_database_is_replaced(url: str, other: str) -> None:
    assert replace_database(url, "new") == other
