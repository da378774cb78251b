"""Leases: who may advance a session. No test here waits for one to expire: they are made expired, or not at all."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import asyncpg
import pytest
from sqlalchemy import select

from swarmkeep.domain.drafts import apply_drafts
from swarmkeep.domain.envelope import Draft
from swarmkeep.domain.errors import LeaseLost, SeqConflict
from swarmkeep.domain.events import ContextUpdated, RunOptions, RunQueued
from swarmkeep.domain.state import State
from swarmkeep.store.port import Appended, Claim, Head, Lease, SessionKey
from swarmkeep.store.sql import SqlStore, open_store
from swarmkeep.store.tables import sessions
from tests.store.conftest import Opener
from tests.store.sessions import KEY, OTHER, begun, created, everything, key, run_completed, run_started, running, said


async def held(store: SqlStore) -> tuple[str | None, int, bool]:
    """Owner and epoch of the session's lease as they are stored, and whether it has an expiry."""
    columns = sessions.c
    query = select(columns.lease_owner, columns.lease_epoch, columns.lease_expires_at).where(columns.id == KEY.id)
    owner, epoch, expires_at = await store.database.read(lambda connection: connection.execute(query).one())
    return owner, epoch, expires_at is not None


async def test_a_claim_is_granted_with_the_next_epoch(store: SqlStore) -> None:
    state = await begun(store)
    appended = await store.append(KEY, state, run_started(state), lease=Claim("a", 60))
    assert appended.lease is not None
    assert appended.lease.owner == "a"
    assert await held(store) == ("a", appended.lease.epoch, True)


async def test_a_session_can_begin_with_a_claim(store: SqlStore) -> None:
    first = State()
    drafts = created()
    appended = await store.append(KEY, first, [*drafts, *run_started(first)], lease=Claim("a", 60))
    assert appended.lease is not None
    again = await store.append(KEY, appended.state, said("x"), lease=appended.lease)
    assert again.lease == appended.lease


async def test_a_lease_does_not_begin_a_session(store: SqlStore) -> None:
    with pytest.raises(LeaseLost):
        await store.append(KEY, State(), created(), lease=Lease("a", 0))
    assert (await everything(store))["sessions"] == []


async def test_nobody_else_is_granted_what_is_held(store: SqlStore) -> None:
    state, lease = await running(store, owner="a")
    before = await everything(store)
    with pytest.raises(LeaseLost):
        await store.append(KEY, state, said("mine"), lease=Claim("b", 60))
    assert await everything(store) == before
    assert (await store.append(KEY, state, said("mine"), lease=lease)).lease == lease


async def test_an_expired_lease_is_taken_over_and_the_zombie_cannot_append(store: SqlStore) -> None:
    state = await begun(store)
    first = await store.append(KEY, state, run_started(state), lease=Claim("a", 0))
    assert first.lease is not None
    second = await store.append(KEY, first.state, [], lease=Claim("b", 60))
    assert second.lease == Lease("b", first.lease.epoch + 1)
    with pytest.raises(LeaseLost):
        await store.append(KEY, first.state, said("from the grave"), lease=first.lease)
    third = await store.append(KEY, second.state, said("alive"), lease=second.lease)
    with pytest.raises(SeqConflict):
        await store.append(KEY, first.state, said("from the grave"), lease=first.lease)
    assert await store.state(KEY) == third.state


async def test_a_lease_that_ran_out_goes_on_while_nobody_took_it(store: SqlStore) -> None:
    state = await begun(store)
    appended = await store.append(KEY, state, run_started(state), lease=Claim("a", 0))
    assert await store.abandoned() == [KEY]
    again = await store.append(KEY, appended.state, said("still here"), lease=appended.lease, lease_seconds=60)
    assert again.lease == appended.lease
    assert await store.abandoned() == []


async def test_an_owner_that_claims_again_ends_what_it_had_going(store: SqlStore) -> None:
    state, lease = await running(store, owner="a")
    again = await store.append(KEY, state, [], lease=Claim("a", 60))
    assert again.lease == Lease("a", lease.epoch + 1)
    with pytest.raises(LeaseLost):
        await store.append(KEY, state, said("x"), lease=lease)


async def test_the_lease_ends_with_the_run(store: SqlStore) -> None:
    state, lease = await running(store)
    appended = await store.append(KEY, state, run_completed(state), lease=lease)
    assert appended.lease is None
    assert await held(store) == (None, lease.epoch + 1, False)
    with pytest.raises(LeaseLost):
        await store.append(KEY, appended.state, said("x"), lease=lease)


async def test_whoever_ends_the_run_ends_the_lease(store: SqlStore) -> None:
    state, lease = await running(store)
    appended = await store.append(KEY, state, run_completed(state))
    assert appended.lease is None
    with pytest.raises(LeaseLost):
        await store.append(KEY, appended.state, run_started(appended.state, "r2"), lease=lease)


async def test_an_append_without_a_lease_leaves_it(store: SqlStore) -> None:
    state, lease = await running(store)
    patched = await store.append(KEY, state, [Draft(ContextUpdated(patch={"a": 1}), None, "Triage")])
    assert patched.lease is None
    assert (await store.append(KEY, patched.state, said("x"), lease=lease)).lease == lease


async def test_of_many_claims_of_an_abandoned_session_one_is_granted(opener: Opener) -> None:
    stores = [opener() for _ in range(2)]
    state = await begun(stores[0])
    state = (await stores[0].append(KEY, state, run_started(state), lease=Claim("dead", 0))).state

    async def claim(number: int) -> Appended | LeaseLost:
        try:
            return await stores[number % 2].append(KEY, state, [], lease=Claim(f"owner{number}", 60))
        except LeaseLost as lost:
            return lost

    outcomes = await asyncio.gather(*(claim(number) for number in range(32)))
    assert sum(isinstance(outcome, Appended) for outcome in outcomes) == 1


async def test_only_running_sessions_that_nobody_holds_are_abandoned(store: SqlStore) -> None:
    await running(store, KEY)
    await begun(store, OTHER)
    expired, unclaimed, ended = key(), key(tenant="other"), key()
    state = await begun(store, expired)
    await store.append(expired, state, run_started(state), lease=Claim("dead", 0))
    state = await begun(store, unclaimed)
    await store.append(unclaimed, state, run_started(state))
    state, _ = await running(store, ended)
    await store.append(ended, state, run_completed(state))
    assert set(await store.abandoned()) == {expired, unclaimed}
    assert len(await store.abandoned(limit=1)) == 1


async def given_up(store: SqlStore, session: SessionKey) -> Lease:
    """A running session whose lease has expired."""
    state = await begun(store, session)
    appended = await store.append(session, state, run_started(state), lease=Claim("a", 0))
    assert appended.lease is not None
    return appended.lease


async def test_renewal_extends_the_leases_it_names_and_says_which_are_not_held_any_more(store: SqlStore) -> None:
    mine, unnamed, taken, ended, gone = key(), key(), key(), key(), key()
    leases = {session: await given_up(store, session) for session in (mine, unnamed, taken, ended, gone)}
    await store.append(taken, await store.state(taken), [], lease=Claim("b", 0))
    state = await store.state(ended)
    await store.append(ended, state, run_completed(state))
    await store.delete(gone)
    del leases[unnamed]
    assert await store.renew(leases, lease_seconds=60) == {taken, ended, gone}
    assert set(await store.abandoned()) == {unnamed, taken}
    assert await store.renew({}, lease_seconds=60) == set()


async def test_a_renewal_of_many_is_one_of_each(store: SqlStore) -> None:
    lease = await given_up(store, KEY)
    others = {key(): Lease("a", 1) for _ in range(1000)}
    assert await store.renew({**others, KEY: lease}, lease_seconds=60) == set(others)
    assert await store.abandoned() == []


async def test_a_row_that_somebody_keeps_locked_holds_up_no_renewal(postgres_ready: str) -> None:
    store = open_store(postgres_ready)
    other = await asyncpg.connect(postgres_ready)
    try:
        free, locked = key(), key()
        leases = {session: await given_up(store, session) for session in (free, locked)}
        async with other.transaction():
            await other.execute("SELECT 1 FROM sessions WHERE id = $1 FOR UPDATE", locked.id)
            async with asyncio.timeout(20):
                assert await store.renew(leases, lease_seconds=60) == set()
            assert await store.abandoned() == [locked]
    finally:
        await other.close()
        await store.close()


async def test_heads_say_where_sessions_end_and_who_holds_them(store: SqlStore) -> None:
    state, lease = await running(store, KEY)
    idle = await begun(store, OTHER)
    heads = await store.heads([KEY, OTHER, key()])
    assert heads == {KEY: Head(state.seq, state.hash, lease), OTHER: Head(idle.seq, idle.hash)}
    assert await store.head(KEY) == heads[KEY]
    assert await store.head(key()) is None


async def test_a_claim_for_another_run_takes_the_lease_from_the_one_before(store: SqlStore) -> None:
    state, lease = await running(store, owner="a")
    ends = run_completed(state)
    drafts = [*ends, *run_started(apply_drafts(state, ends), "r2")]
    appended = await store.append(KEY, state, drafts, lease=Claim("b", 60))
    assert appended.lease == Lease("b", lease.epoch + 1)
    with pytest.raises(LeaseLost):
        await store.append(KEY, appended.state, said("x"), lease=lease)


async def test_a_session_with_a_queue_and_no_run_is_abandoned_at_once(store: SqlStore) -> None:
    state, _ = await running(store)
    queued = Draft(RunQueued(options=RunOptions(), messages=()), "r2", "Triage")
    appended = await store.append(KEY, state, [queued, *run_completed(state)])
    assert appended.lease is None
    assert await held(store) == (None, 2, False)
    assert await store.abandoned() == [KEY]


async def test_a_lease_expires_by_the_database_s_clock_alone(opener: Opener) -> None:
    ahead = opener(clock=lambda: datetime.now(UTC) + timedelta(hours=1))
    behind = opener(clock=lambda: datetime.now(UTC) - timedelta(hours=1))
    state, lease = await running(behind, owner="behind")
    with pytest.raises(LeaseLost):
        await ahead.append(KEY, state, [], lease=Claim("ahead", 60))
    assert await ahead.abandoned() == []
    assert (await behind.append(KEY, state, said("x"), lease=lease)).lease == lease


async def test_a_session_made_again_honours_no_lease_of_the_one_before(store: SqlStore) -> None:
    state, lease = await running(store)
    await store.delete(KEY)
    again, _ = await running(store)
    assert again.seq == state.seq
    with pytest.raises(SeqConflict):
        await store.append(KEY, state, said("x"), lease=lease)
