"""Commands on sessions that need the store alone, so that they work without a server, too: fork and delete."""

from __future__ import annotations

from collections.abc import Mapping
from uuid import uuid4

from msgspec.structs import replace

from swarmkeep.domain.codec import Json
from swarmkeep.domain.decisions.commands import refuse_if_busy, update_session
from swarmkeep.domain.decisions.drafts import apply_drafts, draft_events
from swarmkeep.domain.decisions.sizes import UNBOUNDED, SizeLimits
from swarmkeep.domain.errors import SeqConflict, SeqMismatch, SessionExists
from swarmkeep.domain.events import SessionEvent, SessionForked, SessionImported, SessionRedacted
from swarmkeep.domain.inputs import check_id, check_object
from swarmkeep.domain.request import digest
from swarmkeep.domain.state import State
from swarmkeep.domain.views import SessionView, view_session
from swarmkeep.engine.attempts import ConflictCounter
from swarmkeep.engine.failpoints import reach
from swarmkeep.engine.idempotency import IdempotentRequest, run_once
from swarmkeep.store.archive import Archive
from swarmkeep.store.ports import AppendResult, IdempotencyRecord, SessionKey, StorageQuota


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
    target = choose_key(key.tenant, session_id, idempotency)
    labels = check_object(metadata or {}, "/metadata")
    mark = None if idempotency is None else idempotency.make_record()

    conflicts = ConflictCounter(key.id)

    async def copy() -> AppendResult:
        while True:
            base = await store.state(key, at=at)
            redacted_payloads = await store.read_redacted_payloads(key, upto=base.seq)
            forked = SessionForked(from_session_id=key.id, from_seq=base.seq, from_hash=base.hash)
            facts = [
                forked,
                *await _describe_copied_redactions(store, key, base, redacted_payloads),
                *await _describe_copied_imports(store, key, base),
                *update_session(base, agent=agent, metadata=labels),
            ]
            drafts = draft_events(base.agent, facts, None)
            sizes.check_change(base, apply_drafts(base, drafts))
            try:
                return await store.fork(
                    key, base, target, drafts, redacted=len(redacted_payloads), idempotency=mark, quota=quota
                )
            except SeqConflict as conflict:
                # The source was redacted, or deleted and made anew, while it was looked at.
                if conflict.session_id != key.id or target == key:
                    raise
                conflicts.count_conflict(base)

    try:
        made = await run_once(store, target, idempotency, copy)
    except SeqConflict:
        raise SessionExists(target.id) from None
    return await view_change(store, target, made)


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
) -> None:
    """Remove every row of the session; the tenant's audit log tells who did it, and why.

    Raises SessionBusy while a run is active, unless forced, SeqMismatch for `if_match`, and SessionDamaged, unless
    forced.
    """
    conflicts = ConflictCounter(key.id)
    while True:
        state = await store.state(key)
        if not force:
            refuse_if_busy(state)
        if if_match is not None and state.seq != if_match:
            raise SeqMismatch(if_match, state.seq)
        expected = None if force and if_match is None else state
        try:
            await store.delete(key, expected=expected, by=by, reason=reason)
        except SeqConflict:
            conflicts.count_conflict(state)
            continue
        return


async def view_change(store: Archive, key: SessionKey, made: AppendResult | IdempotencyRecord) -> SessionView:
    """The session as a change left it, whether it was made now or before."""
    if isinstance(made, IdempotencyRecord):
        return view_session(key.id, await store.state(key, at=made.seq))
    for event in made.events:
        reach(event.type)
    return view_session(key.id, made.state)


def choose_key(tenant: str, session_id: str | None, idempotency: IdempotentRequest | None) -> SessionKey:
    """The key of a new session."""
    if session_id is not None:
        return SessionKey(tenant, check_id(session_id))
    return SessionKey(tenant, f"sess_{uuid4().hex}" if idempotency is None else idempotency.derive_session_id(tenant))
