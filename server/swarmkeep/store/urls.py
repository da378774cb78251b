"""Database URLs as people write them, taken apart. Nothing here, and no message made from it, shows a password."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlencode

import msgspec

_SQLITE_URL = re.compile(r"sqlite(?:\+\w+)?:(?://)?(?P<path>/[^?]*)?(?P<rest>[^?]*)(?:\?(?P<query>.*))?", re.DOTALL)
_POSTGRES_URL = re.compile(
    r"postgres(?:ql)?(?:\+\w+)?://(?:(?P<auth>[^/?]*)@)?(?P<hosts>[^/?@]*)(?:/(?P<database>[^?]*))?(?:\?(?P<query>.*))?",
    re.DOTALL,
)
_HOST = r"(?:\[[^\]]*\]|[^:,\[\]#]*)(?::\d*)?"
_HOSTS = re.compile(rf"{_HOST}(?:,{_HOST})*")
_SCHEME = re.compile(r"[A-Za-z][\w+.-]*:")
# libpq parameters that asyncpg does not know; it would pass them on as settings, which the server then refuses.
_IGNORED_PARAMETERS = ("channel_binding", "gssencmode", "keepalives", "keepalives_idle", "pgbouncer", "schema")


class BadDatabaseUrl(ValueError):
    """The database URL cannot be used; the message says why and what one looks like."""


class SqliteFile(msgspec.Struct, frozen=True):
    """A SQLite database. The path is absolute, so a later change of directory does not move it."""

    path: Path
    keyring: Any = None
    """Reads what people's keys encrypt."""

    @property
    def display(self) -> str:
        return f"sqlite:///{self.path}"


class PostgresServer(msgspec.Struct, frozen=True, kw_only=True):
    """A PostgreSQL database: what asyncpg.connect takes. `dsn` holds all but the user and the password.

    `prepares_statements` is off where a pooler stands between, which passes on neither settings nor notifications.
    """

    dsn: str
    user: str | None
    password: str | None
    hosts: str
    database: str
    connect_seconds: float = 10.0
    prepares_statements: bool = True
    keyring: Any = None

    @property
    def display(self) -> str:
        user = f"{self.user}@" if self.user else ""
        return f"postgresql://{user}{self.hosts}/{self.database}"

    def __repr__(self) -> str:
        return f"PostgresServer({self.display})"


Location = SqliteFile | PostgresServer


def locate(url: str) -> Location:
    """Locate the database of a URL.

    Raises BadDatabaseUrl.
    """
    url = url.strip()
    if (match := _POSTGRES_URL.fullmatch(url)) is not None:
        return _parse_postgres(match)
    if url.startswith("sqlite") and (match := _SQLITE_URL.fullmatch(url)) is not None:
        return _parse_sqlite(match)
    if _SCHEME.match(url) is None:
        raise BadDatabaseUrl(f"{url!r} is not a database URL; for a file, write sqlite:///{url or 'FILE'}")
    raise BadDatabaseUrl(
        f"cannot use a database URL that begins with {url.split(':')[0]!r}; "
        "write sqlite:///FILE or postgresql://USER:PASSWORD@HOST/DATABASE"
    )


def _parse_sqlite(match: re.Match[str]) -> SqliteFile:
    if match["rest"]:
        raise BadDatabaseUrl(f"{match[0]!r} has too few slashes: write sqlite:///FILE, or sqlite:////DIR/FILE")
    if match["query"]:
        raise BadDatabaseUrl(f"{match[0]!r}: a SQLite URL takes no parameters; write sqlite:///FILE")
    path = unquote((match["path"] or "")[1:])
    if not path or ":memory:" in path:
        raise BadDatabaseUrl("an in-memory SQLite database would lose every session; write sqlite:///FILE")
    if "\0" in path:
        raise BadDatabaseUrl("a file name cannot hold a NUL character")
    return SqliteFile(Path(path).expanduser().absolute())


def _parse_postgres(match: re.Match[str]) -> PostgresServer:
    user, _, password = (match["auth"] or "").partition(":")
    options = dict(pair for pair in parse_qsl(match["query"] or "") if pair[0] not in _IGNORED_PARAMETERS)
    seconds = options.pop("connect_timeout", "10")
    if not seconds.isdecimal():
        raise BadDatabaseUrl(f"connect_timeout must be a number of seconds, not {seconds!r}")
    caching = [options.pop(name, "1") for name in ("statement_cache_size", "prepared_statement_cache_size")]
    name = options.pop("user", None), options.pop("password", None)
    hosts = match["hosts"]
    named = [match["database"] or "", *(part.partition("=")[0] for part in (match["query"] or "").split("&"))]
    if _HOSTS.fullmatch(hosts) is None or any("@" in name for name in named):
        # Its rest was taken for a host or a database, whose names are shown, or for a parameter.
        raise BadDatabaseUrl(
            "the database URL cannot be read: it may be that the password has characters that have to be written as "
            "in %2F for /, %3F for ?, %23 for #, %40 for @ and %25 for %"
        )
    database = unquote(match["database"] or "")
    query = urlencode({"application_name": "swarmkeep", **options})
    return PostgresServer(
        dsn=f"postgresql://{hosts}/{match['database'] or ''}?{query}",
        user=unquote(user) or name[0],
        password=unquote(password) or name[1],
        hosts=hosts or options.get("host", ""),
        database=database or options.get("dbname", ""),
        connect_seconds=float(seconds) or 10.0,
        prepares_statements="0" not in caching,
    )
