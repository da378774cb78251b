"""Sessions on hold: nothing of them is redacted or deleted, however it is asked for."""

from __future__ import annotations

import asyncio

import pytest
from msgspec import UNSET

from swarmkeep.events.errors import InvalidRequest, OnHold, SessionNotFound
from swarmkeep.history.redact import redact
from swarmkeep.history.verify import verify
from swarmkeep.runs.sessions import delete_session, fork_session, hold_session, release_session
from swarmkeep.store.opening import SqlStore
from swarmkeep.store.records import SessionKey
from tests.store.sessions import KEY, OTHER, begin_session, draft_user_messages


async def begin_held(store: SqlStore, key: SessionKey = KEY) -> None:
    await store.append(key, await begin_session(store, key), draft_user_messages("keep me"))
    view = await hold_session(store, key, "case 12", by="Lee")
    assert view.hold is not None
    assert (view.hold.reason, view.hold.by) == ("case 12", "Lee")


async def test_hold_stops_redaction_and_deletion(store: SqlStore) -> None:
    await begin_held(store)
    for attempt in (
        lambda: redact(store, KEY, [2], "a name"),
        lambda: redact(store, KEY, [2], "a name", dry_run=True),
        lambda: delete_session(store, KEY),
        lambda: delete_session(store, KEY, force=True),
    ):
        with pytest.raises(OnHold, match="case 12"):
            await attempt()
    again = await hold_session(store, KEY, "case 12", by="Eve")
    assert again.seq == 3
    assert (await hold_session(store, KEY, "case 13", by="Eve")).seq == 4
    released = await release_session(store, KEY, by="Lee")
    assert (released.seq, (await release_session(store, KEY, by="Lee")).seq) == (5, 5)
    # Who held it and why can be removed as any other text.
    await redact(store, KEY, [2, 3, 4, 5], "a name")
    assert "case 12" not in str([event.payload for event in await store.read(KEY)])
    assert (await verify(store, KEY)).valid
    entries = await store.read_audit_log(KEY.tenant, after=0, limit=100)
    assert [entry.type for entry in entries] == [
        "session.held", "session.held", "session.released", "session.redacted",
    ]  # fmt: skip
    await delete_session(store, KEY)


async def test_hold_needs_session_and_reason(store: SqlStore) -> None:
    with pytest.raises(SessionNotFound):
        await hold_session(store, KEY, "case 12", by=None)
    await begin_session(store, KEY)
    for reason in ("", "x" * 1001):
        with pytest.raises(InvalidRequest):
            await hold_session(store, KEY, reason, by=None)


async def test_fork_is_not_held_but_copy_stays(store: SqlStore) -> None:
    await begin_held(store)
    assert (await fork_session(store, KEY, session_id=OTHER.id)).hold is UNSET
    done = await redact(store, OTHER, [2], "a name", include_forks=True)
    assert [(copy.session_id, copy.redacted) for copy in done.forks] == [(KEY.id, False)]
    assert "keep me" in str([event.payload for event in await store.read(KEY)])
    await delete_session(store, OTHER)


async def test_forced_deletion_loses_against_hold(store: SqlStore) -> None:
    """Whichever of the two comes first counts; never are both told that it was done."""
    for number in range(12):
        key = SessionKey(KEY.tenant, f"raced-{number}")
        await begin_session(store, key)
        held, gone = await asyncio.gather(
            hold_session(store, key, "case", by=None), delete_session(store, key, force=True), return_exceptions=True
        )
        left = await store.read_head(key)
        assert (left is not None) == (not isinstance(held, Exception)) == isinstance(gone, OnHold)
