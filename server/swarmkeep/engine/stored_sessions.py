"""Commands on sessions that need the store alone, so that they work without a server, too: fork, delete, and taking a
message out."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from functools import partial
from typing import TypeVar

from swarmkeep.domain.checking.inputs import check_new_id, check_object
from swarmkeep.domain.codec import Json
from swarmkeep.domain.decisions.commands import refuse_if_busy, update_session
from swarmkeep.domain.decisions.drafts import draft_events
from swarmkeep.domain.decisions.removing import remove_message
from swarmkeep.domain.decisions.sizes import UNBOUNDED, SizeLimits
from swarmkeep.domain.errors import (
    BlobNotFound,
    HistoryDamaged,
    IdempotencyMismatch,
    SeqConflict,
    SeqMismatch,
    SessionExists,
    SessionNotFound,
)
from swarmkeep.domain.events import ToolStarted
from swarmkeep.domain.files.references import SHA256
from swarmkeep.domain.state import State, refuse_damaged
from swarmkeep.domain.views import SessionView, view_session
from swarmkeep.engine.attempts import decide_until_recorded
from swarmkeep.engine.failpoints import reach
from swarmkeep.engine.idempotency import IdempotentRequest, run_once
from swarmkeep.engine.ids import make_id
from swarmkeep.engine.session_plans import Count, plan_fork
from swarmkeep.engine.teams.links import list_children
from swarmkeep.store.archive import Archive
from swarmkeep.store.ports import AppendResult, IdempotencyRecord, SessionKey, StorageQuota

T = TypeVar("T")


async def fork_session(
    store: Archive,
    key: SessionKey,
    *,
    at: int | None = None,
    session_id: str | None = None,
    metadata: Json | None = None,
    agent: str | None = None,
    idempotency: IdempotentRequest | None = None,
    sizes: SizeLimits = UNBOUNDED,
    quota: StorageQuota | None = None,
    count: Count = nullcontext,
) -> SessionView:
    """A new session with this one's history up to `at` (by default all of it), its hashes included.

    A run that the copied history ends in does not go on there. `agent` becomes the active one. `count` is as in
    SessionPlan. Raises SessionExists, SessionNotFound, EventNotFound.
    """
    targets = choose_keys(key.tenant, session_id, idempotency)
    mark = None if idempotency is None else idempotency.make_record()

    async def copy(target: SessionKey) -> AppendResult:
        plan = await plan_fork(store, key, at=at, metadata=metadata, agent=agent, sizes=sizes, count=count)
        return await plan.record(store, target, plan.drafts, idempotency=mark, quota=quota)

    async def copy_until_recorded(target: SessionKey) -> AppendResult:
        if target == key:
            return await copy(target)
        # The source may be redacted, or deleted and made anew, while it is looked at.
        return await decide_until_recorded(partial(copy, target), session_id=key.id)

    async def make(target: SessionKey) -> SessionView:
        try:
            made = await run_once(store, target, idempotency, lambda: copy_until_recorded(target))
        except SeqConflict:
            raise SessionExists(target.id) from None
        return await view_change(store, target, made)

    return await make_session(targets, make)


async def delete_session(
    store: Archive,
    key: SessionKey,
    *,
    force: bool = False,
    if_match: int | None = None,
    by: str | None = None,
    reason: str | None = None,
) -> list[SessionKey]:
    """Remove every row of the session, and of those that its agents began; the tenant's audit log tells who did it,
    and why. Gives those that are gone.

    Those below go first: who is cut off finds them again by this one. Raises SessionBusy while a run is active here or
    below, unless forced, SeqMismatch for `if_match`, and HistoryDamaged, unless forced, if its log has lost its end.
    """

    async def remove() -> list[SessionKey]:
        state = await _read_to_delete(store, key, force=force)
        below = await find_descendants(store, key, state)
        if not force:
            for found in (state, *below.values()):
                refuse_if_busy(found)
        if if_match is not None and state.seq != if_match:
            raise SeqMismatch(if_match, state.seq)
        expected = None if force and if_match is None else state
        for child in reversed(below):
            with contextlib.suppress(SessionNotFound):
                await store.delete(child, expected=None if force else below[child], by=by, reason=reason)
        try:
            await store.delete(key, expected=expected, by=by, reason=reason)
        except SeqConflict:
            # Its row names another end than its log has, and always will.
            refuse_damaged(key.id, state)
            raise
        return [key, *below]

    return await decide_until_recorded(remove)


async def _read_to_delete(store: Archive, key: SessionKey, *, force: bool) -> State:
    try:
        return await store.state(key)
    except HistoryDamaged:
        # Nothing is left of it but the row that says that it was there.
        if not force:
            raise
        return State()


async def find_descendants(store: Archive, key: SessionKey, state: State) -> dict[SessionKey, State]:
    """The sessions that the agents of this one began, and those that were begun in them, from the top down."""
    found: dict[SessionKey, State] = {}
    waiting = [(key, state)]
    while waiting:
        above, known = waiting.pop()
        # The log knows them all; a state forgets the calls that were given up, and those that were taken out.
        starts = await store.read(above, types=[ToolStarted.type])
        for child in list_children(above, known, starts):
            with contextlib.suppress(SessionNotFound, HistoryDamaged):
                if child not in found:
                    found[child] = await store.state(child)
                    waiting.append((child, found[child]))
    return found


async def remove_stored_message(
    store: Archive, key: SessionKey, seq: int, tool_call_id: str | None = None, *, by: str | None = None
) -> None:
    """See `Sessions.remove_message`."""

    async def remove() -> None:
        state = await store.sound_state(key)
        drafts = remove_message(state, seq, tool_call_id, by)
        if drafts:
            await store.append(key, state, drafts)

    await decide_until_recorded(remove)


async def label_stored_session(store: Archive, key: SessionKey, metadata: Json) -> SessionView:
    """Merge into a session's metadata."""
    labels = check_object(metadata, "/metadata")

    async def label() -> SessionView:
        state = await store.sound_state(key)
        drafts = draft_events(state.agent, update_session(state, metadata=labels), None)
        return view_session(key.id, (await store.append(key, state, drafts)).state if drafts else state)

    return await decide_until_recorded(label)


async def view_change(store: Archive, key: SessionKey, made: AppendResult | IdempotencyRecord) -> SessionView:
    """The session as a change left it, whether it was made now or before."""
    if isinstance(made, IdempotencyRecord):
        return view_session(key.id, await store.state(key, at=made.seq))
    for event in made.events:
        await reach(event.type, key.id)
    return view_session(key.id, made.state)


def choose_keys(tenant: str, session_id: str | None, idempotency: IdempotentRequest | None) -> tuple[SessionKey, ...]:
    """The key of a new session; and behind it the one that earlier releases gave it."""
    if session_id is not None:
        return (SessionKey(tenant, check_new_id(session_id)),)
    if idempotency is None:
        return (SessionKey(tenant, make_id("sess")),)
    derived = (idempotency.derive_session_id(tenant), idempotency.derive_older_session_id(tenant))
    return tuple(SessionKey(tenant, each) for each in derived)


async def make_session(keys: tuple[SessionKey, ...], make: Callable[[SessionKey], Awaitable[T]]) -> T:
    """Make a session under the first of its keys, unless its request has made it under another one."""
    for key in keys[:-1]:
        with contextlib.suppress(IdempotencyMismatch):
            return await make(key)
    return await make(keys[-1])


async def read_stored_file(store: Archive, key: SessionKey, sha256: str) -> bytes:
    """The content of a file of a session. Raises BlobNotFound, and SessionNotFound."""
    found = await store.read_files(key, [sha256]) if SHA256.fullmatch(sha256) else {}
    if sha256 not in found:
        raise SessionNotFound(key.id) if await store.read_head(key) is None else BlobNotFound(sha256)
    return found[sha256]
