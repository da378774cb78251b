"""Appending: the one place where races are decided."""

from __future__ import annotations

import asyncio
import re
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from msgspec.structs import replace

from swarmkeep.domain.envelope import Draft
from swarmkeep.domain.errors import InvalidRequest, SeqConflict, SessionNotFound
from swarmkeep.domain.events import ContextUpdated, SessionUpdated, UnknownFact
from swarmkeep.domain.fold import fold
from swarmkeep.domain.state import State
from swarmkeep.store.port import Appended, Claim, Mark
from swarmkeep.store.sql import SqlStore
from tests.store.conftest import Opener
from tests.store.sessions import KEY, OTHER, begun, created, everything, key, said, seqs


async def test_seqs_are_contiguous_from_one(store: SqlStore) -> None:
    state = await begun(store)
    for count in (1, 3, 2):
        state = (await store.append(KEY, state, said(*("x" * count)))).state
    assert seqs(await store.read(KEY)) == [1, 2, 3, 4, 5, 6, 7]
    assert state.seq == 7


async def test_what_append_returns_is_what_is_read(store: SqlStore, opener: Opener) -> None:
    state = await begun(store, metadata={"a": [1, None]}, context={"b": {"c": -0.0}})
    appended = await store.append(KEY, state, said("hello", "more"))
    assert (await store.read(KEY))[1:] == appended.events
    assert await opener().state(KEY) == appended.state == fold(await store.read(KEY))


async def test_times_are_utc_by_the_given_clock(opener: Opener) -> None:
    time = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone(timedelta(hours=2)))
    appended = await opener(clock=lambda: time).append(KEY, State(), created())
    assert appended.events[0].at == appended.state.created_at == "2026-01-02T01:04:05.000000Z"


async def test_times_are_utc_by_default(store: SqlStore) -> None:
    state = await begun(store)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", state.created_at)
    age = datetime.now(UTC) - datetime.fromisoformat(state.created_at)
    assert abs(age) < timedelta(minutes=1)


async def test_a_stale_seq_is_refused_and_nothing_is_stored(store: SqlStore) -> None:
    old = await begun(store)
    await store.append(KEY, old, said("first"))
    before = await everything(store)
    change = [*said("late"), Draft(SessionUpdated(metadata={"x": "y"}), None, "Triage")]
    with pytest.raises(SeqConflict) as refused:
        await store.append(KEY, old, change, blobs={"h": "text"}, mark=Mark(key="k", digest="d"))
    assert refused.value.expected == 1
    assert await everything(store) == before


async def test_a_session_is_not_made_twice(store: SqlStore) -> None:
    await begun(store)
    before = await everything(store)
    with pytest.raises(SeqConflict):
        await store.append(KEY, State(), created(metadata={"other": "x"}))
    assert await everything(store) == before


async def test_a_session_that_is_gone_takes_no_events(store: SqlStore) -> None:
    state = await begun(store)
    await store.delete(KEY)
    with pytest.raises(SeqConflict):
        await store.append(KEY, state, said("late"))


async def test_a_session_made_again_is_not_the_one_before(store: SqlStore) -> None:
    old = await begun(store)
    await store.delete(KEY)
    new = await begun(store)
    assert (old.seq, old.agent) == (new.seq, new.agent)
    with pytest.raises(SeqConflict):
        await store.append(KEY, old, said("for the first one"))
    with pytest.raises(SeqConflict):
        await store.delete(KEY, expected=old)
    assert await store.state(KEY) == new


async def test_of_many_racers_one_wins_and_the_losers_leave_nothing(opener: Opener) -> None:
    stores = [opener() for _ in range(2)]
    states = [State()]

    async def race(round: int, racer: int) -> Appended | None:
        drafts = created({"winner": f"{round}-{racer}"}) if round == 0 else said(f"{round}-{racer}", "more")
        drafts.append(Draft(SessionUpdated(metadata={f"round{round}": racer}), None, "Triage"))
        try:
            return await stores[racer % 2].append(
                KEY,
                states[-1],
                drafts,
                blobs={f"blob-{round}-{racer}": "text"},
                mark=Mark(key=f"mark-{round}-{racer}", digest="d"),
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

    rows = await everything(stores[0])
    assert seqs(await stores[0].read(KEY)) == list(range(1, states[-1].seq + 1))
    assert await opener().state(KEY) == states[-1]
    assert [row[2] for row in rows["blobs"]] == [f"blob-{round}-{racer}" for round, racer in enumerate(winners)]
    assert [row[2] for row in rows["idempotency"]] == [f"mark-{round}-{racer}" for round, racer in enumerate(winners)]
    assert len(rows["session_labels"]) == len(states[-1].metadata) == 7
    assert [row[2] for row in rows["sessions"]] == [states[-1].seq]


async def test_of_many_empty_appends_with_a_claim_one_wins(opener: Opener) -> None:
    stores = [opener() for _ in range(2)]
    state = await begun(stores[0])
    state = (await stores[0].append(KEY, state, said("x"))).state
    lost = replace(state, hash="00" * 32)
    with pytest.raises(SeqConflict):
        await stores[0].append(KEY, lost, [])
    with pytest.raises(SeqConflict):
        await stores[1].append(KEY, await stores[1].state(KEY, at=1), [], mark=Mark(key="k", digest="d"))
    assert (await stores[1].append(KEY, state, [])).events == []
    assert await stores[0].mark(KEY, "k") is None


async def test_nothing_cannot_begin_a_session(store: SqlStore) -> None:
    with pytest.raises(SessionNotFound):
        await store.append(KEY, State(), [], lease=Claim("a", 60), mark=Mark(key="k", digest="d"))
    await begun(store)
    with pytest.raises(SeqConflict):
        await store.append(KEY, State(), [])


async def test_appends_to_different_sessions_do_not_conflict(store: SqlStore) -> None:
    keys = [key() for _ in range(40)]
    states = await asyncio.gather(*(begun(store, each) for each in keys))
    for _ in range(3):
        results = await asyncio.gather(
            *(store.append(each, state, said("x", "y")) for each, state in zip(keys, states, strict=True))
        )
        states = [result.state for result in results]
    for each, state in zip(keys, states, strict=True):
        assert await store.state(each) == state
        assert state.seq == 7


async def test_a_conflict_does_not_hurt_the_appends_that_share_its_commit(store: SqlStore) -> None:
    stale = await begun(store)
    await store.append(KEY, stale, said("newer"))
    keys = [key() for _ in range(20)]
    states = await asyncio.gather(*(begun(store, each) for each in keys))

    async def attempt(number: int) -> Appended | SeqConflict:
        try:
            if number % 3 == 1:
                return await store.append(KEY, stale, said("late"), mark=Mark(key=f"m{number}", digest="d"))
            return await store.append(keys[number], states[number], said("fine"))
        except SeqConflict as conflict:
            return conflict

    outcomes = await asyncio.gather(*(attempt(number) for number in range(20)))
    assert [isinstance(outcome, SeqConflict) for outcome in outcomes] == [number % 3 == 1 for number in range(20)]
    assert seqs(await store.read(KEY)) == [1, 2]
    assert (await everything(store))["idempotency"] == []
    for number, each in enumerate(keys):
        assert len(await store.read(each)) == (1 if number % 3 == 1 else 2)


async def test_a_cancelled_caller_does_not_undo_its_append(store: SqlStore, opener: Opener) -> None:
    state = await begun(store)
    append = asyncio.ensure_future(store.append(KEY, state, said("anyway")))
    await asyncio.sleep(0)
    append.cancel()
    await asyncio.gather(append, return_exceptions=True)
    await store.close()
    assert seqs(await opener().read(KEY)) == [1, 2]


async def test_blobs_are_kept_once_and_per_session(store: SqlStore) -> None:
    state = await begun(store)
    state = (await store.append(KEY, state, said("x"), blobs={"h1": "one", "h2": 'NUL \0 and \ud800 and "'})).state
    await store.append(KEY, state, said("x"), blobs={"h1": "changed", "h3": '"quoted"'})
    found = await store.blobs(KEY, ["h1", "h2", "h3", "h4"])
    assert found == {"h1": "one", "h2": 'NUL \0 and \ud800 and "', "h3": '"quoted"'}
    await begun(store, OTHER)
    assert await store.blobs(OTHER, ["h1"]) == {}
    assert await store.blobs(KEY, []) == {}


@pytest.mark.parametrize(
    "fact",
    [
        ContextUpdated(patch={"a": {1, 2}, "b": object()}),
        ContextUpdated(patch={"a": {(1, 2): 3}}),
        UnknownFact(data={"a": 1}),
    ],
)
async def test_what_json_cannot_hold_is_refused_before_anything_is_stored(store: SqlStore, fact: Any) -> None:
    state = await begun(store)
    before = await everything(store)
    with pytest.raises(InvalidRequest):
        await store.append(KEY, state, [*said("x"), Draft(fact, None, "Triage")])
    assert await everything(store) == before


async def test_a_change_of_what_was_appended_does_not_reach_the_state(store: SqlStore) -> None:
    context = {"items": [1]}
    appended = await store.append(KEY, State(), created(context=context))
    context["items"].append(2)
    assert appended.state.context_variables == {"items": [1]}
    assert (await store.state(KEY, fresh=False)).context_variables == {"items": [1]}


async def test_names_of_any_text_come_back(store: SqlStore) -> None:
    names = ["", '"', '"quoted"', "NUL \0", "\ud800", "Ünïcødé 😀", "'; DROP TABLE events; --", "e\u0301"]
    state = await begun(store)
    for name in names:
        state = (await store.append(KEY, state, [Draft(ContextUpdated(patch={"a": 1}), name, name)])).state
    events = (await store.read(KEY))[1:]
    assert [event.agent for event in events] == [event.run_id for event in events] == names


async def test_a_key_that_no_index_holds_is_refused(store: SqlStore) -> None:
    with pytest.raises(InvalidRequest):
        await store.append(key("x" * 3000), State(), created())
    with pytest.raises(InvalidRequest):
        await store.append(KEY, State(), created(), mark=Mark(key="é" * 600, digest="d"))
    assert (await everything(store))["events"] == []
