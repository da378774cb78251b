"""Database URLs as people write them."""

from __future__ import annotations

from pathlib import Path

import pytest

from swarmkeep.store.opening import open_store
from swarmkeep.store.urls import BadDatabaseUrl, PostgresServer, SqliteFile, locate


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("sqlite:///data.db", "data.db"),
        ("sqlite:///dir/data.db", "dir/data.db"),
        ("sqlite:///./data.db", "data.db"),
        ("sqlite:////var/lib/data.db", "/var/lib/data.db"),
        ("sqlite+aiosqlite:////var/data.db", "/var/data.db"),
        ("sqlite+pysqlite:////var/data.db", "/var/data.db"),
        (" sqlite:////var/my%20data.db\n", "/var/my data.db"),
        ("sqlite:////var/my data.db", "/var/my data.db"),
        ("sqlite:///~/data.db", str(Path.home() / "data.db")),
    ],
)
def test_sqlite_files(url: str, path: str) -> None:
    location = locate(url)
    assert location == SqliteFile(Path.cwd() / path)
    assert locate(location.display) == location


@pytest.mark.parametrize(
    ("url", "dsn", "user", "password", "display"),
    [
        ("postgresql://h/d", "h/d", None, None, "h/d"),
        ("postgres://u:p@h:5433/d", "h:5433/d", "u", "p", "u@h:5433/d"),
        ("postgresql+asyncpg://u:p@h/d", "h/d", "u", "p", "u@h/d"),
        ("postgresql+psycopg2://u@h/d", "h/d", "u", None, "u@h/d"),
        ("postgresql://u:p%40ss%2Fw%3Ard@h/d", "h/d", "u", "p@ss/w:rd", "u@h/d"),
        ("postgresql://u:p@ss@h/d", "h/d", "u", "p@ss", "u@h/d"),
        ("postgresql://u:a:b@h/d", "h/d", "u", "a:b", "u@h/d"),
        ("postgresql:///d?host=/tmp/x", "/d", None, None, "/tmp/x/d"),
        ("postgresql://postgres:@/postgres?host=/tmp/x", "/postgres", "postgres", None, "postgres@/tmp/x/postgres"),
        ("postgresql://u@%2Ftmp%2Fx/d", "%2Ftmp%2Fx/d", "u", None, "u@%2Ftmp%2Fx/d"),
        ("postgresql://[::1]:5432/d", "[::1]:5432/d", None, None, "[::1]:5432/d"),
        ("postgresql://u:p@h1:1,h2:2/d", "h1:1,h2:2/d", "u", "p", "u@h1:1,h2:2/d"),
        ("postgresql://h/d?user=u&password=hunter2", "h/d", "u", "hunter2", "u@h/d"),
        ("postgresql://u:p@h", "h/", "u", "p", "u@h/"),
    ],
)
def test_postgresql_servers(url: str, dsn: str, user: str | None, password: str | None, display: str) -> None:
    server = locate(url)
    assert isinstance(server, PostgresServer)
    assert server.dsn.partition("?")[0] == f"postgresql://{dsn}"
    assert (server.user, server.password) == (user, password)
    assert server.display == f"postgresql://{display}"


def test_options_reach_driver_in_its_words() -> None:
    server = locate("postgresql://h/d?sslmode=require&channel_binding=require&connect_timeout=3&options=-c%20x%3Dy")
    assert isinstance(server, PostgresServer)
    assert server.dsn.endswith("?application_name=swarmkeep&sslmode=require&options=-c+x%3Dy")
    assert server.connect_seconds == 3
    assert server.prepares_statements


def test_pooler_url_disables_prepared_statements() -> None:
    server = locate("postgresql://h/d?statement_cache_size=0&application_name=mine")
    assert isinstance(server, PostgresServer)
    assert not server.prepares_statements
    assert server.dsn.endswith("?application_name=mine")


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("sqlite://", "lose every session"),
        ("sqlite:///", "lose every session"),
        ("sqlite:///:memory:", "lose every session"),
        ("sqlite:///file::memory:", "lose every session"),
        ("sqlite:data.db", "too few slashes"),
        ("sqlite://data.db", "too few slashes"),
        ("sqlite:///data.db?mode=memory", "no parameters"),
        ("sqlite:///a%00b", "NUL"),
        ("data.db", "sqlite:///data.db"),
        ("/var/data.db", "sqlite:////var/data.db"),
        ("", "sqlite:///FILE"),
        ("mysql://u:hunter2@h/d", "'mysql'"),
        ("postgresql://u:hunter2@h/d?connect_timeout=soon", "connect_timeout"),
        ("postgresql:u:hunter2@h", "postgresql://USER"),
        ("postgresql://u:hunter2/x@h/d", "%2F for /"),
        ("postgresql://u:1/hunter2@h/d", "%2F for /"),
        ("postgresql://u:1?hunter2@h/d", "%3F for ?"),
        ("postgresql://u:hunter2?x@h/d", "%3F for ?"),
        ("postgresql://u:x@hunter2#/y@h/d", "%23 for #"),
    ],
)
def test_unusable_url_is_refused_with_correction(url: str, sentence: str) -> None:
    with pytest.raises(BadDatabaseUrl) as refused:
        open_store(url)
    assert sentence in str(refused.value)
    assert "hunter2" not in str(refused.value)


def test_nothing_shows_the_password() -> None:
    server = locate("postgresql://u:hunter2@h/d?password=hunter2")
    assert isinstance(server, PostgresServer)
    assert (
        "hunter2" not in repr(server) + str(server) + server.display + open_store("postgresql://u:hunter2@h/d").display
    )
    assert "hunter2" not in server.dsn
