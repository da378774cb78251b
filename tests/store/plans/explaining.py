"""How a database would run a statement: which rows it reads, by which index, and what it sorts."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
from sqlalchemy import Connection, Engine, event

from tests.support.source import PACKAGES

STORE = PACKAGES["swarmkeep"] / "store"

# Modules that pass on statements of others, are about one of the databases, or serve whole databases.
_PASSES_ON = {
    "backup", "opening", "postgres", "postgres_connections", "schema", "sqlite", "sqlite_files", "statements", "tables",
}  # fmt: skip


def list_statement_modules() -> list[Path]:
    """The modules whose statements need cases."""
    return sorted(path for path in STORE.glob("*.py") if path.stem not in _PASSES_ON)


class Site(msgspec.Struct, frozen=True, order=True):
    """A place in `store` that runs a statement."""

    module: str
    line: int


class Statement(msgspec.Struct, frozen=True):
    sql: str
    parameters: tuple[Any, ...]
    sites: frozenset[Site]
    """Where it was run, and where that was called."""


class Access(msgspec.Struct, frozen=True):
    """A table of which rows are read. `columns` are those that the index is searched by."""

    table: str
    index: str | None
    columns: frozenset[str]
    filtered: bool = False


class Plan(msgspec.Struct, frozen=True):
    accesses: tuple[Access, ...]
    sorts: bool


_recording: list[list[Statement]] = []


@contextmanager
def recorded_statements() -> Iterator[list[Statement]]:
    """Every statement that the store runs meanwhile, in this thread or another."""
    found: list[Statement] = []
    _recording.append(found)
    try:
        yield found
    finally:
        _recording.remove(found)


@event.listens_for(Engine, "before_cursor_execute")
def _note_statement(connection: Connection, _: Any, sql: str, parameters: Any, context: Any, executemany: bool) -> None:
    if connection.dialect.name != "sqlite":
        _note(sql, tuple(parameters[0] if executemany else parameters))


@event.listens_for(Engine, "connect")
def _follow_driver(raw: Any, record: Any) -> None:
    # SQLite's own tells of all statements, also of those that do not go through SQLAlchemy; with their values in them.
    # What a statement does by the way is a comment.
    if hasattr(raw, "set_trace_callback"):
        raw.set_trace_callback(lambda sql: None if sql.startswith("--") else _note(sql, ()))


def _note(sql: str, parameters: tuple[Any, ...]) -> None:
    if _recording and (sites := frozenset(_list_sites())):
        for found in _recording:
            found.append(Statement(sql, parameters, sites))


def _list_sites() -> Iterator[Site]:
    frame = sys._getframe(2)
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        if path.parent == STORE and path.stem not in _PASSES_ON:
            yield Site(path.stem, frame.f_lineno)
        frame = frame.f_back  # type: ignore[assignment]


def explain_on_sqlite(connection: Connection, statement: Statement) -> Plan:
    raw: Any = connection.connection.dbapi_connection
    lines = [row[3] for row in raw.execute(f"EXPLAIN QUERY PLAN {statement.sql}", statement.parameters)]
    # These are their own key's index: rows are found by it, and come in its order, without another one.
    keyed = {name for (name,) in raw.execute("SELECT name FROM sqlite_master WHERE sql LIKE '%WITHOUT ROWID%'")}
    return Plan(
        tuple(access for line in lines if (access := _parse_line(line, keyed)) is not None),
        any("TEMP B-TREE" in line for line in lines),
    )


_LINE = re.compile(
    r"(?:SCAN|SEARCH)(?: TABLE)? (\w+)(?: AS \w+)?"
    r"(?: USING (?:(?:COVERING )?INDEX (\w+)|PRIMARY KEY)(?: \((.*)\))?)?$"
)


# What FTS5 says of itself: a row by its number, which `=` begins, or words.
_WORDS = re.compile(r"SCAN (\w+) VIRTUAL TABLE INDEX \d+:(=?)")


def _parse_line(line: str, keyed: Collection[str]) -> Access | None:
    words = _WORDS.match(line)
    if words is not None:
        return Access(words[1], "words", frozenset({"rowid"} if words[2] else {"words"}))
    found = _LINE.match(line)
    if found is None or found[1] == "CONSTANT":
        return None
    index = found[2] or ("PRIMARY KEY" if found[1] in keyed else None)
    return Access(found[1], index, frozenset(re.findall(r"(\w+)[,)]*[=<>]", found[3] or "")))


async def explain_on_postgres(raw: Any, statement: Statement, *, generic: bool) -> Plan:
    """With these parameters, or as PostgreSQL plans for any."""
    if generic:
        async with raw.transaction():
            await raw.execute("SET LOCAL plan_cache_mode = force_generic_plan")
            await raw.execute(f"PREPARE asked AS {statement.sql}")
            nulls = ", ".join(["NULL"] * len(statement.parameters))
            found = await raw.fetchval(f"EXPLAIN (FORMAT JSON) EXECUTE asked{f'({nulls})' if nulls else ''}")
            await raw.execute("DEALLOCATE asked")
    else:
        found = await raw.fetchval(f"EXPLAIN (FORMAT JSON) {statement.sql}", *statement.parameters)
    nodes = list(_list_nodes(json.loads(found)[0]["Plan"]))
    sorting = ("Sort", "Incremental Sort")
    return Plan(
        tuple(_find_accesses(nodes)),
        any(node["Node Type"] in sorting or node.get("Strategy") == "Hashed" for node in nodes),
    )


def _list_nodes(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield node
    for part in node.get("Plans", []):
        yield from _list_nodes(part)


def _find_accesses(nodes: Sequence[dict[str, Any]]) -> Iterator[Access]:
    for node in nodes:
        match node["Node Type"]:
            case "Seq Scan":
                yield Access(node["Relation Name"], None, frozenset())
            case "Index Scan" | "Index Only Scan":
                yield _read_index_node(node, node["Relation Name"])
            case "Bitmap Heap Scan":
                for part in _list_nodes(node):
                    if part["Node Type"] == "Bitmap Index Scan":
                        yield _read_index_node(part, node["Relation Name"])


def _read_index_node(node: dict[str, Any], table: str) -> Access:
    columns = re.findall(r"[( ]\(*(\w+)(?:, \w+\))? (?:=|<|>|<=|>=) ", " " + node.get("Index Cond", ""))
    return Access(table, node["Index Name"], frozenset(columns), "Filter" in node)
