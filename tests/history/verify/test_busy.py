"""A session is checked as it was at one moment, whatever is recorded, removed or deleted meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from swarmkeep.decide.drafts import draft_events
from swarmkeep.events.codec import encode_text
from swarmkeep.events.errors import SessionNotFound
from swarmkeep.events.facts import EventDraft, RunCompleted, SessionUpdated
from swarmkeep.events.state import PartialReply, State
from swarmkeep.history.redact import redact
from swarmkeep.history.verify import verify, verify_all
from swarmkeep.runs.sessions import fork_session
from swarmkeep.store.opening import SqlStore
from swarmkeep.store.records import IdempotencyRecord, SessionKey
from swarmkeep.store.tables import sessions
from tests.history.verify.rows import change_row, read_rows
from tests.store.calls import make_reply, record_calls
from tests.store.sessions import (
    KEY,
    OTHER,
    begin_run,
    begin_session,
    draft_creation,
    draft_run_completion,
    draft_run_start,
    draft_user_messages,
)


async def check_while(store: SqlStore, key: SessionKey, step: Callable[[int], Awaitable[None]], steps: int) -> int:
    """Verify a session again and again while steps are taken, each of which leaves it intact; how often."""

    async def take_steps() -> None:
        for number in range(steps):
            await step(number)

    busy, checks = asyncio.create_task(take_steps()), 0
    try:
        while not busy.done():
            assert await find_problems(store, key) == []
            checks += 1
    finally:
        busy.cancel()
        await asyncio.wait([busy])
    await busy
    return checks


async def find_problems(store: SqlStore, key: SessionKey) -> list[tuple[int | None, str]]:
    try:
        return [(problem.seq, problem.code) for problem in (await verify(store, key)).problems]
    except SessionNotFound:
        return []


@pytest.mark.long
async def test_session_valid_during_recording(store: SqlStore) -> None:
    state = await begin_session(store)
    state = (await store.append(KEY, state, draft_user_messages(*map(str, range(60))))).state

    async def run(number: int) -> None:
        nonlocal state
        name = f"r{number}"
        begun = IdempotencyRecord(key=f"k{number}", digest="", run_id=name)
        state = (await store.append(KEY, state, draft_run_start(state, name), idempotency=begun)).state
        story = [make_reply("m", total_tokens=3), SessionUpdated(metadata={"n": number})]
        drafts = draft_events("Triage", [*story, RunCompleted(stop_reason="end_turn")], name)
        change = IdempotencyRecord(key=f"c{number}", digest="")
        state = (await store.append(KEY, state, drafts, blobs={}, idempotency=change)).state

    assert await check_while(store, KEY, run, 60) > 1


@pytest.mark.long
async def test_session_valid_during_redaction(store: SqlStore) -> None:
    state = await record_calls(store, KEY, *(make_reply("m", total_tokens=n) for n in range(40)))
    remaining = iter(range(state.seq, 1, -1))

    async def remove(_: int) -> None:
        await redact(store, KEY, [next(remaining)], "asked for")

    assert await check_while(store, KEY, remove, 30) > 1


@pytest.mark.long
async def test_fork_valid_while_origin_is_recreated(store: SqlStore) -> None:
    async def make(number: int) -> None:
        state = await begin_session(store, context={"number": number})
        await store.append(KEY, state, draft_user_messages("one", "two"))

    async def make_anew(number: int) -> None:
        await store.delete(KEY)
        await make(number)

    await make(-1)
    await fork_session(store, KEY, session_id=OTHER.id, at=3)
    assert await check_while(store, OTHER, make_anew, 60) > 1


@pytest.mark.long
async def test_deleted_session_exists_or_does_not(store: SqlStore) -> None:
    async def come_and_go(number: int) -> None:
        await store.append(KEY, State(), _draft_whole(number))
        await store.delete(KEY)

    assert await check_while(store, KEY, come_and_go, 60) > 1


async def test_all_sessions_checked_in_order(store: SqlStore) -> None:
    keys = [SessionKey(tenant, name) for tenant in ("a", "b") for name in ("x", "y")]
    for key in keys:
        await begin_session(store, key)
    for place, key in enumerate(keys):
        assert [checked async for checked, _ in verify_all(store, first=key)] == keys[place:]
    assert [checked async for checked, _ in verify_all(store, "b", first=keys[1])] == keys[2:]
    assert [checked async for checked, _ in verify_all(store, "b", first=SessionKey("b", "xx"))] == keys[3:]


async def test_running_run_has_only_partial_message(store: SqlStore) -> None:
    state, lease = await begin_run(store)
    (head,) = await read_rows(store, sessions, id=KEY.id)
    own, other = (encode_text(PartialReply(run_id=name, seq=state.seq, agent="A", text="x")) for name in ("r1", "r2"))
    for said in ("", own, None):
        await change_row(store, sessions, head, partial=said)
        assert await find_problems(store, KEY) == []
    for said in (other, "x", '"x"'):
        await change_row(store, sessions, head, partial=said)
        assert await find_problems(store, KEY) == [(None, "head_differs")]
    state = (await store.append(KEY, state, draft_run_completion(state), lease=lease)).state
    assert await find_problems(store, KEY) == []
    for said in ("", own):
        await change_row(store, sessions, head, partial=said)
        assert await find_problems(store, KEY) == [(None, "head_differs")]


def _draft_whole(number: int) -> list[EventDraft]:
    return [*draft_creation(metadata={"number": number}), *draft_user_messages("one", "two")]
