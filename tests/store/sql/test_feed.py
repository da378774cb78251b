"""The feed of all events: one order, in which nothing is passed over, whoever writes and publishes."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

import pytest
from sqlalchemy import Connection, select

from swarmkeep.decide.commands import create_session
from swarmkeep.decide.drafts import draft_events
from swarmkeep.events.errors import ConsumerNotFound, InvalidRequest, Overloaded
from swarmkeep.events.facts import RecordedEvent
from swarmkeep.events.state import State
from swarmkeep.store import feed as feeds
from swarmkeep.store.feed import BEGINNING, FeedCursor, FeedFilter
from swarmkeep.store.opening import SqlStore
from swarmkeep.store.records import Claim, SessionKey
from swarmkeep.store.tables import feed
from tests.store.conftest import Opener
from tests.store.sessions import (
    KEY,
    OTHER,
    begin_session,
    draft_fork,
    draft_run_completion,
    draft_run_start,
    draft_user_messages,
    new_key,
)

T = TypeVar("T")
NOW = "2026-01-01T00:00:00.000000Z"


async def read_rest(
    store: SqlStore, after: FeedCursor = BEGINNING, wanted: FeedFilter | None = None, **given: Any
) -> tuple[list[RecordedEvent], FeedCursor]:
    """All events behind a place, read page by page as readers do."""
    found: list[RecordedEvent] = []
    while True:
        page = await store.read_feed(
            "default", after, wanted or FeedFilter(), **({"limit": 3, "max_bytes": 10_000} | given)
        )
        assert [place for place, _ in page.events] == sorted({place for place, _ in page.events})
        assert after <= page.cursor
        assert not page.events or page.events[-1][0] <= page.cursor
        found += [event for _, event in page.events]
        after = page.cursor
        if page.is_last:
            return found, after


async def insist(write: Callable[[], Awaitable[T]]) -> T:
    """Write, and again where a slow machine lets too many wait: nothing was written then."""
    while True:
        with suppress(Overloaded):
            return await write()


def list_places(events: list[RecordedEvent]) -> list[tuple[str, int]]:
    return [(event.session_id, event.seq) for event in events]


async def test_feed_goes_on_from_any_place(store: SqlStore) -> None:
    assert await read_rest(store) == ([], FeedCursor(1, 0))
    first = await begin_session(store)
    await begin_session(store, OTHER)
    assert await read_rest(store) == ([], FeedCursor(1, 0))
    assert await store.publish("default")
    found, end = await read_rest(store)
    assert list_places(found) == [("s1", 1), ("s2", 1)]
    assert [event.hash for event in found] == [event.hash for key in (KEY, OTHER) for event in await store.read(key)]
    # Nothing is published twice, and what comes later comes behind every place.
    await store.append(KEY, first, draft_user_messages("a", "b", "c", "d"))
    assert await store.publish("default", ids=["s1", "absent"], since="9")
    assert await store.publish("default")
    added, last = await read_rest(store, end)
    assert list_places(added) == [("s1", seq) for seq in range(2, 6)]
    everything, _ = await read_rest(store)
    for limit, max_bytes in ((1, 10_000), (200, 1), (200, 300)):
        found, _ = await read_rest(store, limit=limit, max_bytes=max_bytes)
        assert list_places(found) == list_places(everything)
    page = await store.read_feed("default", BEGINNING, FeedFilter(), limit=200, max_bytes=10_000)
    for number, (place, _) in enumerate(page.events, start=1):
        rest, _ = await read_rest(store, place)
        assert list_places(rest) == list_places(everything)[number:]
    assert await store.find_feed_end("default") == last
    with pytest.raises(InvalidRequest, match="behind the end"):
        await read_rest(store, FeedCursor(last.position + 1, 0))
    assert await read_rest(store, last) == ([], last)
    assert (await store.read_feed("other", BEGINNING, FeedFilter(), limit=9, max_bytes=9)).events == []


async def test_feed_filters_and_long_ranges(store: SqlStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeds, "_EVENTS_IN_ROW", 4)
    monkeypatch.setattr(feeds, "_ROWS_AT_ONCE", 1)
    monkeypatch.setattr(feeds, "_SESSIONS_AT_ONCE", 2)
    state = await begin_session(store, metadata={"team": "blue", "size": 3})
    await store.append(KEY, state, draft_user_messages(*map(str, range(10))))
    for number in range(5):
        await begin_session(store, new_key(), agent=f"Agent {number}")
    assert await store.publish("default")
    rows = await store.database.read(lambda connection: connection.execute(select(feed.c.after_seq, feed.c.upto_seq)))
    assert sorted(tuple(row) for row in rows) == sorted([(0, 4), (4, 8), (8, 11), *[(0, 1)] * 5])
    found, _ = await read_rest(store)
    assert len(found) == 16
    assert [event.seq for event in found if event.session_id == KEY.id] == list(range(1, 12))
    for wanted, count in (
        (FeedFilter(types=["message.added"]), 10),
        (FeedFilter(types=["message.added", "session.created"]), 16),
        (FeedFilter(types=["nothing"]), 0),
        (FeedFilter(agents=["Agent 3", "Agent 4"]), 2),
        (FeedFilter(metadata={"team": "blue", "size": "3"}), 11),
        (FeedFilter(metadata={"team": "red"}), 0),
        (FeedFilter(types=["session.created"], metadata={"team": "blue"}), 1),
    ):
        found, _ = await read_rest(store, wanted=wanted)
        assert len(found) == count, wanted


async def test_recent_look_finds_what_goes_on(store: SqlStore) -> None:
    old = await begin_session(store)
    assert await store.publish("default")
    await store.append(KEY, old, draft_run_start(old), lease=Claim("a", 60))
    state = await store.state(KEY)
    # Its run began long ago, and it is running.
    assert await store.publish("default", since="9999")
    found, end = await read_rest(store)
    assert found[-1].seq == state.seq
    await store.append(KEY, state, draft_run_completion(state))
    assert await store.publish("default", since="9999")
    assert await read_rest(store, end) == ([], end)
    assert await store.publish("default", since="2000")
    assert [event.type for event in (await read_rest(store, end))[0]] == ["run.completed"]


async def test_fork_and_deletion_in_feed(store: SqlStore) -> None:
    state = await begin_session(store)
    state = (await store.append(KEY, state, draft_user_messages("a", "b"))).state
    await store.fork(KEY, state, OTHER, draft_fork(state))
    assert await store.publish("default")
    found, end = await read_rest(store)
    # What a fork has copied was told of already.
    assert list_places(found) == [("s1", 1), ("s1", 2), ("s1", 3), ("s2", 4)]
    await store.delete(OTHER)
    await begin_session(store, OTHER)
    assert await store.publish("default")
    again, _ = await read_rest(store)
    assert list_places(again) == [("s1", 1), ("s1", 2), ("s1", 3), ("s2", 1)]
    # A number is never given twice, also not that of a row that is gone.
    assert list_places((await read_rest(store, end))[0]) == [("s2", 1)]


async def test_damaged_rows_are_passed(store: SqlStore) -> None:
    await begin_session(store)
    await begin_session(store, OTHER)

    def damage(connection: Connection) -> None:
        connection.exec_driver_sql("UPDATE sessions SET view = '{' WHERE id = 's1'")
        if connection.dialect.name == "sqlite":
            connection.exec_driver_sql("UPDATE events SET payload = '{', seq = 'x' WHERE session_id = 's1'")

    await store.database.write(damage)
    assert await store.publish("default")
    found, _ = await read_rest(store)
    assert list_places(found)[-1] == ("s2", 1)


async def test_consumers_keep_places(store: SqlStore, monkeypatch: pytest.MonkeyPatch) -> None:
    await begin_session(store)
    await store.publish("default")
    with pytest.raises(ConsumerNotFound):
        await store.read_consumer("default", "crm")
    with pytest.raises(ConsumerNotFound):
        await store.delete_consumer("default", "crm")
    with pytest.raises(InvalidRequest):
        await store.move_consumer("default", "crm", FeedCursor(3, 0), NOW)
    moved = await store.move_consumer("default", "crm", FeedCursor(1, 1), NOW)
    assert (moved.name, moved.cursor, moved.lag, moved.updated_at) == ("crm", FeedCursor(1, 1), 1, NOW)
    assert await store.read_consumer("default", "crm") == moved
    assert (await store.move_consumer("default", "crm", FeedCursor(2, 0), NOW)).lag == 0
    assert (await store.move_consumer("default", "crm", BEGINNING, NOW)).lag == 1
    await store.move_consumer("acme", "crm", BEGINNING, NOW)
    assert [(one.tenant, one.name) for one in await store.list_consumers()] == [("acme", "crm"), ("default", "crm")]
    assert [one.tenant for one in await store.list_consumers("acme")] == ["acme"]
    monkeypatch.setattr(feeds, "MAX_CONSUMERS", 1)
    with pytest.raises(InvalidRequest, match="1 consumers"):
        await store.move_consumer("default", "siem", BEGINNING, NOW)
    await store.delete_consumer("default", "crm")
    assert await store.list_consumers("default") == []


async def test_readers_pass_over_nothing_under_writers(opener: Opener) -> None:
    """32 writers over four processes' stores, two that publish, deletions in between, and readers that go on from where
    they are: all get every event of what is there at the end once, each session's in order, and all in one order."""
    stores = [opener() for _ in range(4)]
    done = asyncio.Event()

    async def write(number: int) -> None:
        store, key = stores[number % 4], SessionKey("default", f"w{number}")
        state = State()
        drafts = draft_events("Triage", create_session("Triage", {}, {}, []), None)
        for step in range(6):
            state = (await insist(partial(store.append, key, state, drafts))).state
            drafts = draft_user_messages(f"{number}.{step}", "again")
        doomed = SessionKey("default", f"doomed{number}")
        await insist(partial(begin_session, store, doomed))
        await insist(partial(store.delete, doomed))

    async def publish(store: SqlStore) -> None:
        while not done.is_set():
            await insist(partial(store.publish, "default"))

    async def follow(store: SqlStore) -> list[RecordedEvent]:
        place, found = BEGINNING, []
        while True:
            is_over = done.is_set()
            if is_over:
                await insist(partial(store.publish, "default"))
            events, place = await read_rest(store, place, limit=50)
            found += events
            if is_over:
                return found

    publishing = [asyncio.create_task(publish(store)) for store in stores[:2]]
    following = [asyncio.create_task(follow(store)) for store in stores]
    await asyncio.gather(*(write(number) for number in range(32)))
    done.set()
    await asyncio.gather(*publishing)
    orders = [
        [one for one in list_places(found) if one[0].startswith("w")] for found in await asyncio.gather(*following)
    ]
    assert orders.count(orders[0]) == len(orders)
    by_session: dict[str, list[int]] = defaultdict(list)
    for name, seq in orders[0]:
        by_session[name].append(seq)
    assert by_session == {f"w{number}": list(range(1, 12)) for number in range(32)}
