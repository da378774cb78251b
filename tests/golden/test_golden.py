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

from swarmkeep.audit.redact import redact
from swarmkeep.audit.transfer.export import iterate_keys, write_export
from swarmkeep.audit.transfer.import_export import import_export
from swarmkeep.audit.verify.problems import Head
from swarmkeep.audit.verify.session import verify
from swarmkeep.domain.codec import decode, encode
from swarmkeep.domain.events import FACTS
from swarmkeep.domain.request import assemble_request
from swarmkeep.engine.stored_sessions import fork_session
from swarmkeep.store import schema
from swarmkeep.store.opening import SqlStore, open_store
from swarmkeep.store.ports import SessionKey
from swarmkeep.store.sql.tables import metadata
from tests.golden.conversations import INSTRUCTIONS, TOOLS
from tests.golden.make import FORK, SHOP, fill_store, list_states, make_clock
from tests.store.sessions import draft_user_messages
from tests.support.rules import find_faults

RELEASES = sorted(path.parent for path in Path(__file__).parent.glob("*/rows.json"))
REVISIONS = {"0.1.0": "0005"}


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


async def test_every_state_is_what_the_release_made_of_it(store: SqlStore, release: Path) -> None:
    assert decode(encode(await list_states(store))) == decode((release / "states.json").read_bytes())


async def test_every_session_verifies(store: SqlStore) -> None:
    for key in (SHOP, FORK):
        assert (await verify(store, key)).problems == []


async def test_every_prefix_still_gives_a_request_that_models_accept(store: SqlStore) -> None:
    for key in (SHOP, FORK):
        last = (await store.state(key)).seq
        for seq in range(1, last + 1):
            state = await store.state(key, at=seq)
            request = assemble_request(state.messages, INSTRUCTIONS, TOOLS, {"model": "gpt-4o"})
            assert find_faults(request.messages) == []


async def test_the_conversation_goes_on(store: SqlStore) -> None:
    state = await store.state(SHOP)
    assert [(await store.append(SHOP, state, ())).state.seq] == [state.seq]


async def test_what_is_recorded_now_follows_from_what_the_release_recorded(store: SqlStore) -> None:
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


async def test_an_export_of_the_first_format_is_taken(store: SqlStore) -> None:
    exported = b"".join([piece async for piece in write_export(store, iterate_keys([SHOP]), alone=True)])
    older = exported.replace(b'"export":{"format":2', b'"export":{"format":1', 1)
    assert older != exported
    assert (await import_export(store, "elsewhere", io.BytesIO(older))).imported == 1
    assert (await verify(store, SessionKey("elsewhere", SHOP.id))).problems == []


# Types that a release did not have yet.
LATER = {"0.1.0": {"session.imported"}}


async def test_a_golden_database_holds_every_type_of_event(store: SqlStore, release: Path) -> None:
    types = {event.type for key in (SHOP, FORK) for event in await store.read(key)}
    assert types == set(FACTS) - LATER.get(release.name, set())


async def test_this_version_writes_what_its_golden_database_holds(database_url: str) -> None:
    schema.upgrade(database_url)
    store = open_store(database_url, clock=make_clock())
    await fill_store(store)
    written = [(event.type, event.version, event.payload) for event in await store.read(SHOP)]
    await store.close()
    rows = json.loads((RELEASES[-1] / "rows.json").read_text())["events"]
    kept = [(row["type"], row["version"], row["payload"]) for row in rows if row["session_id"] == SHOP.id]
    assert written == kept
