"""Column types for both databases: any text, compared by code point; and the database's clock."""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, Dialect, Double, Text
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.expression import ColumnElement
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import TypeDecorator, TypeEngine

from swarmkeep.domain.codec import decode, encode_text


def escape(text: str) -> str:
    """Any Python text in a form that both databases hold: itself, or a JSON string if it has NUL or lone surrogates.

    Text that begins with a quotation mark is written as JSON, too, so that `unescape` can tell.
    """
    if text.startswith('"') or "\0" in text or not (text.isascii() or _is_utf8(text)):
        return encode_text(text)
    return text


def unescape(text: str) -> str:
    """The text that `escape` was given. Total: text that somebody damaged is left as it is."""
    if not text.startswith('"'):
        return text
    try:
        return decode(text, str)
    except (ValueError, TypeError):
        return text


def is_as_written(value: object) -> bool:
    """Whether a stored value is text in the one form that `escape` gives it: others may read the same."""
    if not isinstance(value, str):
        return False
    # Nearly all names are of this kind, and are asked about with each row.
    if value.isascii() and '"' not in value and "\0" not in value:
        return True
    return escape(unescape(value)) == value


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def as_text(value: Any) -> str:
    """A value of any type as text, for SQLite holds any in any column; text stays as it is."""
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return value if isinstance(value, str) else str(value)


def as_bytes(value: Any) -> bytes:
    return value if isinstance(value, bytes) else as_text(value).encode(errors="replace")


class Verbatim(TypeDecorator[str]):
    """Text that comes back exactly as given, compared and sorted by code point."""

    impl = Text
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        # Any other collation sorts by the server's locale: not as SQLite does, and not the same after an upgrade.
        return Text(collation="C") if dialect.name == "postgresql" else Text()

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        return None if value is None else escape(value)

    def process_result_value(self, value: str | None, dialect: Dialect) -> str | None:
        return None if value is None else unescape(as_text(value))


class Words(TypeDecorator[str]):
    """Words with spaces between them: text on SQLite, where another table is their index; tsvector on PostgreSQL."""

    impl = Text
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        if dialect.name != "postgresql":
            return Text()
        from sqlalchemy.dialects.postgresql import TSVECTOR

        return TSVECTOR()


class database_now(ColumnElement[float]):
    """Seconds since 1970 by the database's clock, which is the only one that leases go by."""

    type = Double()
    inherit_cache = True


@compiles(database_now, "sqlite")
def _sqlite_now(element: Any, compiler: Any, **kw: Any) -> str:
    # unixepoch('subsec') needs SQLite 3.42.
    return "((julianday('now') - 2440587.5) * 86400.0)"


@compiles(database_now, "postgresql")
def _postgres_now(element: Any, compiler: Any, **kw: Any) -> str:
    return "CAST(extract(epoch FROM clock_timestamp()) AS double precision)"


class database_tomorrow(ColumnElement[str]):
    """The day after today (UTC) by the database's clock, written as in 2026-01-31."""

    type = Text()
    inherit_cache = True


@compiles(database_tomorrow, "sqlite")
def _sqlite_tomorrow(element: Any, compiler: Any, **kw: Any) -> str:
    return "date('now', '+1 day')"


@compiles(database_tomorrow, "postgresql")
def _postgres_tomorrow(element: Any, compiler: Any, **kw: Any) -> str:
    return "to_char(CAST(clock_timestamp() AT TIME ZONE 'UTC' AS date) + 1, 'YYYY-MM-DD')"


class stored_bytes(FunctionElement[int]):
    """How many bytes a text takes; PostgreSQL tells it without reading the text."""

    type = BigInteger()
    inherit_cache = True


@compiles(stored_bytes, "sqlite")
def _sqlite_bytes(element: Any, compiler: Any, **kw: Any) -> str:
    # octet_length() needs SQLite 3.43.
    return f"length(CAST({compiler.process(element.clauses, **kw)} AS BLOB))"


@compiles(stored_bytes, "postgresql")
def _postgres_bytes(element: Any, compiler: Any, **kw: Any) -> str:
    return f"octet_length({compiler.process(element.clauses, **kw)})"
