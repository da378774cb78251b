"""Indexing several sessions at once: what is one transaction, and what becomes of one that fails."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import pytest
from sqlalchemy import Connection, insert, select
from sqlalchemy import text as sql

from swarmkeep.store.opening import SqlStore, open_store
from swarmkeep.store.search import read_parts, render_words, store_words, work_out
from swarmkeep.store.tables import search
from tests.store.sessions import draft_user_messages
from tests.store.sql.test_search import find, index_all, key, say
from tests.support.postgres import Postgres


async def test_refused_words_exclude_only_their_session(store: SqlStore, caplog: pytest.LogCaptureFixture) -> None:
    for name in "abc":
        await say(store, name, "canary")
    read = store.database.read_snapshot

    async def damage_one(query: Any) -> Any:
        """Give the events of a session numbers that no column holds."""
        return [
            msgspec.structs.replace(part, rows=[(1 << 80, *row[1:]) for row in part.rows])
            if part.mark.key.id == "b"
            else part
            for part in await read(query)
        ]

    store.database.read_snapshot = damage_one  # type: ignore[method-assign]
    await index_all(store)
    assert await find(store, "canary") == ["c", "a"]
    assert [one.getMessage().partition(":")[0] for one in caplog.records] == ["session b"]


async def test_job_covers_all_but_failing_items(store: SqlStore) -> None:
    def insert_words(connection: Connection, numbers: Sequence[int]) -> None:
        rows = [
            {"tenant": "t", "session_id": "s", "seq": number, "number": number, "words": "canary"} for number in numbers
        ]
        connection.execute(insert(search), rows)
        if 7 in numbers:
            raise ArithmeticError("seven")

    numbers = range(1, 41)
    errors = await store.database.write_each(insert_words, numbers, render=lambda _: None)
    assert [error and str(error) for error in errors] == ["seven" if number == 7 else None for number in numbers]
    rows = await store.database.read(lambda connection: list(connection.scalars(select(search.c.seq))))
    assert sorted(rows) == [number for number in numbers if number != 7]


async def test_damaged_message_row_hides_no_other(sqlite_ready: str) -> None:
    store = open_store(sqlite_ready)
    for name in "ab":
        await say(store, name, *["canary"] * 150)
    await index_all(store)
    numbers = await store.database.read(lambda db: list(db.scalars(select(search.c.number).order_by(search.c.number))))
    assert numbers == list(range(1, 303))
    damage = sql("UPDATE search SET seq = 'x' WHERE session_id = 'b' AND seq = 7")
    await store.database.write(lambda connection: connection.execute(damage))
    assert sorted(await find(store, "canary")) == ["a", "b"]
    await store.close()


async def test_sqlite_index_transaction_is_one_insert(sqlite_ready: str) -> None:
    """Between any two statements its index of words writes out what it has, and merges it again later."""
    store = open_store(sqlite_ready)
    for number in range(20):
        await say(store, f"s{number}", "canary")
    statements: list[str] = []

    def trace(connection: Connection) -> None:
        raw: Any = connection.connection.dbapi_connection
        raw.set_trace_callback(statements.append)

    await store.database.write(trace)
    await index_all(store)
    # A statement is named again after each trigger that it has run.
    assert len({one for one in statements if one.startswith("INSERT INTO search ")}) == 2
    assert len(await find(store, "canary")) == 20
    numbers = await store.database.read(lambda db: list(db.scalars(select(search.c.number).order_by(search.c.number))))
    assert numbers == list(range(1, 41))
    await store.close()


async def test_long_session_is_read_in_complete_pieces(store: SqlStore) -> None:
    text = "lorem " * 50_000
    words = [f"word{number}" for number in range(12)]
    await say(store, "long", *(f"{word} {text}" for word in words))
    rounds = 0
    while await store.index_some():
        rounds += 1
    assert rounds == 3
    for word in words:
        assert await find(store, word) == ["long"]


async def test_long_session_delays_no_others_search(store: SqlStore) -> None:
    """What it has beyond its share takes no room from those behind it."""
    await say(store, "a", *["lorem " * 100_000] * 12)
    await say(store, "b", "canary")
    await store.index_some()
    assert await find(store, "canary") == ["b"]


@pytest.fixture
def awaited_url(postgres: Postgres, postgres_ready: str) -> Iterator[str]:
    """A database whose commits wait for the disk, as they do outside of tests."""
    postgres.alter(postgres_ready, "SET synchronous_commit = on")
    yield postgres_ready
    postgres.alter(postgres_ready, "RESET synchronous_commit")


async def test_postgres_indexing_skips_disk_waits(awaited_url: str) -> None:
    store = open_store(awaited_url)
    setting = sql("SELECT current_setting('synchronous_commit')")
    await say(store, "a", "canary")
    read = await store.database.read_snapshot(read_parts)
    found = [work_out(part) for part in read]

    def store_all(connection: Connection) -> Any:
        store_words(connection, found)
        return connection.scalar(setting)

    assert await store.database.write(store_all) == "off"
    assert await find(store, "canary") == ["a"]
    state = await store.state(key("a"))
    await store.append(key("a"), state, draft_user_messages("linnet"))
    [words] = [work_out(part) for part in await store.database.read_snapshot(read_parts)]
    statement = render_words(words)
    assert statement is not None
    assert [tuple(row) for row in await store.database.write_statement(statement)] == [("off",)]
    assert await find(store, "linnet") == ["a"]
    # All else is waited for, on the same connections.
    assert await store.database.write(lambda connection: connection.scalar(setting)) == "on"
    await store.close()
