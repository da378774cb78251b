"""Databases of other programs: sessions of OpenAI's Agents SDK and of ADK, checkpoints of LangGraph."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from itertools import takewhile
from pathlib import Path
from typing import Any

import msgspec

from swarmkeep.events.codec import Json, MalformedJson, decode, encode
from swarmkeep.events.errors import InvalidImport
from swarmkeep.history.foreign.conversation import (
    MORE_BRANCHES,
    OTHER_STATE,
    Branch,
    ForeignConversation,
    answer,
    as_dict,
    as_list,
    as_text,
    ask,
    choose_id,
    convert_parts,
    format_time,
    join_parts,
    keep,
    make_call,
    mark,
)
from swarmkeep.history.foreign.documents import MAX_FILE_BYTES, decode_text, list_columns
from swarmkeep.history.foreign.items import convert_items
from swarmkeep.history.foreign.trees import MAX_BRANCHES
from swarmkeep.store.urls import PostgresServer

Tables = Mapping[str, set[str]]
_MAX_ROWS = 100_000
"""Of one conversation: it is in memory as a whole."""


def _has(tables: Tables, name: str, *columns: str) -> bool:
    return isinstance(tables, dict) and set(columns) <= tables.get(name, set())


def _select(database: sqlite3.Connection, what: str, query: str, *values: object) -> list[sqlite3.Row]:
    rows = database.execute(f"{query} LIMIT {_MAX_ROWS + 1}", values).fetchall()
    if len(rows) > _MAX_ROWS:
        raise InvalidImport(f"{what} has more than {_MAX_ROWS} rows")
    return rows


# OpenAI's Agents SDK: SQLiteSession, and AdvancedSQLiteSession, which has branches.

_BRANCHES = ("session_id", "branch_id", "message_id", "sequence_number")
_MAIN = "main"


def has_agents_sdk(tables: Tables) -> bool:
    return _has(tables, "agent_sessions", "session_id") and _has(
        tables, "agent_messages", "id", "session_id", "message_data", "created_at"
    )


def read_agents_sdk(database: sqlite3.Connection) -> Iterator[ForeignConversation]:
    """The sessions, in the order of their ids. Raises InvalidImport."""
    has_branches = _has(list_columns(database), "message_structure", *_BRANCHES)
    for row in database.execute("SELECT session_id, created_at, updated_at FROM agent_sessions ORDER BY session_id"):
        name = row["session_id"]
        what = f"session {name!r}"
        query = "SELECT id, message_data, created_at FROM agent_messages WHERE session_id = ? ORDER BY id"
        items = {
            one["id"]: (decode_text(one["message_data"], f"an item of {what}"), format_time(one["created_at"]))
            for one in _select(database, what, query, name)
        }
        left_out: Counter[str] = Counter()
        messages, branches = convert_items([*items.values()], left_out), list[Branch]()
        if has_branches and (ways := _list_ways(database, what, name)):
            messages, branches = _split_ways(items, ways, left_out)
        yield ForeignConversation(
            messages=messages,
            branches=branches,
            place=what,
            id=choose_id(name),
            origin=keep(
                session_id=name,
                created_at=format_time(row["created_at"]),
                updated_at=format_time(row["updated_at"]),
            ),
            left_out=+left_out,
        )


def _list_ways(database: sqlite3.Connection, what: str, session_id: Any) -> dict[str, list[Any]]:
    """The ids of the items of each branch, the main one first."""
    query = "SELECT branch_id, message_id FROM message_structure WHERE session_id = ? ORDER BY sequence_number"
    ways: dict[str, list[Any]] = {}
    for one in _select(database, what, query, session_id):
        ways.setdefault(as_text(one["branch_id"]), []).append(one["message_id"])
    return dict(sorted(ways.items(), key=lambda way: way[0] != _MAIN))


def _split_ways(
    items: Mapping[Any, tuple[Any, str | None]], ways: Mapping[str, list[Any]], left_out: Counter[str]
) -> tuple[list[Json], list[Branch]]:
    """The messages of the first branch, and what each other one says that it does not."""
    trunk: list[Json] = []
    branches: list[Branch] = []
    for number, (name, way) in enumerate(ways.items()):
        messages = convert_items([items[one] for one in way if one in items], Counter())
        if number == 0:
            trunk = messages
        elif number > MAX_BRANCHES:
            left_out[MORE_BRANCHES] += 1
        else:
            pairs = zip(trunk, messages, strict=False)
            shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
            if shared < len(messages):
                branches.append(Branch(name=name, shared=shared, messages=messages[shared:]))
    return trunk, branches


# ADK: DatabaseSessionService and SqliteSessionService. Of the first schema the columns say what is now in `event_data`.

_EVENT_COLUMNS = ("id", "app_name", "user_id", "session_id", "timestamp")
_IMAGES = ("image/png", "image/jpeg", "image/gif", "image/webp")


def has_adk(tables: Tables) -> bool:
    return (
        _has(tables, "sessions", "app_name", "user_id", "id", "state")
        and _has(tables, "events", *_EVENT_COLUMNS)
        and (_has(tables, "events", "event_data") or _has(tables, "events", "author", "content"))
    )


def read_adk(database: sqlite3.Connection) -> Iterator[ForeignConversation]:
    """The sessions, each with the state of its app and its user. Raises InvalidImport."""
    columns = {column[0] for column in database.execute("SELECT * FROM events LIMIT 0").description}
    chosen = "event_data" if "event_data" in columns else "id, author, content"
    events = (
        f"SELECT timestamp, {chosen} FROM events WHERE app_name = ? AND user_id = ? AND session_id = ? "
        "ORDER BY timestamp, rowid"
    )
    sessions = (
        "SELECT app_name, user_id, id, state, create_time, update_time FROM sessions ORDER BY app_name, user_id, id"
    )
    for row in database.execute(sessions):
        names = (row["app_name"], row["user_id"], row["id"])
        what = f"session {names[2]!r} of user {names[1]!r}"
        reader = _AdkEvents()
        for one in _select(database, what, events, *names):
            if chosen == "event_data":
                event = as_dict(decode_text(one["event_data"], f"an event of {what}"))
            else:
                content = decode_text(one["content"], f"an event of {what}")
                event = {"id": one["id"], "author": one["author"], "content": content}
            reader.take(event, format_time(one["timestamp"]))
        yield ForeignConversation(
            messages=reader.messages,
            place=what,
            id=choose_id(*names),
            agent=reader.agent,
            context_variables=_read_state(database, row, what),
            origin=keep(
                app_name=names[0],
                user_id=names[1],
                session_id=names[2],
                created_at=format_time(row["create_time"]),
                updated_at=format_time(row["update_time"]),
            ),
            left_out=reader.left_out,
        )


def _read_state(database: sqlite3.Connection, row: sqlite3.Row, what: str) -> Json:
    """The state as agents see it: the app's, the user's, and the session's own."""
    state: Json = {}
    shared = (
        ("app:", "SELECT state FROM app_states WHERE app_name = ?", (row["app_name"],)),
        (
            "user:",
            "SELECT state FROM user_states WHERE app_name = ? AND user_id = ?",
            (row["app_name"], row["user_id"]),
        ),
    )
    for prefix, query, names in shared:
        for found in _select(database, what, query, *names):
            values = as_dict(decode_text(found["state"], f"the state of {what}"))
            state |= {f"{prefix}{name}": value for name, value in values.items()}
    return state | as_dict(decode_text(row["state"], f"the state of {what}"))


class _AdkEvents:
    """Messages out of events, one after the other."""

    def __init__(self) -> None:
        self.messages: list[Json] = []
        self.agent: str | None = None
        self.left_out: Counter[str] = Counter()
        self._open: dict[str, list[str]] = {}

    def take(self, event: Json, at: str | None) -> None:
        author = event.get("author")
        is_user = author == "user"
        name = None if is_user or not isinstance(author, str) or not author else author
        self.agent = name or self.agent
        parts: list[Json] = []
        calls: list[Json] = []
        results: list[Json] = []
        for part in as_list(as_dict(event.get("content")).get("parts")):
            self._take_part(as_dict(part), len(self.messages), parts, calls, results)
        kept = {"id": event.get("id"), "created_at": at, "invocation_id": event.get("invocation_id")}
        self.messages += [mark(result, **kept) for result in results]
        content = convert_parts(parts, "user" if is_user else "assistant", self.left_out)
        if calls:
            told = ask(calls, join_parts(content))
        elif content:
            told = {"role": "user" if is_user else "assistant", "content": content}
        else:
            return
        self.messages.append(mark({**told, "sender": name} if name else told, **kept))

    def _take_part(self, part: Json, place: int, parts: list[Json], calls: list[Json], results: list[Json]) -> None:
        call = part.get("function_call") or part.get("functionCall")
        result = part.get("function_response") or part.get("functionResponse")
        if isinstance(call, dict):
            call_id = call["id"] if isinstance(call.get("id"), str) and call["id"] else f"call_{place}_{len(calls)}"
            self._open.setdefault(as_text(call.get("name")), []).append(call_id)
            calls.append(make_call(call_id, call.get("name"), call.get("args")))
        elif isinstance(result, dict):
            name = as_text(result.get("name"))
            # Without an id it is the result of the first call of its name that has none yet.
            waiting = self._open.get(name) or [f"call_{place}_{len(results)}"]
            call_id = result["id"] if isinstance(result.get("id"), str) and result["id"] else waiting[0]
            if call_id in waiting:
                waiting.remove(call_id)
            results.append(answer(call_id, name, as_text(result.get("response"))))
        else:
            parts.append(_convert_adk_part(part))


def _convert_adk_part(part: Json) -> Json:
    inline = part.get("inline_data") or part.get("inlineData")
    file = part.get("file_data") or part.get("fileData")
    if part.get("thought"):
        return {"type": "thought"}
    if isinstance(inline, dict):
        media_type = inline.get("mime_type") or inline.get("mimeType")
        # In the alphabet of addresses, as the library writes bytes.
        data = as_text(inline.get("data")).replace("-", "+").replace("_", "/")
        if media_type in _IMAGES:
            return {"type": "image_url", "image_url": {"url": f"data:{media_type};base64,{data}"}}
        if media_type == "application/pdf":
            return {"type": "file", "file": {"file_data": f"data:{media_type};base64,{data}"}}
        return {"type": "file", "filename": inline.get("display_name") or media_type}
    if isinstance(file, dict):
        return {"type": "file", "filename": file.get("file_uri") or file.get("fileUri")}
    code, result = as_dict(part.get("executable_code")), as_dict(part.get("code_execution_result"))
    return {"type": "text", "text": part.get("text") or code.get("code") or result.get("output")}


# LangGraph: checkpoints of its SqliteSaver.

# Those of graphs within graphs have names before their ids.
_THREADS = "SELECT DISTINCT thread_id FROM checkpoints WHERE checkpoint_ns = '' ORDER BY thread_id"
_DELTA_MARKS = (b'"counters_since_delta_snapshot"', b'"delta_writes_versioned"')
_STATE_PREFIXES = ("__", "branch:", "start:")
_ROLES = {
    "human": "user", "humanmessage": "user", "user": "user",
    "ai": "assistant", "aimessage": "assistant", "aimessagechunk": "assistant", "assistant": "assistant",
    "system": "system", "systemmessage": "system", "developer": "developer",
    "tool": "tool", "toolmessage": "tool", "function": "tool", "functionmessage": "tool",
}  # fmt: skip


def has_langgraph(tables: Tables) -> bool:
    columns = ("thread_id", "checkpoint_ns", "checkpoint_id", "type", "checkpoint")
    return _has(tables, "checkpoints", *columns)


def read_langgraph(database: sqlite3.Connection) -> Iterator[ForeignConversation]:
    """The last state of each thread of the graph itself. Raises InvalidImport."""
    columns = {column[0] for column in database.execute("SELECT * FROM checkpoints LIMIT 0").description}
    chosen = f"type, checkpoint, {'metadata' if 'metadata' in columns else 'NULL AS metadata'}"
    ends = f"SELECT {chosen} FROM checkpoints WHERE thread_id = ? AND checkpoint_ns = '' ORDER BY checkpoint_id"
    for row in database.execute(_THREADS):
        thread = row["thread_id"]
        what = f"thread {thread!r}"
        [last] = database.execute(f"{ends} DESC LIMIT 1", (thread,)).fetchall()
        [first] = database.execute(f"{ends} LIMIT 1", (thread,)).fetchall()
        _refuse_deltas(last["metadata"], what)
        checkpoint = _decode_checkpoint(last, what)
        values = as_dict(checkpoint.get("channel_values"))
        left_out: Counter[str] = Counter()
        yield ForeignConversation(
            messages=[_convert_langchain(message, left_out) for message in _list_messages(values, what)],
            place=what,
            id=choose_id(thread),
            context_variables=_keep_state(values, left_out),
            origin=keep(
                thread_id=thread,
                checkpoint_id=checkpoint.get("id"),
                created_at=format_time(_decode_checkpoint(first, what).get("ts")),
                updated_at=format_time(checkpoint.get("ts")),
            ),
            left_out=left_out,
        )


def _refuse_deltas(metadata: Any, what: str) -> None:
    """Raise InvalidImport for a thread whose checkpoints have only what has changed."""
    text = metadata if isinstance(metadata, bytes) else str(metadata or "").encode("utf-8", "surrogatepass")
    if any(mark in text for mark in _DELTA_MARKS):
        raise InvalidImport(f"{what} is kept as changes (a DeltaChannel), which are not read")


def _decode_checkpoint(row: sqlite3.Row, what: str) -> Json:
    """A checkpoint as plain values: no class that it names is looked at. Raises InvalidImport."""
    kind, text = row["type"], row["checkpoint"]
    try:
        if kind == "msgpack":
            return as_dict(_decode_packed(memoryview(text)))
        if kind in (None, "json"):
            return as_dict(_unwrap(decode_text(text, f"the checkpoint of {what}")))
    except (msgspec.DecodeError, RecursionError, TypeError, ValueError) as error:
        raise InvalidImport(f"the checkpoint of {what} cannot be read: {error}") from None
    raise InvalidImport(f"the checkpoint of {what} is written as {kind!r}, which cannot be read; use msgpack or JSON")


def _decode_packed(text: memoryview) -> Any:
    return msgspec.msgpack.Decoder(ext_hook=_read_extension, strict=False).decode(text)


def _read_extension(code: int, data: memoryview) -> Any:
    """The values that an object is made of; of a message, with the name of its class as the type if it has none."""
    found = _decode_packed(data)
    if code == 7:
        return found
    if not isinstance(found, list) or len(found) < 3:
        return None
    _, name, value, *_ = found
    return {"type": name, **value} if isinstance(value, dict) else value


def _unwrap(value: Any) -> Any:
    """Plain values out of JSON in which objects are written as their constructors."""
    if isinstance(value, list):
        return [_unwrap(item) for item in value]
    if not isinstance(value, dict):
        return value
    if "lc" in value and isinstance(value.get("id"), list) and value["id"]:
        if isinstance(value.get("kwargs"), dict):
            return {"type": as_text(value["id"][-1]), **_unwrap(value["kwargs"])}
        return _unwrap((as_list(value.get("args")) or [None])[0])
    return {name: _unwrap(item) for name, item in value.items()}


def _list_messages(values: Json, what: str) -> list[Any]:
    root = values.get("__root__")
    # The whole state of a graph may be a list of messages, or anything else.
    messages = values.get("messages", root if isinstance(root, list) else None)
    if messages is None:
        return []
    if not isinstance(messages, list):
        raise InvalidImport(f"the state of {what} has `messages` that are no list")
    return messages


def _keep_state(values: Json, left_out: Counter[str]) -> Json:
    """What the state has beside messages and what the library itself keeps there."""
    kept: Json = {}
    for name, value in values.items():
        if not isinstance(name, str) or name in ("messages",) or name.startswith(_STATE_PREFIXES):
            continue
        try:
            kept[name] = decode(encode(value))
        except (TypeError, ValueError, RecursionError, MalformedJson, msgspec.MsgspecError):
            left_out[OTHER_STATE] += 1
    return kept


def _convert_langchain(message: Any, left_out: Counter[str]) -> Json:
    found = as_dict(message)
    role = _ROLES.get(as_text(found.get("type") or found.get("role")).lower(), "user")
    content = convert_parts(found.get("content"), role, left_out)
    usage, about = found.get("usage_metadata"), as_dict(found.get("response_metadata"))
    kept = {"id": found.get("id"), "usage": usage, "model": about.get("model_name") or about.get("model")}
    if role == "tool":
        told = answer(as_text(found.get("tool_call_id") or found.get("name")), found.get("name"), join_parts(content))
        return mark(told, **kept, status=None if found.get("status") == "success" else found.get("status"))
    name = found.get("name")
    named = {"sender": name} if role == "assistant" and isinstance(name, str) and name else {}
    calls = [_convert_tool_call(call, place) for place, call in enumerate(as_list(found.get("tool_calls")))]
    if calls:
        return mark({**ask(calls, join_parts(content)), **named}, **kept)
    return mark({"role": role, "content": content, **named}, **kept)


def _convert_tool_call(call: Any, place: int) -> Json:
    found = as_dict(call)
    # As the library has them, or as Chat Completions has.
    function = as_dict(found.get("function")) or found
    arguments = function.get("args", function.get("arguments"))
    return make_call(as_text(found.get("id")) or f"call_{place}", function.get("name"), arguments)


# LangGraph on PostgreSQL: checkpoints of its PostgresSaver, copied into a file such as its SqliteSaver writes, to be
# read like one. Of each thread the file gets the first checkpoint, which says when it began, and the last, with the
# values that the saver keeps beside it. The database is only read, as it is at one moment.

_TABLE = """CREATE TABLE checkpoints (thread_id TEXT NOT NULL, checkpoint_ns TEXT NOT NULL, checkpoint_id TEXT NOT NULL,
type TEXT, checkpoint BLOB, PRIMARY KEY (thread_id, checkpoint_ns, checkpoint_id))"""
_COUNT = f"SELECT count(*) FROM ({_THREADS}) AS threads"
_END = """SELECT checkpoint_id, checkpoint::text AS checkpoint, metadata::text AS metadata FROM checkpoints
WHERE thread_id = $1 AND checkpoint_ns = '' ORDER BY checkpoint_id COLLATE "C" {} LIMIT 1"""
_VALUES = """SELECT channel, type, CASE WHEN octet_length(blob) <= $4 THEN blob END AS blob,
octet_length(blob) AS size FROM checkpoint_blobs
JOIN unnest($2::text[], $3::text[]) AS wanted (name, number) ON channel = name AND version = number
WHERE thread_id = $1 AND checkpoint_ns = ''"""


async def copy_checkpoints(server: PostgresServer, path: Path, on_thread: Callable[[int, int], None]) -> None:
    """Write the file. `on_thread` is told how many threads are done, and of how many.

    Raises StoreUnavailable, and InvalidImport for a database that has no such checkpoints, or some that cannot be read.
    """
    from swarmkeep.store.postgres_connections import connect

    connection = await connect(server, {}, command_seconds=None)
    from asyncpg import InterfaceError, PostgresError  # type: ignore[import-untyped]

    try:
        with closing(sqlite3.connect(path)) as target:
            target.execute(_TABLE)
            async with connection.transaction(isolation="repeatable_read", readonly=True):
                await _copy_threads(connection, target, on_thread)
            target.commit()
    except (PostgresError, InterfaceError, OSError) as error:
        reason = f"the database at {server.display} cannot be read as one of LangGraph's PostgresSaver: {error}"
        raise InvalidImport(reason) from None
    finally:
        await connection.close()


async def _copy_threads(connection: Any, target: sqlite3.Connection, on_thread: Callable[[int, int], None]) -> None:
    first = await connection.prepare(_END.format(""))
    last = await connection.prepare(_END.format("DESC"))
    values = await connection.prepare(_VALUES)
    count, done = await connection.fetchval(_COUNT), 0
    async for row in connection.cursor(_THREADS):
        thread = row["thread_id"]
        what = f"thread {thread!r}"
        began, ended = await first.fetchrow(thread), await last.fetchrow(thread)
        start = as_dict(decode_text(began["checkpoint"], f"the checkpoint of {what}"))
        copied = {began["checkpoint_id"]: msgspec.msgpack.encode({"ts": start.get("ts")})}
        copied[ended["checkpoint_id"]] = await _pack_checkpoint(values, thread, ended, what)
        for checkpoint_id, packed in copied.items():
            target.execute("INSERT INTO checkpoints VALUES (?, '', ?, 'msgpack', ?)", (thread, checkpoint_id, packed))
        done += 1
        on_thread(done, count)


async def _pack_checkpoint(values: Any, thread: str, row: Any, what: str) -> bytes:
    """The last checkpoint with all of its values. Raises InvalidImport."""
    checkpoint = as_dict(decode_text(row["checkpoint"], f"the checkpoint of {what}"))
    _refuse_deltas(row["metadata"], what)
    versions = as_dict(checkpoint.get("channel_versions"))
    # The smallest values stand in the checkpoint itself.
    channels: Json = dict(as_dict(checkpoint.get("channel_values")))
    names, numbers = list(versions), [str(version) for version in versions.values()]
    size = 0
    for found in await values.fetch(thread, names, numbers, MAX_FILE_BYTES):
        size += found["size"] or 0
        if size > MAX_FILE_BYTES:
            raise InvalidImport(f"the checkpoint of {what} has more than {MAX_FILE_BYTES} bytes")
        if found["type"] != "empty":
            channels[found["channel"]] = _read_value(found, what)
    kept = {name: checkpoint.get(name) for name in ("id", "ts")}
    try:
        return msgspec.msgpack.encode({**kept, "channel_values": channels})
    except (OverflowError, TypeError, ValueError, RecursionError) as error:
        raise InvalidImport(f"the checkpoint of {what} cannot be read: {error}") from None


def _read_value(found: Any, what: str) -> Any:
    kind, blob = found["type"], found["blob"] or b""
    match kind:
        case "msgpack":
            return msgspec.Raw(blob)
        case "null":
            return None
        case "bytes" | "bytearray":
            return blob
        case "json":
            return decode_text(blob, f"the channel {found['channel']!r} of {what}")
    raise InvalidImport(
        f"the channel {found['channel']!r} of {what} is written as {kind!r}, which cannot be read; use msgpack or JSON"
    )
