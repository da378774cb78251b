"""Stored session logs: a state, and one way to add to it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial

import msgspec

from swarmkeep.decide.settle import settle
from swarmkeep.events.codec import digest
from swarmkeep.events.errors import DomainError, LeaseLost, SeqConflict, SessionExists
from swarmkeep.events.facts import ApprovalRequested, EventDraft, RecordedEvent, RunResumed, RunStarted
from swarmkeep.events.messages import list_fact_files
from swarmkeep.events.state import State, ToolCall, refuse_damaged
from swarmkeep.runs import identifiers
from swarmkeep.runs.approvals import ApprovalRules
from swarmkeep.runs.identifiers import derive_child, reach
from swarmkeep.runs.loop import UNAVAILABLE, Attempts
from swarmkeep.runs.policy import Decide, SessionPlan, decide_nothing
from swarmkeep.store.opening import SqlStore
from swarmkeep.store.records import (
    AppendResult,
    Claim,
    IdempotencyRecord,
    IdempotencyRecordExists,
    Lease,
    OutcomeUnknown,
    SessionKey,
    StorageQuota,
)

# How long a caller waits to hear whether what it asked for was recorded, when the connection broke at that very moment.
_DOUBT_SECONDS = 5.0
_FEW_EVENTS = 100


class StoreSessionLog:
    """A stored session. The process that starts or resumes a run in it claims the lease with that append, and then
    holds it.

    With the lease, a commit waits for a database that cannot be used, for as long as it takes: the run must not fail
    for it, and whether it may go on afterwards the lease's epoch says. Without, it is refused at once.

    `is_remembered`: the state is from memory and may be stale, so what is refused on it is decided again on a fresh
    one.
    """

    def __init__(
        self,
        store: SqlStore,
        key: SessionKey,
        state: State,
        claim: Claim,
        rules: ApprovalRules,
        quota: StorageQuota,
        *,
        may_start_queued: Callable[[State], bool] = lambda state: True,
        is_remembered: bool = False,
    ) -> None:
        self.key = key
        self.state = state
        self.lease: Lease | None = None
        self.is_committing = False
        """Whether a commit is under way, which finds out by itself whether the lease is lost."""
        self._store = store
        self._claim = claim
        self._rules = rules
        self._may_start_queued = may_start_queued
        self._is_remembered = is_remembered
        self._quota = quota
        self._stored_blobs: set[str] = set()
        self._settled: State | None = None

    async def commit(
        self,
        decide: Decide,
        blobs: Mapping[str, str | bytes] | None = None,
        *,
        mark: IdempotencyRecord | None = None,
        aside: bool = False,
        within_quota: bool = False,
        plan: SessionPlan | None = None,
    ) -> list[RecordedEvent]:
        """As SessionLog says, with `mark` in the same transaction, which makes the session if there is a `plan` of it.

        Raises what `decide` raises, LeaseLost when another process advances the session, HistoryDamaged,
        IdempotencyRecordExists and IdempotencyMismatch when the key was used before, and QuotaExceeded; SessionExists
        if what is planned is there, and SeqConflict if what it is a fork of has changed.
        """
        if plan is not None:
            decide, blobs = plan.begin_with(decide), {**plan.files, **(blobs or {})}
        new = {
            name: text
            for name, text in (blobs or {}).items()
            # What a file holds may have been removed since.
            if isinstance(text, bytes) or name not in self._stored_blobs
        }
        quota = self._quota if within_quota else None
        self.is_committing = True
        try:
            return await self._keep_trying(partial(self._draft, decide, aside), new, mark, quota, plan)
        finally:
            self.is_committing = False

    async def read_files(self, names: Sequence[str]) -> Mapping[str, bytes]:
        return await read_sound_files(self._store, self.key, names)

    async def settle(self) -> list[RecordedEvent]:
        # What was just committed has brought about all that follows from it. A queue may have waited for something.
        if self.state is self._settled and not self.state.queue:
            return []
        return await self.commit(decide_nothing)

    async def _keep_trying(
        self,
        draft: Callable[[], Awaitable[list[EventDraft] | None]],
        blobs: Mapping[str, str | bytes],
        mark: IdempotencyRecord | None,
        quota: StorageQuota | None,
        plan: SessionPlan | None,
    ) -> list[RecordedEvent]:
        attempts = Attempts(self.key.id, _DOUBT_SECONDS)
        drafts: list[EventDraft] | None = None
        is_stale = False
        while True:
            try:
                if is_stale:
                    await self._reload()
                    drafts, is_stale = None, False
                # Decided once for each state: an attempt in doubt is known by its very drafts.
                drafts = await draft() if drafts is None else drafts
                if drafts is None or not (drafts or mark):
                    return []
                return await self._append_once(drafts, blobs, mark, quota, plan, attempts)
            except UNAVAILABLE as error:
                if not attempts.may_wait(has_lease=self.lease is not None):
                    raise
                await attempts.pause(error)
            except SeqConflict as conflict:
                if plan is not None:
                    raise SessionExists(self.key.id) if conflict.session_id == self.key.id else conflict from None
                attempts.count_conflict(conflict)
                is_stale = True
            except DomainError:
                if not self._is_remembered:
                    raise
                is_stale = True

    async def _draft(self, decide: Decide, aside: bool) -> list[EventDraft] | None:
        # Nothing is decided on what was never recorded.
        refuse_damaged(self.key.id, self.state)
        decided = await asyncio.to_thread(decide, self.state) if aside else decide(self.state)
        if decided is None:
            return None
        aside = aside or len(decided) > _FEW_EVENTS
        approvals = msgspec.structs.replace(self._rules.make_approvals(None), find_session=self._find_session)
        add = partial(settle, self.state, decided, may_start_queued=self._may_start_queued, approvals=approvals)
        # A run may begin with thousands of messages: others do not wait until all of them are folded.
        drafts = await asyncio.to_thread(add) if aside else add()
        # Seldom is anything asked for here: the time is not looked up for all the others.
        if any(isinstance(draft.fact, ApprovalRequested) for draft in drafts[len(decided) :]):
            timed = msgspec.structs.replace(approvals, expires_at=await self._rules.expires_at())
            drafts = await asyncio.to_thread(add, approvals=timed) if aside else add(approvals=timed)
        return drafts

    def _find_session(self, state: State, call: ToolCall) -> str | None:
        if state.run is None or not self._rules.asks_agent(state, call):
            return None
        return derive_child(self.key, state, state.run.id, call.id).id

    async def _append_once(
        self,
        drafts: Sequence[EventDraft],
        blobs: Mapping[str, str | bytes],
        mark: IdempotencyRecord | None,
        quota: StorageQuota | None,
        plan: SessionPlan | None,
        attempts: Attempts,
    ) -> list[RecordedEvent]:
        begins = self.lease is None and any(isinstance(draft.fact, RunStarted | RunResumed) for draft in drafts)
        claim = self._claim if begins else None
        named = _leave_out_unnamed(blobs, drafts)
        try:
            if plan is not None:
                appended = await plan.record(
                    self._store, self.key, drafts, lease=claim, blobs=named, idempotency=mark, quota=quota
                )
            else:
                appended = await self._store.append(
                    self.key,
                    self.state,
                    drafts,
                    lease=claim or self.lease,
                    lease_seconds=self._claim.lease_seconds,
                    blobs=named,
                    idempotency=mark,
                    quota=quota,
                )
        except OutcomeUnknown as unknown:
            attempts.note_in_doubt(unknown)
            raise
        except (SeqConflict, LeaseLost, IdempotencyRecordExists):
            # It may be an earlier attempt of this very append that is in the way.
            recorded = await self._find_recorded_attempt(attempts.in_doubt)
            if recorded is None:
                raise
            appended = recorded
        self.state, self.lease = appended.state, appended.lease
        self._settled = self.state
        self._stored_blobs.update(name for name, text in blobs.items() if isinstance(text, str))
        for event in appended.events if identifiers.armed_points else ():
            await reach(event.type, self.key.id)
        return appended.events

    async def _find_recorded_attempt(self, in_doubt: Sequence[AppendResult]) -> AppendResult | None:
        """The attempt that was recorded after all, if one was: the log has the same hashes."""
        for appended in in_doubt:
            hashes = [event.hash for event in appended.events]
            found = await self._store.read(self.key, after=self.state.seq, limit=len(hashes))
            if hashes and hashes == [event.hash for event in found]:
                return msgspec.structs.replace(appended, lease=await self._find_lease_after(appended.state))
        return None

    async def _find_lease_after(self, state: State) -> Lease | None:
        if state.run is None or state.run.status != "running":
            return None
        head = await self._store.read_head(self.key)
        current = None if head is None else head.lease
        # One that was held and is not any more stays in the hand: the next append is refused for it.
        return self.lease or (current if current is not None and current.owner == self._claim.owner else None)

    async def _reload(self) -> None:
        self._is_remembered = False
        before, self.state = self.state.run, await self._store.state(self.key)
        after = self.state.run
        if self.lease is not None and before is not None and after is not None and after.id != before.id:
            # Another process ended the run, and with it the lease; the next one is not for this process to advance.
            raise LeaseLost(self.key.id)


async def read_sound_files(store: SqlStore, key: SessionKey, names: Sequence[str]) -> Mapping[str, bytes]:
    """Files for a model: each is what its hash names. Raises HistoryDamaged if one is not, or is not there, although
    the session refers to it."""
    found = await store.read_files(key, names, fresh=False)
    if len(found) < len({*names}):
        refuse_damaged(key.id, await store.check(key))
    return found


async def read_sound_texts(store: SqlStore, key: SessionKey, names: Sequence[str]) -> Mapping[str, str]:
    """The same for texts."""
    found = await store.read_blobs(key, names)
    if any(name not in found or digest(found[name]) != name for name in names):
        refuse_damaged(key.id, await store.check(key))
        found = {name: text for name, text in found.items() if digest(text) == name}
    return found


def _leave_out_unnamed(blobs: Mapping[str, str | bytes], drafts: Sequence[EventDraft]) -> Mapping[str, str | bytes]:
    """Without files that no event refers to: what was decided may not be what they were brought for."""
    if not any(isinstance(content, bytes) for content in blobs.values()):
        return blobs
    named = {name for draft in drafts for name in list_fact_files(draft.fact)}
    return {name: content for name, content in blobs.items() if isinstance(content, str) or name in named}
