"""Databases of other programs, as their libraries wrote them, become sessions."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from swarmkeep.events.codec import Json
from swarmkeep.events.errors import InvalidImport
from swarmkeep.history.conversations import import_conversations
from swarmkeep.history.foreign.conversation import ForeignConversation
from swarmkeep.history.foreign.documents import open_database
from swarmkeep.history.foreign.formats import FORMATS, ForeignFormat, read_conversations, recognise
from swarmkeep.store.opening import SqlStore
from swarmkeep.store.records import SessionKey
from tests.history.transfer.test_formats import TENANT, read_messages, summarise

RECORDED = Path(__file__).parent / "foreign"
_NUMBERS = "WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < :count)"


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Path]:
    def make(recorded: str, *changes: str, **values: Any) -> Path:
        path = tmp_path / "foreign.db"
        with closing(sqlite3.connect(path)) as database:
            if recorded:
                database.executescript((RECORDED / f"{recorded}.sql").read_text())
            for change in changes:
                database.execute(change, values if ":" in change else ())
            database.commit()
        return path

    return make


async def import_database(store: SqlStore, path: Path, **options: Any) -> tuple[str, Json, list[Json], Json]:
    """The format that was recognised, the one session's metadata and messages, and its context variables."""
    with path.open("rb") as file:
        form = recognise(file)
        assert form != "export"
        report = await import_conversations(store, TENANT, file, form, **{"default_agent": "Ann", **options})
        again = await import_conversations(store, TENANT, file, form, **{"default_agent": "Ann", **options})
    assert (report.imported, again.present) == (1, 1)
    [session] = report.sessions
    state = await store.state(SessionKey(TENANT, session.id))
    return form, state.metadata["imported"], await read_messages(store, session.id), state.context_variables


def read(path: Path, form: ForeignFormat) -> list[ForeignConversation]:
    with path.open("rb") as file:
        return list(read_conversations(file, form))


async def test_sessions_of_the_agents_sdk(store: SqlStore, make: Callable[..., Path]) -> None:
    form, origin, messages, _ = await import_database(store, make("agents_sdk"))
    assert (form, origin["session_id"]) == ("agents-sdk", "s1")
    assert origin["created_at"].startswith("2026-11-27T14:")
    assert [message["role"] for message in messages] == ["user", "assistant", "tool", "assistant"]
    assert messages[1]["tool_calls"][0]["function"] == {"name": "f", "arguments": "{}"}
    assert messages[3]["imported"] == {"id": "m", "created_at": origin["created_at"]}


async def test_branches_of_the_agents_sdk_are_forks(store: SqlStore, make: Callable[..., Path]) -> None:
    # A branch in which nothing was said yet, and a row of an item that is not there any more.
    path = make(
        "agents_sdk_branches",
        "INSERT INTO message_structure SELECT NULL, session_id, message_id, 'empty', message_type, 11, 1, 1, NULL, '' "
        "FROM message_structure WHERE id = 1",
        "DELETE FROM agent_messages WHERE id = 6",
    )
    with path.open("rb") as file:
        report = await import_conversations(store, TENANT, file, "agents-sdk", default_agent="Ann")
    assert ([session.id for session in report.sessions], report.forks) == (["s1", "s1:other_way"], 1)
    said = {name: [text for _, text in summarise(await read_messages(store, name))] for name in ("s1", "s1:other_way")}
    assert said == {"s1": ["q1", "a1", "q2", "a2", "q3"], "s1:other_way": ["q1", "a1", "q2b", "a2b"]}


def test_number_of_branches_is_bounded(make: Callable[..., Path]) -> None:
    path = make(
        "agents_sdk_branches",
        f"{_NUMBERS} INSERT INTO message_structure SELECT NULL, session_id, 7, 'b' || n, '', n + 20, 1, 1, NULL, '' "
        "FROM agent_sessions, numbers",
        count=120,
    )
    [found] = read(path, "agents-sdk")
    assert (len(found.branches), found.left_out) == (100, {"further branches": 21})


@pytest.mark.parametrize("recorded", ["adk", "adk_database"])
async def test_sessions_of_adk(store: SqlStore, make: Callable[..., Path], recorded: str) -> None:
    form, origin, messages, state = await import_database(store, make(recorded))
    assert (form, origin["app_name"], origin["user_id"], origin["session_id"]) == ("adk", "shop", "kim", "s-1")
    assert state == {"app:v": 1, "user:name": "Kim", "order": "A-17", "seen": True}
    assert summarise(messages)[1:] == [
        ("assistant", None), ("tool", '{"status":"sent"}'), ("assistant", "It is on its way."),
    ]  # fmt: skip
    assert [part["type"] for part in messages[0]["content"]] == ["text", "image_url"]
    assert messages[1]["tool_calls"][0]["function"] == {"name": "look_up", "arguments": '{"id":"A-17"}'}
    assert [message["sender"] for message in messages if message["role"] == "assistant"] == ["clerk", "clerk"]
    assert messages[1]["imported"]["created_at"] == "2025-11-24T16:00:01.500000Z"
    assert (await store.state(SessionKey(TENANT, "shop:kim:s-1"))).agent == "clerk"


OLD_ADK = (
    "CREATE TABLE sessions (app_name, user_id, id, state, create_time, update_time)",
    "CREATE TABLE events (id, app_name, user_id, session_id, author, actions, timestamp, content)",
    "CREATE TABLE app_states (app_name, state)",
    "CREATE TABLE user_states (app_name, user_id, state)",
    "INSERT INTO sessions VALUES ('a b', 'kim', 's', '{}', '2025-01-01 10:00:00', NULL)",
    "INSERT INTO events VALUES ('e1', 'a b', 'kim', 's', 'clerk', X'80', '2025-01-01 10:00:01', :call)",
    "INSERT INTO events VALUES ('e2', 'a b', 'kim', 's', 'clerk', X'80', '2025-01-01 10:00:02', :result)",
)


async def test_first_schema_of_adk_and_calls_without_ids(store: SqlStore, make: Callable[..., Path]) -> None:
    call = (
        '{"role": "model", "parts": [{"functionCall": {"name": "f", "args": {}}}, {"fileData": {"fileUri": "gs://x"}}]}'
    )
    result = '{"role": "user", "parts": [{"functionResponse": {"name": "f", "response": {"n": 1}}}]}'
    _, origin, messages, _ = await import_database(store, make("", *OLD_ADK, call=call, result=result))
    assert origin["created_at"] == "2025-01-01T10:00:00Z"
    assert summarise(messages) == [("assistant", "[file: gs://x]"), ("tool", '{"n":1}')]
    assert messages[1]["tool_call_id"] == messages[0]["tool_calls"][0]["id"]


async def test_checkpoints_of_langgraph(store: SqlStore, make: Callable[..., Path]) -> None:
    form, origin, messages, state = await import_database(store, make("langgraph"))
    assert (form, origin["thread_id"]) == ("langgraph", "t1")
    assert origin["updated_at"].startswith("2026-11-27T14:")
    assert state == {"n": 3, "topic": "orders", "x": [1, 2]}
    assert summarise(messages) == [("user", "hi"), ("assistant", None), ("tool", "r"), ("assistant", "bye")]
    assert messages[1]["tool_calls"][0] == {
        "id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'},
    }  # fmt: skip
    assert messages[1]["imported"]["usage"]["total_tokens"] == 3


JSON_CHECKPOINT = (
    "CREATE TABLE checkpoints (thread_id, checkpoint_ns, checkpoint_id, type, checkpoint)",
    "INSERT INTO checkpoints VALUES ('u/1', '', '2', :kind, :text)",
    "INSERT INTO checkpoints VALUES ('u/1', 'sub', '3', 'pickle', X'80')",
    "INSERT INTO checkpoints VALUES ('u/1', '', '1', :kind, :text)",
)
CONSTRUCTED = (
    b'{"v": 1, "ts": "2024-07-31T20:14:19+00:00", "channel_values": {"__start__": 1, "at": {"lc": 2, "type": '
    b'"constructor", "id": ["datetime", "date"], "args": [2024]}, "messages": [{"lc": 1, "type": "constructor", "id": '
    b'["langchain", "schema", "messages", "HumanMessage"], "kwargs": {"content": "hi"}}]}}'
)


async def test_old_checkpoints_are_json(store: SqlStore, make: Callable[..., Path]) -> None:
    _, origin, messages, state = await import_database(store, make("", *JSON_CHECKPOINT, kind="json", text=CONSTRUCTED))
    assert (origin["thread_id"], origin["created_at"]) == ("u/1", "2024-07-31T20:14:19Z")
    assert (summarise(messages), state) == ([("user", "hi")], {"at": 2024})


async def test_state_that_is_no_list_has_no_messages(store: SqlStore, make: Callable[..., Path]) -> None:
    text = b'{"ts": "2024-07-31T20:14:19+00:00", "channel_values": {"__root__": {"a": 1}}}'
    _, origin, messages, _ = await import_database(store, make("", *JSON_CHECKPOINT, kind="json", text=text))
    assert (origin["thread_id"], messages) == ("u/1", [])


def pack_nested(levels: int) -> bytes:
    packed = msgspec.msgpack.encode(["m", "n", {}])
    for _ in range(levels):
        packed = msgspec.msgpack.encode(["m", "n", msgspec.msgpack.Ext(5, packed)])
    return msgspec.msgpack.encode({"channel_values": msgspec.msgpack.Ext(5, packed)})


@pytest.mark.parametrize(
    ("kind", "text", "why"),
    [
        ("pickle", b"\x80\x04.", "is written as 'pickle', which cannot be read"),
        ("msgpack", b"\xdd\xff\xff\xff\xff", "cannot be read"),
        ("msgpack", b"\xc9\xff\xff\xff\xff\x05", "cannot be read"),
        ("msgpack", pack_nested(3000), "cannot be read"),
        ("msgpack", 17, "cannot be read"),
        ("json", b'{"a":', "is not JSON"),
        ("json", b'{"channel_values": {"messages": 3}}', "`messages` that are no list"),
    ],
)
def test_checkpoint_that_cannot_be_read_is_named(make: Callable[..., Path], kind: str, text: Any, why: str) -> None:
    path = make("", *JSON_CHECKPOINT, kind=kind, text=text)
    with pytest.raises(InvalidImport, match="thread 'u/1'") as refused:
        read(path, "langgraph")
    assert why in str(refused.value)


def test_checkpoints_of_changes_are_refused(make: Callable[..., Path]) -> None:
    """The last one has no messages then, and what is left of it would pass for the conversation."""
    change = """UPDATE checkpoints SET metadata = '{"counters_since_delta_snapshot": {"messages": [1, 2]}}'"""
    with pytest.raises(InvalidImport, match="thread 't1' is kept as changes"):
        read(make("langgraph", change), "langgraph")


def test_other_databases_are_described(make: Callable[..., Path]) -> None:
    path = make("", "CREATE TABLE recipes (a)", "CREATE VIEW agent_sessions AS SELECT 1 AS session_id")
    with path.open("rb") as file, pytest.raises(InvalidImport, match="a SQLite database with the tables 'recipes'"):
        recognise(file)
    with pytest.raises(InvalidImport, match="not a session database of ADK, but a SQLite database with the tables"):
        read(path, "adk")


def test_hostile_columns_are_not_computed(make: Callable[..., Path]) -> None:
    path = make(
        "",
        "CREATE TABLE agent_sessions (session_id, created_at AS (hex(zeroblob(10))), updated_at)",
        "CREATE TABLE agent_messages (id, session_id, message_data, created_at)",
        "INSERT INTO agent_sessions VALUES ('s', '')",
    )
    with pytest.raises(InvalidImport, match="the column 'created_at' of the table 'agent_sessions' is computed"):
        read(path, "agents-sdk")


@pytest.mark.parametrize(
    ("recorded", "copies"),
    [
        (
            "agents_sdk",
            [
                "agent_sessions SELECT session_id || n, created_at, updated_at FROM agent_sessions",
                "agent_messages SELECT NULL, session_id || n, message_data, created_at FROM agent_messages",
            ],
        ),
        (
            "agents_sdk_branches",
            [
                "agent_sessions SELECT session_id || n, created_at, updated_at FROM agent_sessions",
                "agent_messages SELECT n * 8 + id, session_id || n, message_data, created_at FROM agent_messages",
                "message_structure SELECT NULL, session_id || n, n * 8 + message_id, branch_id, message_type, "
                "sequence_number, 1, 1, NULL, '' FROM message_structure",
            ],
        ),
        (
            "adk",
            [
                "sessions SELECT app_name, user_id, id || n, state, create_time, update_time FROM sessions",
                "events SELECT id || n, app_name, user_id, session_id || n, '', timestamp, event_data FROM events",
            ],
        ),
    ],
)
def test_reading_is_linear_without_indexes(make: Callable[..., Path], recorded: str, copies: list[str]) -> None:
    [form] = [form for form in FORMATS if recorded.replace("_", "-").startswith(form.name)]

    def count_steps(count: int) -> int:
        steps = 0

        def step() -> None:
            nonlocal steps
            steps += 1

        changes = []
        for copy in copies:
            table = copy.split()[0]
            changes += [
                f"CREATE TABLE plain AS SELECT * FROM {table}",
                f"DROP TABLE {table}",
                f"ALTER TABLE plain RENAME TO {table}",
                f"{_NUMBERS} INSERT INTO {copy}, numbers",
            ]
        path = make(recorded, *changes, count=count)
        with path.open("rb") as file, open_database(file, form.indexes) as database:
            database.set_progress_handler(step, 10)
            assert len(list(form.read(database))) == count + 1
        path.unlink()
        return steps

    assert count_steps(200) < 2.5 * count_steps(100)


@pytest.mark.parametrize("recorded", ["agents_sdk", "agents_sdk_branches", "adk", "langgraph"])
def test_damaged_database_is_read_or_refused(make: Callable[..., Path], tmp_path: Path, recorded: str) -> None:
    whole = make(recorded).read_bytes()
    for place in range(100, len(whole), 997):
        path = tmp_path / "damaged.db"
        path.write_bytes(whole[:place] + b"\xff\x00\xff" + whole[place + 3 :])
        with path.open("rb") as file, suppress(InvalidImport):
            form = recognise(file)
            assert form != "export"
            list(read_conversations(file, form))
    (tmp_path / "cut.db").write_bytes(whole[:5000])
    with (tmp_path / "cut.db").open("rb") as file, pytest.raises(InvalidImport):
        recognise(file)
