"""This version reads whatever a release has written as that release did."""

from __future__ import annotations

import base64
import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, Table, insert

from swarmkeep.events.codec import decode, encode
from swarmkeep.events.facts import FACTS, RecordedEvent
from swarmkeep.history.export import iterate_keys, write_export
from swarmkeep.history.import_export import import_export
from swarmkeep.history.redact import redact
from swarmkeep.history.verify import Head, verify
from swarmkeep.request.request import assemble_request
from swarmkeep.runs.sessions import fork_session
from swarmkeep.store import schema
from swarmkeep.store.opening import SqlStore, open_store
from swarmkeep.store.records import SessionKey
from swarmkeep.store.tables import metadata
from tests.golden.make import FORK, SHOP, fill_golden, list_keys, list_states, make_clock, read_states
from tests.golden.telling import INSTRUCTIONS, TOOLS
from tests.store.sessions import draft_user_messages
from tests.support.rules import find_faults

RELEASES = sorted(path.parent for path in Path(__file__).parent.glob("*/rows.json"))
REVISIONS = {"0.1.0": "0005", "0.2.0": "0014"}


def _decode_value(value: Any) -> Any:
    return base64.b64decode(value["base64"]) if isinstance(value, dict) else value


def _insert(table: Table, rows: list[dict[str, Any]], connection: Connection) -> None:
    connection.execute(insert(table), rows)


async def _load_sqlite(release: Path, url: str) -> None:
    shutil.copy(release / "swarmkeep.db", url.removeprefix("sqlite:///"))
    schema.upgrade(url)


async def _load_postgres(release: Path, url: str) -> None:
    schema.upgrade(url, REVISIONS[release.name])
    tables = json.loads((release / "rows.json").read_text())
    store = open_store(url)
    for table in metadata.sorted_tables:
        rows = [{name: _decode_value(value) for name, value in row.items()} for row in tables.get(table.name, ())]
        if rows:
            await store.database.write(
                lambda connection, table=table, rows=rows: connection.execute(insert(table), rows)
            )
    await store.close()
    schema.upgrade(url)


@pytest.fixture(params=RELEASES, ids=lambda release: release.name)
async def release(request: pytest.FixtureRequest) -> Path:
    path = request.param
    assert isinstance(path, Path)
    return path


@pytest.fixture
async def store(release: Path, database_url: str) -> Any:
    load: Callable[..., Any] = _load_sqlite if database_url.startswith("sqlite") else _load_postgres
    await load(release, database_url)
    opened = open_store(database_url)
    yield opened
    await opened.close()


async def test_states_equal_the_release_states(store: SqlStore, release: Path) -> None:
    states = decode(encode(await list_states(store)))
    recorded = read_states(release)
    assert drop_added(states, recorded) == recorded


# Fields that views were given later, with what they are of a log from before.
ADDED = {"output": None}
ADDED_OF_ANY_VALUE = {"last_run_status", "queued_runs", "title", "arguments_digest"}


def drop_added(value: Any, recorded: Any) -> Any:
    """Without the fields that the release did not have."""
    if isinstance(value, list) and isinstance(recorded, list):
        return [drop_added(*pair) for pair in zip(value, recorded, strict=True)]
    if not (isinstance(value, dict) and isinstance(recorded, dict)):
        return value
    known = {
        name: item
        for name, item in value.items()
        if name in recorded or not (name in ADDED_OF_ANY_VALUE or (name, item) in ADDED.items())
    }
    return {name: drop_added(item, recorded.get(name)) for name, item in known.items()}


async def test_every_session_verifies(store: SqlStore) -> None:
    for key in await list_keys(store):
        assert (await verify(store, key)).problems == []


async def test_golden_prefixes_give_acceptable_requests(store: SqlStore) -> None:
    for key in await list_keys(store):
        last = (await store.state(key)).seq
        for seq in range(1, last + 1):
            state = await store.state(key, at=seq)
            request = assemble_request(state.messages, INSTRUCTIONS, TOOLS, {"model": "gpt-4o"})
            assert find_faults(request.messages) == []


async def test_the_conversation_goes_on(store: SqlStore) -> None:
    state = await store.state(SHOP)
    assert [(await store.append(SHOP, state, ())).state.seq] == [state.seq]


async def test_current_records_follow_from_release_records(store: SqlStore) -> None:
    """Hashes of the first format are continued in the present one, in the session and in its forks and copies."""
    state = await store.state(SHOP)
    noted = Head(seq=state.seq, hash=state.hash)
    for text in ("one", "two"):
        state = (await store.append(SHOP, state, draft_user_messages(text))).state
    assert (await verify(store, SHOP, noted=noted)).problems == []
    await fork_session(store, SHOP, session_id="new", at=state.seq - 1)
    await redact(store, SHOP, [2, state.seq], "asked for")
    for name in (SHOP.id, "new"):
        assert (await verify(store, SessionKey("default", name))).problems == []

    async def export(tenant: str) -> bytes:
        keys = iterate_keys([SessionKey(tenant, "new"), SessionKey(tenant, SHOP.id)])
        return b"".join([piece async for piece in write_export(store, keys)])

    exported = await export("default")
    assert (await import_export(store, "elsewhere", io.BytesIO(exported))).imported == 2
    assert (await verify(store, SessionKey("elsewhere", SHOP.id), noted=noted)).problems == []


async def test_first_format_export_is_accepted(store: SqlStore) -> None:
    exported = b"".join([piece async for piece in write_export(store, iterate_keys([SHOP]), alone=True)])
    older = exported.replace(b'"export":{"format":2', b'"export":{"format":1', 1)
    assert older != exported
    assert (await import_export(store, "elsewhere", io.BytesIO(older))).imported == 1
    assert (await verify(store, SessionKey("elsewhere", SHOP.id))).problems == []


# The error of a failed summary may repeat what a model was sent: it goes with a redaction now.
REDACTED_SINCE = {("shortened", 18), ("shortened", 24)}
# Types that a release did not have yet.
LATER = {
    "0.1.0": {
        "session.held",
        "session.assigned",
        "note.added",
        "feedback.added",
        "session.released",
        "session.imported",
        "session.taken_over",
        "session.handed_back",
        "guardrail.tripped",
        "message.removed",
        "run.hidden",
        "compaction.started",
        "compaction.summarised",
        "compaction.failed",
        "tools.listed",
    },
    "0.2.0": {"session.held", "session.released", "session.assigned", "note.added", "feedback.added"},
}


async def test_golden_database_holds_every_event_type(store: SqlStore, release: Path) -> None:
    types = {event.type for key in await list_keys(store) for event in await store.read(key)}
    assert types == set(FACTS) - LATER.get(release.name, set())


async def test_this_version_writes_golden_contents(database_url: str) -> None:
    schema.upgrade(database_url)
    store = open_store(database_url, clock=make_clock())
    await fill_golden(store)
    # A fork names the hash that it begins from, and hashes are made with salts.
    keys = [key for key in await list_keys(store) if key != FORK]
    written = {(event.session_id, event.seq): describe_event(event) for key in keys for event in await store.read(key)}
    await store.close()
    rows = json.loads((RELEASES[-1] / "rows.json").read_text())["events"]
    kept = {(row["session_id"], row["seq"]): (row["type"], row["version"], row["payload"]) for row in rows}
    assert {
        name: (event, kept.get(name))
        for name, event in written.items()
        if event != kept.get(name) and name not in REDACTED_SINCE
    } == {}
    assert written.keys() == {name for name in kept if name[0] != FORK.id}


def describe_event(event: RecordedEvent) -> tuple[str, int, str]:
    return event.type, event.version, event.payload
