"""Forking copies a history as it is; deleting leaves nothing of it."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace
from sqlalchemy import insert

from swarmkeep.events.errors import SeqConflict, SessionNotFound
from swarmkeep.events.facts import EventDraft, MessageAdded
from swarmkeep.events.fold import fold
from swarmkeep.events.records import CompletionRecord, RequestRecord
from swarmkeep.events.state import Origin, State
from swarmkeep.history.redact import redact
from swarmkeep.store.opening import SqlStore
from swarmkeep.store.records import Claim, IdempotencyRecord
from swarmkeep.store.tables import webhook_deliveries
from tests.store.conftest import Opener
from tests.store.sessions import (
    KEY,
    OTHER,
    begin_session,
    draft_creation,
    draft_fork,
    draft_run_completion,
    draft_run_start,
    draft_user_messages,
    list_filled_tables,
    list_seqs,
    new_key,
    read_all_rows,
)


async def add_delivery(store: SqlStore) -> None:
    """Note that a webhook could not deliver an event of the session."""
    place = {"webhook_id": "wh", "position": 1, "seq": 1, "attempts": 1, "error": "", "updated_at": ""}
    add = insert(webhook_deliveries).values(tenant=KEY.tenant, session_id=KEY.id, **place)
    await store.database.write(lambda connection: connection.execute(add))


def draft_reply(instructions: str, tools: str | None = None) -> list[EventDraft]:
    request = RequestRecord(instructions=instructions, tools=tools)
    fact = MessageAdded(message={"role": "assistant", "content": "x"}, completion=CompletionRecord(request=request))
    return [EventDraft(fact, None, "Triage")]


async def test_fork_keeps_copied_hashes(store: SqlStore, opener: Opener) -> None:
    state = await begin_session(store, metadata={"a": "b"})
    state = (await store.append(KEY, state, draft_user_messages("x", "y", "z"))).state
    base = await store.state(KEY, at=3)
    fork = await store.fork(KEY, base, OTHER, draft_fork(base))
    source, target = await store.read(KEY), await store.read(OTHER)
    assert list_seqs(target) == [1, 2, 3, 4]
    assert [replace(event, session_id=KEY.id) for event in target[:3]] == source[:3]
    assert fork.events == target[3:]
    assert fork.state == fold(target) == await opener().state(OTHER)
    assert fork.state.forked_from == Origin(session_id=KEY.id, seq=3, hash=base.hash)
    assert await store.state(KEY) == state


async def test_fork_has_only_its_history_blobs(store: SqlStore) -> None:
    state = await begin_session(store)
    state = (await store.append(KEY, state, draft_reply("i1", "t1"), blobs={"i1": "one", "t1": "tools"})).state
    await store.append(KEY, state, draft_reply("i2"), blobs={"i2": "two"})
    await store.fork(KEY, state, OTHER, draft_fork(state))
    assert await store.read_blobs(OTHER, ["i1", "t1", "i2"]) == {"i1": "one", "t1": "tools"}


async def test_fork_onto_existing_id_is_refused(store: SqlStore) -> None:
    state = await begin_session(store)
    await begin_session(store, OTHER)
    before = await read_all_rows(store)
    with pytest.raises(SeqConflict) as refused:
        await store.fork(KEY, state, OTHER, draft_fork(state))
    assert refused.value.session_id == OTHER.id
    assert await read_all_rows(store) == before


async def test_fork_of_missing_session_is_refused(store: SqlStore) -> None:
    state = await begin_session(store)
    state = (await store.append(KEY, state, draft_user_messages("x"))).state
    await store.delete(KEY)
    with pytest.raises(SeqConflict) as refused:
        await store.fork(KEY, state, OTHER, draft_fork(state))
    assert refused.value.session_id == KEY.id
    # Made again with as many events, it is still another one.
    await store.append(KEY, State(), [*draft_creation(), *draft_user_messages("x")])
    with pytest.raises(SeqConflict):
        await store.fork(KEY, state, OTHER, draft_fork(state))
    assert await store.read(OTHER) == []


async def test_fork_of_redacted_source_is_refused(store: SqlStore) -> None:
    state = await begin_session(store)
    state = (await store.append(KEY, state, draft_user_messages("x"))).state
    await redact(store, KEY, [2], "asked for")
    with pytest.raises(SeqConflict):
        await store.fork(KEY, state, OTHER, draft_fork(state))
    assert await store.read(OTHER) == []
    await store.fork(KEY, state, OTHER, draft_fork(state), redacted=1)


async def test_forks_to_one_id_have_one_winner(store: SqlStore) -> None:
    state = await begin_session(store)
    outcomes = await asyncio.gather(
        *(store.fork(KEY, state, OTHER, draft_fork(state)) for _ in range(10)), return_exceptions=True
    )
    assert sum(not isinstance(outcome, BaseException) for outcome in outcomes) == 1
    assert all(isinstance(outcome, SeqConflict) for outcome in outcomes if isinstance(outcome, BaseException))


async def test_deletion_leaves_no_session_row(store: SqlStore) -> None:
    made = IdempotencyRecord(key="make", digest="d")
    state = (await store.append(KEY, State(), draft_creation(metadata={"a": "b"}), idempotency=made)).state
    begun = await store.append(
        KEY,
        state,
        draft_run_start(state),
        lease=Claim("a", 60),
        blobs={"h": "t", "f": b"a file"},
        idempotency=IdempotencyRecord(key="k", digest="d"),
    )
    await store.append(KEY, begun.state, draft_run_completion(begun.state), lease=begun.lease)
    await store.index_some()
    await store.publish("default")
    await add_delivery(store)
    before = await read_all_rows(store)
    of_no_session = [
        "api_keys",
        "archives",
        "automations",
        "invocations",
        "log_checkpoints",
        "log_leaves",
        "made_agent_versions",
        "made_agents",
        "person_keys",
        "trail",
        "usage",
        "usage_days",
        "webhooks",
    ]
    assert sorted(name for name, rows in before.items() if not rows) == of_no_session
    await store.delete(KEY)
    assert await list_filled_tables(store) == {"trail", "totals", "feed_positions"}
    assert await store.read_blobs(KEY, ["h"]) == {}
    for fresh in (True, False):
        with pytest.raises(SessionNotFound):
            await store.state(KEY, fresh=fresh)


async def test_deleting_touches_no_other_session(store: SqlStore) -> None:
    others = [OTHER, new_key(tenant="other"), replace(KEY, tenant="other")]
    for session in others:
        state = await begin_session(store, session, metadata={"a": "b"})
        await store.append(
            session,
            state,
            draft_user_messages("x"),
            blobs={"h": "t"},
            idempotency=IdempotencyRecord(key="k", digest="d"),
        )
    before = await read_all_rows(store)
    await begin_session(store)
    await store.delete(KEY)
    after = await read_all_rows(store)
    totals = {(row[0], sum(row[2:4])) for row in after.pop("totals") if sum(row[2:4])}
    assert totals == {(row[0], sum(row[2:4])) for row in before.pop("totals")}
    assert {**after, "trail": []} == before


async def test_stale_deletion_deletes_nothing(store: SqlStore) -> None:
    old = await begin_session(store)
    new = (await store.append(KEY, old, draft_user_messages("x"))).state
    before = await read_all_rows(store)
    with pytest.raises(SeqConflict):
        await store.delete(KEY, expected=old)
    assert await read_all_rows(store) == before
    await store.delete(KEY, expected=new)
    assert await list_filled_tables(store) == {"trail", "totals"}


async def test_deleted_id_may_be_reused(store: SqlStore) -> None:
    state = await begin_session(store)
    await store.append(
        KEY, state, draft_user_messages("old"), idempotency=IdempotencyRecord(key="k", digest="d"), blobs={"h": "old"}
    )
    await store.delete(KEY)
    state = await begin_session(store)
    appended = await store.append(
        KEY,
        state,
        draft_user_messages("new"),
        idempotency=IdempotencyRecord(key="k", digest="other"),
        blobs={"h": "new"},
    )
    assert appended.state.seq == 2
    assert await store.read_blobs(KEY, ["h"]) == {"h": "new"}
