"""What is read from a database is checked before anything is added to it: sessions that were changed are set aside."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from swarmkeep.events.errors import HistoryDamaged, SeqConflict, SessionNotFound
from swarmkeep.events.state import State
from swarmkeep.history.verify import verify
from swarmkeep.store.index import SessionFilter
from swarmkeep.store.opening import SqlStore, open_store
from swarmkeep.store.records import SessionKey
from swarmkeep.store.schema import Stamped, stamp_sessions
from swarmkeep.store.tables import events, files, sessions
from tests.history.verify.forging import read_event_rows, rewrite_history
from tests.history.verify.rows import change_row, make_other_value, read_rows, remove_row
from tests.store.sessions import begin_session, draft_fork, draft_user_messages, make_picture_part
from tests.support.pictures import hash_content

KEY = SessionKey("default", "s1")
OTHER = SessionKey("default", "s2")
# What others may have changed since, or no fold says: when a lease ends, what was found before, where lists show it.
NOT_CHECKED = {"tenant", "id", "damaged_seq", "lease_epoch", "active_at"}


@asynccontextmanager
async def opened(url: str, keys: str | None = None) -> AsyncIterator[SqlStore]:
    store = open_store(url, integrity_key=keys)
    try:
        yield store
    finally:
        await store.close()


async def fill(url: str, keys: str | None = None) -> State:
    async with opened(url, keys) as store:
        state = await begin_session(store, KEY)
        return (await store.append(KEY, state, draft_user_messages("pay 5", "and 7", "and 9"))).state


async def try_to_add(url: str, keys: str | None = None) -> int | None:
    """Append as somebody who reads the session first; the seq of what is damaged, None if it was recorded."""
    async with opened(url, keys) as store:
        try:
            await store.append(KEY, await store.state(KEY), draft_user_messages("more"))
        except HistoryDamaged as damaged:
            return damaged.seq
    return None


async def test_a_change_of_any_column_stops_the_session(ready_url: str) -> None:
    await fill(ready_url)
    async with opened(ready_url) as attacker:
        for table in (events, sessions):
            for row in await read_rows(attacker, table):
                for column in table.c:
                    if column.name in ("session_id", *NOT_CHECKED):
                        continue
                    value = make_other_value(column, row[column.name])
                    await change_row(attacker, table, row, **{column.name: value})
                    damaged = await try_to_add(ready_url)
                    assert damaged is not None, (table.name, column.name, row)
                    if table is events and column.name != "seq":
                        assert damaged == row["seq"], column.name
                    async with opened(ready_url) as reader:
                        # What there is can still be read.
                        assert (await reader.state(KEY)).seq
                    now = {**row, column.name: value}
                    kept = {column.name: row[column.name]} | ({"damaged_seq": None} if table is sessions else {})
                    await change_row(attacker, table, now, **kept)
                    assert (await attacker.check(KEY)).damage is None
    assert await try_to_add(ready_url) is None


@pytest.mark.parametrize(("gone", "damaged"), [(range(3, 4), 3), (range(4, 5), 4), (range(1, 5), 1), (range(1, 2), 1)])
async def test_a_session_without_some_events_is_not_advanced(ready_url: str, gone: range, damaged: int) -> None:
    await fill(ready_url)
    async with opened(ready_url) as attacker:
        for row in await read_event_rows(attacker, KEY):
            if row["seq"] in gone:
                await remove_row(attacker, events, row)
    assert await try_to_add(ready_url) == damaged


async def test_a_session_that_is_in_memory_goes_on(ready_url: str) -> None:
    async with opened(ready_url) as store:
        state = await begin_session(store, KEY)
        async with opened(ready_url) as attacker:
            (row,) = await read_event_rows(attacker, KEY)
            await change_row(attacker, events, row, payload=row["payload"].replace("Triage", "Sales"))
        state = (await store.append(KEY, state, draft_user_messages("more"))).state
        assert state.damage is None
    assert await try_to_add(ready_url) == 1


async def test_what_another_process_adds_is_checked(ready_url: str) -> None:
    async with opened(ready_url) as store, opened(ready_url) as other:
        state = await begin_session(store, KEY)
        await other.append(KEY, await other.state(KEY), draft_user_messages("from elsewhere"))
        (*_, row) = await read_event_rows(other, KEY)
        await change_row(other, events, row, payload=row["payload"].replace("elsewhere", "nowhere"))
        with pytest.raises(SeqConflict):
            await store.append(KEY, state, draft_user_messages("more"))
        known = await store.state(KEY)
        assert known.damage.seq == row["seq"]
        with pytest.raises(HistoryDamaged):
            await store.append(KEY, known, draft_user_messages("more"))


async def test_cut_end_is_found_from_session_in_memory(ready_url: str) -> None:
    async with opened(ready_url) as store, opened(ready_url) as other:
        state = await begin_session(store, KEY)
        await other.append(KEY, await other.state(KEY), draft_user_messages("from elsewhere"))
        (*_, row) = await read_event_rows(other, KEY)
        await remove_row(other, events, row)
        with pytest.raises(SeqConflict):
            await store.append(KEY, state, draft_user_messages("more"))
        with pytest.raises(HistoryDamaged):
            await store.append(KEY, await store.state(KEY), draft_user_messages("more"))


async def test_session_in_memory_stops_once_set_aside(ready_url: str) -> None:
    async with opened(ready_url) as store:
        state = await begin_session(store, KEY)
        async with opened(ready_url) as attacker:
            (row,) = await read_event_rows(attacker, KEY)
            await change_row(attacker, events, row, salt=bytes(16))
            assert await try_to_add(ready_url) == 1
            with pytest.raises(HistoryDamaged):
                await store.append(KEY, state, draft_user_messages("more"))
            await change_row(attacker, events, row, salt=row["salt"])
        # It is looked at again, and is whole.
        await store.append(KEY, await store.state(KEY), draft_user_messages("more"))


async def test_damaged_session_is_reported_once_and_listed(ready_url: str) -> None:
    await fill(ready_url)
    found: list[Any] = []
    store = open_store(ready_url, on_damage=lambda key, damage: found.append((key, damage.seq)))
    async with opened(ready_url) as attacker:
        row = (await read_event_rows(attacker, KEY))[1]
        await change_row(attacker, events, row, payload=row["payload"].replace("pay 5", "pay 5000"))
        for _ in range(3):
            assert (await store.state(KEY)).damage is not None
        assert found == [(KEY, 2)]
        listed = await store.list_sessions(SessionFilter("default", damaged=True))
        assert [(one.id, one.damaged_seq) for one in listed.sessions] == [(KEY.id, 2)]
        assert (await store.list_sessions(SessionFilter("default", damaged=False))).sessions == []
        assert (await store.count_sessions("default")).damaged.count == 1
        await change_row(attacker, events, {**row}, payload=row["payload"])
        assert (await store.state(KEY)).damage is None
        assert (await store.list_sessions(SessionFilter("default", damaged=True))).sessions == []
    told = [entry.type for entry in await store.read_audit_log("default")]
    assert told == ["session.damaged", "session.mended"]
    await store.close()


async def test_a_damaged_session_is_not_found_by_recovery(ready_url: str) -> None:
    state = await fill(ready_url)
    async with opened(ready_url) as attacker:
        (head,) = await read_rows(attacker, sessions)
        await change_row(attacker, sessions, head, status="running", due_at=0.0)
        assert KEY in await attacker.find_due()
        assert KEY in await attacker.find_abandoned()
        assert await try_to_add(ready_url) == state.seq
        assert await attacker.find_due() == await attacker.find_abandoned() == []


async def test_partial_fork_is_checked_up_to_head(ready_url: str) -> None:
    state = await fill(ready_url)
    async with opened(ready_url) as store:
        assert (await store.sound_state(KEY, at=2)).seq == 2
    async with opened(ready_url) as attacker:
        last = (await read_event_rows(attacker, KEY))[-1]
        await change_row(attacker, events, last, commitment=bytes(32))
    async with opened(ready_url) as store:
        with pytest.raises(HistoryDamaged) as refused:
            await store.sound_state(KEY, at=2)
        assert refused.value.seq == state.seq


async def test_a_history_computed_anew_needs_the_key(ready_url: str) -> None:
    await fill(ready_url)
    async with opened(ready_url) as attacker:
        await rewrite_history(attacker, KEY, "pay 5", "pay 5000")
        assert (await verify(attacker, KEY)).valid
    assert await try_to_add(ready_url) is None


@pytest.mark.parametrize("stamp", ["kept", "none", "another session's", "another key's"])
async def test_without_the_key_no_history_is_computed_anew(ready_url: str, stamp: str) -> None:
    state = await fill(ready_url, "the key")
    async with opened(ready_url) as attacker:
        (head,) = await read_rows(attacker, sessions)
        await rewrite_history(attacker, KEY, "pay 5", "pay 5000")
        if stamp == "none":
            await change_row(attacker, sessions, head, stamp=None)
        elif stamp == "another session's":
            async with opened(ready_url, "the key") as server:
                await begin_session(server, OTHER)
            (other,) = await read_rows(attacker, sessions, id=OTHER.id)
            await change_row(attacker, sessions, head, stamp=other["stamp"])
        elif stamp == "another key's":
            async with opened(ready_url, "a guess") as guesser:
                await guesser.append(KEY, await attacker.state(KEY), draft_user_messages("more"))
            state = await attacker.state(KEY)
    assert await try_to_add(ready_url, "the key") == state.seq
    async with opened(ready_url, "the key") as server:
        found = await verify(server, KEY)
        assert [problem.code for problem in found.problems] == ["stamp_missing" if stamp == "none" else "stamp_differs"]
        # Nor by telling everybody to stamp what is there.
        done = await stamp_sessions(server, unstamped=False, on_step=lambda: None)
        assert done.refused == [KEY]


async def test_a_key_is_replaced_by_another_one(ready_url: str) -> None:
    await fill(ready_url, "old key")
    assert await try_to_add(ready_url, "new key, old key") is None
    async with opened(ready_url, "old key") as server:
        state = await begin_session(server, OTHER)
    async with opened(ready_url, "new key,old key") as server:
        assert await stamp_sessions(server, unstamped=False, on_step=lambda: None) == Stamped(1, 1, [])
    assert await try_to_add(ready_url, "new key") is None
    async with opened(ready_url, "new key") as server:
        await server.append(OTHER, await server.state(OTHER), draft_user_messages("more"))
        assert (await server.state(OTHER)).seq == state.seq + 1


@pytest.mark.parametrize(
    ("old", "steps"),
    [("", ("the key,unstamped", "the key")), ("old key", ("old key,new key", "new key,old key", "new key"))],
)
async def test_a_key_comes_to_running_servers(ready_url: str, old: str, steps: tuple[str, ...]) -> None:
    """Servers are restarted one after the other, and each goes on with what the others have recorded."""
    await fill(ready_url, old)
    last = old
    for step in steps:
        if step == steps[-1]:
            async with opened(ready_url, last) as server:
                assert (await stamp_sessions(server, unstamped=False, on_step=lambda: None)).refused == []
        for keys in (last, step, last, step, step):
            assert await try_to_add(ready_url, keys) is None
        last = step


async def test_sessions_from_before_the_key_are_stamped_once(ready_url: str) -> None:
    state = await fill(ready_url)
    assert await try_to_add(ready_url, "the key") == state.seq
    async with opened(ready_url, "the key") as server:
        assert await server.has_unstamped()
        assert (await stamp_sessions(server, unstamped=True, on_step=lambda: None)).stamped == 1
        assert not await server.has_unstamped()
        assert (await server.list_sessions(SessionFilter("default", damaged=True))).sessions == []
    assert await try_to_add(ready_url, "the key") is None
    # Whoever has no key leaves no stamp of another head.
    assert await try_to_add(ready_url) is None
    assert await try_to_add(ready_url, "the key") is not None


async def test_what_was_changed_is_not_stamped(ready_url: str) -> None:
    await fill(ready_url)
    async with opened(ready_url, "the key") as server:
        row = (await read_event_rows(server, KEY))[2]
        await change_row(server, events, row, payload=row["payload"].replace("7", "8"))
        done = await stamp_sessions(server, unstamped=True, on_step=lambda: None)
        assert (done.stamped, done.refused) == (0, [KEY])


@pytest.mark.parametrize("is_stamped", [False, True])
async def test_every_way_to_move_a_head_stamps_it(ready_url: str, is_stamped: bool) -> None:
    keys = "the key" if is_stamped else None
    await fill(ready_url, keys)
    async with opened(ready_url, keys) as store:
        base = await store.sound_state(KEY, at=2)
        await store.fork(KEY, base, OTHER, draft_fork(base))
        heads = await read_rows(store, sessions)
        assert [head["stamp"] is not None for head in heads] == [is_stamped] * 2
        for key in (KEY, OTHER):
            assert (await verify(store, key)).valid


async def test_a_file_is_what_its_hash_names(ready_url: str) -> None:
    content = b"a picture"
    name = hash_content(content)
    async with opened(ready_url) as store:
        state = await begin_session(store, KEY)
        await store.append(KEY, state, draft_user_messages([make_picture_part(content)]), blobs={name: content})
        (row,) = await read_rows(store, files)
        await change_row(store, files, row, content=b"another one")
        assert await store.read_files(KEY, [name], fresh=False) == {}
        # For those who look at what is there.
        assert await store.read_files(KEY, [name]) == {name: b"another one"}


async def test_emptied_session_leaves_nothing(ready_url: str) -> None:
    await fill(ready_url)
    async with opened(ready_url) as store:
        for row in await read_event_rows(store, KEY):
            await remove_row(store, events, row)
        for refused in (store.state(KEY), store.sound_state(KEY), store.check(KEY)):
            with pytest.raises(HistoryDamaged):
                await refused
        await store.delete(KEY)
        with pytest.raises(SessionNotFound):
            await store.state(KEY)
