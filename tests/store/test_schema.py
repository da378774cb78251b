"""Migrations: both ways, once however many start at once, and told apart from other releases'."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing, nullcontext
from pathlib import Path
from urllib.parse import urlencode

import pytest
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, inspect, make_url, text

import swarmkeep_migrations
from swarmkeep.store import schema
from swarmkeep.store.opening import SqlStore, open_store
from swarmkeep.store.postgres_connections import Obstacle, find_obstacles, make_engine
from swarmkeep.store.records import NoSuchRevision, SchemaBehind, StoreUnavailable
from swarmkeep.store.tables import metadata
from swarmkeep.store.urls import PostgresServer, locate
from tests.store.conftest import Opener
from tests.store.sessions import KEY, begin_session
from tests.store.test_connections import expect_failure
from tests.support.postgres import Postgres, replace_database
from tests.support.processes import Process

LATEST = swarmkeep_migrations.REVISIONS[-1]


async def read_table_names(url: str) -> set[str]:
    store = open_store(url)
    try:
        names = await store.database.read(lambda connection: inspect(connection).get_table_names())
        return {name for name in names if not schema.is_of_search_index(name)}
    finally:
        await store.close()


def test_migration_ignores_server_timeouts(postgres_url: str) -> None:
    names = ("idle_in_transaction_session_timeout", "lock_timeout", "statement_timeout")
    database = make_url(postgres_url).database
    for name in names:
        setting = text(f"ALTER DATABASE \"{database}\" SET {name} = '5s'")
        schema.change_at_once(postgres_url, lambda connection, setting=setting: connection.execute(setting))
    found = [
        schema.change_at_once(postgres_url, lambda connection, name=name: connection.scalar(text(f"SHOW {name}")))
        for name in names
    ]
    assert found == ["0", "0", "0"]


async def test_statement_timeout_follows_its_engine(postgres_url: str) -> None:
    server = locate(postgres_url)
    assert isinstance(server, PostgresServer)
    for seconds, outcome in ((0.001, pytest.raises(TimeoutError)), (None, nullcontext())):
        engine = make_engine(server, pooled=False, command_seconds=seconds)
        with outcome:
            async with engine.connect() as connection:
                await connection.execute(text("SELECT pg_sleep(0.05)"))
        await engine.dispose()


def expect_nothing(database_url: str) -> None:
    if database_url.startswith("sqlite"):
        # Not even the file, which was made for it.
        with pytest.raises(StoreUnavailable, match="no database"):
            schema.current(database_url)
    else:
        assert schema.read_at_one_moment(database_url, lambda found: inspect(found).get_table_names()) == []


def test_ctrl_c_undoes_a_migration(database_url: str) -> None:
    def job(connection: Connection) -> None:
        connection.execute(text("CREATE TABLE half (name TEXT)"))
        # Signals are the main thread's, wherever this runs.
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        if connection.dialect.name == "postgresql":
            connection.execute(text("SELECT pg_sleep(20)"))

    with pytest.raises(KeyboardInterrupt):
        schema.change_at_once(database_url, job)
    expect_nothing(database_url)


def test_revisions_are_counted_steps(tmp_path: Path) -> None:
    url, count = f"sqlite:///{tmp_path / 'steps.db'}", len(swarmkeep_migrations.REVISIONS)
    steps: list[tuple[int, int | None]] = []

    def note(done: int, total: int | None) -> None:
        steps.append((done, total))

    schema.upgrade(url, on_step=note)
    assert steps == [(done, count) for done in range(count + 1)]
    steps.clear()
    schema.downgrade(url, swarmkeep_migrations.REVISIONS[-3], on_step=note)
    assert steps == [(0, 2), (1, 2), (2, 2)]
    steps.clear()
    # Where it leads is known to who follows it.
    schema.upgrade(url, "+1", on_step=note)
    assert steps == [(0, None), (1, None)]


def test_up_down_and_up_again(database_url: str) -> None:
    for _ in range(2):
        assert schema.upgrade(database_url) == LATEST
        assert schema.current(database_url) == LATEST
        assert asyncio.run(read_table_names(database_url)) == {*metadata.tables, "alembic_version"}
        assert schema.downgrade(database_url, "base") is None
        assert schema.current(database_url) is None
        assert asyncio.run(read_table_names(database_url)) == {"alembic_version"}


def test_upgrading_current_database_changes_nothing(url: str) -> None:
    assert schema.upgrade(url) == schema.upgrade(url, LATEST) == LATEST


def test_migrations_make_this_releases_tables(url: str) -> None:
    assert schema.check(url) == []


async def test_a_difference_is_named(url: str, store: SqlStore) -> None:
    def change(connection: object) -> None:
        connection.execute(text("ALTER TABLE blobs ADD COLUMN extra TEXT"))  # type: ignore[attr-defined]
        connection.execute(text("DROP INDEX ix_session_labels_label"))  # type: ignore[attr-defined]

    await store.database.write(change)
    assert sorted(schema.check(url)) == [
        "missing: index ix_session_labels_label of session_labels",
        "unexpected: column extra of blobs",
    ]


async def test_missing_tables_and_wrong_types_are_named(url: str, store: SqlStore) -> None:
    def change(connection: object) -> None:
        connection.execute(text("DROP TABLE blobs"))  # type: ignore[attr-defined]
        connection.execute(text("CREATE TABLE other (id INTEGER)"))  # type: ignore[attr-defined]
        connection.execute(text("ALTER TABLE api_keys DROP COLUMN name"))  # type: ignore[attr-defined]
        connection.execute(text("ALTER TABLE api_keys ADD COLUMN name INTEGER"))  # type: ignore[attr-defined]

    await store.database.write(change)
    found = schema.check(url)
    assert found[:2] == ["missing: table blobs", "unexpected: table other"]
    assert "type of api_keys.name differs: INTEGER(), not " in "\n".join(found)


async def test_migration_works_within_event_loop(database_url: str) -> None:
    assert schema.upgrade(database_url) == LATEST
    store = open_store(database_url)
    await store.ping()
    await begin_session(store)
    await store.close()


async def test_a_current_schema_is_ready(store: SqlStore) -> None:
    await store.ping()


@pytest.mark.parametrize(
    ("revision", "sentence"),
    [("9999", "only knows revisions up to"), ("0000", "only knows revisions up to"), (None, "swarmkeep db upgrade")],
)
async def test_another_release_s_schema_is_refused(store: SqlStore, revision: str | None, sentence: str) -> None:
    change = text("DELETE FROM alembic_version") if revision is None else text(
        "UPDATE alembic_version SET version_num = :revision").bindparams(revision=revision)  # fmt: skip
    await store.database.write(lambda connection: connection.execute(change).rowcount)
    with pytest.raises(SchemaBehind, match=sentence):
        await store.ping()


async def test_only_newer_release_migrates_schema(store: SqlStore, url: str) -> None:
    change = text("UPDATE alembic_version SET version_num = '9999'")
    await store.database.write(lambda connection: connection.execute(change).rowcount)
    for migrate in (schema.upgrade, lambda url: schema.upgrade(url, "0001"), lambda url: schema.downgrade(url, "base")):
        with pytest.raises(SchemaBehind, match=r"at revision 9999, but this release only knows .*; upgrade swarmkeep"):
            migrate(url)
    assert schema.current(url) == "9999"


async def test_foreign_database_is_refused(store: SqlStore, url: str) -> None:
    await store.database.write(lambda connection: connection.execute(text("DROP TABLE alembic_version")).rowcount)
    with pytest.raises(SchemaBehind, match="the database belongs to another program"):
        await store.ping()
    for look in (schema.current, schema.upgrade):
        with pytest.raises(SchemaBehind, match="it has a table 'api_keys'"):
            look(url)


def test_foreign_file_is_left_unchanged(tmp_path: Path) -> None:
    file = tmp_path / "notes.db"
    with closing(sqlite3.connect(file)) as other:
        other.execute("CREATE TABLE notes (text)")
    before = file.read_bytes()
    with pytest.raises(SchemaBehind, match="it has a table 'notes'"):
        schema.upgrade(f"sqlite:///{file}")
    assert file.read_bytes() == before
    assert list(tmp_path.iterdir()) == [file]


async def test_an_older_schema_names_the_command(store: SqlStore) -> None:
    change = text("UPDATE alembic_version SET version_num = '0001'")
    await store.database.write(lambda connection: connection.execute(change).rowcount)
    with pytest.raises(
        SchemaBehind, match=rf"at revision 0001, this release needs {LATEST}; run `swarmkeep db upgrade`"
    ):
        await store.ping()


async def test_events_survive_migration_to_same_place(url: str, opener: Opener) -> None:
    state = await begin_session(opener())
    schema.upgrade(url)
    assert await opener().state(KEY) == state


def test_logging_is_left_alone(database_url: str) -> None:
    root = logging.getLogger()
    before = root.level, list(root.handlers), logging.getLogger("alembic").level, root.manager.disable
    schema.upgrade(database_url)
    assert (root.level, list(root.handlers), logging.getLogger("alembic").level, root.manager.disable) == before


def test_revisions_are_the_shipped_ones() -> None:
    config = Config()
    config.set_main_option("script_location", str(Path(swarmkeep_migrations.__file__).parent))
    scripts = ScriptDirectory.from_config(config)
    assert scripts.get_heads() == [LATEST]
    assert [script.revision for script in scripts.walk_revisions()][::-1] == list(swarmkeep_migrations.REVISIONS)


@pytest.mark.long
def test_concurrent_starts_migrate_once(database_url: str, tmp_path: Path) -> None:
    program = "import sys; from swarmkeep.store import schema; print(schema.upgrade(sys.argv[1]))"
    starters = [Process([sys.executable, "-c", program, database_url], folder=tmp_path) for _ in range(5)]
    for starter in starters:
        starter.start()
    for starter in starters:
        assert starter.wait(120) == 0, starter.output()
        assert starter.output().strip() == LATEST
    assert schema.check(database_url) == []


def test_current_database_start_skips_alembic(url: str) -> None:
    program = (
        "import sys; from swarmkeep.store import schema; schema.upgrade(sys.argv[1]); schema.current(sys.argv[1]); "
        "sys.exit('alembic' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program, url], check=False).returncode == 0


def test_failed_migration_changes_nothing(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from alembic import op

    class Cut(Exception):
        pass

    create = op.create_table
    made: list[str] = []

    def create_some(name: str, *columns: object, **options: object) -> object:
        if len(made) == 3:
            raise Cut
        made.append(name)
        return create(name, *columns, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(op, "create_table", create_some)
    with pytest.raises(Cut):
        schema.upgrade(database_url)
    monkeypatch.undo()
    expect_nothing(database_url)
    assert schema.upgrade(database_url) == LATEST


def test_steps_of_a_revision_are_left_or_kept(url: str) -> None:
    schema.downgrade(url, "0005")
    schema.change_at_once(url, lambda connection: schema.migrate_to(connection, "0009"))
    assert schema.upgrade(url, "0003") == "0009"
    for revision in ("0006", "0012"):
        with pytest.raises(NoSuchRevision, match="this release has 0001 to 0029"):
            schema.upgrade(url, revision)
        assert schema.current(url) == "0009"
    assert schema.downgrade(url, "0005") == "0005"
    assert schema.upgrade(url) == LATEST
    assert schema.check(url) == []


def test_migration_of_a_database_is_logged(database_url: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="swarmkeep.store.schema")
    schema.upgrade(database_url, "0005")
    assert caplog.messages == []
    for _ in range(2):
        schema.upgrade(database_url)
    assert caplog.messages == [f"the database was migrated from revision 0005 to {LATEST}"]


# What in a PostgreSQL database, or its role, will be in a server's way.


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
