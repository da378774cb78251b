"""Reading events and states; a long session keeps no other waiting."""

from __future__ import annotations

import asyncio
import gc
import sys
import time
from collections.abc import Awaitable, Callable
from types import FrameType
from typing import Any

import pytest
from benchmarks.verify import make_turn
from sqlalchemy import Connection, Engine, event, update

from swarmkeep.decide.drafts import draft_events
from swarmkeep.decide.steps import Wait, next_step
from swarmkeep.events import facts
from swarmkeep.events.errors import EventNotFound, SessionNotFound
from swarmkeep.events.fold import fold
from swarmkeep.events.state import State
from swarmkeep.history.verify import verify
from swarmkeep.store import reading
from swarmkeep.store.index import SessionFilter
from swarmkeep.store.opening import SqlStore
from swarmkeep.store.reading import decode_event, decode_events, find_event_rows, take_out, upcast
from swarmkeep.store.records import SessionKey, is_full_page
from swarmkeep.store.tables import events as events_table
from tests.events.given import calling_message, given, make_run_started, model_reply, tool_call
from tests.store.conftest import Opener
from tests.store.sessions import KEY, begin_session, draft_creation, draft_run_start, draft_user_messages, list_seqs

NOBODY = SessionKey("default", "nobody")


async def append_history(store: SqlStore) -> State:
    """Eight events: one created, one run started, six messages."""
    state = await begin_session(store)
    state = (await store.append(KEY, state, draft_run_start(state))).state
    return (await store.append(KEY, state, draft_user_messages(*"abcde"))).state


async def test_events_are_read_between_two_seqs(store: SqlStore) -> None:
    await append_history(store)
    assert list_seqs(await store.read(KEY)) == [1, 2, 3, 4, 5, 6, 7, 8]
    assert list_seqs(await store.read(KEY, after=2, upto=5)) == [3, 4, 5]
    assert list_seqs(await store.read(KEY, after=2, limit=2)) == [3, 4]
    assert list_seqs(await store.read(KEY, after=8)) == list_seqs(await store.read(KEY, after=2**80)) == []
    assert list_seqs(await store.read(KEY, after=6, upto=2**80, limit=2**80)) == [7, 8]
    assert list_seqs(await store.read(KEY, limit=0)) == []


async def test_page_ends_with_filling_event(store: SqlStore) -> None:
    state = await begin_session(store)
    await store.append(KEY, state, draft_user_messages("a", "ü" * 1_000, "b", "c" * 1_000))
    second = sum(len(event.payload.encode()) for event in await store.read(KEY, upto=3))
    for max_bytes, last in ((1, 1), (1_000, 3), (second, 3), (second + 1, 4), (10_000, 5)):
        page = await store.read(KEY, max_bytes=max_bytes)
        assert list_seqs(page) == [*range(1, last + 1)]
        assert is_full_page(page, 200, max_bytes) is (last < 5)
        assert [one.event for one in await store.read_sealed(KEY, max_bytes=max_bytes)] == page
    assert list_seqs(await store.read(KEY, after=1, upto=4, limit=2, max_bytes=10_000)) == [2, 3]
    assert list_seqs(await store.read(KEY, types=["message.added"], after=2, max_bytes=1)) == [3]
    assert await store.read(KEY, after=5, max_bytes=1) == await store.read(NOBODY, max_bytes=1) == []


async def test_events_are_read_by_type(store: SqlStore) -> None:
    await append_history(store)
    assert list_seqs(await store.read(KEY, types=["session.created", "run.started"])) == [1, 2]
    assert list_seqs(await store.read(KEY, types=["message.added"], after=3, upto=7, limit=2)) == [4, 5]
    assert await store.read(KEY, types=["nothing", "'; --", "NUL \0", "\ud800"]) == []


async def test_missing_session_has_no_events_or_state(store: SqlStore) -> None:
    assert await store.read(NOBODY) == []
    for at in (None, 0, 1, -1):
        with pytest.raises(SessionNotFound):
            await store.state(NOBODY, at=at)


@pytest.mark.parametrize("id", ["", "NUL \0", "\ud800", "'; --", "x" * 10_000])
async def test_id_of_any_text_is_accepted(store: SqlStore, id: str) -> None:
    odd = SessionKey("default", id)
    assert await store.read(odd) == []
    assert await store.read_blobs(odd, [id]) == {}
    assert (await store.list_sessions(SessionFilter(id, agent=id, metadata={id: id}))).sessions == []
    with pytest.raises(SessionNotFound):
        await store.state(odd)
    with pytest.raises(SessionNotFound):
        await store.delete(odd)


async def test_a_tenant_sees_nothing_of_another(store: SqlStore) -> None:
    await append_history(store)
    theirs = SessionKey("other", KEY.id)
    assert await store.read(theirs) == []
    with pytest.raises(SessionNotFound):
        await store.state(theirs)
    assert (await begin_session(store, theirs)).seq == 1


async def test_state_at_seq_is_the_fold(store: SqlStore, opener: Opener) -> None:
    last = await append_history(store)
    events = await store.read(KEY)
    for reader in (store, opener()):
        for at in (8, 5, 1, 8):
            assert await reader.state(KEY, at=at) == fold(events[:at])
    assert await store.state(KEY) == last


@pytest.mark.parametrize("at", [-1, 0, 9, 2**40, 2**80])
async def test_missing_seq_says_so(store: SqlStore, at: int) -> None:
    await append_history(store)
    with pytest.raises(EventNotFound) as refused:
        await store.state(KEY, at=at)
    assert refused.value.seq == at


async def test_fresh_state_sees_others_writes(store: SqlStore, opener: Opener) -> None:
    other = opener()
    state = await begin_session(store)
    assert await other.state(KEY) == state
    newer = (await store.append(KEY, state, draft_user_messages("x"))).state
    assert await other.state(KEY, fresh=False) == state
    assert await other.state(KEY) == newer
    assert await other.state(KEY, fresh=False) == newer


async def test_fresh_state_is_not_deleted_sessions(store: SqlStore, opener: Opener) -> None:
    other = opener()
    state = await begin_session(store)
    state = (await store.append(KEY, state, draft_user_messages("x"))).state
    assert await other.state(KEY) == state
    await store.delete(KEY)
    with pytest.raises(SessionNotFound):
        await other.state(KEY)
    # Made again, and longer than before.
    again = (await store.append(KEY, State(), [*draft_creation(), *draft_user_messages("a", "b", "c")])).state
    assert await other.state(KEY) == again
    assert await other.state(KEY, at=2) == await store.state(KEY, at=2) != state


async def test_stale_state_is_not_used_at_seq(store: SqlStore, opener: Opener) -> None:
    other = opener()
    assert await other.state(KEY) if await begin_session(store) else None
    await store.delete(KEY)
    await store.append(KEY, State(), [*draft_creation(agent="New"), *draft_user_messages("a")])
    assert (await other.state(KEY, at=1)).agent == "New"


async def test_redaction_leaves_no_cached_state(store: SqlStore, opener: Opener) -> None:
    other = opener()
    state = await begin_session(store)
    state = (await store.append(KEY, state, draft_user_messages("secret", "x"))).state
    assert await other.state(KEY) == state
    erased = update(events_table).where(events_table.c.seq == 2)
    erased = erased.values(payload='{"message":{"role":"user","content":"[redacted]"}}', salt=None)
    await store.database.write(lambda connection: connection.execute(erased).rowcount)
    fact = facts.SessionRedacted(seqs=(2,), reason="asked for")
    await store.append(KEY, state, [facts.EventDraft(fact, None, "Triage")])
    for reader in (store, other, opener()):
        for fresh in (True, False):
            texts = [entry.message["content"] for entry in (await reader.state(KEY, fresh=fresh)).messages]
            assert texts == ["[redacted]", "x"]


async def test_states_are_rebuilt_without_cache(opener: Opener) -> None:
    store = opener(cache_bytes=0)
    state = await append_history(store)
    assert await store.state(KEY) == await store.state(KEY, fresh=False) == state


async def test_the_cache_stays_within_its_bytes(opener: Opener) -> None:
    store = opener(cache_bytes=40_000)
    for number in range(20):
        await begin_session(store, SessionKey("default", f"s{number}"), context={"text": "x" * 1000})
    assert (await store.state(SessionKey("default", "s0"))).context_variables == {"text": "x" * 1000}


async def test_unknown_types_are_read_without_state_change(store: SqlStore, opener: Opener) -> None:
    await append_history(store)
    changes: dict[int, dict[str, object]] = {
        4: {"type": "weather.changed", "payload": '{"to":"rain"}'},
        5: {"type": "message.added", "version": 99, "payload": '{"said":"x"}'},
        6: {"type": "message.added", "version": 99, "payload": '{"message":{"role":"user","content":"x"},"new":1}'},
        7: {"type": 'odd "\0\ud800', "payload": "[1]"},
    }

    def alter(connection: Connection) -> None:
        for seq, change in changes.items():
            connection.execute(update(events_table).where(events_table.c.seq == seq).values(**change))

    await store.database.write(alter)
    other = opener()
    events = await other.read(KEY)
    assert events[3].fact == facts.UnknownFact(data={"to": "rain"})
    assert events[4].fact == facts.UnknownFact(data={"said": "x"})
    assert isinstance(events[5].fact, facts.MessageAdded)
    assert (events[6].type, events[6].fact) == ('odd "\0\ud800', facts.UnknownFact(data=[1]))
    assert (await other.state(KEY)).seq == 8
    assert [entry.seq for entry in (await other.state(KEY)).messages] == [3, 6, 8]


async def test_damaged_payload_is_shown_unchanged(store: SqlStore, opener: Opener) -> None:
    await append_history(store)
    damage = update(events_table).where(events_table.c.seq == 4).values(payload='{"message":')
    await store.database.write(lambda connection: connection.execute(damage).rowcount)
    event = (await opener().read(KEY))[3]
    assert (event.payload, event.fact) == ('{"message":', facts.UnknownFact())


def test_older_versions_are_lifted_stepwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facts.MessageAdded, "version", 3)
    lifts = {
        ("message.added", 1): lambda old: {"text": old["words"]},
        ("message.added", 2): lambda old: {"message": {"role": "user", "content": old["text"]}},
    }
    current = facts.MessageAdded(message={"role": "user", "content": "hi"})
    assert reading.upcast("message.added", 1, '{"words":"hi"}', lifts) == current
    assert reading.upcast("message.added", 2, '{"text":"hi"}', lifts) == current
    assert reading.upcast("message.added", 3, '{"message":{"role":"user","content":"hi"}}', lifts) == current
    assert reading.upcast("message.added", 0, '{"words":"hi"}', lifts) == facts.UnknownFact(data={"words": "hi"})


LATER = {
    "message.added": '{"message":{"role":"tool","tool_call_id":"c1"},"tool":{"name":"f","status":"skipped"}}',
    "approval.decided": '{"tool_call_id":"c1","decision":"escalate","by":"Lee"}',
    "run.resumed": '{"reason":"schedule"}',
    "run.waiting": '{"pending":[{"tool_call_id":"c1","name":"f","arguments":"{}","reason":"payment"}]}',
    "run.completed": '{"stop_reason":"budget"}',
}


@pytest.mark.parametrize("type_", LATER)
def test_later_release_value_hides_no_event(type_: str) -> None:
    assert isinstance(reading.upcast(type_, 1, LATER[type_]), facts.FACTS[type_])


def test_later_release_decision_is_no_approval() -> None:
    asked = facts.ApprovalRequested(tool_call_id="c1", name="f", arguments="{}")
    decided = reading.upcast("approval.decided", 1, LATER["approval.decided"])
    state = given(make_run_started(), model_reply(calling_message(tool_call("c1"))), asked, decided)
    assert isinstance(next_step(state), Wait)


def count_calls(work: Callable[[], object]) -> int:
    """How many functions it calls, of Python and of C: the same each time, unlike the time that it takes."""
    count = 0

    def note(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    # A collection would be counted, with what it ends.
    gc.disable()
    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
        gc.enable()
    return count


async def test_state_calls_per_event_are_bounded(store: SqlStore) -> None:
    state = (await store.append(KEY, State(), draft_creation())).state
    for number in range(25):
        state = (await store.append(KEY, state, draft_events("Ann", make_turn(number), f"r{number}"))).state
    rows = await store.database.read(lambda connection: find_event_rows(connection, KEY))
    assert fold(decode_events(KEY, rows)) == state
    # With this function's own.
    assert count_calls(lambda: fold(decode_events(KEY, rows))) / len(rows) < 22


async def test_event_is_independent_of_row_decoding(store: SqlStore) -> None:
    state = (await store.append(KEY, State(), draft_creation())).state
    await store.append(KEY, state, draft_events("Ann", make_turn(1), "r1"))
    rows = await store.database.read(lambda connection: find_event_rows(connection, KEY))
    assert len(rows) == 9
    for seq, type_, version, run_id, agent, *rest in rows:
        # Escaped, as text is that begins with a quotation mark: that takes the other way.
        escaped = (seq, type_, version, run_id, f'"{agent}"', *rest)
        assert decode_event(KEY.id, escaped) == decode_event(KEY.id, (seq, type_, version, run_id, agent, *rest))


def test_rows_are_released_one_by_one() -> None:
    rows = list("abc")
    left = [(row, len(rows)) for row in take_out(rows)]
    assert left == [("a", 2), ("b", 1), ("c", 0)]


# A long session keeps no other waiting: it is decoded and folded in threads, on either database.

LONG_KEY = SessionKey("acme", "long")
# Much to decode, and little to fetch.
PARTS = [{"type": "text", "text": "x", "at": number} for number in range(60)]
SAID = facts.MessageAdded(message={"role": "user", "content": PARTS})
DRAFTS = draft_events("Ann", [facts.SessionCreated(agent="Ann"), *[SAID] * 2000], None)


async def measure_on_loop(work: Callable[[], Awaitable[Any]]) -> tuple[Any, float]:
    """What it gives, and the processor's time that it takes of the loop's thread, at best."""
    times = []
    for _ in range(3):
        began = time.thread_time()
        result = await work()
        times.append(time.thread_time() - began)
    return result, min(times)


def measure_decoding(events: list[facts.RecordedEvent]) -> float:
    began = time.thread_time()
    for one in events:
        upcast(one.type, one.version, one.payload)
    fold(events)
    return time.thread_time() - began


@pytest.mark.long
async def test_long_session_is_processed_off_loop(opener: Opener) -> None:
    appended = await opener().append(LONG_KEY, State(), DRAFTS)
    store = opener(cache_bytes=0)
    events, for_read = await measure_on_loop(lambda: store.read(LONG_KEY))
    state, for_state = await measure_on_loop(lambda: store.state(LONG_KEY))
    decoding = measure_decoding(events)
    assert (len(events), state.hash) == (len(DRAFTS), appended.state.hash)
    # On the loop, each of the two would take that long, and as long again to fetch the rows.
    assert for_read + for_state < 2 * decoding
    found, for_verify = await measure_on_loop(lambda: verify(store, LONG_KEY))
    assert (found.valid, found.events) == (True, len(DRAFTS))
    assert for_verify < 0.5 * decoding


@pytest.mark.long
async def test_long_session_pages_see_one_moment(opener: Opener) -> None:
    await opener().append(LONG_KEY, State(), DRAFTS)
    store, other = opener(cache_bytes=0), opener()
    statements: list[str] = []

    def note(connection: Any, cursor: Any, statement: str, *rest: Any) -> None:
        statements.append(statement)

    event.listen(Engine, "after_cursor_execute", note)
    try:
        events = await store.read(LONG_KEY)
    finally:
        event.remove(Engine, "after_cursor_execute", note)
    assert [one.seq for one in events] == list(range(1, len(DRAFTS) + 1))
    fetches = [one for one in statements if "payload" in one and "FROM events" in one and "octet" not in one]
    # SQLite fetches in a thread of its own, and what it fetches as it goes; from its driver, which tells nobody.
    assert store.display.startswith("sqlite") or len(fetches) >= len(DRAFTS) / 500
    reads = asyncio.gather(*(store.read(LONG_KEY) for _ in range(5)))
    await other.delete(LONG_KEY)
    assert {len(read) for read in await reads} <= {0, len(DRAFTS)}


async def test_large_event_page_ends_at_bytes(opener: Opener) -> None:
    made = [
        facts.MessageAdded(message={"role": "user", "content": "x" * size}) for size in [1, 700_000, 700_000, 1] * 6
    ]
    drafts = draft_events("Ann", [facts.SessionCreated(agent="Ann"), *made], None)
    store = opener(cache_bytes=0)
    await store.append(LONG_KEY, State(), drafts)
    events = await store.read(LONG_KEY)
    assert [one.seq for one in events] == list(range(1, len(drafts) + 1))
    assert [one.seq for one in await store.read(LONG_KEY, after=3, upto=22)] == list(range(4, 23))
