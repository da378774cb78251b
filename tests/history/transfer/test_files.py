"""Files and pictures in exports: each as a line before the event that refers to it first, and back from there."""

from __future__ import annotations

import json

import pytest

from swarmkeep.decide.drafts import draft_events
from swarmkeep.events.errors import InvalidImport
from swarmkeep.events.facts import RunQueued
from swarmkeep.events.records import RunOptions
from swarmkeep.history.verify import verify
from swarmkeep.store.opening import SqlStore
from swarmkeep.store.records import SessionKey
from swarmkeep.store.usage import recount_totals
from tests.history.transfer.test_round_trip import export_bytes, import_bytes, list_imported, list_lines, record_session
from tests.store.sessions import draft_user_messages, make_picture_part
from tests.support.pictures import encode_content, hash_content, make_png

pytestmark = pytest.mark.one_database

PICTURES = [make_png(100_000, seed) for seed in range(3)]
NAMES = [hash_content(picture) for picture in PICTURES]
KEY = SessionKey("default", "s")


async def record_pictures(store: SqlStore) -> None:
    """A session with texts and pictures, one of them twice, and one that a queued run came with."""
    state = await record_session(store, "s", "text")
    for shown in ([0], [0, 1]):
        drafts = draft_user_messages([make_picture_part(PICTURES[number]) for number in shown])
        state = (await store.append(KEY, state, drafts, blobs={NAMES[n]: PICTURES[n] for n in shown})).state
    message = {"role": "user", "content": [make_picture_part(PICTURES[2])]}
    queued = draft_events("Ann", [RunQueued(options=RunOptions(), messages=(message,))], "r")
    await store.append(KEY, state, queued, blobs={NAMES[2]: PICTURES[2]})


def take_files(text: bytes) -> tuple[list[bytes], list[bytes]]:
    """The lines that are files, and the others."""
    lines = text.splitlines(keepends=True)
    return [line for line in lines if b'"record":"file"' in line], [line for line in lines if b'"seq"' in line]


async def test_round_trip_brings_files_once(store: SqlStore, other: SqlStore) -> None:
    await record_pictures(store)
    text = await export_bytes(store)
    files, _ = take_files(text)
    assert [json.loads(line) for line in files] == [
        {"record": "file", "sha256": name, "content": encode_content(picture)}
        for name, picture in zip(NAMES, PICTURES, strict=True)
    ]
    assert (await import_bytes(other, text)).imported == 1
    assert await other.read_files(KEY, NAMES) == dict(zip(NAMES, PICTURES, strict=True))
    assert (await verify(other, KEY)).valid
    assert await recount_totals(other.database, mend=False) == []
    again = b"".join(take_files(await export_bytes(other))[1])
    assert list_imported(again) == list_lines(b"".join(take_files(text)[1]))


async def test_import_may_be_renamed_and_forked(store: SqlStore, other: SqlStore) -> None:
    await record_pictures(store)
    await import_bytes(other, await export_bytes(store), as_id="copy")
    assert await other.read_files(SessionKey("default", "copy"), NAMES[:1]) == {NAMES[0]: PICTURES[0]}
    assert await other.read_files(KEY, NAMES[:1]) == {}


async def test_fileless_session_exported_as_before(store: SqlStore) -> None:
    await record_session(store, "s", "text")
    assert b'"file' not in await export_bytes(store)


async def refuse(other: SqlStore, lines: list[bytes], why: str) -> None:
    with pytest.raises(InvalidImport, match=why):
        await import_bytes(other, b"".join(lines))
    assert await other.read_head(KEY) is None


async def test_a_forged_file_is_refused(store: SqlStore, other: SqlStore) -> None:
    await record_pictures(store)
    lines = (await export_bytes(store)).splitlines(keepends=True)
    place = next(number for number, line in enumerate(lines) if b'"record":"file"' in line)
    forged = lines[place].replace(encode_content(PICTURES[0]).encode(), encode_content(PICTURES[1]).encode())
    await refuse(other, [*lines[:place], forged, *lines[place + 1 :]], rf"line {place + 1}: the file does not match")
    await refuse(other, [lines[place], *lines], "first event of a session")
    await refuse(other, [*lines[: place + 1], *lines[place:]], "an earlier line")
    await refuse(other, [*lines[:1], lines[place], *lines[1:]], "does not refer to")
    await refuse(other, [*lines[:-1], lines[place], lines[-1]], "first event of a session")
    wrong = lines[place].replace(b'"content":"', b'"content":"@')
    await refuse(other, [*lines[:place], wrong, *lines[place + 1 :]], f"line {place + 1}")
    damaged = [line.replace(b'"Triage"', b'"Triagf"') if number > place else line for number, line in enumerate(lines)]
    await refuse(other, damaged, f"line {place + 2}: ")


async def test_line_named_despite_earlier_files(store: SqlStore, other: SqlStore) -> None:
    await record_session(store, "t", "one", "two", "three")
    await record_pictures(store)
    lines = (await export_bytes(store)).splitlines(keepends=True)
    place = max(number for number, line in enumerate(lines) if b'"session_id":"t"' in line)
    lines[place] = lines[place].replace(b'"Ann"', b'"Anna"')
    await refuse(other, lines, f"line {place + 1}: ")
