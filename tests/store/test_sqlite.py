"""SQLite alone: group commit, several processes on one file, and reading without a trace."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import sqlite3
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, event

from swarmkeep.events.errors import Overloaded
from swarmkeep.events.facts import EventDraft, SessionUpdated
from swarmkeep.store import schema
from swarmkeep.store.index import SessionFilter
from swarmkeep.store.opening import SqlStore, open_store
from swarmkeep.store.records import IdempotencyRecord, StoreUnavailable
from swarmkeep.store.sqlite import ReadOnlyFile, SqliteDatabase
from swarmkeep.store.sqlite_files import LogScrubber, OpenFiles, connect
from swarmkeep.store.urls import SqliteFile
from tests.store.sessions import KEY, OTHER, begin_session, draft_user_messages, list_seqs, new_key
from tests.support.disk import full_disk
from tests.support.processes import Process


@pytest.fixture
def path(sqlite_ready: str) -> Path:
    return Path(sqlite_ready.removeprefix("sqlite:///"))


@pytest.fixture
async def store(sqlite_ready: str) -> AsyncIterator[SqlStore]:
    store = open_store(sqlite_ready)
    yield store
    await store.close()


@pytest.fixture
def locked(path: Path) -> Iterator[sqlite3.Connection]:
    """Another process's connection, in the middle of a write."""
    other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    yield other
    other.close()


@pytest.mark.parametrize("column", ["type", "recorded_at", "payload"])
async def test_invalid_utf8_text_is_read_partially(path: Path, store: SqlStore, column: str) -> None:
    await begin_session(store)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(f"UPDATE events SET {column} = CAST(x'ff' AS TEXT) WHERE seq = 1")
    assert list_seqs(await store.read(KEY)) == [1]
    assert [one.event.seq for one in await store.read_sealed(KEY)] == [1]
    found = await store.read_snapshot(lambda snapshot: snapshot.read_sealed(KEY, after=0, upto=1, limit=1))
    assert [one.event.seq for one in found] == [1]


async def test_writes_that_wait_share_a_commit(store: SqlStore, locked: sqlite3.Connection) -> None:
    commits: list[Connection] = []

    def committing(connection: Connection) -> None:
        commits.append(connection)

    event.listen(Engine, "commit", committing)
    try:
        writes = [asyncio.ensure_future(begin_session(store, new_key())) for _ in range(50)]
        await asyncio.sleep(0)
        locked.execute("COMMIT")
        await asyncio.gather(*writes)
    finally:
        event.remove(Engine, "commit", committing)
    # Those that the writer found when it began to wait for the lock, and those that came meanwhile.
    assert len(commits) in (1, 2)


async def test_a_writer_waits_for_another_process(store: SqlStore, locked: sqlite3.Connection) -> None:
    write = asyncio.ensure_future(begin_session(store))
    done, _ = await asyncio.wait([write], timeout=0.1)
    assert not done
    locked.execute("COMMIT")
    assert (await write).seq == 1


async def test_vainly_waiting_writer_says_so(path: Path, locked: sqlite3.Connection) -> None:
    database = SqliteDatabase(SqliteFile(path), busy_seconds=0.05)
    store = SqlStore(database, display=str(path))
    with pytest.raises(Overloaded, match="another program holds the database file"):
        await begin_session(store)
    locked.execute("COMMIT")
    assert (await begin_session(store)).seq == 1
    await store.close()


async def test_reading_does_not_wait_for_writer(store: SqlStore, path: Path) -> None:
    state = await begin_session(store)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    assert await store.state(KEY) == state
    other.close()


async def test_waiting_write_spares_event_loop(store: SqlStore, locked: sqlite3.Connection) -> None:
    write = asyncio.ensure_future(begin_session(store))
    started = time.monotonic()
    for _ in range(10):
        await asyncio.sleep(0.001)
    assert time.monotonic() - started < 1
    locked.execute("COMMIT")
    await write


async def test_deleted_text_stays_in_no_file(store: SqlStore, path: Path) -> None:
    canary = "canary-7f3a9c"
    state = await begin_session(store, metadata={"note": canary}, context={"note": canary})
    state = (
        await store.append(
            KEY,
            state,
            draft_user_messages(*[canary * 500] * 20),
            blobs={"h": canary},
            idempotency=IdempotencyRecord(key=canary, digest="d"),
        )
    ).state
    await store.append(KEY, state, [EventDraft(SessionUpdated(metadata={canary: canary}), canary, canary)])
    await begin_session(store, OTHER)
    await store.delete(KEY)
    assert find_files_with(path, canary) == []


def list_names(folder: Path) -> list[str]:
    return [file.name for file in folder.iterdir()]


def find_files_with(path: Path, canary: str) -> list[str]:
    return [file.name for file in path.parent.iterdir() if canary.encode() in file.read_bytes()]


async def test_deleted_text_goes_after_reader_leaves(store: SqlStore, path: Path) -> None:
    canary = "canary-7f3a9c"
    await begin_session(store, context={"note": canary})
    reader = sqlite3.connect(path, isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM events").fetchone()
    await store.delete(KEY)
    assert find_files_with(path, canary) != []
    reader.close()
    # Without any further write: the writer tries again by itself, and at the latest when it closes.
    await store.close()
    assert find_files_with(path, canary) == []


async def test_commit_is_reported_despite_unemptied_log(
    sqlite_ready: str, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    canary = "canary-51c0de"
    store = open_store(sqlite_ready)
    await store.append(KEY, await begin_session(store), draft_user_messages(*["x" * 10_000] * 100))
    await store.close()
    # What is new goes to the end of the file, so there is room for it in the log, but not in the database.
    store = open_store(sqlite_ready)
    with full_disk(path):
        state = await begin_session(store, OTHER)
        state = (await store.append(OTHER, state, draft_user_messages(canary * 500))).state
        erasing = asyncio.ensure_future(store.delete(OTHER))
        writing = [asyncio.ensure_future(begin_session(store, new_key())) for _ in range(3)]
        await asyncio.gather(erasing, *writing)
        assert await store.read_head(OTHER) is None
        state = await begin_session(store, OTHER)
        assert await store.state(OTHER) == state
        assert find_files_with(path, canary) != []
    async with asyncio.timeout(20):
        while find_files_with(path, canary):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    assert await store.state(OTHER) == state
    await store.close()
    assert [record.levelname for record in caplog.records if "write-ahead log" in record.message] == ["WARNING"]


async def test_disk_without_room_for_a_turn_is_noticed_though_a_page_has_some(store: SqlStore) -> None:
    with full_disk(48 * 1024):
        for _ in range(2):
            with pytest.raises(StoreUnavailable, match="full"):
                await begin_session(store, metadata={"note": "x" * 100_000})
            with pytest.raises(StoreUnavailable, match="free some space"):
                await store.ping()
    await store.ping()
    assert (await begin_session(store)).seq == 1


async def test_those_who_ask_at_once_share_a_trial_of_the_disk(
    store: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_now: list[int] = []
    most = 0
    make = tempfile.TemporaryFile

    @contextmanager
    def watch(**given: Any) -> Iterator[Any]:
        nonlocal most
        open_now.append(1)
        most = max(most, len(open_now))
        try:
            with make(**given) as file:
                yield file
        finally:
            open_now.pop()

    monkeypatch.setattr(tempfile, "TemporaryFile", watch)
    with full_disk(48 * 1024):
        with pytest.raises(StoreUnavailable):
            await begin_session(store, metadata={"note": "x" * 100_000})
        answers = await asyncio.gather(*(store.ping() for _ in range(50)), return_exceptions=True)
        assert {type(answer) for answer in answers} == {StoreUnavailable}
        # One who leaves does not end it for the others.
        leaving, staying = asyncio.ensure_future(store.ping()), asyncio.ensure_future(store.ping())
        while not (open_now or staying.done()):  # noqa: ASYNC110
            await asyncio.sleep(0)
        leaving.cancel()
        with pytest.raises(StoreUnavailable):
            await staying
    await store.ping()
    assert most == 1


async def test_reading_only_leaves_no_trace(sqlite_ready: str, path: Path) -> None:
    writer = open_store(sqlite_ready)
    state = await begin_session(writer, metadata={"a": "b"})
    await writer.close()
    before = {file.name: (file.read_bytes(), file.stat().st_mtime_ns) for file in path.parent.iterdir()}
    assert list(before) == [path.name]

    reader = open_store(sqlite_ready, read_only=True)
    await reader.ping()
    assert await reader.state(KEY) == state
    assert len((await reader.list_sessions(SessionFilter("default", metadata={"a": "b"}))).sessions) == 1
    assert list_names(path.parent) == [path.name]
    with pytest.raises(StoreUnavailable, match="read-only"):
        await reader.append(KEY, state, draft_user_messages("x"))
    with pytest.raises(StoreUnavailable, match="read-only"):
        await reader.delete(KEY)
    await reader.close()
    assert {file.name: (file.read_bytes(), file.stat().st_mtime_ns) for file in path.parent.iterdir()} == before


async def test_store_without_writes_leaves_no_trace(sqlite_ready: str, path: Path) -> None:
    store = open_store(sqlite_ready)
    await store.ping()
    await store.close()
    assert list_names(path.parent) == [path.name]


async def test_reading_only_makes_no_file(tmp_path: Path) -> None:
    reader = open_store(f"sqlite:///{tmp_path / 'absent.db'}", read_only=True)
    with pytest.raises(StoreUnavailable):
        await reader.ping()
    await reader.close()
    assert list_names(tmp_path) == []


async def test_read_only_store_sees_server_writes(sqlite_ready: str) -> None:
    reader = open_store(sqlite_ready, read_only=True)
    assert await reader.read(KEY) == []
    writer = open_store(sqlite_ready)
    state = await begin_session(writer)
    for text in "abc":
        state = (await writer.append(KEY, state, draft_user_messages(text))).state
        assert await reader.state(KEY) == state
    await writer.close()
    assert list_seqs(await reader.read(KEY)) == [1, 2, 3, 4]
    writer = open_store(sqlite_ready)
    state = (await writer.append(KEY, state, draft_user_messages("d"))).state
    assert await reader.state(KEY) == state
    await writer.close()
    await reader.close()


def test_file_changed_during_read_is_reread(sqlite_ready: str, path: Path) -> None:
    file = ReadOnlyFile(SqliteFile(path), no_trace=True)
    reads: list[int] = []

    def query(connection: object) -> int:
        if not reads:
            other = sqlite3.connect(path)
            other.execute("INSERT INTO blobs VALUES ('t', 's', 'h', 'x')")
            other.commit()
            other.close()
        reads.append(1)
        count: int = connection.exec_driver_sql("SELECT count(*) FROM blobs").scalar()  # type: ignore[attr-defined]
        return count

    assert file.run(query) == 1
    assert len(reads) == 2
    file.close()


async def test_the_settings_that_durability_needs(store: SqlStore) -> None:
    def settings(connection: object) -> list[object]:
        names = ("journal_mode", "synchronous", "secure_delete")
        return [connection.exec_driver_sql(f"PRAGMA {name}").scalar() for name in names]  # type: ignore[attr-defined]

    assert await store.database.write(settings) == ["wal", 2, 1]


@pytest.mark.long
def test_index_survives_a_thousand_merges(path: Path) -> None:
    """With something written between any two merges, SQLite takes it for damaged from then on."""
    connection = connect(SqliteFile(path), "rw")
    scrubber = LogScrubber("it")
    _add_words(connection, [("t", "base", number, number, f"w{number} base") for number in range(500)])
    for number in range(500, 1_700):
        _add_words(connection, [("t", "s", number, number, f"w{number} added")])
        connection.commit()
        scrubber.note_erased()
        scrubber.scrub(connection, is_last=True)
        assert not scrubber.is_due
    for word, count in (("base", 500), ("added", 1_200), ("w7", 1)):
        found = connection.exec_driver_sql("SELECT count(*) FROM search_index WHERE search_index MATCH ?", (word,))
        assert found.scalar() == count
    connection.close()
    connection.engine.dispose()


async def test_index_merge_lets_others_write(path: Path, store: SqlStore) -> None:
    names = random.Random(1)
    texts = [" ".join(f"w{names.randrange(10**15)}" for _ in range(40)) for _ in range(2_000)]
    rows = [("t", "s", number, number, text) for number, text in enumerate([*texts, "canarybird"])]
    for start in range(0, len(rows), 100):
        # Each of them adds a part to the index.
        await store.database.write(partial(_add_words, rows=rows[start : start + 100]))
    erasing = asyncio.ensure_future(store.database.write(_remove_canary, erases=True))
    count = 0
    while not erasing.done():
        await store.database.write(_count_tables)
        count += 1
    assert count > 0
    # At the end nothing is left out, whoever asks for it last.
    await store.database.write(partial(_add_words, rows=[("t", "s", 3_000, 3_000, "canarybird")]))
    await store.database.write(_remove_canary, erases=True)
    await store.close()
    assert b"canarybird" not in await asyncio.to_thread(path.read_bytes)
    with closing(sqlite3.connect(path)) as connection:
        changes = connection.total_changes
        connection.execute("INSERT INTO search_index (search_index, rank) VALUES ('merge', -1000)")
        assert connection.total_changes - changes < 2


def _add_words(connection: Connection, rows: Sequence[tuple[object, ...]]) -> None:
    for row in rows:
        connection.exec_driver_sql("INSERT INTO search VALUES (?, ?, ?, ?, ?)", row)


def _remove_canary(connection: Connection) -> None:
    connection.exec_driver_sql("DELETE FROM search WHERE words = 'canarybird'")


def _count_tables(connection: Connection) -> int:
    return int(connection.exec_driver_sql("SELECT count(*) FROM sqlite_master").scalar() or 0)


WRITER = """
import asyncio, sys
from swarmkeep.events.errors import SeqConflict
from swarmkeep.store.opening import open_store
from tests.store.sessions import KEY, SessionKey, begin_session, draft_user_messages

async def main(url, name, count):
    store = open_store(url)
    own = SessionKey("default", name)
    state, done = await begin_session(store, own), 0
    while done < count:
        state = (await store.append(own, state, draft_user_messages(name))).state
        try:
            await store.append(KEY, await store.state(KEY), draft_user_messages(f"{name}-{done}"))
            done += 1
        except SeqConflict:
            pass
    await store.close()

asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
"""


async def _ping_until_noticed(store: SqlStore) -> None:
    """Of several uses within a moment, one looks at the files."""
    while True:
        try:
            await store.ping()
        except StoreUnavailable as error:
            if "while the server had it open" in str(error):
                return


async def test_missing_file_takes_commits_only_once_back(path: Path, store: SqlStore) -> None:
    await begin_session(store)
    away = path.with_name("away.db")
    os.rename(path, away)
    await _ping_until_noticed(store)
    for use in (store.ping, partial(begin_session, store, OTHER)):
        with pytest.raises(StoreUnavailable, match="deleted or moved"):
            await use()
    os.rename(away, path)
    await store.ping()
    await begin_session(store, OTHER)
    assert await _read_all(path) == {KEY.id: 1, OTHER.id: 1}


async def test_replaced_file_is_not_read_or_written(path: Path, store: SqlStore) -> None:
    await begin_session(store)
    copy = path.with_name("copy.db")
    shutil.copy(path, copy)
    os.rename(copy, path)
    await _ping_until_noticed(store)
    for use in (store.ping, partial(begin_session, store, OTHER)):
        with pytest.raises(StoreUnavailable, match="was replaced"):
            await use()


async def test_unwritten_replaced_file_blocks_until_first_returns(path: Path, store: SqlStore) -> None:
    await store.ping()
    away, other = path.with_name("away.db"), path.with_name("other.db")
    shutil.copy(path, other)
    filling = open_store(f"sqlite:///{other}")
    await begin_session(filling, OTHER)
    await filling.close()
    os.rename(path, away)
    os.rename(other, path)
    await _ping_until_noticed(store)
    with pytest.raises(StoreUnavailable, match="was replaced"):
        await begin_session(store)
    os.rename(path, other)
    os.rename(away, path)
    await begin_session(store)
    await store.close()
    assert await _read_all(path) == {KEY.id: 1}


@pytest.mark.parametrize("is_noticed", [True, False])
async def test_moved_files_log_spares_its_replacement(path: Path, store: SqlStore, is_noticed: bool) -> None:
    away, other = path.with_name("away.db"), path.with_name("other.db")
    shutil.copy(path, other)
    filling = open_store(f"sqlite:///{other}")
    await begin_session(filling, OTHER)
    await filling.close()
    await begin_session(store)
    os.rename(path, away)
    os.rename(other, path)
    if is_noticed:
        await _ping_until_noticed(store)
    await store.close()
    assert await _read_all(path) == {OTHER.id: 1}
    assert await _read_all(away) == {KEY.id: 1}


def test_log_closed_during_look_is_not_lost(path: Path) -> None:
    files, log = OpenFiles(SqliteFile(path=path)), path.with_name(f"{path.name}-wal")
    is_over = threading.Event()

    def look() -> None:
        while not is_over.is_set():
            files.check_now()

    with ThreadPoolExecutor() as threads:
        looking = [threads.submit(look) for _ in range(2)]
        for _ in range(1000):
            log.touch()
            files.note_written()
            # Others get their turn.
            time.sleep(0)
            files.note_closed()
            log.unlink()
        is_over.set()
    for each in looking:
        each.result()
    assert not files.has_lost_log


@pytest.mark.parametrize("ending", ["-wal", "-shm"])
async def test_deleted_log_is_saved_and_writes_stop(path: Path, store: SqlStore, ending: str) -> None:
    await begin_session(store)
    path.with_name(f"{path.name}{ending}").unlink()
    await _ping_until_noticed(store)
    for use in (store.ping, partial(begin_session, store, OTHER)):
        with pytest.raises(StoreUnavailable, match=r"write-ahead log .* was deleted"):
            await use()
    # As after a crash: of the server's files only the database is left.
    saved = shutil.copy(path, path.with_name("saved.db"))
    assert await _read_all(saved) == {KEY.id: 1}


def test_log_without_database_is_left_alone(tmp_path: Path) -> None:
    url, log = f"sqlite:///{tmp_path / 'moved.db'}", tmp_path / "moved.db-wal"
    log.write_bytes(b"committed last")
    with pytest.raises(StoreUnavailable, match=r"is missing, and moved\.db-wal"):
        schema.upgrade(url)
    with pytest.raises(StoreUnavailable, match=r"is missing, and moved\.db-wal"):
        schema.check(url)
    assert list_names(tmp_path) == [log.name]


async def _read_all(path: Path) -> dict[str, int]:
    reading = open_store(f"sqlite:///{path}", read_only=True)
    heads = await reading.read_heads([KEY, OTHER])
    await reading.close()
    return {key.id: head.seq for key, head in heads.items()}


@pytest.mark.long
async def test_several_processes_write_one_file(store: SqlStore, sqlite_ready: str, tmp_path: Path) -> None:
    await begin_session(store)
    root = Path(__file__).parents[2]
    writers = [
        Process(
            [sys.executable, "-c", WRITER, sqlite_ready, name, "20"], folder=tmp_path, env={"PYTHONPATH": str(root)}
        )
        for name in ("p", "q", "r")
    ]
    for writer in writers:
        writer.start()
    for writer in writers:
        assert await asyncio.to_thread(writer.wait) == 0, writer.output()
    recorded = (await store.read(KEY))[1:]
    assert list_seqs(recorded) == list(range(2, 62))
    texts = [each.fact.message["content"] for each in recorded]  # type: ignore[union-attr]
    assert sorted(texts) == sorted(f"{name}-{number}" for name in "pqr" for number in range(20))
    for name in "pqr":
        assert [text for text in texts if text.startswith(name)] == [f"{name}-{number}" for number in range(20)]


def test_unclosed_store_does_not_keep_program(sqlite_ready: str, tmp_path: Path) -> None:
    program = f"""
import asyncio
from swarmkeep.store.opening import open_store
from tests.store.sessions import begin_session
store = open_store({sqlite_ready!r})
print(asyncio.run(begin_session(store)).seq)
"""
    root = Path(__file__).parents[2]
    process = Process([sys.executable, "-c", program], folder=tmp_path, env={"PYTHONPATH": str(root)})
    process.start()
    assert process.wait() == 0, process.output()
    assert process.output().strip() == "1"


def test_the_path_may_hold_odd_characters(tmp_path: Path) -> None:
    folder = tmp_path / "ä dir 100% #1 & more"
    folder.mkdir()
    url = f"sqlite:///{str(folder / 'my file.db').replace('%', '%25')}"
    assert schema.upgrade(url) == schema.current(url) is not None
    assert (folder / "my file.db").exists()
