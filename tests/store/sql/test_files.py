"""The content of files: once per session and hash, copied by forks, gone with what referred to it."""

from __future__ import annotations

import asyncio
import hashlib
from functools import partial

import pytest
from sqlalchemy import Connection, select

from swarmkeep.decide.drafts import draft_events
from swarmkeep.events.errors import SeqConflict
from swarmkeep.events.facts import EventDraft, RunQueued, SessionForked, SessionRedacted
from swarmkeep.events.records import RunOptions
from swarmkeep.events.redaction import redact_payload
from swarmkeep.events.state import State
from swarmkeep.store.contents import SLICE_BYTES, FileCache, copy_slice
from swarmkeep.store.opening import SqlStore
from swarmkeep.store.records import SessionKey
from swarmkeep.store.schema import mend_leftovers
from swarmkeep.store.tables import files
from swarmkeep.store.usage import recount_totals
from tests.store.sessions import KEY, begin_session, draft_user_messages, make_picture_part, new_key

PICTURE, OTHER = b"a picture" * 1000, b"another"
NAME, OTHER_NAME = (hashlib.sha256(content).hexdigest() for content in (PICTURE, OTHER))


async def show(store: SqlStore, key: SessionKey, state: State, *contents: bytes) -> State:
    """Add a message with pictures."""
    drafts = draft_user_messages([make_picture_part(content) for content in contents])
    blobs = {hashlib.sha256(content).hexdigest(): content for content in contents}
    return (await store.append(key, state, drafts, blobs=blobs)).state


async def redact(store: SqlStore, key: SessionKey, seq: int) -> State:
    log = await store.read_sealed(key)
    draft = draft_events("Ann", [SessionRedacted(seqs=(seq,), reason="r")], None)[0]
    return (await store.redact(key, log, {seq: redact_payload(log[seq - 1].event)}, draft)).state


async def test_same_content_is_stored_once(store: SqlStore) -> None:
    key = new_key()
    state = await begin_session(store, key)
    before = (await store.read_totals(key.tenant)).bytes
    state = await show(store, key, state, PICTURE, PICTURE)
    await show(store, key, state, PICTURE, OTHER)
    grown = (await store.read_totals(key.tenant)).bytes - before
    assert len(PICTURE) + len(OTHER) <= grown < 2 * len(PICTURE)
    assert await store.read_files(key, [NAME, OTHER_NAME, "none"]) == {NAME: PICTURE, OTHER_NAME: OTHER}
    assert await recount_totals(store.database, mend=False) == []


async def test_sessions_do_not_share_content(store: SqlStore) -> None:
    key = new_key()
    await show(store, key, await begin_session(store, key), PICTURE)
    others = (new_key(), SessionKey("other tenant", key.id))
    for other in others:
        await begin_session(store, other)
        assert await store.read_files(other, [NAME]) == {}
        assert await store.read_files(other, [NAME], fresh=False) == {}


async def test_content_goes_with_last_referring_event(store: SqlStore) -> None:
    key = new_key()
    state = await show(store, key, await begin_session(store, key), PICTURE)
    await show(store, key, state, PICTURE)
    await redact(store, key, 2)
    assert await store.read_files(key, [NAME]) == {NAME: PICTURE}
    assert await store.read_files(key, [NAME], fresh=False) == {NAME: PICTURE}
    await redact(store, key, 3)
    assert await store.read_files(key, [NAME]) == {}
    assert await store.read_files(key, [NAME], fresh=False) == {}
    assert await recount_totals(store.database, mend=False) == []


async def test_queued_files_live_with_their_event(store: SqlStore) -> None:
    key = new_key()
    state = await begin_session(store, key)
    messages = ({"role": "user", "content": [make_picture_part(PICTURE)]},)
    queued = draft_events("Ann", [RunQueued(options=RunOptions(), messages=messages)], "r")
    state = (await store.append(key, state, queued, blobs={NAME: PICTURE})).state
    await show(store, key, state, OTHER)
    await redact(store, key, 3)
    assert await store.read_files(key, [NAME, OTHER_NAME]) == {NAME: PICTURE}
    await redact(store, key, 2)
    assert await store.read_files(key, [NAME]) == {}


async def test_fork_copies_its_referenced_files(store: SqlStore) -> None:
    key, copy = new_key(), new_key("fork")
    first = await show(store, key, await begin_session(store, key), PICTURE)
    await show(store, key, first, OTHER)
    forked = SessionForked(from_session_id=key.id, from_seq=first.seq, from_hash=first.hash)
    await store.fork(key, first, copy, draft_events("Ann", [forked], None))
    assert await store.read_files(copy, [NAME, OTHER_NAME]) == {NAME: PICTURE}
    await store.delete(key)
    assert await store.read_files(key, [NAME]) == {}
    assert await store.read_files(copy, [NAME]) == {NAME: PICTURE}
    assert await recount_totals(store.database, mend=False) == []


def test_cache_is_byte_bounded_and_forgets_sessions() -> None:
    cache = FileCache(10_000)
    cache.put_all(KEY, {"a": bytes(4500), "b": bytes(4500), "c": bytes(9501)})
    assert set(cache.get_all(KEY, ["a", "b", "c"])) == {"a", "b"}
    other = new_key()
    cache.put_all(other, {"d": b"1"})
    assert len(cache.get_all(KEY, ["a", "b"])) == 1
    cache.drop(KEY)
    assert cache.get_all(KEY, ["a", "b"]) == {}
    assert cache.get_all(other, ["d"]) == {"d": b"1"}


def test_cache_bounds_small_file_count() -> None:
    cache, names = FileCache(100_000), [str(number) for number in range(400)]

    def count_kept(some: list[str]) -> int:
        cache.put_all(KEY, dict.fromkeys(some, b""))
        return len(cache.get_all(KEY, names))

    assert count_kept(names[:200]) == 200 == count_kept(names)


async def show_large(store: SqlStore, key: SessionKey, count: int) -> State:
    state = await begin_session(store, key)
    for number in range(count):
        state = await show(store, key, state, bytes([number]) * SLICE_BYTES)
    return state


def draft_fork(source: SessionKey, state: State) -> list[EventDraft]:
    forked = SessionForked(from_session_id=source.id, from_seq=state.seq, from_hash=state.hash)
    return draft_events("Ann", [forked], None)


async def list_files(store: SqlStore) -> set[tuple[str, str]]:
    def find(connection: Connection) -> set[tuple[str, str]]:
        return {(row.session_id, row.hash) for row in connection.execute(select(files.c.session_id, files.c.hash))}

    return await store.database.read(find)


async def test_large_fork_copy_lets_others_write(store: SqlStore) -> None:
    key, copy, other = new_key(), new_key("fork"), new_key("other")
    state = await show_large(store, key, 10)
    forking = asyncio.create_task(store.fork(key, state, copy, draft_fork(key, state)))
    going, written = await begin_session(store, other), 0
    while not forking.done():
        going = (await store.append(other, going, draft_user_messages("x"))).state
        written += 1
    await forking
    assert written >= 5
    assert {name for session, name in await list_files(store) if session == copy.id} == {
        name for session, name in await list_files(store) if session == key.id
    }
    assert {session for session, _ in await list_files(store)} == {key.id, copy.id}
    assert await recount_totals(store.database, mend=False) == []


async def test_a_refused_fork_leaves_no_files(store: SqlStore) -> None:
    key, copy = new_key(), new_key("fork")
    state = await show_large(store, key, 3)
    with pytest.raises(SeqConflict):
        await store.fork(key, state, copy, draft_fork(key, state), redacted=1)
    assert {session for session, _ in await list_files(store)} == {key.id}
    # Where the session is there, what it has itself stays.
    there = await show(store, copy, await begin_session(store, copy), PICTURE)
    with pytest.raises(SeqConflict):
        await store.fork(key, state, copy, draft_fork(key, state))
    assert {name for session, name in await list_files(store) if session == copy.id} == {NAME}
    assert await store.state(copy) == there


@pytest.mark.parametrize("is_made", [False, True])
async def test_dead_fork_copies_are_removed(store: SqlStore, is_made: bool) -> None:
    key, copy = new_key(), new_key("fork")
    state = await show_large(store, key, 3)
    [first, second, _] = [name for _, name in sorted(await list_files(store))]
    await store.database.write(partial(copy_slice, source=key, target=copy, hashes=[first, second]))
    leftovers = await mend_leftovers(store, mend=True)
    assert leftovers.files == 0
    content = (await store.read_files(key, [first]))[first]
    if is_made:
        await show(store, copy, await begin_session(store, copy), content)
    await store.remove_abandoned_copies()
    assert {name for session, name in await list_files(store) if session != key.id} == ({first} if is_made else set())
    assert {session for session, _ in await list_files(store)} <= {key.id, copy.id}
    if is_made:
        assert await store.read_files(copy, [first]) == {first: content}
    else:
        await store.database.write(partial(copy_slice, source=key, target=copy, hashes=[second]))
        await store.fork(key, state, copy, draft_fork(key, state))
        assert len(await list_files(store)) == 6
        assert await recount_totals(store.database, mend=False) == []


async def test_large_deletion_lets_others_write(store: SqlStore) -> None:
    key, other = new_key(), new_key("other")
    await show_large(store, key, 10)
    deleting = asyncio.create_task(store.delete(key))
    going, written = await begin_session(store, other), 0
    while not deleting.done():
        going = (await store.append(other, going, draft_user_messages("x"))).state
        written += 1
    await deleting
    assert written >= 5
    assert await list_files(store) == set()
    assert await recount_totals(store.database, mend=False) == []


@pytest.mark.parametrize("is_made", [False, True])
async def test_dead_deletion_is_finished(store: SqlStore, monkeypatch: pytest.MonkeyPatch, is_made: bool) -> None:
    """A process that dies when the session is gone leaves files, which the next start removes."""
    key = new_key()
    await show_large(store, key, 3)

    def die(*_: object, **__: object) -> None:
        raise RuntimeError("it died")

    with monkeypatch.context() as patched:
        patched.setattr("swarmkeep.store.log.delete_slice", die)
        with pytest.raises(RuntimeError, match="it died"):
            await store.delete(key)
    assert await store.read_head(key) is None
    assert len(await list_files(store)) == 4
    if is_made:
        await show(store, key, await begin_session(store, key), PICTURE)
    await store.remove_abandoned_copies()
    assert await list_files(store) == ({(key.id, NAME)} if is_made else set())
    assert await recount_totals(store.database, mend=False) == []
