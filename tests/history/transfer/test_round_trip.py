"""What was exported and imported elsewhere is the same there, to the byte, on any database; then comes the import."""

from __future__ import annotations

import asyncio
import io
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from swarmkeep.decide.commands import create_session
from swarmkeep.decide.drafts import draft_events
from swarmkeep.events.codec import digest
from swarmkeep.events.errors import InvalidImport, InvalidRequest, SessionExists
from swarmkeep.events.facts import MessageAdded, RunQueued, RunStarted, RunWaiting, SessionUpdated
from swarmkeep.events.messages import list_text_hashes
from swarmkeep.events.records import CompletionRecord, RequestRecord, RunOptions
from swarmkeep.events.state import State
from swarmkeep.events.views import SessionView, view_session
from swarmkeep.history.export import filter_sessions, iterate_keys, write_export
from swarmkeep.history.import_export import ImportReport, import_export
from swarmkeep.history.redact import redact
from swarmkeep.store import schema
from swarmkeep.store.index import SessionFilter
from swarmkeep.store.opening import SqlStore, open_store
from swarmkeep.store.records import SessionKey
from tests.golden.conversations import BLOBS
from tests.golden.make import FORK, SHOP, describe_state, fill_store
from tests.support.hypothesis_profiles import examples

TENANT = "default"


async def export_bytes(store: SqlStore, *ids: str, tenant: str = TENANT) -> bytes:
    keys = iterate_keys([SessionKey(tenant, id) for id in ids]) if ids else filter_sessions(store, tenant)
    return b"".join([piece async for piece in write_export(store, keys)])


async def import_bytes(store: SqlStore, text: bytes, **options: Any) -> ImportReport:
    return await import_export(store, options.pop("tenant", TENANT), io.BytesIO(text), **options)


def list_lines(text: bytes) -> list[bytes]:
    """The events of an export as they are written there, without what says how far each session goes."""
    return [
        re.sub(rb',"export":\{[^{}]*\}\}$', b"}", line) for line in text.splitlines() if b'"record":"end"' not in line
    ]


def list_imported(text: bytes) -> list[bytes]:
    """Those of them that came by import: what each session has before it says so."""
    kept, ended = [], False
    for line in list_lines(text):
        seq = int(line.split(b'"seq":', 1)[1].split(b",", 1)[0])
        ended = seq > 1 and (ended or b'"type":"session.imported"' in line.split(b'"data":', 1)[0])
        if not ended:
            kept.append(line)
    return kept


async def record_session(
    store: SqlStore, session_id: str, *texts: str, metadata: dict[str, Any] | None = None
) -> State:
    """A session with these messages; each comes with an append of its own."""
    key = SessionKey(TENANT, session_id)
    state = (
        await store.append(key, State(), draft_events("Ann", create_session("Ann", {}, metadata or {}, []), None))
    ).state
    for text in texts:
        request = RequestRecord(instructions=digest(text))
        message = {"role": "assistant", "content": text, "sender": "Ann"}
        fact = MessageAdded(message=message, completion=CompletionRecord(request=request))
        blobs = {digest(text): text}
        state = (await store.append(key, state, draft_events("Ann", [fact], None), blobs=blobs)).state
    return state


async def record_redacted_session(store: SqlStore, session_id: str) -> None:
    """A session whose second event was redacted."""
    await record_session(store, session_id, "my secret", "go on")
    await redact(store, SessionKey(TENANT, session_id), [2], "asked to")


async def test_a_redacted_event_stays_redacted(store: SqlStore, other: SqlStore) -> None:
    await record_redacted_session(store, "s")
    text = await export_bytes(store)
    await import_bytes(other, text)
    assert list_imported(await export_bytes(other)) == list_lines(text)
    assert b'"salt":null' in text


async def test_round_trip_gives_same_bytes(store: SqlStore, other: SqlStore) -> None:
    await fill_store(store)
    before = await export_bytes(store, SHOP.id, FORK.id, tenant=SHOP.tenant)
    report = await import_bytes(other, before)
    assert (report.imported, report.present) == (2, 0)
    assert list_imported(await export_bytes(other, SHOP.id, FORK.id)) == list_lines(before)
    for key in (SHOP, FORK):
        there = SessionKey(TENANT, key.id)
        end = (await store.state(key)).seq
        assert describe_state(key.id, await other.state(there, at=end)) == describe_state(
            key.id, await store.state(key)
        )
        named = [name for event in await store.read(key) for name in list_text_hashes(event.fact)]
        assert named
        assert await other.read_blobs(there, named) == await store.read_blobs(key, named) == BLOBS


async def test_lists_show_imported_session_alike(store: SqlStore, other: SqlStore) -> None:
    await record_session(store, "first", "a", metadata={"team": "sales"})
    await record_session(store, "second", "b")
    base = await store.state(SessionKey(TENANT, "first"))
    await store.fork(
        SessionKey(TENANT, "first"),
        base,
        SessionKey(TENANT, "fork"),
        draft_events("Ann", [_make_fork_event(base)], None),
    )
    await import_bytes(other, await export_bytes(store))
    for filters in ({}, {"metadata": {"team": "sales"}}, {"agent": "Ann", "status": "idle"}):
        assert await list_shown(other, filters) == await list_shown(store, filters)


async def list_shown(store: SqlStore, filters: Any) -> list[SessionView]:
    """The sessions of a list without what an import changes: where they end, and when that was."""
    listed = (await store.list_sessions(SessionFilter(TENANT, **filters))).sessions
    return [replace(session, seq=0, hash="", updated_at="") for session in listed]


def _make_fork_event(base: State) -> Any:
    from swarmkeep.events.facts import SessionForked

    return SessionForked(from_session_id="first", from_seq=base.seq, from_hash=base.hash)


async def test_an_import_made_again_changes_nothing(store: SqlStore, other: SqlStore) -> None:
    await record_session(store, "s", "a", "b")
    text = await export_bytes(store)
    await import_bytes(other, text)
    report = await import_bytes(other, text)
    assert (report.imported, report.present, report.sessions[0].outcome) == (0, 1, "present")
    assert list_imported(await export_bytes(other)) == list_lines(text)
    assert len(await other.read_audit_log(TENANT)) == 1


async def test_advanced_session_left_alone(store: SqlStore, other: SqlStore) -> None:
    state = await record_session(store, "s", "a")
    text = await export_bytes(store)
    fact = SessionUpdated(metadata={"more": True})
    await store.append(SessionKey(TENANT, "s"), state, draft_events("Ann", [fact], None))
    assert (await import_bytes(store, text)).present == 1
    assert (await store.read_head(SessionKey(TENANT, "s"))).seq == state.seq + 1  # type: ignore[union-attr]


async def test_foreign_session_under_id_refused_early(store: SqlStore, other: SqlStore) -> None:
    await record_session(store, "new", "a")
    await record_session(store, "taken", "a")
    await record_session(other, "taken", "b")
    with pytest.raises(SessionExists):
        await import_bytes(other, await export_bytes(store, "new", "taken"))
    assert [session.id for session in (await other.list_sessions(SessionFilter(TENANT))).sessions] == ["taken"]


async def test_one_session_may_get_another_id(store: SqlStore, other: SqlStore) -> None:
    state = await record_session(store, "s", "a")
    await import_bytes(other, await export_bytes(store), as_id="t")
    assert view_session("s", await other.state(SessionKey(TENANT, "t"), at=state.seq)) == view_session("s", state)
    assert (await other.read(SessionKey(TENANT, "t")))[0].session_id == "t"
    # The id is not hashed: the same history goes by either.
    assert (await import_bytes(other, await export_bytes(store))).imported == 1
    with pytest.raises(InvalidImport, match="has 2"):
        await import_bytes(other, await export_bytes(other), as_id="u")
    with pytest.raises(InvalidRequest):
        await import_bytes(other, await export_bytes(store), as_id="no/id")


async def test_a_dry_run_records_nothing(store: SqlStore, other: SqlStore) -> None:
    await record_session(store, "s", "a")
    report = await import_bytes(other, await export_bytes(store), dry_run=True)
    assert (report.dry_run, report.imported, report.events) == (True, 1, 2)
    assert await other.read_head(SessionKey(TENANT, "s")) is None


@pytest.mark.long
async def test_many_events_and_large_ones_pass(store: SqlStore, other: SqlStore) -> None:
    await record_session(store, "large", "x" * 5_000_000, "y" * 3_000_000, "z")
    messages = [{"role": "user", "content": str(number)} for number in range(1200)]
    facts = create_session("Ann", {}, {}, messages)
    await store.append(SessionKey(TENANT, "long"), State(), draft_events("Ann", facts, None))
    text = await export_bytes(store)
    assert (await import_bytes(other, text)).events == 4 + 1201
    assert list_imported(await export_bytes(other)) == list_lines(text)


async def test_exports_can_be_concatenated(store: SqlStore, other: SqlStore) -> None:
    await record_session(store, "a", "1")
    await record_session(store, "b", "2")
    assert (await import_bytes(other, await export_bytes(store, "a") + await export_bytes(store, "b"))).imported == 2
    with pytest.raises(InvalidImport, match="twice"):
        await import_bytes(other, await export_bytes(store, "a") + await export_bytes(store, "a"))


async def test_empty_export_round_trips(store: SqlStore, other: SqlStore) -> None:
    text = await export_bytes(store)
    assert len(text.splitlines()) == 1
    assert (await import_bytes(other, text)).imported == 0


async def test_concurrent_imports_record_once(store: SqlStore, other: SqlStore) -> None:
    await record_session(store, "s", *map(str, range(20)))
    text = await export_bytes(store)
    reports = await asyncio.gather(*(import_bytes(other, text) for _ in range(4)))
    assert sum(report.imported for report in reports) == 1
    assert list_imported(await export_bytes(other)) == list_lines(text)
    assert len(await other.read_audit_log(TENANT)) == 1


async def test_running_run_does_not_continue(store: SqlStore, other: SqlStore) -> None:
    state = await record_session(store, "s")
    key = SessionKey(TENANT, "s")
    state = (await store.append(key, state, draft_events("Ann", [RunStarted(options=RunOptions())], "run_1"))).state
    queued = RunQueued(options=RunOptions(), messages=({"role": "user", "content": "later"},))
    state = (await store.append(key, state, draft_events("Ann", [queued], "run_2"))).state
    assert await store.find_abandoned() == [key]
    await import_bytes(other, await export_bytes(store))
    assert await other.find_abandoned() == []
    there = await other.state(key)
    assert (there.status, there.queue, there.seq) == ("idle", (), state.seq + 3)
    assert [(run.id, run.status, run.error.code) for run in there.finished if run.error] == [
        ("run_2", "interrupted", "imported"),
        ("run_1", "interrupted", "imported"),
    ]
    # What was recorded there is as it was.
    assert (await other.read(key))[state.seq - 1].hash == state.hash
    assert (await import_bytes(other, await export_bytes(store))).present == 1


async def test_waiting_run_keeps_waiting(store: SqlStore, other: SqlStore) -> None:
    state = await record_session(store, "s")
    key = SessionKey(TENANT, "s")
    calls = [{"id": "c1", "type": "function", "function": {"name": "pay", "arguments": "{}"}}]
    reply = {"role": "assistant", "content": None, "tool_calls": calls, "sender": "Ann"}
    asked = MessageAdded(message=reply, completion=CompletionRecord())
    facts = [RunStarted(options=RunOptions()), asked, RunWaiting(pending=())]
    await store.append(key, state, draft_events("Ann", facts, "run_1"))
    text = await export_bytes(store)
    await import_bytes(other, text)
    assert (await other.state(key)).status == "waiting"
    assert list_imported(await export_bytes(other)) == list_lines(text)


TEXTS = st.text(st.characters(exclude_categories=()), max_size=20) | st.sampled_from(
    ["\x00", "\ud800", "😀", '"', "\\"]
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.long
@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
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
                state = (
                    await store.append(key, state, draft_events(agent, facts, run), blobs={digest(agent): agent})
                ).state
            text = await export_bytes(store)
            await import_bytes(other, text)
            assert list_imported(await export_bytes(other)) == list_lines(text)
            assert view_session("s", await other.state(key, at=state.seq)) == view_session("s", state)
            await store.delete(key)
            await other.delete(key)
        finally:
            await store.close()
            await other.close()

    asyncio.run(trip())
