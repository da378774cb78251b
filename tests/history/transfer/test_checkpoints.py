"""Checkpoints of LangGraph's PostgresSaver, as it wrote them, become sessions."""

from __future__ import annotations

from pathlib import Path

import asyncpg  # type: ignore[import-untyped]
import pytest

from swarmkeep.events.errors import InvalidImport
from swarmkeep.history.conversations import import_conversations
from swarmkeep.history.foreign import databases
from swarmkeep.history.foreign.databases import copy_checkpoints
from swarmkeep.history.foreign.formats import read_conversations, recognise
from swarmkeep.store.opening import SqlStore
from swarmkeep.store.records import SessionKey, StoreUnavailable
from swarmkeep.store.urls import PostgresServer, locate
from tests.history.transfer.test_databases import RECORDED
from tests.history.transfer.test_formats import TENANT, read_messages, summarise

LAST = "checkpoint_id = (SELECT max(checkpoint_id) FROM checkpoints WHERE thread_id = 't1')"


async def execute(url: str, *statements: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        for statement in statements:
            await connection.execute(statement)
    finally:
        await connection.close()


async def record(url: str, *changes: str) -> None:
    await execute(url, (RECORDED / "langgraph_postgres.sql").read_text(encoding="utf-8"), *changes)


async def copy(url: str, path: Path) -> list[tuple[int, int]]:
    server, told = locate(url), list[tuple[int, int]]()
    assert isinstance(server, PostgresServer)
    await copy_checkpoints(server, path, lambda done, count: told.append((done, count)))
    return told


async def test_recorded_threads_become_sessions(store: SqlStore, postgres_url: str, tmp_path: Path) -> None:
    await record(postgres_url)
    assert await copy(postgres_url, tmp_path / "copy.db") == [(1, 2), (2, 2)]
    with (tmp_path / "copy.db").open("rb") as file:
        assert recognise(file) == "langgraph"
        report = await import_conversations(store, TENANT, file, "langgraph", default_agent="Ann")
        again = await import_conversations(store, TENANT, file, "langgraph", default_agent="Ann")
    assert (report.imported, again.present) == (2, 2)
    assert [session.id for session in report.sessions] == ["t1", "t2"]
    state = await store.state(SessionKey(TENANT, "t1"))
    assert state.context_variables == {"n": 3, "topic": "orders", "x": [1, 2]}
    origin = state.metadata["imported"]
    assert origin["thread_id"] == "t1"
    assert "2026-11-28T18:14:36.1" < origin["created_at"] < origin["updated_at"] < "2026-11-28T18:14:37"
    messages = await read_messages(store, "t1")
    assert summarise(messages) == [("user", "hi"), ("assistant", None), ("tool", "r"), ("assistant", "bye ☃")]
    assert messages[1]["tool_calls"][0]["function"] == {"name": "f", "arguments": '{"a":1}'}
    assert (messages[1]["imported"]["usage"]["total_tokens"], messages[1]["imported"]["model"]) == (3, "m")
    # Of a graph within a graph the outer one counts, which has the messages of both.
    said = [text for _, text in summarise(await read_messages(store, "t2"))]
    assert said[:3] == ["one", "deep", "two"]


async def test_values_of_every_kind(postgres_url: str, tmp_path: Path) -> None:
    versions = '{"messages": "1", "a": "1", "b": "2", "c": "1", "d": "1", "gone": "1"}'
    await record(
        postgres_url,
        "DELETE FROM checkpoints; DELETE FROM checkpoint_blobs",
        f"""INSERT INTO checkpoints VALUES ('t', '', '1', NULL, NULL, '{{"id": "1", "ts": "2026-01-01T00:00:00+00:00",
        "channel_values": {{"e": 1.5, "f": true}}, "channel_versions": {versions}}}', '{{}}')""",
        r"""INSERT INTO checkpoint_blobs VALUES
        ('t', '', 'messages', '1', 'json', '[{"type": "human", "content": "hi"}]'),
        ('t', '', 'a', '1', 'null', ''), ('t', '', 'b', '1', 'msgpack', '\x01'), ('t', '', 'b', '2', 'msgpack', '\x02'),
        ('t', '', 'c', '1', 'bytes', '\x00ff'), ('t', '', 'd', '1', 'empty', NULL),
        ('t', 'x', 'gone', '1', 'null', NULL), ('u', '''', 'gone', '1', 'null', NULL)""",
    )
    assert await copy(postgres_url, tmp_path / "copy.db") == [(1, 1)]
    with (tmp_path / "copy.db").open("rb") as file:
        [found] = read_conversations(file, "langgraph")
    assert summarise(found.messages) == [("user", "hi")]
    assert found.context_variables == {"a": None, "b": 2, "c": "AP8=", "e": 1.5, "f": True}


LARGE = "1" + "0" * 30
REFUSED = [
    ("UPDATE checkpoint_blobs SET type = 'pickle' WHERE channel = 'x'", "the channel 'x' of thread 't1' is written as"),
    (f"UPDATE checkpoints SET metadata = '{{\"counters_since_delta_snapshot\": {{}}}}' WHERE {LAST}", "DeltaChannel"),
    (
        f"UPDATE checkpoints SET checkpoint = jsonb_set(checkpoint, '{{channel_values,n}}', '{LARGE}') WHERE {LAST}",
        "the checkpoint of thread 't1' cannot be read",
    ),
    ("DROP TABLE checkpoint_blobs", "cannot be read as one of LangGraph's PostgresSaver"),
    ("DROP TABLE checkpoints", 'relation "checkpoints" does not exist'),
]


@pytest.mark.parametrize(("change", "why"), REFUSED)
async def test_what_cannot_be_read_is_named(postgres_url: str, tmp_path: Path, change: str, why: str) -> None:
    await record(postgres_url, change)
    with pytest.raises(InvalidImport) as refused:
        await copy(postgres_url, tmp_path / "copy.db")
    assert why in str(refused.value)


async def test_size_of_a_thread_is_bounded(postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    await record(postgres_url)
    monkeypatch.setattr(databases, "MAX_FILE_BYTES", 500)
    with pytest.raises(InvalidImport, match="thread 't1' has more than 500 bytes"):
        await copy(postgres_url, tmp_path / "copy.db")


async def test_database_is_only_read(postgres_url: str, tmp_path: Path) -> None:
    await record(
        postgres_url,
        """CREATE FUNCTION tread() RETURNS boolean LANGUAGE plpgsql
        AS $$ BEGIN CREATE TABLE trodden (); RETURN true; END $$""",
        "ALTER TABLE checkpoints RENAME TO kept",
        "CREATE VIEW checkpoints AS SELECT * FROM kept WHERE tread()",
    )
    with pytest.raises(InvalidImport, match="read-only transaction"):
        await copy(postgres_url, tmp_path / "copy.db")


async def test_address_without_a_server_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match="cannot connect"):
        await copy("postgresql://127.0.0.1:1/none?connect_timeout=2", tmp_path / "copy.db")
