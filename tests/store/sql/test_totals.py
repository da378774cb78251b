"""What each tenant has stored and used: counted with what is recorded, and what is refused past a quota."""

from __future__ import annotations

import asyncio
import io
import itertools
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from msgspec.structs import replace
from sqlalchemy import text

from swarmkeep.events.errors import QuotaExceeded, SeqConflict
from swarmkeep.events.state import State
from swarmkeep.history.export import iterate_keys, write_export
from swarmkeep.history.import_export import import_export
from swarmkeep.history.redact import redact
from swarmkeep.runs.sessions import fork_session
from swarmkeep.store.opening import SqlStore
from swarmkeep.store.records import SessionKey, StorageQuota, utc_now
from swarmkeep.store.usage import Growth, SqlTotals, TotalsDrift, make_totals_row, recount_totals
from tests.store.calls import make_reply, record_calls
from tests.store.conftest import Opener
from tests.store.sessions import KEY, OTHER, begin_session, draft_creation, draft_user_messages, new_key

ROOMY = StorageQuota(max_sessions=1000, max_bytes=10_000_000)


async def find_drift(store: SqlStore) -> list[TotalsDrift]:
    return await recount_totals(store.database, mend=False)


async def export(store: SqlStore, *keys: SessionKey) -> io.BytesIO:
    lines = [line async for line in write_export(store, iterate_keys(keys))]
    return io.BytesIO(b"".join(lines))


async def test_session_changes_are_all_counted(store: SqlStore) -> None:
    state = await begin_session(store, metadata={"a": "é" * 100})
    state = (await store.append(KEY, state, draft_user_messages("😀", "two"), blobs={"h": "t\0ö"})).state
    state = (await store.append(KEY, state, draft_user_messages("x"), blobs={"h": "t\0ö", "i": "more"})).state
    assert (await store.read_totals("default")).sessions == 1
    assert await find_drift(store) == []
    await fork_session(store, KEY, session_id=OTHER.id, at=3)
    assert (await store.read_totals("default")).sessions == 2
    assert await find_drift(store) == []
    before = (await store.read_totals("default")).bytes
    await redact(store, KEY, [2], "asked to")
    assert (await store.read_totals("default")).bytes != before
    assert await find_drift(store) == []
    report = await import_export(store, "else", await export(store, KEY, OTHER))
    assert report.imported == (await store.read_totals("else")).sessions == 2
    assert await find_drift(store) == []
    await store.delete(KEY)
    assert await find_drift(store) == []
    await store.delete(OTHER)
    totals = await store.read_totals("default")
    assert (totals.sessions, totals.bytes) == (0, 0)
    assert await find_drift(store) == []


async def test_what_is_refused_is_not_counted(store: SqlStore) -> None:
    state = await begin_session(store)
    before = await store.read_totals("default")
    with pytest.raises(SeqConflict):
        await store.append(KEY, replace(state, seq=7), draft_user_messages("x"))
    with pytest.raises(SeqConflict):
        await begin_session(store)
    assert replace(await store.read_totals("default"), seconds_left=0) == replace(before, seconds_left=0)
    assert await find_drift(store) == []


async def test_sessions_past_quota_are_refused_cleanly(store: SqlStore) -> None:
    quota = replace(ROOMY, max_sessions=2)
    file = await export(store, *[await begin_elsewhere(store, name) for name in ("x", "y")])
    for key in (KEY, OTHER):
        state = (await store.append(key, State(), draft_creation(), quota=quota)).state
    with pytest.raises(QuotaExceeded, match="SWARMKEEP_MAX_SESSIONS"):
        await store.append(new_key(), State(), draft_creation(), quota=quota)
    with pytest.raises(QuotaExceeded):
        await fork_session(store, KEY, quota=quota)
    with pytest.raises(QuotaExceeded):
        await import_export(store, "default", file, quota=quota)
    # Another tenant is not held up, and a session that is there goes on.
    await store.append(new_key(tenant="b"), State(), draft_creation(), quota=quota)
    await store.append(OTHER, state, draft_user_messages("x"), quota=replace(quota, max_sessions=1))
    assert (await store.read_totals("default")).sessions == 2
    await store.delete(KEY)
    await store.append(new_key(), State(), draft_creation(), quota=quota)
    assert await find_drift(store) == []


async def begin_elsewhere(store: SqlStore, name: str) -> SessionKey:
    key = SessionKey("elsewhere", name)
    await begin_session(store, key)
    return key


async def test_bytes_past_quota_are_refused_cleanly(store: SqlStore) -> None:
    quota = replace(ROOMY, max_bytes=2_000)
    state = (await store.append(KEY, State(), draft_creation(), quota=quota)).state
    with pytest.raises(QuotaExceeded, match="SWARMKEEP_MAX_STORED_BYTES"):
        await store.append(KEY, state, draft_user_messages("x" * 2_000), quota=quota)
    with pytest.raises(QuotaExceeded):
        await store.append(KEY, state, draft_user_messages("x"), blobs={"h": "y" * 2_000}, quota=quota)
    assert (await store.read_blobs(KEY, ["h"])) == {}
    # A run that goes on is not asked.
    state = (await store.append(KEY, state, draft_user_messages("x" * 2_000))).state
    assert (await store.read_totals("default")).bytes > 2_000
    with pytest.raises(QuotaExceeded):
        await store.append(KEY, state, draft_user_messages("x"), quota=quota)
    assert await find_drift(store) == []


async def test_concurrent_writers_keep_counts_near_quota(opener: Opener) -> None:
    stores = [opener() for _ in range(3)]
    quota = replace(ROOMY, max_sessions=20)

    async def create_some(store: SqlStore, number: int) -> int:
        made = 0
        for count in range(8):
            key = SessionKey("default", f"w{number}-{count}")
            try:
                state = (await store.append(key, State(), draft_creation(), quota=quota)).state
            except QuotaExceeded:
                continue
            made += 1
            await store.append(key, state, draft_user_messages("x" * number))
        return made

    made = sum(await asyncio.gather(*(create_some(stores[number % 3], number) for number in range(12))))
    totals = await stores[0].read_totals("default")
    # On PostgreSQL each server has eight connections.
    most = 20 if stores[0].display.startswith("sqlite") else 20 + 3 * 8
    assert 20 <= made == totals.sessions <= most
    assert await find_drift(stores[1]) == []


@pytest.mark.long
async def test_appends_and_deletions_do_not_deadlock(opener: Opener) -> None:
    stores = [opener(), opener()]

    async def live(number: int) -> None:
        store, key = stores[number % 2], SessionKey("default", f"l{number}")
        state = await begin_session(store, key)
        for _ in range(4):
            state = (await store.append(key, state, draft_user_messages("x"))).state
        await redact(store, key, [2], "gone")
        await fork_session(store, key, session_id=f"f{number}")
        await store.delete(key)

    await asyncio.gather(*map(live, range(8)))
    assert (await stores[0].read_totals("default")).sessions == 8
    assert await find_drift(stores[0]) == []


async def test_todays_tokens_survive_session_deletion(opener: Opener) -> None:
    now = datetime(2026, 3, 1, 23, 59, 58, tzinfo=UTC)
    store = opener(clock=lambda: now)
    await record_calls(store, KEY, make_reply(total_tokens=10), make_reply(prompt_tokens=3, completion_tokens=4))
    await record_calls(store, OTHER, make_reply(total_tokens=5))
    await record_calls(store, SessionKey("b", "x"), make_reply(total_tokens=100))
    await import_export(store, "c", await export(store, KEY))
    await store.delete(KEY)
    totals = await store.read_totals("default")
    assert (totals.day, totals.tokens, totals.seconds_left) == ("2026-03-01", 22, 2)
    assert (await store.read_totals("c")).tokens == 0
    now = datetime(2026, 3, 2, tzinfo=UTC)
    assert (await store.read_totals("default")).tokens == 0
    await record_calls(store, KEY, make_reply(total_tokens=1))
    assert (await store.read_totals("default")).tokens == 1
    # A server whose clock is behind: its day is over.
    behind = opener(clock=lambda: datetime(2026, 3, 1, tzinfo=UTC))
    await record_calls(behind, new_key(), make_reply(total_tokens=50))
    assert (await store.read_totals("default")).tokens == 1


async def test_fast_clock_does_not_lose_token_counts(opener: Opener) -> None:
    now = datetime(2999, 3, 1, tzinfo=UTC)
    store = opener(clock=lambda: now)
    await record_calls(store, KEY, make_reply(total_tokens=10))
    now = datetime(2026, 12, 31, tzinfo=UTC)
    for name in itertools.islice(_find_names_beside(KEY), 2):
        await record_calls(store, SessionKey(KEY.tenant, name), make_reply(total_tokens=20))
    totals = await store.read_totals("default")
    assert (totals.day, totals.tokens) == ("2026-12-31", 40)


async def test_slow_clock_does_not_end_others_day(opener: Opener) -> None:
    now = utc_now()
    store, behind = opener(clock=lambda: now), opener(clock=lambda: datetime(2020, 1, 1, tzinfo=UTC))
    await record_calls(store, KEY, make_reply(total_tokens=10))
    beside = SessionKey(KEY.tenant, next(_find_names_beside(KEY)))
    await record_calls(behind, beside, make_reply(total_tokens=50))
    assert (await store.read_totals("default")).tokens == 10


def _find_names_beside(key: SessionKey) -> Iterator[str]:
    """Sessions whose tokens are added to the same row."""
    slice_of_key = make_totals_row(key, Growth())["slice"]
    names = (f"beside-{number}" for number in itertools.count())
    return (name for name in names if make_totals_row(SessionKey("", name), Growth())["slice"] == slice_of_key)


async def test_recount_mends_wrong_totals_once(opener: Opener) -> None:
    store, other = opener(), opener()
    await begin_session(store)
    await begin_session(store, SessionKey("b", "x"))
    right = await store.read_totals("default")

    def damage(connection: Any) -> None:
        connection.execute(text("UPDATE totals SET sessions = 70, bytes = -5 WHERE tenant = 'default'"))
        connection.execute(text("DELETE FROM totals WHERE tenant = 'b'"))

    await store.database.write(damage)
    found = await find_drift(store)
    assert [(one.tenant, one.counted_sessions, one.sessions, one.counted_bytes) for one in found] == [
        ("b", 0, 1, 0),
        ("default", 70, 1, -5),
    ]
    at_once = [recount_totals(one.database, mend=True) for one in (store, other, store)]
    assert found in await asyncio.gather(*at_once)
    assert await find_drift(store) == []
    assert (await SqlTotals(store.database).read_totals("default")).bytes == right.bytes
    await store.delete(KEY)
    assert (await store.read_totals("default")).sessions == 0
