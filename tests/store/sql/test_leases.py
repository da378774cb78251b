"""Leases: who may advance a session. No test here waits for one to expire: they are made expired, or not at all."""

from __future__ import annotations

import asyncio
import re
from datetime import UTC, datetime, timedelta

import asyncpg
import pytest
from sqlalchemy import select, update

from swarmkeep.decide.drafts import apply_drafts
from swarmkeep.events.errors import LeaseLost, SeqConflict
from swarmkeep.events.facts import ContextUpdated, EventDraft, RunQueued
from swarmkeep.events.records import RunOptions
from swarmkeep.events.state import State
from swarmkeep.store.opening import SqlStore, open_store
from swarmkeep.store.records import AppendResult, Claim, Lease, SessionHead, SessionKey
from swarmkeep.store.tables import sessions
from tests.store.conftest import Opener
from tests.store.plans.explaining import recorded_statements
from tests.store.sessions import (
    KEY,
    OTHER,
    begin_run,
    begin_session,
    draft_creation,
    draft_run_completion,
    draft_run_start,
    draft_user_messages,
    new_key,
    read_all_rows,
)


async def read_stored_lease(store: SqlStore) -> tuple[str | None, int, bool]:
    """Owner and epoch of the session's lease as they are stored, and whether it has an expiry."""
    columns = sessions.c
    query = select(columns.lease_owner, columns.lease_epoch, columns.lease_expires_at).where(columns.id == KEY.id)
    owner, epoch, expires_at = await store.database.read(lambda connection: connection.execute(query).one())
    return owner, epoch, expires_at is not None


async def test_granted_claim_has_next_epoch(store: SqlStore) -> None:
    state = await begin_session(store)
    appended = await store.append(KEY, state, draft_run_start(state), lease=Claim("a", 60))
    assert appended.lease.owner == "a"
    assert await read_stored_lease(store) == ("a", appended.lease.epoch, True)


async def test_session_can_begin_with_claim(store: SqlStore) -> None:
    first = State()
    drafts = draft_creation()
    appended = await store.append(KEY, first, [*drafts, *draft_run_start(first)], lease=Claim("a", 60))
    assert appended.lease is not None
    again = await store.append(KEY, appended.state, draft_user_messages("x"), lease=appended.lease)
    assert again.lease == appended.lease


async def test_lease_does_not_begin_session(store: SqlStore) -> None:
    with pytest.raises(LeaseLost):
        await store.append(KEY, State(), draft_creation(), lease=Lease("a", 0))
    assert (await read_all_rows(store))["sessions"] == []


async def test_held_lease_is_not_granted_to_others(store: SqlStore) -> None:
    state, lease = await begin_run(store, owner="a")
    before = await read_all_rows(store)
    with pytest.raises(LeaseLost):
        await store.append(KEY, state, draft_user_messages("mine"), lease=Claim("b", 60))
    assert await read_all_rows(store) == before
    assert (await store.append(KEY, state, draft_user_messages("mine"), lease=lease)).lease == lease


async def test_expired_lease_is_taken_from_zombie(store: SqlStore) -> None:
    state = await begin_session(store)
    first = await store.append(KEY, state, draft_run_start(state), lease=Claim("a", 0))
    assert first.lease is not None
    second = await store.append(KEY, first.state, [], lease=Claim("b", 60))
    assert second.lease == Lease("b", first.lease.epoch + 1)
    with pytest.raises(LeaseLost):
        await store.append(KEY, first.state, draft_user_messages("from the grave"), lease=first.lease)
    third = await store.append(KEY, second.state, draft_user_messages("alive"), lease=second.lease)
    with pytest.raises(SeqConflict):
        await store.append(KEY, first.state, draft_user_messages("from the grave"), lease=first.lease)
    assert await store.state(KEY) == third.state


async def test_untaken_expired_lease_continues(store: SqlStore) -> None:
    state = await begin_session(store)
    appended = await store.append(KEY, state, draft_run_start(state), lease=Claim("a", 0))
    assert await store.find_abandoned() == [KEY]
    again = await store.append(
        KEY, appended.state, draft_user_messages("still here"), lease=appended.lease, lease_seconds=60
    )
    assert again.lease == appended.lease
    assert await store.find_abandoned() == []


async def test_reclaiming_owner_ends_its_earlier_work(store: SqlStore) -> None:
    state, lease = await begin_run(store, owner="a")
    again = await store.append(KEY, state, [], lease=Claim("a", 60))
    assert again.lease == Lease("a", lease.epoch + 1)
    with pytest.raises(LeaseLost):
        await store.append(KEY, state, draft_user_messages("x"), lease=lease)


async def test_holder_requests_go_with_lease(store: SqlStore) -> None:
    async def read_partial() -> str | None:
        return (await store.read_heads([KEY]))[KEY].partial

    state, lease = await begin_run(store, owner="a")
    assert not await store.ask_for_partial(KEY, "a")
    assert await store.ask_for_partial(KEY, "b")
    await store.answer_partial(KEY, lease, "so far")
    state = (await store.append(KEY, state, draft_user_messages("x"), lease=lease)).state
    assert await read_partial() == "so far"
    claimed = await store.append(KEY, state, draft_user_messages("y"), lease=Claim("a", 60))
    assert await read_partial() is None
    assert claimed.lease is not None
    assert await store.ask_for_partial(KEY, "b")
    for other in (lease, Lease("b", claimed.lease.epoch)):
        await store.answer_partial(KEY, other, "not its own")
        assert await read_partial() == ""
    await store.answer_partial(KEY, claimed.lease, "so far")
    await store.answer_partial(KEY, claimed.lease, "asked for by nobody")
    assert await read_partial() == "so far"
    await store.append(KEY, claimed.state, draft_run_completion(claimed.state), lease=claimed.lease)
    assert await read_partial() is None
    await begin_expired_run(store, OTHER)
    assert not await store.ask_for_partial(OTHER, "b")


async def test_ending_the_run_ends_the_lease(store: SqlStore) -> None:
    state, lease = await begin_run(store)
    appended = await store.append(KEY, state, draft_run_completion(state))
    assert appended.lease is None
    with pytest.raises(LeaseLost):
        await store.append(KEY, appended.state, draft_run_start(appended.state, "r2"), lease=lease)


async def test_append_without_lease_leaves_it(store: SqlStore) -> None:
    state, lease = await begin_run(store)
    patched = await store.append(KEY, state, [EventDraft(ContextUpdated(patch={"a": 1}), None, "Triage")])
    assert patched.lease is None
    assert (await store.append(KEY, patched.state, draft_user_messages("x"), lease=lease)).lease == lease


async def test_abandoned_session_claims_have_one_winner(opener: Opener) -> None:
    stores = [opener() for _ in range(2)]
    state = await begin_session(stores[0])
    state = (await stores[0].append(KEY, state, draft_run_start(state), lease=Claim("dead", 0))).state

    async def claim(number: int) -> AppendResult | LeaseLost:
        try:
            return await stores[number % 2].append(KEY, state, [], lease=Claim(f"owner{number}", 60))
        except LeaseLost as lost:
            return lost

    outcomes = await asyncio.gather(*(claim(number) for number in range(32)))
    assert sum(isinstance(outcome, AppendResult) for outcome in outcomes) == 1


async def test_only_unheld_running_sessions_are_abandoned(store: SqlStore) -> None:
    await begin_run(store, KEY)
    await begin_session(store, OTHER)
    expired, unclaimed, ended = new_key(), new_key(tenant="other"), new_key()
    state = await begin_session(store, expired)
    await store.append(expired, state, draft_run_start(state), lease=Claim("dead", 0))
    state = await begin_session(store, unclaimed)
    await store.append(unclaimed, state, draft_run_start(state))
    state, _ = await begin_run(store, ended)
    await store.append(ended, state, draft_run_completion(state))
    assert set(await store.find_abandoned()) == {expired, unclaimed}
    assert len(await store.find_abandoned(limit=1)) == 1


async def begin_expired_run(store: SqlStore, session: SessionKey) -> Lease:
    """A running session whose lease has expired."""
    state = await begin_session(store, session)
    appended = await store.append(session, state, draft_run_start(state), lease=Claim("a", 0))
    assert appended.lease is not None
    return appended.lease


async def test_renewal_extends_held_and_names_lost(store: SqlStore) -> None:
    mine, unnamed, taken, ended, gone = new_key(), new_key(), new_key(), new_key(), new_key()
    leases = {session: await begin_expired_run(store, session) for session in (mine, unnamed, taken, ended, gone)}
    await store.append(taken, await store.state(taken), [], lease=Claim("b", 0))
    state = await store.state(ended)
    await store.append(ended, state, draft_run_completion(state))
    await store.delete(gone)
    del leases[unnamed]
    assert await store.renew(leases, lease_seconds=60) == {taken, ended, gone}
    assert set(await store.find_abandoned()) == {unnamed, taken}
    assert await store.renew({}, lease_seconds=60) == set()


async def test_only_the_lease_itself_is_renewed(store: SqlStore) -> None:
    async def read_expiry() -> float:
        query = select(sessions.c.lease_expires_at).where(sessions.c.id == KEY.id)
        return await store.database.read(lambda connection: connection.execute(query).scalar_one())

    _, lease = await begin_run(store, owner="a")
    expires_at = await read_expiry()
    for other in (Lease("b", lease.epoch), Lease("a", lease.epoch + 1), Lease("a", lease.epoch - 1)):
        assert await store.renew({KEY: other}, lease_seconds=600) == {KEY}
        assert await read_expiry() == expires_at
    assert await store.renew({KEY: lease}, lease_seconds=600) == set()
    assert await read_expiry() > expires_at + 400


async def test_mass_renewal_equals_single_renewals(store: SqlStore) -> None:
    lease = await begin_expired_run(store, KEY)
    others = {new_key(): Lease("a", 1) for _ in range(1000)}
    assert await store.renew({**others, KEY: lease}, lease_seconds=60) == set(others)
    assert await store.find_abandoned() == []


async def test_mass_renewal_is_one_statement(store: SqlStore) -> None:
    """And the same one, so that a database prepares it once."""
    texts: set[tuple[str, ...]] = set()
    for most in (1, 7, 800):
        leases = {SessionKey("default", f"s{number}"): Lease("a", 1) for number in range(most)}
        with recorded_statements() as statements:
            assert await store.read_heads(leases) == {}
            assert await store.renew(leases, lease_seconds=60) == set(leases)
        # SQLite's driver tells of them with their values.
        texts.add(tuple(re.sub(r"'\[\[.*\]\]'", "?", one.sql) for one in statements if "sessions" in one.sql))
    [[looked, _renewed, again]] = texts
    assert looked == again


async def test_locked_row_delays_no_renewal(postgres_ready: str) -> None:
    store = open_store(postgres_ready)
    other = await asyncpg.connect(postgres_ready)
    try:
        free, locked = new_key(), new_key()
        leases = {session: await begin_expired_run(store, session) for session in (free, locked)}
        async with other.transaction():
            await other.execute("SELECT 1 FROM sessions WHERE id = $1 FOR UPDATE", locked.id)
            async with asyncio.timeout(20):
                assert await store.renew(leases, lease_seconds=60) == set()
            assert await store.find_abandoned() == [locked]
    finally:
        await other.close()
        await store.close()


async def test_heads_name_session_end_and_holder(store: SqlStore) -> None:
    state, lease = await begin_run(store, KEY)
    idle = await begin_session(store, OTHER)
    heads = await store.read_heads([KEY, OTHER, new_key()])
    assert heads == {KEY: SessionHead(state.seq, state.hash, lease), OTHER: SessionHead(idle.seq, idle.hash)}
    assert await store.read_head(KEY) == heads[KEY]
    assert await store.read_head(new_key()) is None


async def test_claim_for_another_run_takes_lease(store: SqlStore) -> None:
    state, lease = await begin_run(store, owner="a")
    ends = draft_run_completion(state)
    drafts = [*ends, *draft_run_start(apply_drafts(state, ends), "r2")]
    appended = await store.append(KEY, state, drafts, lease=Claim("b", 60))
    assert appended.lease == Lease("b", lease.epoch + 1)
    with pytest.raises(LeaseLost):
        await store.append(KEY, appended.state, draft_user_messages("x"), lease=lease)


async def test_queued_session_without_run_is_abandoned(store: SqlStore) -> None:
    state, _ = await begin_run(store)
    queued = EventDraft(RunQueued(options=RunOptions(), messages=()), "r2", "Triage")
    appended = await store.append(KEY, state, [queued, *draft_run_completion(state)])
    assert appended.lease is None
    assert await read_stored_lease(store) == (None, 2, False)
    assert await store.find_abandoned() == []
    assert await store.find_due() == [KEY]


async def test_owner_restores_lease_after_clock_setback(store: SqlStore) -> None:
    state, lease = await begin_run(store, owner="a")
    # As an hour that is gone leaves it.
    later = update(sessions).values(lease_expires_at=sessions.c.lease_expires_at + 3600)
    await store.database.write(lambda connection: connection.execute(later))
    with pytest.raises(LeaseLost):
        await store.append(KEY, state, [], lease=Claim("b", 60))
    assert await store.renew({KEY: lease}, lease_seconds=0) == set()
    assert await store.find_abandoned() == [KEY]
    assert (await store.append(KEY, state, [], lease=Claim("b", 60))).lease == Lease("b", lease.epoch + 1)
    with pytest.raises(LeaseLost):
        await store.append(KEY, state, draft_user_messages("x"), lease=lease)


async def test_each_tenant_has_its_turn(store: SqlStore) -> None:
    many = [SessionKey("a", f"s{number}") for number in range(5)]
    few = [SessionKey("b", "s"), SessionKey("c", "s"), SessionKey("c", "t")]
    for key in [*many, *few]:
        state = await begin_session(store, key)
        await store.append(key, state, draft_run_start(state))
    found = await store.find_abandoned(limit=5)
    assert [key.tenant for key in found[:3]] == ["a", "b", "c"]
    assert sorted(key.tenant for key in found[3:]) == ["a", "c"]
    queued = [EventDraft(RunQueued(options=RunOptions(), messages=()), "r9", "Triage")]
    for key in [*many, *few]:
        state = await store.state(key)
        await store.append(key, state, [*queued, *draft_run_completion(state)])
    assert [key.tenant for key in await store.find_due(limit=3)] == ["a", "b", "c"]
    assert await store.find_abandoned() == []


async def test_database_clock_is_readable(opener: Opener) -> None:
    ahead = opener(clock=lambda: datetime.now(UTC) + timedelta(hours=1))
    first, second = await ahead.read_clock(), await ahead.read_clock()
    assert first.tzinfo is UTC
    assert abs(first - datetime.now(UTC)) < timedelta(minutes=10)
    assert first <= second


async def test_lease_expires_by_database_clock(opener: Opener) -> None:
    ahead = opener(clock=lambda: datetime.now(UTC) + timedelta(hours=1))
    behind = opener(clock=lambda: datetime.now(UTC) - timedelta(hours=1))
    state, lease = await begin_run(behind, owner="behind")
    with pytest.raises(LeaseLost):
        await ahead.append(KEY, state, [], lease=Claim("ahead", 60))
    assert await ahead.find_abandoned() == []
    assert (await behind.append(KEY, state, draft_user_messages("x"), lease=lease)).lease == lease


async def test_remade_session_ignores_old_lease(store: SqlStore) -> None:
    state, lease = await begin_run(store)
    await store.delete(KEY)
    again, _ = await begin_run(store)
    assert again.seq == state.seq
    with pytest.raises(SeqConflict):
        await store.append(KEY, state, draft_user_messages("x"), lease=lease)


async def test_single_session_store_finds_only_its_own(opener: Opener) -> None:
    anyone = opener()
    for key in (new_key(), KEY, OTHER):
        state = await begin_session(anyone, key)
        await anyone.append(key, state, draft_run_start(state))
    assert len(await anyone.find_abandoned()) == 3
    assert await opener(only=KEY).find_abandoned(limit=1) == [KEY]
    assert await opener(only=new_key()).find_abandoned() == []
