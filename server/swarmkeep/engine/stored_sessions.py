"""Commands on sessions that need the store alone, so that they work without a server, too: fork, delete, and taking a
message out."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from swarmkeep.domain.checking.inputs import check_new_id, check_object
from swarmkeep.domain.codec import Json
from swarmkeep.domain.decisions.commands import refuse_if_busy, update_session
from swarmkeep.domain.decisions.drafts import apply_drafts, draft_events
from swarmkeep.domain.decisions.removing import remove_message
from swarmkeep.domain.decisions.sizes import UNBOUNDED, SizeLimits, is_heavy
from swarmkeep.domain.envelope import EventDraft
from swarmkeep.domain.errors import (
    BlobNotFound,
    IdempotencyMismatch,
    SeqConflict,
    SeqMismatch,
    SessionExists,
    SessionNotFound,
)
from swarmkeep.domain.events import SessionEvent, SessionForked, SessionImported, SessionRedacted
from swarmkeep.domain.files.references import SHA256
from swarmkeep.domain.request import digest
from swarmkeep.domain.state import State
from swarmkeep.domain.views import SessionView, view_session
from swarmkeep.engine.attempts import ConflictCounter
from swarmkeep.engine.failpoints import reach
from swarmkeep.engine.idempotency import IdempotentRequest, run_once
from swarmkeep.engine.ids import make_id
from swarmkeep.engine.policy import Decide
from swarmkeep.engine.teams.links import list_children
from swarmkeep.store.archive import Archive
from swarmkeep.store.ports import AppendResult, EventStore, IdempotencyRecord, SessionKey, StorageQuota

T = TypeVar("T")


class SessionPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A session that is to be made, by itself or in the commit of its first run: what it begins with, and the files of
    that. A fork goes on from the `base` in its `source`, where so many payloads were `redacted`.
    """

    drafts: Sequence[EventDraft]
    files: Mapping[str, bytes] = {}
    base: State = State()
    source: SessionKey | None = None
    redacted: int = 0

    @property
    def is_heavy(self) -> bool:
        return is_heavy(*(draft.fact for draft in self.drafts))

    def preview(self) -> State:
        """The session as it will be, but for times and hashes."""
        return apply_drafts(self.base, self.drafts)

    def begin_with(self, decide: Decide) -> Decide:
        """What makes the session, and what is decided on one that is made."""
        return lambda state: [*self.drafts, *(decide(self.preview()) or ())]

    def find_append(self, store: EventStore) -> Callable[..., Awaitable[AppendResult]]:
        """What records it: as `append` of the store, for a session that is not there yet."""
        source = self.source
        if source is None:
            return store.append

        def fork(key: SessionKey, base: State, drafts: Sequence[EventDraft], **given: Any) -> Awaitable[AppendResult]:
            given.pop("lease_seconds", None)
            return store.fork(source, base, key, drafts, redacted=self.redacted, **given)

        return fork


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
) -> SessionView:
    """A new session with this one's history up to `at` (by default all of it), its hashes included.

    A run that the copied history ends in does not go on there. `agent` becomes the active one. Raises SessionExists,
    SessionNotFound, EventNotFound.
    """
    targets = choose_keys(key.tenant, session_id, idempotency)
    mark = None if idempotency is None else idempotency.make_record()

    conflicts = ConflictCounter(key.id)

    async def copy(target: SessionKey) -> AppendResult:
        while True:
            plan = await plan_fork(store, key, at=at, metadata=metadata, agent=agent, sizes=sizes)
            try:
                return await plan.find_append(store)(target, plan.base, plan.drafts, idempotency=mark, quota=quota)
            except SeqConflict as conflict:
                # The source was redacted, or deleted and made anew, while it was looked at.
                if conflict.session_id != key.id or target == key:
                    raise
                conflicts.count_conflict(plan.base)

    async def make(target: SessionKey) -> SessionView:
        try:
            made = await run_once(store, target, idempotency, lambda: copy(target))
        except SeqConflict:
            raise SessionExists(target.id) from None
        return await view_change(store, target, made)

    return await make_session(targets, make)


async def plan_fork(
    store: Archive,
    key: SessionKey,
    *,
    at: int | None = None,
    metadata: Json | None = None,
    agent: str | None = None,
    sizes: SizeLimits = UNBOUNDED,
) -> SessionPlan:
    """See `fork_session`."""
    labels = check_object(metadata or {}, "/metadata")
    base = await store.state(key, at=at)
    redacted_payloads = await store.read_redacted_payloads(key, upto=base.seq)
    facts = [
        SessionForked(from_session_id=key.id, from_seq=base.seq, from_hash=base.hash),
        *await _describe_copied_redactions(store, key, base, redacted_payloads),
        *await _describe_copied_imports(store, key, base),
        *update_session(base, agent=agent, metadata=labels),
    ]
    plan = SessionPlan(
        drafts=draft_events(base.agent, facts, None), base=base, source=key, redacted=len(redacted_payloads)
    )
    sizes.check_change(base, plan.preview())
    return plan


async def _describe_copied_redactions(
    store: Archive, key: SessionKey, base: State, redacted_payloads: Mapping[int, str]
) -> list[SessionEvent]:
    """What a fork has to tell of removed payloads in its copy, if the event that tells of them is not copied."""
    if not redacted_payloads:
        return []
    notices = await store.read(key, upto=base.seq, types=["session.redacted"])
    known = {seq for event in notices if isinstance(event.fact, SessionRedacted) for seq in event.fact.seqs}
    unannounced = [seq for seq in redacted_payloads if seq not in known]
    if not unannounced:
        return []
    digests = tuple(digest(redacted_payloads[seq]) for seq in unannounced)
    return [SessionRedacted(seqs=tuple(unannounced), reason=f"removed in {key.id} before it was forked", kept=digests)]


async def _describe_copied_imports(store: Archive, key: SessionKey, base: State) -> list[SessionEvent]:
    """What a fork has to tell of an import, if only a part of what was imported is copied."""
    later = await store.read(key, after=base.seq, types=[SessionImported.type], limit=1)
    facts = [event.fact for event in later if isinstance(event.fact, SessionImported)]
    return [replace(fact, last_seq=min(fact.last_seq, base.seq)) for fact in facts]


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
    below, unless forced, SeqMismatch for `if_match`, and SessionDamaged, unless forced.
    """
    conflicts = ConflictCounter(key.id)
    while True:
        state = await store.state(key)
        below = await find_descendants(store, key, state)
        if not force:
            for found in (state, *below.values()):
                refuse_if_busy(found)
        if if_match is not None and state.seq != if_match:
            raise SeqMismatch(if_match, state.seq)
        expected = None if force and if_match is None else state
        try:
            for child in reversed(below):
                with contextlib.suppress(SessionNotFound):
                    await store.delete(child, expected=None if force else below[child], by=by, reason=reason)
            await store.delete(key, expected=expected, by=by, reason=reason)
        except SeqConflict:
            conflicts.count_conflict(state)
            continue
        return [key, *below]


async def find_descendants(store: Archive, key: SessionKey, state: State) -> dict[SessionKey, State]:
    """The sessions that the agents of this one began, and those that were begun in them, from the top down."""
    found: dict[SessionKey, State] = {}
    waiting = [(key, state)]
    while waiting:
        for child in list_children(*waiting.pop()):
            with contextlib.suppress(SessionNotFound):
                if child not in found:
                    found[child] = await store.state(child)
                    waiting.append((child, found[child]))
    return found


async def remove_stored_message(
    store: Archive, key: SessionKey, seq: int, tool_call_id: str | None = None, *, by: str | None = None
) -> None:
    """See `Sessions.remove_message`."""
    conflicts = ConflictCounter(key.id)
    while True:
        state = await store.state(key)
        drafts = remove_message(state, seq, tool_call_id, by)
        try:
            if drafts:
                await store.append(key, state, drafts)
        except SeqConflict:
            conflicts.count_conflict(state)
            continue
        return


async def label_stored_session(store: Archive, key: SessionKey, metadata: Json) -> SessionView:
    """Merge into a session's metadata."""
    labels = check_object(metadata, "/metadata")
    conflicts = ConflictCounter(key.id)
    while True:
        state = await store.state(key)
        drafts = draft_events(state.agent, update_session(state, metadata=labels), None)
        try:
            return view_session(key.id, (await store.append(key, state, drafts)).state if drafts else state)
        except SeqConflict:
            conflicts.count_conflict(state)


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
