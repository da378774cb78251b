"""Idempotency keys, as the store keeps them."""

from __future__ import annotations

import asyncio

import pytest

from swarmkeep.events.errors import IdempotencyMismatch, SeqConflict
from swarmkeep.events.state import State
from swarmkeep.store.opening import SqlStore
from swarmkeep.store.records import IdempotencyRecord, IdempotencyRecordExists, SessionKey
from tests.store.conftest import Opener
from tests.store.sessions import (
    KEY,
    OTHER,
    begin_session,
    draft_creation,
    draft_fork,
    draft_user_messages,
    list_filled_tables,
    read_all_rows,
)


async def test_mark_is_kept_with_effect_seq(store: SqlStore) -> None:
    state = await begin_session(store)
    await store.append(
        KEY, state, draft_user_messages("x", "y"), idempotency=IdempotencyRecord(key="k", digest="d", run_id="r1")
    )
    assert await store.find_idempotency_record(KEY, "k") == IdempotencyRecord(key="k", digest="d", run_id="r1", seq=3)
    assert await store.find_idempotency_record(KEY, "other") is None
    assert await store.find_idempotency_record(OTHER, "k") is None


async def test_repeated_request_returns_first_outcome(store: SqlStore) -> None:
    await store.append(KEY, State(), draft_creation(), idempotency=IdempotencyRecord(key="k", digest="d"))
    before = await read_all_rows(store)
    for base in (State(), await store.state(KEY)):
        with pytest.raises(IdempotencyRecordExists) as refused:
            await store.append(
                KEY, base, draft_user_messages("again"), idempotency=IdempotencyRecord(key="k", digest="d", run_id="r2")
            )
        assert refused.value.record == IdempotencyRecord(key="k", digest="d", seq=1)
    assert await read_all_rows(store) == before


async def test_different_keys_make_different_sessions(store: SqlStore) -> None:
    for key in (KEY, OTHER):
        await store.append(key, State(), draft_creation(), idempotency=IdempotencyRecord(key=key.id, digest="d"))
    for key in (KEY, OTHER):
        again = IdempotencyRecord(key=key.id, digest="d")
        with pytest.raises(IdempotencyRecordExists):
            await store.append(key, State(), draft_creation(), idempotency=again)
    elsewhere = SessionKey("another tenant", KEY.id)
    await store.append(elsewhere, State(), draft_creation(), idempotency=IdempotencyRecord(key=KEY.id, digest="d"))
    with pytest.raises(IdempotencyMismatch):
        await store.append(
            SessionKey(KEY.tenant, "third"),
            State(),
            draft_creation(),
            idempotency=IdempotencyRecord(key=KEY.id, digest="d"),
        )


async def test_run_key_is_scoped_to_session(store: SqlStore) -> None:
    for key in (KEY, OTHER):
        mark = IdempotencyRecord(key="k", digest="d", run_id="r1")
        await store.append(key, State(), draft_creation(), idempotency=mark)
        assert (await store.find_idempotency_record(key, "k")) == IdempotencyRecord(
            key="k", digest="d", run_id="r1", seq=1
        )


async def test_key_for_another_request_is_refused(store: SqlStore) -> None:
    state = await begin_session(store)
    state = (
        await store.append(KEY, state, draft_user_messages("x"), idempotency=IdempotencyRecord(key="k", digest="d"))
    ).state
    before = await read_all_rows(store)
    with pytest.raises(IdempotencyMismatch):
        await store.append(KEY, state, draft_user_messages("y"), idempotency=IdempotencyRecord(key="k", digest="other"))
    assert await read_all_rows(store) == before


async def test_failed_append_leaves_no_mark(store: SqlStore) -> None:
    state = await begin_session(store)
    await store.append(KEY, state, draft_user_messages("x"))
    with pytest.raises(SeqConflict):
        await store.append(KEY, state, draft_user_messages("y"), idempotency=IdempotencyRecord(key="k", digest="d"))
    assert await store.find_idempotency_record(KEY, "k") is None


async def test_a_mark_alone_can_be_kept(store: SqlStore) -> None:
    state = await begin_session(store)
    appended = await store.append(KEY, state, [], idempotency=IdempotencyRecord(key="k", digest="d"))
    assert appended.state == state
    assert await store.find_idempotency_record(KEY, "k") == IdempotencyRecord(key="k", digest="d", seq=1)


async def test_concurrent_requests_take_effect_once(opener: Opener) -> None:
    stores = [opener() for _ in range(2)]
    state = await begin_session(stores[0])

    async def attempt(number: int) -> int:
        mark = IdempotencyRecord(key="k", digest="d", run_id=f"r{number}")
        try:
            return (
                await stores[number % 2].append(KEY, state, draft_user_messages("once"), idempotency=mark)
            ).state.seq
        except IdempotencyRecordExists as exists:
            return exists.record.seq

    assert await asyncio.gather(*(attempt(number) for number in range(20))) == [2] * 20
    assert len(await stores[0].read(KEY)) == 2


@pytest.mark.parametrize("name", ["", "NUL \0", "\ud800", '"', "%", "é" * 400])
async def test_a_key_may_be_any_text(store: SqlStore, name: str) -> None:
    await store.append(KEY, State(), draft_creation(), idempotency=IdempotencyRecord(key=name, digest="d"))
    assert await store.find_idempotency_record(KEY, name) == IdempotencyRecord(key=name, digest="d", seq=1)
    assert await store.find_idempotency_record(KEY, name + "x") is None


async def test_marks_of_any_length_are_searchable(store: SqlStore) -> None:
    assert await store.find_idempotency_record(KEY, "x" * 100_000) is None


async def test_fork_mark_belongs_to_new_session(store: SqlStore) -> None:
    state = await begin_session(store)
    fork = await store.fork(KEY, state, OTHER, draft_fork(state), idempotency=IdempotencyRecord(key="k", digest="d"))
    assert await store.find_idempotency_record(OTHER, "k") == IdempotencyRecord(key="k", digest="d", seq=fork.state.seq)
    assert await store.find_idempotency_record(KEY, "k") is None
    before = await read_all_rows(store)
    with pytest.raises(IdempotencyRecordExists):
        await store.fork(KEY, state, OTHER, draft_fork(state), idempotency=IdempotencyRecord(key="k", digest="d"))
    with pytest.raises(IdempotencyMismatch):
        await store.fork(KEY, state, OTHER, draft_fork(state), idempotency=IdempotencyRecord(key="k", digest="other"))
    assert await read_all_rows(store) == before


async def test_refused_fork_leaves_no_mark(store: SqlStore) -> None:
    state = await begin_session(store)
    await store.delete(KEY)
    with pytest.raises(SeqConflict):
        await store.fork(KEY, state, OTHER, draft_fork(state), idempotency=IdempotencyRecord(key="k", digest="d"))
    assert await list_filled_tables(store) == {"trail", "totals"}
