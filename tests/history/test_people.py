"""People whose keys encrypt what is recorded of them: unreadable without the key in every copy, and still verified."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import io
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pytest
from sqlalchemy import Connection, func, select, update

from swarmkeep.decide.drafts import draft_events
from swarmkeep.events.codec import digest, encode_text
from swarmkeep.events.errors import (
    HistoryDamaged,
    InvalidRequest,
    OnHold,
    Overloaded,
    PersonErased,
    PersonNotFound,
    SeqConflict,
    SessionBusy,
)
from swarmkeep.events.facts import (
    ContextUpdated,
    MessageAdded,
    NoteAdded,
    Parent,
    SessionCreated,
    SessionUpdated,
)
from swarmkeep.events.records import CompletionRecord, RequestRecord, ToolRecord
from swarmkeep.events.state import State
from swarmkeep.events.words import parse_terms
from swarmkeep.history.archives import Archive, ObjectStore
from swarmkeep.history.erasure import Erasure, erase_person
from swarmkeep.history.import_export import import_export
from swarmkeep.history.redact import redact
from swarmkeep.history.replay import rebuild_request
from swarmkeep.history.retention import apply_retention, read_retention
from swarmkeep.history.verify import verify, verify_all
from swarmkeep.runs.automations import Automation, Invocation, Maker, Schedule, Target
from swarmkeep.runs.feed import EventFeed
from swarmkeep.runs.sessions import delete_session, fork_session, hold_session, release_session
from swarmkeep.store.automations import StoredAutomation
from swarmkeep.store.backup import restore_backup, write_backup
from swarmkeep.store.index import SessionFilter
from swarmkeep.store.opening import SqlStore, open_store
from swarmkeep.store.person_keys import KeyFolder, PersonKeyError, open_key_source
from swarmkeep.store.records import Claim, SessionKey, StoreUnavailable
from swarmkeep.store.tables import automations, events, of_session, person_keys
from swarmkeep.store.usage import recount_totals
from tests.history.exports import export_sessions
from tests.history.test_redact import dump_database
from tests.store.sessions import (
    KEY,
    OTHER,
    begin_session,
    draft_run_completion,
    draft_run_start,
    draft_user_messages,
    make_picture_part,
    new_key,
)
from tests.store.sql.test_search import WAITING_FOR_THIS
from tests.support import warm
from tests.support.processes import clean_environment
from tests.support.source import ROOT

CANARY = "canary-7f3a9c"
PICTURE = f"a picture of {CANARY}".encode()
INSTRUCTIONS = f"You speak with {CANARY}."
ANNA = {"customer": "anna"}
REASON = "request of 3 May"
AT = "2026-01-02T03:04:05.000000Z"
PICTURE_NAME = make_picture_part(PICTURE)["blob"]["sha256"]

AUTOMATION = Automation(
    id="told", name=CANARY, schedule=Schedule(run_at=1), target=Target(messages=(), metadata=ANNA),
    metadata={}, created_at=1, maker=Maker(None, None),
)  # fmt: skip
INVOCATION = Invocation(automation=AUTOMATION, created_at=1, maker=Maker(None, None))

Open = Callable[..., SqlStore]


@pytest.fixture
async def opened(ready_url: str, tmp_path: Path) -> AsyncIterator[Open]:
    """Opens stores as several servers would, whose keys are in a folder."""
    stores: list[SqlStore] = []

    def open_another(url: str = ready_url, **given: Any) -> SqlStore:
        options = {"person": "customer", "person_keys": str(tmp_path / "keys"), **given}
        stores.append(open_store(url, **options))
        return stores[-1]

    yield open_another
    for store in stores:
        await store.close()


@pytest.fixture
def other_url(request: pytest.FixtureRequest, ready_url: str, tmp_path: Path) -> str:
    """An empty database of the other kind."""
    if not ready_url.startswith("sqlite"):
        return f"sqlite:///{tmp_path / 'other.db'}"
    return str(request.getfixturevalue("postgres_url"))


@pytest.fixture
def store(opened: Open) -> SqlStore:
    return opened()


async def begin_persons(store: SqlStore, key: SessionKey = KEY, person: str = "anna") -> State:
    """A session of a person's, with the canary in each place where people and models write text."""
    created = SessionCreated(agent="A", context_variables={"name": CANARY}, metadata={"customer": person, "m": CANARY})
    state = (await store.append(key, State(), draft_events("A", [created], None))).state
    calls = [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": f'{{"a":"{CANARY}"}}'}}]
    request = RequestRecord(instructions=digest(INSTRUCTIONS), params={"model": "m"})
    said = [{"type": "text", "text": f"{CANARY} \ud83d \0"}, make_picture_part(PICTURE)]
    story = [
        MessageAdded(message={"role": "user", "content": said}),
        MessageAdded(
            message={"role": "assistant", "content": CANARY, "tool_calls": calls},
            completion=CompletionRecord(id=CANARY, request=request),
        ),
        MessageAdded(
            message={"role": "tool", "tool_call_id": "c1", "content": CANARY}, tool=ToolRecord(name="f", status="ok")
        ),
        ContextUpdated(patch={"b": CANARY}, tool_call_id="c1"),
        SessionUpdated(metadata={"m": f"{CANARY} too"}),
        NoteAdded(text=CANARY),
    ]
    blobs = {digest(INSTRUCTIONS): INSTRUCTIONS, make_picture_part(PICTURE)["blob"]["sha256"]: PICTURE}
    state = (await store.append(key, state, draft_events("A", story, None), blobs=blobs)).state
    await store.index_some()
    return state


async def list_problems(store: SqlStore) -> dict[str, list[str]]:
    return {key.id: [one.code for one in found.problems] async for key, found in verify_all(store) if not found.valid}


async def test_nothing_said_is_readable_in_the_database(store: SqlStore, opened: Open) -> None:
    state = await begin_persons(store)
    assert CANARY not in await dump_database(store)
    # Any other server with the keys reads it as if nothing were encrypted.
    other = opened(person=None)
    again = await other.state(KEY)
    assert (again.messages[0].message, again.context_variables) == (state.messages[0].message, state.context_variables)
    assert again.damage is None
    assert CANARY in (await other.read(KEY))[2].payload
    assert (await other.read_blobs(KEY, [digest(INSTRUCTIONS)])) == {digest(INSTRUCTIONS): INSTRUCTIONS}
    assert await other.read_files(KEY, [PICTURE_NAME]) == {PICTURE_NAME: PICTURE}
    assert INSTRUCTIONS.encode() in await rebuild_request(other, KEY, 3)
    [listed] = (await other.list_sessions(SessionFilter("default", metadata=ANNA), include_context=True)).sessions
    assert (listed.context_variables, listed.metadata["m"]) == (state.context_variables, f"{CANARY} too")
    assert await list_problems(other) == {}
    # It is counted as it is stored, and not found by its words.
    assert await recount_totals(store.database, mend=False) == []
    assert (await store.list_sessions(SessionFilter("default", terms=parse_terms(CANARY)))).sessions == []


async def test_erased_person_is_unreadable_and_verifies(store: SqlStore, opened: Open) -> None:
    state = await begin_persons(store)
    other = opened()
    await other.state(KEY)
    await begin_persons(store, OTHER, "ben")
    assert await erase_person(store, "default", "anna", REASON, dry_run=True) == Erasure(sessions=["s1"], erased=False)
    assert CANARY in (await store.read(KEY))[2].payload
    assert await erase_person(store, "default", "anna", REASON, by="Lee") == Erasure(sessions=["s1"], erased=True)
    for reader in (store, other):
        assert CANARY not in str(await reader.read(KEY))
        assert CANARY not in str(await reader.state(KEY))
        found = await verify(reader, KEY)
        assert found.valid
        assert found.redacted == list(range(1, state.seq + 1))
    assert CANARY in str(await store.read(OTHER))
    assert await list_problems(store) == {}
    assert await recount_totals(store.database, mend=False) == []
    entry = (await store.read_audit_log("default"))[-1]
    assert (entry.type, entry.by) == ("person.erased", "Lee")
    assert "anna" not in entry.payload
    # Nothing is added to what is left, by whoever still has the key in memory either.
    for writer in (store, other):
        with pytest.raises(PersonErased):
            await writer.append(KEY, await writer.state(KEY), draft_user_messages(CANARY))
        with pytest.raises(PersonErased):
            await fork_session(writer, KEY)
    assert CANARY not in str(await store.read(KEY))
    # A second time there is nothing left to do.
    again = await store.state(KEY)
    assert (await erase_person(store, "default", "anna", REASON)).erased
    assert (await store.state(KEY)).seq == again.seq
    # The same person may come back, with another key.
    await begin_persons(other, new_key("anna"))
    assert len(await store.find_person_keys("default", "anna")) == 2
    await delete_session(store, KEY)


async def test_copy_of_the_database_is_erased_with_it(opened: Open, ready_url: str, other_url: str) -> None:
    store = opened()
    state = await begin_persons(store)
    await fork_session(store, KEY, at=3, session_id=OTHER.id)
    made = io.BytesIO()
    await asyncio.to_thread(write_backup, ready_url, made, AT)
    await asyncio.to_thread(restore_backup, other_url, io.BytesIO(made.getvalue()))
    assert CANARY in str(await opened(other_url).read(KEY))
    await erase_person(store, "default", "anna", REASON)
    backup = opened(other_url)
    left = await backup.read(KEY)
    assert [event.seq for event in left] == list(range(1, state.seq + 1))
    assert CANARY not in f"{left}{await dump_database(backup)}{await export_sessions(backup, KEY, OTHER)!r}"
    assert await list_problems(backup) == {}
    assert (await verify(backup, KEY)).redacted == list(range(1, state.seq + 1))
    listed = (await backup.list_sessions(SessionFilter("default"))).sessions
    assert [(one.title, one.metadata) for one in listed] == [(None, {}), (None, {})]
    assert (await backup.read_blobs(KEY, [digest(INSTRUCTIONS)]), await backup.read_files(KEY, [PICTURE_NAME])) == (
        {},
        {},
    )
    assert (await backup.check(KEY)).damage is None
    with pytest.raises(PersonErased):
        await backup.append(KEY, await backup.state(KEY), draft_user_messages("more"))
    await erase_person(backup, "default", "anna", REASON)
    assert await list_problems(backup) == {}


async def test_run_of_an_erased_person_in_a_copy_keeps_nothing(
    store: SqlStore, opened: Open, ready_url: str, other_url: str
) -> None:
    """A backup from while it ran is restored: the run cannot end, and the session can be deleted as others can."""
    state = await begin_persons(store)
    busy = await store.append(KEY, state, draft_run_start(state), lease=Claim("a", 60))
    made = io.BytesIO()
    await asyncio.to_thread(write_backup, ready_url, made, AT)
    await asyncio.to_thread(restore_backup, other_url, io.BytesIO(made.getvalue()))
    backup = opened(other_url)
    with pytest.raises(SessionBusy):
        await delete_session(backup, KEY)
    await store.append(KEY, busy.state, draft_run_completion(busy.state), lease=busy.lease)
    await erase_person(store, "default", "anna", REASON)
    later = opened(other_url)
    assert await delete_session(later, KEY) == [KEY]
    assert await list_problems(later) == {}


async def test_forks_asked_agents_and_imports_are_encrypted(store: SqlStore) -> None:
    await begin_persons(store)
    await fork_session(store, KEY, session_id=OTHER.id)
    child = SessionKey("default", "asked")
    asked = SessionCreated(agent="B", parent=Parent(session_id=KEY.id, run_id="r", tool_call_id="c"))
    begun = await store.append(child, State(), draft_events("B", [asked], None))
    await store.append(child, begun.state, draft_user_messages(CANARY))
    assert CANARY not in await dump_database(store)
    family = (KEY, OTHER, child)
    lines = await export_sessions(store, *family)
    for key in family:
        await delete_session(store, key, force=True)
    await import_export(store, "default", io.BytesIO(lines))
    assert CANARY in str(await store.read(child))
    assert CANARY not in await dump_database(store)
    assert await list_problems(store) == {}
    assert await recount_totals(store.database, mend=False) == []
    assert (await erase_person(store, "default", "anna", REASON)).sessions == ["asked", "s1", "s2"]
    assert CANARY not in str([await store.read(key) for key in family])
    assert await list_problems(store) == {}


async def test_redaction_within_an_encrypted_session(store: SqlStore, opened: Open) -> None:
    await begin_persons(store)
    await redact(store, KEY, [2], "a name")
    assert (await verify(opened(), KEY)).redacted == [2]
    assert CANARY not in await dump_database(store)
    state = await store.append(KEY, await store.state(KEY), draft_user_messages("more"))
    assert (await opened().state(KEY)).seq == state.state.seq
    assert await recount_totals(store.database, mend=False) == []
    await erase_person(store, "default", "anna", REASON)
    assert await list_problems(store) == {}


async def test_busy_and_held_sessions_keep_the_key(store: SqlStore) -> None:
    await begin_persons(store)
    await begin_persons(store, OTHER)
    await hold_session(store, OTHER, "case 12", by="Lee")
    for dry_run in (True, False):
        with pytest.raises(OnHold, match="session 's2'"):
            await erase_person(store, "default", "anna", REASON, dry_run=dry_run)
    await release_session(store, OTHER, by="Lee")
    state = await store.state(OTHER)
    busy = await store.append(OTHER, state, draft_run_start(state), lease=Claim("a", 60))
    with pytest.raises(SessionBusy, match="of session 's2' is still running") as refused:
        await erase_person(store, "default", "anna", REASON)
    assert refused.value.extra() == {"active_run_id": "r1", "session_id": "s2"}
    assert CANARY in str(await store.read(KEY))
    await store.append(OTHER, busy.state, draft_run_completion(busy.state), lease=busy.lease)
    # One that does not verify cannot be redacted either.
    payload = await read_payload(store, OTHER)
    await put_payload(store, "~", OTHER)
    with pytest.raises(HistoryDamaged, match="session 's2'"):
        await erase_person(store, "default", "anna", REASON)
    assert CANARY in str(await store.read(KEY))
    await put_payload(store, payload, OTHER)
    assert (await store.check(OTHER)).damage is None
    await erase_person(store, "default", "anna", REASON)
    assert CANARY not in str([await store.read(KEY), await store.read(OTHER)])


@pytest.mark.parametrize("reason", ["", "x" * 1001])
async def test_unknown_person_and_bad_reason_refused(store: SqlStore, reason: str) -> None:
    await begin_session(store, metadata={"customer": "old"})
    with pytest.raises(InvalidRequest):
        await erase_person(store, "default", "old", reason)
    with pytest.raises(PersonNotFound, match="not encrypted"):
        await erase_person(store, "default", "nobody", REASON)
    with pytest.raises(PersonNotFound):
        await erase_person(store, "other tenant", "old", REASON)


async def test_session_stays_its_persons(store: SqlStore) -> None:
    state = await begin_persons(store)
    for metadata in ({"customer": "ben"}, {"customer": None}):
        with pytest.raises(InvalidRequest, match="'customer' names the person"):
            await store.append(KEY, state, draft_events("A", [SessionUpdated(metadata=metadata)], None))
    with pytest.raises(InvalidRequest):
        await fork_session(store, KEY, metadata={"customer": "ben"})
    await store.append(KEY, state, draft_events("A", [SessionUpdated(metadata={"m": 2})], None))


async def test_changed_and_moved_content_is_found(store: SqlStore, opened: Open) -> None:
    await begin_persons(store)
    rows = select(events.c.seq, events.c.payload).where(*of_session(events, KEY))
    stored = {row.seq: row.payload for row in await store.database.read(lambda c: c.execute(rows).all())}
    sealed, _, stand_in = stored[2].partition("\n")
    wrong = [
        stored[3],
        f"{sealed[:-9]}AAAAAAAA=\n{stand_in}",
        f"{sealed[:40]}\n{stand_in}",
        f"~{'0' * 32}{stored[2][33:]}",
        "~",
    ]
    for payload in wrong:
        await put_payload(store, payload)
        reader = opened()
        assert (await reader.state(KEY)).damage is not None
        assert 2 in [one.seq for one in (await verify(reader, KEY)).problems]
    await put_payload(store, stored[2])
    assert (await opened().check(KEY)).damage is None


async def read_payload(store: SqlStore, key: SessionKey) -> str:
    query = select(events.c.payload).where(*of_session(events, key), events.c.seq == 2)
    return str(await store.database.read(lambda connection: connection.scalar(query)))


async def put_payload(store: SqlStore, payload: str, key: SessionKey = KEY) -> None:
    change = update(events).where(*of_session(events, key), events.c.seq == 2).values(payload=payload)
    await store.database.write(lambda connection: connection.execute(change).rowcount)


async def test_archived_object_is_encrypted(store: SqlStore, opened: Open, tmp_path: Path) -> None:
    old = opened(clock=lambda: datetime.now(UTC) - timedelta(days=365))
    state = await begin_persons(old)
    archive = Archive(store, ObjectStore(f"file://{tmp_path}/archive"))
    assert await archive.archive_due(timedelta(days=90)) == 1
    [file] = (tmp_path / "archive").rglob("*.gz")
    with pytest.raises(gzip.BadGzipFile):
        gzip.decompress(file.read_bytes())
    assert (await verify(store, KEY)).valid
    assert (await store.state(KEY)).hash == state.hash
    assert CANARY not in await dump_database(store)
    archive._clock = lambda: datetime.now(UTC) + timedelta(days=1)
    assert await archive.archive_due(timedelta(days=90)) == 1
    await erase_person(store, "default", "anna", REASON)
    assert await list_problems(store) == {}
    await archive.delete_garbage()
    assert not list((tmp_path / "archive").rglob("*.gz"))


async def test_erased_sessions_keep_no_others_from_the_archive(store: SqlStore, opened: Open, tmp_path: Path) -> None:
    old = opened(clock=lambda: datetime.now(UTC) - timedelta(days=365))
    await begin_persons(old)
    await erase_person(old, "default", "anna", REASON)
    await begin_persons(old, OTHER, "ben")
    archive = Archive(store, ObjectStore(f"file://{tmp_path}/archive"))
    assert await archive.archive_due(timedelta(days=90)) == 1
    assert await store.find_archived(OTHER) is not None
    assert CANARY not in str([file.read_bytes() for file in (tmp_path / "archive").rglob("*.*")])


async def test_archived_session_whose_key_is_gone_is_set_aside(store: SqlStore, opened: Open, tmp_path: Path) -> None:
    old = opened(clock=lambda: datetime.now(UTC) - timedelta(days=365))
    await begin_persons(old)
    await Archive(store, ObjectStore(f"file://{tmp_path}/archive")).archive_due(timedelta(days=90))
    # As in a backup that is restored after the person was erased.
    [key] = (tmp_path / "keys").glob("*.key")
    key.unlink()
    restored = opened()
    Archive(restored, ObjectStore(f"file://{tmp_path}/archive"))
    await begin_persons(restored, OTHER, "ben")
    feed = EventFeed(restored, poll_seconds=1, page_bytes=1_000_000)
    found = (await feed.read("default")).events
    assert [event.seq for _, event in found if event.session_id == OTHER.id] == list(range(1, 8))
    assert await list_problems(restored) == {"s1": ["archive_erased"]}
    assert await apply_retention(restored, read_retention("30d")) == 0
    assert await delete_session(restored, KEY, force=True) == [KEY]
    assert await list_problems(restored) == {}


async def test_writers_and_new_sessions_race_with_an_erasure(opened: Open) -> None:
    stores = [opened(), opened()]
    keys = [SessionKey("default", f"r{number}") for number in range(4)]
    for key in keys:
        await begin_persons(stores[0], key)

    async def write(store: SqlStore, number: int) -> None:
        for turn in range(8):
            key = keys[(number + turn) % 4]
            with suppress(PersonErased, SeqConflict):
                await store.append(key, await store.state(key), draft_user_messages(f"{CANARY} {turn}"))
            with suppress(PersonErased, SeqConflict):
                await begin_persons(store, SessionKey("default", f"n{number}-{turn}"))
            with suppress(PersonErased):
                await add_automation(store, f"a{number}-{turn}")
            with suppress(PersonErased):
                await add_automation(store, f"b{number}-{turn}", key)

    async def erase() -> None:
        try:
            await erase_person(stores[1], "default", "anna", REASON)
        except Overloaded:
            await erase()

    await asyncio.gather(erase(), *(write(stores[number % 2], number) for number in range(4)))
    reader = opened()
    assert await list_problems(reader) == {}
    erased = [id for id in await reader.find_person_keys("default", "anna") if await is_erased(reader, id)]
    assert erased
    for id in erased:
        assert await reader.list_encrypted("default", id, unredacted=True) == []
        for key in await reader.list_encrypted("default", id):
            assert CANARY not in str(await reader.read(key))
    # Those with erased keys are gone.
    assert len(await reader.list_automations("default")) == await count_automations(reader)
    # Whoever came later has another key.
    for key in await reader.list_session_keys():
        assert (CANARY in str(await reader.read(key))) == (await reader.find_person_key(key) not in erased)


async def add_automation(store: SqlStore, id: str, told: SessionKey | None = None) -> None:
    key = await (store.take_key_of("default", ANNA) if told is None else store.find_person_key(told))
    await store.add_automation(
        StoredAutomation("default", id, encode_text(AUTOMATION), 0, 1, None if told is None else told.id, key)
    )


async def count_automations(store: SqlStore) -> int:
    count = select(func.count()).select_from(automations)
    return await store.database.read(lambda connection: connection.scalar(count)) or 0


async def test_automations_in_a_copy_are_erased(opened: Open, ready_url: str, other_url: str) -> None:
    """There they are as good as none. Those from before there were keys are deleted in the database itself."""
    store = opened()
    await add_automation(opened(person=None), "before")
    await add_automation(store, "told")
    await store.invoke_automation("default", "told", lambda known, _: (known, encode_text(INVOCATION), 1))
    [_, read_elsewhere] = await (other := opened()).list_automations("default")
    made = io.BytesIO()
    await asyncio.to_thread(write_backup, ready_url, made, AT)
    await asyncio.to_thread(restore_backup, other_url, io.BytesIO(made.getvalue()))
    [_, found] = await opened(other_url).list_automations("default")
    assert found.data == encode_text(AUTOMATION)
    assert (await erase_person(store, "default", "anna", REASON)).erased
    with pytest.raises(PersonErased):
        await other.add_automation(msgspec.structs.replace(read_elsewhere, id="late"))
    assert await count_automations(store) == 0
    assert CANARY not in await dump_database(store)
    backup = opened(other_url)
    assert [one.id for one in await backup.list_automations("default")] == ["before"]
    assert await backup.find_automation("default", "told") is None
    assert await backup.change_automation("default", "told", lambda known: known) is None
    [due] = await backup.list_due_invocations(1, 9)
    assert await backup.find_due_invocation(due) is None
    await erase_person(backup, "default", "anna", REASON)
    assert await count_automations(backup) == 0


async def test_no_change_of_an_automation_holds_up_an_erasure(postgres_ready: str) -> None:
    """Each would wait for the other for ever, if one began with the key and one with the automation."""
    store, other = (open_store(postgres_ready, person="customer") for _ in range(2))
    await add_automation(store, "told")
    [id] = await store.find_person_keys("default", "anna")
    changing: list[asyncio.Task[Any]] = []

    def go_on_to_automations(connection: Connection) -> None:
        connection.execute(select(person_keys).where(person_keys.c.id == id).with_for_update())
        change = other.change_automation("default", "told", lambda known: known)
        changing.append(asyncio.get_running_loop().create_task(change))
        while not connection.scalar(WAITING_FOR_THIS):
            pass
        connection.execute(select(automations.c.id).with_for_update(nowait=True))

    await store.database.write(go_on_to_automations)
    assert await changing[0]
    await store.close()
    await other.close()


async def is_erased(store: SqlStore, id: str) -> bool:
    erased = select(person_keys.c.erased_at).where(person_keys.c.id == id)
    return await store.database.read(lambda connection: connection.scalar(erased)) != ""


# Of the key "0" * 32 nothing is known, and the others are no ids.
_ODD = ["~", "~\0" + "x" * 40, "~\ud800" + "x" * 40, f"~{'0' * 32}AAAA", f"~{'G' * 32}", "~é" * 40]


@pytest.mark.parametrize("person", [None, "anna"])
async def test_what_looks_encrypted_is_read_as_it_was_given(store: SqlStore, opened: Open, person: str | None) -> None:
    await begin_persons(store, OTHER, "gone")
    [gone] = await store.find_person_keys("default", "gone")
    await erase_person(store, "default", "gone", REASON)
    state = await begin_session(store, metadata={"customer": person})
    texts = {digest(text): text for text in [*_ODD, f"~{gone}AAAA"]}
    files = {hashlib.sha256(content).hexdigest(): content for content in
             (text.encode(errors="surrogatepass") for text in texts.values())}  # fmt: skip
    state = (await store.append(KEY, state, draft_user_messages(*texts.values()), blobs=dict(texts))).state
    await store.append(KEY, state, draft_user_messages("and files"), blobs=dict(files))
    reader = opened()
    assert await reader.read_blobs(KEY, list(texts)) == texts
    assert await reader.read_files(KEY, list(files)) == files
    assert [entry.message["content"] for entry in (await reader.state(KEY)).messages] == [*texts.values(), "and files"]
    assert {one for codes in (await list_problems(reader)).values() for one in codes} <= {"blob_stray", "file_stray"}


async def erase_and_die(url: str, folder: str, cut: str) -> None:
    """Erase a person in a process of its own, which is killed at some place."""
    store = open_store(url, person="customer", person_keys=folder)

    def die(*_: Any, **__: Any) -> Any:
        os.kill(os.getpid(), signal.SIGKILL)

    if cut == "key":
        store.erase_person_key = die  # type: ignore[method-assign]
    elif cut == "file":
        KeyFolder._sync = die  # type: ignore[method-assign]
    else:
        redact_one, left = store.redact, iter(range(int(cut)))

        async def redact_some(*given: Any, **more: Any) -> Any:
            return await redact_one(*given, **more) if next(left, None) is not None else die()

        store.redact = redact_some  # type: ignore[method-assign]
    await erase_person(store, "default", "anna", REASON)


@pytest.mark.long
@pytest.mark.parametrize("cut", ["0", "1", "key", "file"])
async def test_killed_erasure_is_taken_up_again(cut: str, opened: Open, ready_url: str, tmp_path: Path) -> None:
    store, keys = opened(), (KEY, OTHER)
    for key in keys:
        await begin_persons(store, key)
    given = (ready_url, str(tmp_path / "keys"), cut)
    program = f"import asyncio; from {__name__} import erase_and_die; asyncio.run(erase_and_die(*{given!r}))"
    command = [sys.executable, "-c", program]
    died = await asyncio.to_thread(warm.run, command, folder=ROOT, env=clean_environment())
    assert died.returncode == -signal.SIGKILL, died.stderr
    reader = opened()
    assert await list_problems(reader) == {}
    assert CANARY not in await dump_database(reader)
    for _ in range(2):
        assert (await erase_person(reader, "default", "anna", REASON)).sessions == ["s1", "s2"]
    assert CANARY not in str([await reader.read(key) for key in keys])
    assert await list_problems(reader) == {}
    assert [file.name for file in (tmp_path / "keys").iterdir()] == ["swarmkeep-keys"]
    await begin_persons(reader, new_key("anna"))


# Where keys are.


async def test_keys_in_the_database(opened: Open) -> None:
    store = opened(person_keys="database")
    await begin_persons(store)
    assert CANARY not in await dump_database(store)
    assert CANARY in str(await opened(person_keys=None).read(KEY))
    await erase_person(store, "default", "anna", REASON)
    [secret] = await store.database.read(lambda connection: connection.scalars(select(person_keys.c.secret)).all())
    assert secret is None
    assert await list_problems(store) == {}


async def test_keys_elsewhere_are_needed(opened: Open, tmp_path: Path) -> None:
    await begin_persons(opened())
    with pytest.raises(StoreUnavailable, match="SWARMKEEP_PERSON_KEYS"):
        await opened(person_keys=None).read(KEY)
    # A folder that is not mounted is not one whose keys were erased.
    (tmp_path / "keys").rename(tmp_path / "away")
    reader = opened()
    (tmp_path / "keys" / "swarmkeep-keys").unlink()
    with pytest.raises(StoreUnavailable, match="not a folder of keys"):
        await reader.read(KEY)


class Vault:
    """A key service, as a module of the operator's gives one."""

    kept: ClassVar[dict[str, bytes]] = {}

    def read(self, id: str) -> bytes | None:
        return self.kept.get(id)

    def write(self, id: str, secret: bytes) -> None:
        self.kept[id] = secret

    def erase(self, id: str) -> None:
        self.kept.pop(id, None)


async def test_keys_of_a_service(opened: Open) -> None:
    store = opened(person_keys=f"{__name__}:Vault")
    await begin_persons(store)
    assert len(Vault.kept) == 1
    assert CANARY in str(await opened(person_keys=f"{__name__}:Vault").read(KEY))
    await erase_person(store, "default", "anna", REASON)
    assert Vault.kept == {}
    Vault.kept.clear()


@pytest.mark.parametrize("named", ["no_module:X", f"{__name__}:KEY", "json:loads", "/proc/keys"])
def test_bad_place_for_keys_refused(named: str) -> None:
    with pytest.raises(PersonKeyError, match="SWARMKEEP_PERSON_KEYS"):
        open_key_source(named)


def test_foreign_folder_refused(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    with pytest.raises(PersonKeyError, match="a folder of its own"):
        KeyFolder(tmp_path).create()
