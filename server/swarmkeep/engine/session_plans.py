"""Sessions that are to be made: planned first, and then recorded by themselves or with their first run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from swarmkeep.domain.checking.inputs import check_object
from swarmkeep.domain.codec import Json
from swarmkeep.domain.decisions.commands import update_session
from swarmkeep.domain.decisions.drafts import apply_drafts, draft_events
from swarmkeep.domain.decisions.sizes import UNBOUNDED, SizeLimits, is_heavy
from swarmkeep.domain.envelope import EventDraft
from swarmkeep.domain.events import SessionEvent, SessionForked, SessionImported, SessionRedacted
from swarmkeep.domain.request import digest
from swarmkeep.domain.state import State
from swarmkeep.engine.policy import Decide
from swarmkeep.store.archive import Archive
from swarmkeep.store.ports import AppendResult, Claim, EventStore, IdempotencyRecord, SessionKey, StorageQuota

Count = Callable[[], AbstractContextManager[None]]


class SessionPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A session that is to be made, by itself or in the commit of its first run: what it begins with, and the files of
    that. A fork goes on from the `base` in its `source`, where so many payloads were `redacted`. `state` is the
    session as it will be, but for times and hashes. It is recorded within `count`, which may refuse that.
    """

    drafts: Sequence[EventDraft]
    state: State
    files: Mapping[str, bytes] = {}
    base: State = State()
    source: SessionKey | None = None
    redacted: int = 0
    count: Count = nullcontext

    @property
    def is_heavy(self) -> bool:
        return is_heavy(*(draft.fact for draft in self.drafts))

    def begin_with(self, decide: Decide) -> Decide:
        """What makes the session, and what is decided on one that is made."""
        return lambda state: [*self.drafts, *(decide(self.state) or ())]

    async def record(
        self,
        store: EventStore,
        key: SessionKey,
        drafts: Sequence[EventDraft],
        *,
        lease: Claim | None = None,
        blobs: Mapping[str, str | bytes] | None = None,
        idempotency: IdempotencyRecord | None = None,
        quota: StorageQuota | None = None,
    ) -> AppendResult:
        """Make the session with these events, its own drafts among them. As `append` and `fork` of the store."""
        with self.count():
            if self.source is None:
                return await store.append(
                    key, self.base, drafts, lease=lease, blobs=blobs, idempotency=idempotency, quota=quota
                )
            return await store.fork(
                self.source,
                self.base,
                key,
                drafts,
                redacted=self.redacted,
                lease=lease,
                blobs=blobs,
                idempotency=idempotency,
                quota=quota,
            )


async def make_plan(
    drafts: Sequence[EventDraft],
    *,
    files: Mapping[str, bytes] | None = None,
    base: State | None = None,
    source: SessionKey | None = None,
    redacted: int = 0,
    count: Count = nullcontext,
) -> SessionPlan:
    """A plan with what it comes to, which is worked out once: of a large history in a thread."""
    base = State() if base is None else base
    fold = partial(apply_drafts, base, drafts)
    state = await asyncio.to_thread(fold) if is_heavy(*(draft.fact for draft in drafts)) else fold()
    return SessionPlan(
        drafts=drafts, state=state, files=files or {}, base=base, source=source, redacted=redacted, count=count
    )


async def plan_fork(
    store: Archive,
    key: SessionKey,
    *,
    at: int | None = None,
    metadata: Json | None = None,
    agent: str | None = None,
    sizes: SizeLimits = UNBOUNDED,
    count: Count = nullcontext,
) -> SessionPlan:
    """See `fork_session`."""
    labels = check_object(metadata or {}, "/metadata")
    # Read first: of what is removed after that, the state may still know, and then the copy is refused.
    removed = await store.read_redacted_payloads(key)
    base = await store.sound_state(key, at=at)
    redacted_payloads = {seq: payload for seq, payload in removed.items() if seq <= base.seq}
    facts = [
        SessionForked(from_session_id=key.id, from_seq=base.seq, from_hash=base.hash),
        *await _describe_copied_redactions(store, key, base, redacted_payloads),
        *await _describe_copied_imports(store, key, base),
        *update_session(base, agent=agent, metadata=labels),
    ]
    drafts = draft_events(base.agent, facts, None)
    plan = await make_plan(drafts, base=base, source=key, redacted=len(redacted_payloads), count=count)
    sizes.check_change(base, plan.state)
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
    reason = f"removed in {key.id} before it was forked"
    forgotten = tuple(sorted((await store.state(key)).forgotten_texts - base.forgotten_texts))
    return [
        SessionRedacted(seqs=tuple(unannounced), reason=reason, kept=digests, texts=forgotten if forgotten else UNSET)
    ]


async def _describe_copied_imports(store: Archive, key: SessionKey, base: State) -> list[SessionEvent]:
    """What a fork has to tell of an import, if only a part of what was imported is copied."""
    later = await store.read(key, after=base.seq, types=[SessionImported.type], limit=1)
    facts = [event.fact for event in later if isinstance(event.fact, SessionImported)]
    return [replace(fact, last_seq=min(fact.last_seq, base.seq)) for fact in facts]
