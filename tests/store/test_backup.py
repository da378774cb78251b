"""A backup holds every row as it was at one moment, and fills an empty database of either kind; or none at all."""

from __future__ import annotations

import asyncio
import gzip
import io
import threading
from pathlib import Path

import pytest

from swarmkeep.events.codec import decode, encode
from swarmkeep.history.verify import verify_all
from swarmkeep.store import schema
from swarmkeep.store.backup import BadBackup, restore_backup, write_backup
from swarmkeep.store.opening import open_store
from swarmkeep.store.records import SchemaBehind
from tests.store.conftest import Opener
from tests.store.sessions import KEY, begin_session, draft_user_messages, make_picture_part, new_key
from tests.store.test_upgrades import Rows, read_rows, record_everything
from tests.support.pictures import hash_content

AT = "2026-01-01T00:00:00.000000Z"


@pytest.fixture
def other_url(request: pytest.FixtureRequest, url: str, tmp_path: Path) -> str:
    """An empty database to restore into, of the other kind."""
    if not url.startswith("sqlite"):
        return f"sqlite:///{tmp_path / 'other.db'}"
    found = request.getfixturevalue("postgres_url")
    assert isinstance(found, str)
    return found


async def back_up(url: str) -> bytes:
    file = io.BytesIO()
    await asyncio.to_thread(write_backup, url, file, AT)
    return file.getvalue()


async def read_database(url: str) -> Rows:
    store = open_store(url)
    try:
        return await store.database.read(read_rows)
    finally:
        await store.close()


def sort_rows(rows: Rows) -> dict[str, list[str]]:
    return {name: sorted(repr(sorted(row.items())) for row in table) for name, table in rows.items()}


@pytest.mark.long
async def test_rows_restore_into_other_database_kind(url: str, opener: Opener, other_url: str) -> None:
    store = opener()
    await record_everything(store)
    rows = await store.database.read(read_rows)
    assert all(rows.values()), "a table without a row shows nothing"
    data = await back_up(url)
    done = await asyncio.to_thread(restore_backup, other_url, io.BytesIO(data))
    assert done.rows == {name: len(table) for name, table in rows.items()}
    assert sort_rows(await read_database(other_url)) == sort_rows(rows)
    assert schema.check(other_url) == []
    # Of the same rows the same backup, whichever database has them.
    assert gzip.decompress(await back_up(other_url)) == gzip.decompress(data)


async def test_files_come_back_as_they_are(url: str, opener: Opener, tmp_path: Path) -> None:
    store = opener()
    contents = [bytes([number]) * 100_000 for number in range(10)]
    files = {hash_content(content): content for content in contents}
    drafts = draft_user_messages([make_picture_part(content) for content in contents])
    await store.append(KEY, await begin_session(store), drafts, blobs=dict(files))
    other = f"sqlite:///{tmp_path / 'restored.db'}"
    done = await asyncio.to_thread(restore_backup, other, io.BytesIO(await back_up(url)))
    assert done.rows["files"] == len(files)
    restored = open_store(other)
    assert await restored.read_files(KEY, list(files)) == files
    await restored.close()


@pytest.mark.long
async def test_live_backup_is_of_one_moment(url: str, opener: Opener, tmp_path: Path) -> None:
    store = opener()
    key = new_key()
    state = await begin_session(store, key)
    stopped = threading.Event()

    async def go_on() -> None:
        current = state
        while not stopped.is_set():
            current = (await store.append(key, current, draft_user_messages("more"))).state

    going_on = asyncio.create_task(go_on())
    copies = [await back_up(url) for _ in range(3)]
    stopped.set()
    await going_on
    for number, data in enumerate(copies):
        place = f"sqlite:///{tmp_path / f'copy{number}.db'}"
        await asyncio.to_thread(restore_backup, place, io.BytesIO(data))
        copy = open_store(place)
        assert [checked.valid async for _, checked in verify_all(copy)] == [True]
        await copy.close()


@pytest.fixture(scope="module")
def backup(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    url = f"sqlite:///{tmp_path_factory.mktemp('backup') / 'swarmkeep.db'}"
    schema.upgrade(url)

    async def fill() -> bytes:
        store = open_store(url)
        await record_everything(store)
        await store.close()
        return await back_up(url)

    return asyncio.run(fill())


def expect_refusal(data: bytes, folder: Path, sentence: str = "the file") -> None:
    path = folder / "refused.db"
    with pytest.raises(BadBackup, match=sentence):
        restore_backup(f"sqlite:///{path}", io.BytesIO(data))
    assert list(folder.iterdir()) == [], "nothing is left of it"


def test_incomplete_file_is_refused(backup: bytes, tmp_path: Path) -> None:
    for part in (1, 2, 3, 4, 5, 6, 7):
        expect_refusal(backup[: len(backup) * part // 8], tmp_path)
    expect_refusal(b"", tmp_path)
    expect_refusal(b"no backup", tmp_path, "not a backup")
    expect_refusal(gzip.compress(b'{"format":"another"}\n{}\n'), tmp_path, "not a backup")


@pytest.mark.long
def test_changed_file_is_refused(backup: bytes, tmp_path: Path) -> None:
    lines = gzip.decompress(backup).splitlines(keepends=True)
    for change in (lines[:-2] + lines[-1:], lines[:-1], [*lines, b"{}\n"], lines[:3] + lines[4:]):
        expect_refusal(gzip.compress(b"".join(change)), tmp_path)
    hostile = [line.replace(b'"sessions"', b'"sqlite_master"') for line in lines]
    expect_refusal(gzip.compress(b"".join(hostile)), tmp_path, "which its revision does not have")
    short = next(number for number, line in enumerate(lines) if line.startswith(b"["))
    hostile = [*lines[:short], encode(decode(lines[short])[:-1]) + b"\n", *lines[short + 1 :]]
    expect_refusal(gzip.compress(b"".join(hostile)), tmp_path, "belongs to no table")


def test_nonempty_database_is_left_alone(backup: bytes, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'full.db'}"
    restore_backup(url, io.BytesIO(backup))
    before = asyncio.run(read_database(url))
    with pytest.raises(BadBackup, match="not empty"):
        restore_backup(url, io.BytesIO(backup))
    assert asyncio.run(read_database(url)) == before


def test_later_release_backup_is_refused(backup: bytes, tmp_path: Path) -> None:
    header, *rest = gzip.decompress(backup).splitlines(keepends=True)
    later = encode({**decode(header), "revision": "9999"}) + b"\n"
    with pytest.raises(SchemaBehind, match="upgrade swarmkeep"):
        restore_backup(f"sqlite:///{tmp_path / 'x.db'}", io.BytesIO(gzip.compress(b"".join([later, *rest]))))
    later = encode({**decode(header), "version": 2}) + b"\n"
    expect_refusal(gzip.compress(b"".join([later, *rest])), tmp_path, "version 2")


@pytest.mark.long
def test_pages_omit_and_repeat_no_row(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'many.db'}"
    schema.upgrade(url)

    async def fill() -> bytes:
        store = open_store(url)
        state = await begin_session(store, key := new_key())
        for _ in range(4):
            state = (await store.append(key, state, draft_user_messages(*map(str, range(400))))).state
        await store.close()
        return await back_up(url)

    data = asyncio.run(fill())
    assert restore_backup(f"sqlite:///{tmp_path / 'copy.db'}", io.BytesIO(data)).rows["events"] == 1_601
