"""Sessions in object storage: whole there or whole here, whoever reads, writes, forks, redacts or deletes them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from swarmkeep.decide.drafts import draft_events
from swarmkeep.events.codec import digest
from swarmkeep.events.errors import HistoryDamaged, SessionNotFound
from swarmkeep.events.facts import EventDraft, MessageAdded, RunCompleted, RunStarted
from swarmkeep.events.records import CompletionRecord, RequestRecord, RunOptions
from swarmkeep.events.run_table import RunQuery
from swarmkeep.events.state import State
from swarmkeep.events.words import parse_terms
from swarmkeep.history.archives import Archive, ArchiveError, ObjectStore, open_archive, read_age
from swarmkeep.history.redact import redact
from swarmkeep.history.retention import apply_retention, read_retention
from swarmkeep.history.verify import Head, verify, verify_all
from swarmkeep.runs import feed as feeds
from swarmkeep.runs.feed import EventFeed
from swarmkeep.runs.sessions import delete_session, fork_session, hold_session
from swarmkeep.store.feed import BEGINNING
from swarmkeep.store.index import SessionFilter
from swarmkeep.store.opening import SqlStore, open_store
from swarmkeep.store.records import SessionKey, StoreUnavailable
from tests.history.exports import export_sessions
from tests.store.sessions import (
    KEY,
    OTHER,
    begin_session,
    draft_user_messages,
    make_picture_part,
    new_key,
    read_all_rows,
)
from tests.support.object_storage import ObjectStorage, open_object_storage

PICTURE = b"a picture"
TEXT = "Be kind."
AGE = timedelta(days=90)
# Of sessions, and beside them.
MOVED = ("events", "blobs", "files")


@pytest.fixture(scope="module")
def storage() -> Iterator[ObjectStorage]:
    with open_object_storage() as found, pytest.MonkeyPatch.context() as patch:
        for name, value in found.environment.items():
            patch.setenv(name, value)
        yield found


class Place:
    """A database whose sessions are a year old, and an archive of it, in which all of them are due."""

    def __init__(self, url: str, bucket: str, storage: ObjectStorage) -> None:
        self.url, self.bucket, self.storage = url, bucket, storage
        self.old = open_store(url, clock=lambda: datetime.now(UTC) - timedelta(days=365))
        self.stores = [self.old]
        self.store, self.archive = self.open()

    def open(self, **given: Any) -> tuple[SqlStore, Archive]:
        store = open_store(self.url, **given)
        self.stores.append(store)
        return store, Archive(store, ObjectStore(self.bucket))

    @property
    def objects(self) -> list[str]:
        return [name for name in self.storage.list_objects(self.bucket) if name != "sessions/README.txt"]

    async def make(self, key: SessionKey = KEY, **given: Any) -> State:
        """A session with a text, a picture and some messages."""
        state = await begin_session(self.old, key, **given)
        said = [
            *draft_user_messages("hello", [make_picture_part(PICTURE)]),
            EventDraft(
                MessageAdded(
                    message={"role": "assistant", "content": "hi \0 there"},
                    completion=CompletionRecord(request=RequestRecord(instructions=digest(TEXT))),
                ),
                None,
                "Triage",
            ),
            *draft_user_messages("bye"),
        ]
        named = make_picture_part(PICTURE)["blob"]["sha256"]
        return (await self.old.append(key, state, said, blobs={digest(TEXT): TEXT, named: PICTURE})).state

    async def read_rows(self, key: SessionKey = KEY) -> dict[str, list[Any]]:
        rows = await read_all_rows(self.store)
        return {name: [row for row in rows[name] if key.id in row] for name in (*MOVED, "sessions", "usage", "runs")}


@pytest.fixture
async def place(ready_url: str, storage: ObjectStorage) -> AsyncIterator[Place]:
    made = Place(ready_url, storage.make_bucket(), storage)
    yield made
    for store in made.stores:
        await store.close()


async def test_session_moves_and_comes_back_as_it_was(place: Place) -> None:
    state = await place.make(metadata={"a": "b"})
    run = draft_events("Triage", [RunStarted(options=RunOptions()), RunCompleted(stop_reason="end_turn")], "r1")
    state = (await place.old.append(KEY, state, run)).state
    before, totals = await place.read_rows(), await place.store.read_totals("default")
    assert await place.archive.archive_due(AGE) == 1
    away = await place.read_rows()
    assert [len(away[name]) for name in MOVED] == [1, 0, 0]
    assert {name: away[name] for name in away if name not in MOVED} == {
        name: before[name] for name in before if name not in MOVED
    }
    smaller = await place.store.read_totals("default")
    assert smaller.sessions == 1
    assert smaller.bytes < totals.bytes
    [name] = place.objects
    assert name.startswith(f"sessions/default/s1/{state.seq}-")
    # Nothing is left to do, for whatever time, and what the audit log says is what was done.
    longest = read_age("99999y")
    assert longest is not None
    assert [await place.archive.archive_due(age) for age in (AGE, longest)] == [0, 0]
    [entry] = await place.store.read_audit_log("default")
    assert (entry.type, entry.by) == ("session.archived", "archive")
    # It is listed and found as before, and so are its runs.
    assert [run.id for run in (await place.store.list_ended_runs("default", RunQuery())).runs] == ["r1"]
    page = await place.store.list_sessions(SessionFilter("default", metadata={"a": "b"}))
    assert [session.id for session in page.sessions] == ["s1"]
    assert (await place.archive.bring_back(KEY), await place.archive.bring_back(KEY)) == (True, False)
    assert await place.read_rows() == before
    again = await place.store.read_totals("default")
    assert (again.sessions, again.bytes) == (totals.sessions, totals.bytes)
    # The object is still a copy, with which it goes again; but not at once.
    assert await place.archive.archive_due(AGE) == 0
    place.archive._clock = lambda: datetime.now(UTC) + timedelta(days=1)
    assert await place.archive.archive_due(AGE) == 1
    assert place.objects == [name]


READS = {
    "state": lambda store: store.state(KEY),
    "state as it was": lambda store: store.state(KEY, at=2),
    "checked state": lambda store: store.sound_state(KEY, at=3),
    "events": lambda store: store.read(KEY),
    "later events": lambda store: store.read(KEY, after=3),
    "events with hashes": lambda store: store.read_sealed(KEY),
    "texts": lambda store: store.read_blobs(KEY, [digest(TEXT)]),
    "files": lambda store: store.read_files(KEY, [make_picture_part(PICTURE)["blob"]["sha256"]], fresh=False),
    "removed payloads": lambda store: store.read_redacted_payloads(KEY),
    "check": lambda store: store.check(KEY),
    "verify": lambda store: verify(store, KEY),
}


@pytest.mark.parametrize("name", READS)
async def test_every_read_is_as_before(name: str, place: Place) -> None:
    await place.make()
    expected = await READS[name](place.store)
    assert await place.archive.archive_due(AGE) == 1
    # By the process that has read it before, and by one that has not.
    fresh, _ = place.open()
    assert await READS[name](fresh) == expected
    assert await READS[name](place.store) == expected


async def test_export_and_forks_go_through_the_archive(place: Place) -> None:
    state = await place.make()
    fork = await fork_session(place.old, KEY, at=3, session_id=OTHER.id)

    async def export() -> bytes:
        return await export_sessions(place.store, KEY, OTHER)

    before = await export()
    assert await place.archive.archive_due(AGE) == 2
    assert await export() == before
    # They stay where they are, and one that has gone on since is brought back.
    assert [await place.archive.bring_back(KEY), await place.archive.bring_back(OTHER)] == [True, True]
    place.archive._clock = lambda: datetime.now(UTC) + timedelta(days=1)
    assert await place.archive.archive_due(AGE) == 2
    assert (await verify(place.store, OTHER)).valid
    place.archive._clock = lambda: datetime.now(UTC) + timedelta(days=2)
    await place.archive.archive_due(AGE)
    made = await fork_session(place.store, KEY, session_id="later")
    assert (made.forked_from and made.forked_from.seq) == state.seq
    assert fork.forked_from
    assert (await verify(place.store, SessionKey("default", "later"))).valid


async def test_archived_sessions_are_found_and_verified_there(place: Place) -> None:
    state = await place.make()
    while await place.store.index_some():
        pass
    assert await place.archive.archive_due(AGE) == 1

    async def find(text: str) -> list[str]:
        page = await place.store.list_sessions(SessionFilter("default", terms=parse_terms(text)))
        return [session.id for session in page.sessions]

    assert await find("bye") == [KEY.id]
    noted = Head(seq=3, hash=(await place.store.state(KEY, at=3)).hash)
    place.archive._clock = lambda: datetime.now(UTC) + timedelta(days=1)
    assert await place.archive.archive_due(AGE) == 1
    # A command that may write nothing verifies all that there is.
    reading = open_store(place.url, read_only=True)
    Archive(reading, ObjectStore(place.bucket), read_only=True)
    another, later = Head(seq=3, hash="0" * 64), Head(seq=9, hash="0" * 64)
    for head, codes in ((noted, []), (another, ["rewritten"]), (later, ["truncated"])):
        found = await verify(reading, KEY, noted=head)
        assert [problem.code for problem in found.problems] == codes
        assert (found.events, found.head) == (state.seq, Head(seq=state.seq, hash=state.hash))
    assert [(key, found.valid) async for key, found in verify_all(reading)] == [(KEY, True)]
    await reading.close()
    assert await place.store.find_archived(KEY) is not None
    # Indexed anew, it is found by its words once it is back.
    await place.store.void_search_index()
    while await place.store.index_some():
        pass
    assert (await find("bye"), await place.store.count_sessions_behind()) == ([], 0)
    await place.archive.bring_back(KEY)
    assert await place.store.index_some() == 1
    assert await find("bye") == [KEY.id]


async def test_unread_events_are_verified_with_the_rest(place: Place) -> None:
    state = await place.make()
    assert await place.store.state(KEY) == state
    assert await place.archive.archive_due(AGE) == 1
    # By a server that knows its last state.
    last = (await place.store.append(KEY, state, draft_user_messages("more"))).state
    fresh, _ = place.open()
    found = await verify(fresh, KEY)
    assert (found.valid, found.events) == (True, last.seq)
    assert await fresh.state(KEY) == last


async def test_feed_has_archived_sessions(place: Place) -> None:
    await place.make()
    feed = EventFeed(place.store, poll_seconds=1, page_bytes=1_000_000)
    before = [event.hash for _, event in (await feed.read("default")).events]
    assert await place.archive.archive_due(AGE) == 1
    assert [event.hash for _, event in (await feed.read("default", BEGINNING)).events] == before


async def test_feed_brings_back_a_few_at_once(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeds, "_BROUGHT_BACK_AT_ONCE", 2)
    for number in range(7):
        await place.make(SessionKey("default", f"f{number}"))
    feed = EventFeed(place.store, poll_seconds=1, page_bytes=1_000_000)
    before = [event.hash for _, event in (await feed.read("default")).events]
    assert await place.archive.archive_due(AGE) == 7
    found: list[str] = []
    after, reads = BEGINNING, 0
    while len(found) < len(before):
        page = await feed.read("default", after)
        assert page.events
        found += [event.hash for _, event in page.events]
        after, reads = page.cursor, reads + 1
    assert (found, reads) == (before, 4)


async def test_what_is_removed_goes_from_the_archive(place: Place) -> None:
    await place.make()
    await fork_session(place.old, KEY, session_id=OTHER.id)
    assert await place.archive.archive_due(AGE) == 2
    assert len(place.objects) == 2
    done = await redact(place.store, KEY, [2], "asked for", include_forks=True)
    assert [copy.session_id for copy in done.forks] == [OTHER.id]
    assert await place.archive.delete_garbage() == 2
    assert place.objects == []
    for key in (KEY, OTHER):
        assert (await verify(place.store, key)).valid
        assert (await place.store.read_sealed(key))[1].salt is None
    # Archived anew it is without that; deleted, it is nowhere.
    place.archive._clock = lambda: datetime.now(UTC) + timedelta(days=200)
    assert await place.archive.archive_due(AGE) == 2
    assert len(place.objects) == 2
    await place.store.delete(KEY)
    await place.store.delete(OTHER)
    assert await place.archive.delete_garbage() == 2
    assert place.objects == []
    with pytest.raises(SessionNotFound):
        await place.store.state(KEY)
    assert (await place.make()).seq == 5


async def test_lock_and_hold_keep_what_they_are_for(ready_url: str, storage: ObjectStorage) -> None:
    place = Place(ready_url, storage.make_bucket(locks=True), storage)
    await place.make()
    await hold_session(place.old, KEY, "a lawsuit", by=None)
    # A hold keeps a session from being deleted: it is kept there as well as here.
    assert await place.archive.archive_due(AGE) == 1
    [name] = place.objects
    storage.lock(place.bucket)
    assert (await verify(place.store, KEY)).valid
    await place.store.delete(KEY)
    await place.archive.delete_garbage()
    # What nobody may delete is out of sight, and there until the lock ends.
    assert (place.objects, storage.list_versions(place.bucket)) == ([], [name])
    for store in place.stores:
        await store.close()


async def test_changed_object_is_told_and_not_taken(place: Place) -> None:
    state = await place.make()
    await place.archive.archive_due(AGE)
    [name] = place.objects
    content = place.storage.get(place.bucket, name)
    for changed, code in (
        (content[:-1] + b"\1", "archive_differs"),
        (content * 1000, "archive_differs"),
        (None, "archive_missing"),
    ):
        if changed is None:
            place.storage.remove(place.bucket, name)
        else:
            place.storage.put(place.bucket, name, changed)
        with pytest.raises(HistoryDamaged):
            await place.store.state(KEY)
        assert await place.store.find_damaged_seq(KEY) == 2
        found = await verify(place.store, KEY)
        assert [problem.code for problem in found.problems] == [code]
    # Put right, it is looked at again, and goes on.
    place.storage.put(place.bucket, name, content)
    assert (await place.store.check(KEY)).seq == state.seq
    assert await place.store.find_damaged_seq(KEY) is None


async def test_lost_object_keeps_nothing_else_from_the_feed(place: Place) -> None:
    for key in (KEY, OTHER):
        await place.make(key)
    feed = EventFeed(place.store, poll_seconds=1, page_bytes=1_000_000)
    before = [event.hash for _, event in (await feed.read("default")).events]
    assert await place.archive.archive_due(AGE) == 2
    [name] = [name for name in place.objects if "/s1/" in name]
    content = place.storage.get(place.bucket, name)
    place.storage.remove(place.bucket, name)
    found = (await feed.read("default", BEGINNING)).events
    assert [(event.session_id, event.seq) for _, event in found] == [("s1", 1), *(("s2", seq) for seq in range(1, 6))]
    place.storage.put(place.bucket, name, content)
    assert [event.hash for _, event in (await feed.read("default", BEGINNING)).events] == before


async def test_session_whose_object_is_lost_can_be_deleted(place: Place) -> None:
    await place.make()
    assert await place.archive.archive_due(AGE) == 1
    place.storage.remove(place.bucket, *place.objects)
    with pytest.raises(HistoryDamaged, match="its object is not there; put the object back, or delete the session"):
        await delete_session(place.store, KEY)
    assert await delete_session(place.store, KEY, force=True) == [KEY]
    assert {name: rows for name, rows in (await place.read_rows()).items() if rows} == {}


async def test_outage_leaves_sessions_where_they_are(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    await place.make()
    nowhere = ObjectStore("s3://no-such-bucket/x")
    with pytest.raises(StoreUnavailable, match="the archive at s3://no-such-bucket/x"):
        await Archive(place.store, nowhere).archive_due(AGE)
    assert not await place.store.has_archived()
    place.store.on_archived = place.archive.bring_back
    assert await place.archive.archive_due(AGE) == 1
    store, _ = place.open()
    Archive(store, nowhere)
    with pytest.raises(StoreUnavailable, match="no-such-bucket"):
        await store.state(KEY)
    Archive(store, ObjectStore(place.storage.make_bucket()))
    with pytest.raises(StoreUnavailable, match="nothing of Swarmkeep's"):
        await store.state(KEY)
    assert await store.find_damaged_seq(KEY) is None


async def test_outage_keeps_no_others_from_being_checked_or_deleted(place: Place) -> None:
    for name in ("a", "c"):
        await place.make(SessionKey("default", name))
    assert await place.archive.archive_due(AGE) == 2
    await place.make(SessionKey("default", "b"))
    store, _ = place.open()
    Archive(store, ObjectStore("s3://no-such-bucket/x"))
    found = {key.id: [problem.code for problem in one.problems] async for key, one in verify_all(store)}
    assert found == {"a": ["archive_unavailable"], "b": [], "c": ["archive_unavailable"]}
    assert await apply_retention(store, read_retention("180d")) == 1
    left = (await store.list_sessions(SessionFilter("default"))).sessions
    assert sorted(session.id for session in left) == ["a", "c"]
    assert len(place.objects) == 2
    # Once it answers, they go, too.
    assert await apply_retention(place.store, read_retention("180d")) == 2
    assert await place.archive.delete_garbage() == 2
    assert place.objects == []


async def test_server_without_archive_says_so(place: Place) -> None:
    await place.make()
    await place.archive.archive_due(AGE)
    other = open_store(place.url)
    with pytest.raises(StoreUnavailable, match="set SWARMKEEP_ARCHIVE"):
        await other.state(KEY)
    await other.close()
    reading = open_store(place.url, read_only=True)
    Archive(reading, ObjectStore(place.bucket), read_only=True)
    with pytest.raises(StoreUnavailable, match="swarmkeep archive --bring-back s1"):
        await reading.state(KEY)
    await reading.close()


async def test_many_move_while_they_are_used(place: Place) -> None:
    """Two servers archive, and two read, append and delete: every session ends whole, with each event once."""
    keys = [new_key("busy") for _ in range(24)]
    for key in keys:
        await place.make(key)
    other, elsewhere = place.open()
    for archive in (place.archive, elsewhere):
        archive._clock = lambda: datetime.now(UTC) + timedelta(days=300)
    doomed, kept = set(keys[:4]), keys[4:]
    heads = {}

    async def use(store: SqlStore, key: SessionKey, number: int) -> None:
        for step in range(3):
            state = await store.state(key)
            if number % 3 == 0:
                state = (await store.append(key, state, draft_user_messages(f"again {step}"))).state
            assert len(await store.read(key)) == state.seq
            heads[key] = state.seq
        if key in doomed:
            await store.delete(key)

    using = asyncio.gather(*(use((place.store, other)[number % 2], key, number) for number, key in enumerate(keys)))
    while not using.done():
        await asyncio.gather(place.archive.archive_due(AGE), elsewhere.archive_due(AGE))
    await using
    for key in kept:
        found = await verify(place.store, key)
        assert found.valid, (key, found.problems)
        assert found.events == heads[key]
    for key in doomed:
        with pytest.raises(SessionNotFound):
            await place.store.state(key)
    await place.archive.delete_garbage()
    assert not [name for name in place.objects if name.split("/")[2] in {key.id for key in doomed}]


def test_settings_are_checked(tmp_path: Path) -> None:
    assert (read_age(None), read_age("90d")) == (None, timedelta(days=90))
    for text in ("soon", "0d", '[{"keep": null}]', '[{"keep": "1d"}, {"keep": "2d"}]'):
        with pytest.raises(ArchiveError, match="as in 90d"):
            read_age(text)
    for url in ("nowhere", "ftp://x/y", "s3://"):
        with pytest.raises(ArchiveError, match="cannot be used"):
            ObjectStore(url)

    class Given:
        archive: str | None = None
        archive_after: str | None = "90d"

    with pytest.raises(ArchiveError, match="_AFTER: it needs SWARMKEEP_ARCHIVE"):
        open_archive(open_store(f"sqlite:///{tmp_path / 'x.db'}"), Given())


async def test_folder_is_an_archive(place: Place, tmp_path: Path) -> None:
    place.archive = Archive(place.store, ObjectStore(f"file://{tmp_path / 'archive'}"))
    key = SessionKey("tenant / two", "a.b:c")
    await place.make(key)
    assert await place.archive.archive_due(AGE) == 1
    assert (await verify(place.store, key)).valid
