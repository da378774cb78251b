"""Appending: the one place where races are decided."""

from __future__ import annotations

import asyncio
import gc
import json
import math
import re
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from sqlalchemy import Connection

from swarmkeep.events.errors import InvalidRequest, SeqConflict, SessionNotFound
from swarmkeep.events.facts import ContextUpdated, EventDraft, MessageAdded, SessionUpdated, UnknownFact
from swarmkeep.events.fold import fold
from swarmkeep.events.state import State
from swarmkeep.store.hashing import MAX_PAYLOAD_DEPTH
from swarmkeep.store.index import SessionFilter
from swarmkeep.store.opening import SqlStore
from swarmkeep.store.records import AppendResult, Claim, IdempotencyRecord
from tests.store.conftest import Opener
from tests.store.sessions import (
    KEY,
    OTHER,
    begin_session,
    draft_creation,
    draft_fork,
    draft_user_messages,
    list_seqs,
    new_key,
    read_all_rows,
)
from tests.support.hypothesis_profiles import examples


async def test_returned_events_equal_read_events(store: SqlStore, opener: Opener) -> None:
    state = await begin_session(store, metadata={"a": [1, None]}, context={"b": {"c": -0.0}})
    appended = await store.append(KEY, state, draft_user_messages("hello", "more"))
    assert (await store.read(KEY))[1:] == appended.events
    assert await opener().state(KEY) == appended.state == fold(await store.read(KEY))


async def test_times_are_utc_by_given_clock(opener: Opener) -> None:
    time = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone(timedelta(hours=2)))
    appended = await opener(clock=lambda: time).append(KEY, State(), draft_creation())
    assert appended.events[0].at == appended.state.created_at == "2026-01-02T01:04:05.000000Z"


async def test_times_are_utc_by_default(store: SqlStore) -> None:
    state = await begin_session(store)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", state.created_at)
    age = datetime.now(UTC) - datetime.fromisoformat(state.created_at)
    assert abs(age) < timedelta(minutes=1)


async def test_stale_seq_is_refused_storing_nothing(store: SqlStore) -> None:
    old = await begin_session(store)
    await store.append(KEY, old, draft_user_messages("first"))
    before = await read_all_rows(store)
    change = [*draft_user_messages("late"), EventDraft(SessionUpdated(metadata={"x": "y"}), None, "Triage")]
    with pytest.raises(SeqConflict) as refused:
        await store.append(KEY, old, change, blobs={"h": "text"}, idempotency=IdempotencyRecord(key="k", digest="d"))
    assert refused.value.expected == 1
    assert await read_all_rows(store) == before


async def test_a_session_is_not_made_twice(store: SqlStore) -> None:
    await begin_session(store)
    before = await read_all_rows(store)
    with pytest.raises(SeqConflict):
        await store.append(KEY, State(), draft_creation(metadata={"other": "x"}))
    assert await read_all_rows(store) == before


async def test_missing_session_takes_no_events(store: SqlStore) -> None:
    state = await begin_session(store)
    await store.delete(KEY)
    with pytest.raises(SeqConflict):
        await store.append(KEY, state, draft_user_messages("late"))


async def test_remade_session_is_a_different_one(store: SqlStore) -> None:
    old = await begin_session(store)
    await store.delete(KEY)
    new = await begin_session(store)
    assert (old.seq, old.agent) == (new.seq, new.agent)
    with pytest.raises(SeqConflict):
        await store.append(KEY, old, draft_user_messages("for the first one"))
    with pytest.raises(SeqConflict):
        await store.delete(KEY, expected=old)
    assert await store.state(KEY) == new


async def test_racing_appends_have_one_winner(opener: Opener) -> None:
    stores = [opener() for _ in range(2)]
    states = [State()]

    async def race(round: int, racer: int) -> AppendResult | None:
        drafts = (
            draft_creation({"winner": f"{round}-{racer}"})
            if round == 0
            else draft_user_messages(f"{round}-{racer}", "more")
        )
        drafts.append(EventDraft(SessionUpdated(metadata={f"round{round}": racer}), None, "Triage"))
        try:
            return await stores[racer % 2].append(
                KEY,
                states[-1],
                drafts,
                blobs={f"blob-{round}-{racer}": "text"},
                idempotency=IdempotencyRecord(key=f"mark-{round}-{racer}", digest="d"),
            )
        except SeqConflict:
            return None

    winners = []
    for round in range(6):
        outcomes = await asyncio.gather(*(race(round, racer) for racer in range(32)))
        won = [(racer, outcome) for racer, outcome in enumerate(outcomes) if outcome is not None]
        assert len(won) == 1, f"round {round}"
        winners.append(won[0][0])
        states.append(won[0][1].state)

    rows = await read_all_rows(stores[0])
    assert list_seqs(await stores[0].read(KEY)) == list(range(1, states[-1].seq + 1))
    assert await opener().state(KEY) == states[-1]
    assert [row[2] for row in rows["blobs"]] == [f"blob-{round}-{racer}" for round, racer in enumerate(winners)]
    assert [row[2] for row in rows["idempotency"]] == [f"mark-{round}-{racer}" for round, racer in enumerate(winners)]
    assert len(rows["session_labels"]) == len(states[-1].metadata) == 7
    assert [row[2] for row in rows["sessions"]] == [states[-1].seq]


async def test_empty_claiming_appends_have_one_winner(opener: Opener) -> None:
    stores = [opener() for _ in range(2)]
    state = await begin_session(stores[0])
    state = (await stores[0].append(KEY, state, draft_user_messages("x"))).state
    lost = replace(state, hash="00" * 32)
    with pytest.raises(SeqConflict):
        await stores[0].append(KEY, lost, [])
    with pytest.raises(SeqConflict):
        await stores[1].append(
            KEY, await stores[1].state(KEY, at=1), [], idempotency=IdempotencyRecord(key="k", digest="d")
        )
    assert (await stores[1].append(KEY, state, [])).events == []
    assert await stores[0].find_idempotency_record(KEY, "k") is None


async def test_nothing_cannot_begin_a_session(store: SqlStore) -> None:
    with pytest.raises(SessionNotFound):
        await store.append(KEY, State(), [], lease=Claim("a", 60), idempotency=IdempotencyRecord(key="k", digest="d"))
    await begin_session(store)
    with pytest.raises(SeqConflict):
        await store.append(KEY, State(), [])


async def test_different_sessions_do_not_conflict(store: SqlStore) -> None:
    keys = [new_key() for _ in range(40)]
    states = await asyncio.gather(*(begin_session(store, each) for each in keys))
    for _ in range(3):
        results = await asyncio.gather(
            *(
                store.append(each, state, draft_user_messages("x", "y"))
                for each, state in zip(keys, states, strict=True)
            )
        )
        states = [result.state for result in results]
    for each, state in zip(keys, states, strict=True):
        assert await store.state(each) == state
        assert state.seq == 7


async def test_conflict_spares_appends_in_same_commit(store: SqlStore) -> None:
    stale = await begin_session(store)
    await store.append(KEY, stale, draft_user_messages("newer"))
    keys = [new_key() for _ in range(20)]
    states = await asyncio.gather(*(begin_session(store, each) for each in keys))

    async def attempt(number: int) -> AppendResult | SeqConflict:
        try:
            if number % 3 == 1:
                return await store.append(
                    KEY, stale, draft_user_messages("late"), idempotency=IdempotencyRecord(key=f"m{number}", digest="d")
                )
            return await store.append(keys[number], states[number], draft_user_messages("fine"))
        except SeqConflict as conflict:
            return conflict

    outcomes = await asyncio.gather(*(attempt(number) for number in range(20)))
    assert [isinstance(outcome, SeqConflict) for outcome in outcomes] == [number % 3 == 1 for number in range(20)]
    assert list_seqs(await store.read(KEY)) == [1, 2]
    assert (await read_all_rows(store))["idempotency"] == []
    for number, each in enumerate(keys):
        assert len(await store.read(each)) == (1 if number % 3 == 1 else 2)


async def test_cancelled_caller_keeps_its_append(store: SqlStore, opener: Opener) -> None:
    state = await begin_session(store)
    append = asyncio.ensure_future(store.append(KEY, state, draft_user_messages("anyway")))
    await asyncio.sleep(0)
    append.cancel()
    await asyncio.gather(append, return_exceptions=True)
    await store.close()
    assert list_seqs(await opener().read(KEY)) == [1, 2]


async def test_unawaited_refusal_is_not_reported(store: SqlStore) -> None:
    def refuse(connection: Connection) -> None:
        raise SeqConflict("s1", 1)

    told: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
    write = asyncio.ensure_future(store.database.write(refuse))
    await asyncio.sleep(0)
    write.cancel()
    await asyncio.gather(write, return_exceptions=True)
    await store.close()
    del write
    gc.collect()
    assert told == []


async def test_blobs_are_stored_once_per_session(store: SqlStore) -> None:
    state = await begin_session(store)
    state = (
        await store.append(KEY, state, draft_user_messages("x"), blobs={"h1": "one", "h2": 'NUL \0 and \ud800 and "'})
    ).state
    await store.append(KEY, state, draft_user_messages("x"), blobs={"h1": "changed", "h3": '"quoted"'})
    found = await store.read_blobs(KEY, ["h1", "h2", "h3", "h4"])
    assert found == {"h1": "one", "h2": 'NUL \0 and \ud800 and "', "h3": '"quoted"'}
    await begin_session(store, OTHER)
    assert await store.read_blobs(OTHER, ["h1"]) == {}
    assert await store.read_blobs(KEY, []) == {}


@pytest.mark.parametrize(
    "fact",
    [
        ContextUpdated(patch={"a": {1, 2}, "b": object()}),
        ContextUpdated(patch={"a": {(1, 2): 3}}),
        UnknownFact(data={"a": 1}),
    ],
)
async def test_unserialisable_append_is_refused_before_storing(store: SqlStore, fact: Any) -> None:
    state = await begin_session(store)
    before = await read_all_rows(store)
    with pytest.raises(InvalidRequest):
        await store.append(KEY, state, [*draft_user_messages("x"), EventDraft(fact, None, "Triage")])
    assert await read_all_rows(store) == before


async def test_mutating_appended_values_leaves_state(store: SqlStore) -> None:
    context = {"items": [1]}
    appended = await store.append(KEY, State(), draft_creation(context=context))
    context["items"].append(2)
    assert appended.state.context_variables == {"items": [1]}
    assert (await store.state(KEY, fresh=False)).context_variables == {"items": [1]}


async def test_names_of_any_text_come_back(store: SqlStore) -> None:
    names = ["", '"', '"quoted"', "NUL \0", "\ud800", "Ünïcødé 😀", "'; DROP TABLE events; --", "e\u0301"]
    state = await begin_session(store)
    for name in names:
        state = (await store.append(KEY, state, [EventDraft(ContextUpdated(patch={"a": 1}), name, name)])).state
    events = (await store.read(KEY))[1:]
    assert [event.agent for event in events] == [event.run_id for event in events] == names


async def test_unindexable_key_is_refused(store: SqlStore) -> None:
    with pytest.raises(InvalidRequest):
        await store.append(new_key("x" * 3000), State(), draft_creation())
    with pytest.raises(InvalidRequest):
        await store.append(KEY, State(), draft_creation(), idempotency=IdempotencyRecord(key="é" * 600, digest="d"))
    assert (await read_all_rows(store))["events"] == []


async def test_appends_are_reported_with_exceptions(opener: Opener) -> None:
    reported: list[type[BaseException] | None] = []

    def report(seconds: float, error: BaseException | None) -> None:
        assert seconds > 0
        reported.append(None if error is None else type(error))

    store = opener(on_append=report)
    state = await begin_session(store)
    with pytest.raises(SeqConflict):
        await store.append(KEY, State(), draft_creation())
    with pytest.raises(InvalidRequest):
        await store.append(replace(KEY, id="x" * 2000), State(), draft_creation())
    await store.append(KEY, state, draft_user_messages("hi"))
    assert reported == [None, SeqConflict, InvalidRequest, None]
    # A fork is one, too.
    await store.fork(KEY, state, OTHER, draft_fork(state))
    with pytest.raises(SeqConflict):
        await store.fork(KEY, state, OTHER, draft_fork(state))
    assert reported[4:] == [None, SeqConflict]


# JSON values come back exactly as they were accepted, on both databases alike.


# `characters` without exclusions includes NUL and lone surrogates.
TEXT = st.text(st.characters(exclude_categories=()), max_size=20)
SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT
    | st.sampled_from([2**63, -(2**63) - 1, 2**64, 10**300, -0.0, 1e300, 5e-324, "\0", "\ud800", "e\u0301", "é"])
)  # fmt: skip
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4), max_leaves=20
)

OBJECTS = st.dictionaries(TEXT, VALUES, max_size=5)


def show_exactly(value: Any) -> str:
    """The value as text that tells 1 from 1.0 and true, 0.0 from -0.0, and keeps the order of keys."""
    return repr(value)


@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(context=OBJECTS, metadata=OBJECTS, content=VALUES)
async def test_any_value_comes_back(store: SqlStore, context: Any, metadata: Any, content: Any) -> None:
    session = new_key()
    message = {"role": "user", "content": content}
    drafts = [*draft_creation(metadata, context), EventDraft(MessageAdded(message=message), None, "Triage")]
    appended = await store.append(session, State(), drafts)
    created_event, message_event = await store.read(session)
    assert show_exactly(created_event.fact) == show_exactly(drafts[0].fact)
    assert show_exactly(message_event.fact) == show_exactly(drafts[1].fact)
    assert [created_event, message_event] == appended.events
    assert json.loads(message_event.payload) == {"message": message}
    view = (await store.list_sessions(SessionFilter("default"), limit=1, include_context=True)).sessions[0]
    assert show_exactly((view.id, view.context_variables, view.metadata)) == show_exactly(
        (session.id, context, metadata)
    )


def nest(depth: int) -> Any:
    value: Any = 1
    for level in range(depth):
        value = [value] if level % 2 else {"a": value}
    return value


async def test_nesting_round_trips_to_limit(store: SqlStore, opener: Opener) -> None:
    state = await begin_session(store)
    # The payload itself is two of the levels.
    value = {"deep": nest(MAX_PAYLOAD_DEPTH - 2)}
    await store.append(KEY, state, [EventDraft(ContextUpdated(patch=value), None, "Triage")])
    assert (await opener().state(KEY)).context_variables == value


@pytest.mark.parametrize("depth", [MAX_PAYLOAD_DEPTH - 1, 20_000])
async def test_nesting_beyond_the_limit_is_refused(store: SqlStore, depth: int) -> None:
    state = await begin_session(store)
    before = await read_all_rows(store)
    fact = ContextUpdated(patch={"deep": nest(depth)})
    with pytest.raises(
        InvalidRequest, match=rf"context\.updated: the value is nested more than {MAX_PAYLOAD_DEPTH} levels deep"
    ):
        await store.append(KEY, state, [EventDraft(fact, None, "Triage")])
    assert await read_all_rows(store) == before


async def test_much_is_not_deep(store: SqlStore) -> None:
    value = {"rows": [[{"a": []}]] * (10 * MAX_PAYLOAD_DEPTH), "text": "[{" * 10 * MAX_PAYLOAD_DEPTH}
    assert (await begin_session(store, context=value)).context_variables == value


async def test_five_megabyte_text_round_trips(store: SqlStore, opener: Opener) -> None:
    text = "é\0\n" + "0123456789" * 500_000
    state = await begin_session(store, context={"text": text})
    assert (await opener().state(KEY)).context_variables["text"] == text
    assert state.size > 5_000_000


async def test_numbers_keep_their_type_and_sign(store: SqlStore, opener: Opener) -> None:
    await begin_session(store, context={"numbers": [1, 1.0, -0.0, 0, True, 1e300, 10**400, 0.1 + 0.2]})
    numbers = (await opener().state(KEY)).context_variables["numbers"]
    assert show_exactly(numbers) == show_exactly([1, 1.0, -0.0, 0, True, 1e300, 10**400, 0.1 + 0.2])
    assert math.copysign(1, numbers[2]) == -1
