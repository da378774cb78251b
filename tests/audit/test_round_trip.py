"""What is exported here and imported there is the same there, to the byte, on whatever database."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import update

from swarmkeep.audit.export import exported, filtered, one_by_one
from swarmkeep.audit.import_ import ImportReport, import_export
from swarmkeep.domain.commands import create_session
from swarmkeep.domain.drafts import drafted
from swarmkeep.domain.errors import InvalidImport, InvalidRequest, SessionExists
from swarmkeep.domain.events import (
    CompletionRecord,
    MessageAdded,
    RequestRecord,
    RunOptions,
    RunQueued,
    RunStarted,
    RunWaiting,
    SessionRedacted,
    SessionUpdated,
)
from swarmkeep.domain.request import digest, texts_of
from swarmkeep.domain.state import State
from swarmkeep.domain.views import session_view
from swarmkeep.store import schema
from swarmkeep.store.port import SessionKey
from swarmkeep.store.sql import SqlStore, open_store
from swarmkeep.store.tables import events
from tests.golden.conversations import BLOBS
from tests.golden.make import FORK, SHOP, described, fill

TENANT = "default"


async def export(store: SqlStore, *ids: str, tenant: str = TENANT) -> bytes:
    keys = one_by_one([SessionKey(tenant, id) for id in ids]) if ids else filtered(store, tenant)
    return b"".join([piece async for piece in exported(store, keys)])


async def take_in(store: SqlStore, text: bytes, **options: Any) -> ImportReport:
    return await import_export(store, options.pop("tenant", TENANT), io.BytesIO(text), **options)


async def talk(store: SqlStore, session_id: str, *texts: str, metadata: dict[str, Any] | None = None) -> State:
    """A session with these messages; each comes with an append of its own."""
    key = SessionKey(TENANT, session_id)
    state = (
        await store.append(key, State(), drafted("Ann", create_session("Ann", {}, metadata or {}, []), None))
    ).state
    for text in texts:
        request = RequestRecord(instructions=digest(text))
        message = {"role": "assistant", "content": text, "sender": "Ann"}
        fact = MessageAdded(message=message, completion=CompletionRecord(request=request))
        blobs = {digest(text): text}
        state = (await store.append(key, state, drafted("Ann", [fact], None), blobs=blobs)).state
    return state


async def redacted(store: SqlStore, session_id: str) -> None:
    """A session whose second event was redacted."""
    state = await talk(store, session_id, "my secret", "go on")
    stand_in = '{"redacted":true}'
    fact = SessionRedacted(seqs=(2,), reason="asked to", kept=(digest(stand_in),))
    key = SessionKey(TENANT, session_id)
    await store.append(key, state, drafted("Ann", [fact], None))
    mine = (events.c.tenant == TENANT, events.c.session_id == session_id, events.c.seq == 2)
    change = update(events).where(*mine).values(payload=stand_in, salt=None)
    await store.database.write(lambda connection: connection.execute(change))


async def test_a_redacted_event_stays_redacted(store: SqlStore, other: SqlStore) -> None:
    await redacted(store, "s")
    text = await export(store)
    await take_in(other, text)
    assert await export(other) == text
    assert b'"salt":null' in text


async def test_a_round_trip_gives_the_same_bytes(store: SqlStore, other: SqlStore) -> None:
    await fill(store)
    before = await export(store, SHOP.id, FORK.id, tenant=SHOP.tenant)
    report = await take_in(other, before)
    assert (report.imported, report.present) == (2, 0)
    assert await export(other, SHOP.id, FORK.id) == before
    for key in (SHOP, FORK):
        there = SessionKey(TENANT, key.id)
        assert described(key.id, await other.state(there)) == described(key.id, await store.state(key))
        named = [name for event in await store.read(key) for name in texts_of(event.fact)]
        assert named
        assert await other.blobs(there, named) == await store.blobs(key, named) == BLOBS


async def test_lists_show_an_imported_session_as_they_did(store: SqlStore, other: SqlStore) -> None:
    await talk(store, "first", "a", metadata={"team": "sales"})
    await talk(store, "second", "b")
    base = await store.state(SessionKey(TENANT, "first"))
    await store.fork(
        SessionKey(TENANT, "first"), base, SessionKey(TENANT, "fork"), drafted("Ann", [_forked(base)], None)
    )
    await take_in(other, await export(store))
    for filters in ({}, {"metadata": {"team": "sales"}}, {"agent": "Ann", "status": "idle"}):
        assert await other.sessions(TENANT, **filters) == await store.sessions(TENANT, **filters)  # type: ignore[arg-type]


def _forked(base: State) -> Any:
    from swarmkeep.domain.events import SessionForked

    return SessionForked(from_session_id="first", from_seq=base.seq, from_hash=base.hash)


async def test_an_import_made_again_changes_nothing(store: SqlStore, other: SqlStore) -> None:
    await talk(store, "s", "a", "b")
    text = await export(store)
    await take_in(other, text)
    report = await take_in(other, text)
    assert (report.imported, report.present, report.sessions[0].outcome) == (0, 1, "present")
    assert await export(other) == text


async def test_a_session_that_has_gone_on_since_is_left_alone(store: SqlStore, other: SqlStore) -> None:
    state = await talk(store, "s", "a")
    text = await export(store)
    fact = SessionUpdated(metadata={"more": True})
    await store.append(SessionKey(TENANT, "s"), state, drafted("Ann", [fact], None))
    assert (await take_in(store, text)).present == 1
    assert (await store.head(SessionKey(TENANT, "s"))).seq == state.seq + 1  # type: ignore[union-attr]


async def test_another_session_under_the_same_id_is_refused_before_anything_is_recorded(
    store: SqlStore, other: SqlStore
) -> None:
    await talk(store, "new", "a")
    await talk(store, "taken", "a")
    await talk(other, "taken", "b")
    with pytest.raises(SessionExists):
        await take_in(other, await export(store, "new", "taken"))
    assert [session.id for session in (await other.sessions(TENANT)).sessions] == ["taken"]


async def test_one_session_can_be_given_another_id(store: SqlStore, other: SqlStore) -> None:
    state = await talk(store, "s", "a")
    await take_in(other, await export(store), as_id="t")
    assert session_view("s", await other.state(SessionKey(TENANT, "t"))) == session_view("s", state)
    assert (await other.read(SessionKey(TENANT, "t")))[0].session_id == "t"
    # The id is not hashed: the same history goes by either.
    assert (await take_in(other, await export(store))).imported == 1
    with pytest.raises(InvalidImport, match="has 2"):
        await take_in(other, await export(other), as_id="u")
    with pytest.raises(InvalidRequest):
        await take_in(other, await export(store), as_id="no/id")


async def test_a_dry_run_records_nothing(store: SqlStore, other: SqlStore) -> None:
    await talk(store, "s", "a")
    report = await take_in(other, await export(store), dry_run=True)
    assert (report.dry_run, report.imported, report.events) == (True, 1, 2)
    assert await other.head(SessionKey(TENANT, "s")) is None


async def test_many_events_and_large_ones_pass(store: SqlStore, other: SqlStore) -> None:
    await talk(store, "large", "x" * 5_000_000, "y" * 3_000_000, "z")
    messages = [{"role": "user", "content": str(number)} for number in range(1200)]
    facts = create_session("Ann", {}, {}, messages)
    await store.append(SessionKey(TENANT, "long"), State(), drafted("Ann", facts, None))
    text = await export(store)
    assert (await take_in(other, text)).events == 4 + 1201
    assert await export(other) == text


async def test_exports_can_be_put_one_after_the_other(store: SqlStore, other: SqlStore) -> None:
    await talk(store, "a", "1")
    await talk(store, "b", "2")
    assert (await take_in(other, await export(store, "a") + await export(store, "b"))).imported == 2
    with pytest.raises(InvalidImport, match="twice"):
        await take_in(other, await export(store, "a") + await export(store, "a"))


async def test_nothing_at_all_can_be_exported_and_imported(store: SqlStore, other: SqlStore) -> None:
    text = await export(store)
    assert len(text.splitlines()) == 1
    assert (await take_in(other, text)).imported == 0


async def test_two_imports_at_once_record_it_once(store: SqlStore, other: SqlStore) -> None:
    await talk(store, "s", *map(str, range(20)))
    text = await export(store)
    reports = await asyncio.gather(*(take_in(other, text) for _ in range(4)))
    assert sum(report.imported for report in reports) == 1
    assert await export(other) == text


async def test_a_run_that_was_running_does_not_go_on(store: SqlStore, other: SqlStore) -> None:
    state = await talk(store, "s")
    key = SessionKey(TENANT, "s")
    state = (await store.append(key, state, drafted("Ann", [RunStarted(options=RunOptions())], "run_1"))).state
    queued = RunQueued(options=RunOptions(), messages=({"role": "user", "content": "later"},))
    state = (await store.append(key, state, drafted("Ann", [queued], "run_2"))).state
    assert await store.abandoned() == [key]
    await take_in(other, await export(store))
    assert await other.abandoned() == []
    there = await other.state(key)
    assert (there.status, there.queue, there.seq) == ("idle", (), state.seq + 2)
    assert [(run.id, run.status, run.error.code) for run in there.finished if run.error] == [
        ("run_2", "interrupted", "imported"),
        ("run_1", "interrupted", "imported"),
    ]
    # What was recorded there is as it was.
    assert (await other.read(key))[state.seq - 1].hash == state.hash
    assert (await take_in(other, await export(store))).present == 1


async def test_a_run_that_waits_goes_on_waiting(store: SqlStore, other: SqlStore) -> None:
    state = await talk(store, "s")
    key = SessionKey(TENANT, "s")
    facts = [RunStarted(options=RunOptions()), RunWaiting(pending=())]
    await store.append(key, state, drafted("Ann", facts, "run_1"))
    text = await export(store)
    await take_in(other, text)
    assert (await other.state(key)).status == "waiting"
    assert await export(other) == text


TEXTS = st.text(st.characters(exclude_categories=()), max_size=20) | st.sampled_from(
    ["\x00", "\ud800", "😀", '"', "\\"]
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(agents=st.lists(TEXTS, min_size=1, max_size=3), content=st.dictionaries(TEXTS, JSON, max_size=3), run=TEXTS)
def test_whatever_was_accepted_comes_through(
    agents: Sequence[str], content: dict[str, Any], run: str, tmp_path: Path
) -> None:
    source, target = (f"sqlite:///{tmp_path / name}" for name in ("a.db", "b.db"))
    for url in (source, target):
        if not Path(url.removeprefix("sqlite:///")).exists():
            schema.upgrade(url)

    async def trip() -> None:
        store, other = open_store(source), open_store(target)
        try:
            key = SessionKey(TENANT, "s")
            state = State()
            for agent in agents:
                facts = create_session(agent, content, content, [{"role": "user", "content": agent, **content}])
                state = (await store.append(key, state, drafted(agent, facts, run), blobs={digest(agent): agent})).state
            text = await export(store)
            await take_in(other, text)
            assert await export(other) == text
            assert session_view("s", await other.state(key)) == session_view("s", state)
            await store.delete(key)
            await other.delete(key)
        finally:
            await store.close()
            await other.close()

    asyncio.run(trip())
