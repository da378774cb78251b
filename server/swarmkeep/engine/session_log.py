"""Where a loop keeps its session: a state, and one way to add to it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Protocol, TypeVar

import msgspec

from swarmkeep.domain.decisions.drafts import preview_event
from swarmkeep.domain.decisions.settling import settle
from swarmkeep.domain.envelope import EventDraft, RecordedEvent
from swarmkeep.domain.errors import LeaseLost, SeqConflict
from swarmkeep.domain.events import RunResumed, RunStarted
from swarmkeep.domain.fold import evolve
from swarmkeep.domain.state import State
from swarmkeep.engine.conflicts import ConflictCounter
from swarmkeep.engine.failpoints import reach
from swarmkeep.engine.retrying import retry_while_unavailable
from swarmkeep.store.ports import (
    AppendResult,
    Claim,
    EventStore,
    IdempotencyRecord,
    IdempotencyRecordExists,
    Lease,
    OutcomeUnknown,
    SessionKey,
)

T = TypeVar("T")
Decide = Callable[[State], Sequence[EventDraft] | None]


class SessionLog(Protocol):
    @property
    def state(self) -> State:
        """The session as far as this process knows it."""
        ...

    async def commit(self, decide: Decide, blobs: Mapping[str, str] | None = None) -> list[RecordedEvent]:
        """Record what `decide` makes of the state, and what follows from that by itself; nothing if it says None.

        If the session has moved on meanwhile, `decide` is asked again with the newer state.
        """
        ...

    async def settle(self) -> list[RecordedEvent]:
        """Record what follows from the state by itself; nothing if nothing does."""
        ...


class MemorySessionLog:
    """A session that is nowhere but here, and of which only the state is kept: what `Swarm.run` works on."""

    def __init__(self) -> None:
        self.state = State()

    async def commit(self, decide: Decide, blobs: Mapping[str, str] | None = None) -> list[RecordedEvent]:
        drafts = decide(self.state)
        return [] if drafts is None else self.record(settle(self.state, drafts))

    async def settle(self) -> list[RecordedEvent]:
        return await self.commit(_decide_nothing)

    def record(self, drafts: Sequence[EventDraft]) -> list[RecordedEvent]:
        """Add to the session: all of it, or nothing if it is interrupted."""
        state, recorded = self.state, []
        for draft in drafts:
            event = preview_event(state, draft, make_timestamp())
            state = evolve(state, event)
            recorded.append(event)
        self.state = state
        return recorded


# How long a caller waits to hear whether what it asked for was recorded, when the connection broke at that very moment.
_DOUBT_SECONDS = 5.0


class StoreSessionLog:
    """A stored session. Whoever starts or resumes a run in it claims the lease with that append, and then holds it.

    With the lease, a commit waits for a database that cannot be used, for as long as it takes: the run must not fail
    for it, and whether it may go on afterwards the lease's epoch says. Without, it is refused at once.
    """

    def __init__(
        self,
        store: EventStore,
        key: SessionKey,
        state: State,
        claim: Claim,
        *,
        begins_queued: Callable[[], bool] = lambda: True,
    ) -> None:
        self.key = key
        self.state = state
        self.lease: Lease | None = None
        self.committing = False
        """Whether a commit is under way, which finds out by itself whether the lease is lost."""
        self._store = store
        self._claim = claim
        self._may_start_queued = begins_queued
        self._stored_blobs: set[str] = set()

    async def commit(
        self, decide: Decide, blobs: Mapping[str, str] | None = None, *, mark: IdempotencyRecord | None = None
    ) -> list[RecordedEvent]:
        """As Ledger says, with `mark` in the same transaction.

        Raises what `decide` raises, LeaseLost when another process advances the session, SessionDamaged, and MarkExists
        and IdempotencyMismatch when the mark was used before.
        """
        new = {name: text for name, text in (blobs or {}).items() if name not in self._stored_blobs}
        conflicts = ConflictCounter(self.key.id)
        self.committing = True
        try:
            while (decided := decide(self.state)) is not None:
                drafts = settle(self.state, decided, may_start_queued=self._may_start_queued())
                if not drafts and mark is None:
                    break
                try:
                    return await self._append(drafts, new, mark)
                except SeqConflict:
                    conflicts.count_conflict(self.state)
                    await self._catch_up()
            return []
        finally:
            self.committing = False

    async def settle(self) -> list[RecordedEvent]:
        return await self.commit(_decide_nothing)

    async def _append(
        self, drafts: Sequence[EventDraft], blobs: Mapping[str, str], mark: IdempotencyRecord | None
    ) -> list[RecordedEvent]:
        begins = any(isinstance(draft.fact, RunStarted | RunResumed) for draft in drafts)
        unsure: list[AppendResult] = []

        async def attempt() -> AppendResult:
            try:
                return await self._store.append(
                    self.key,
                    self.state,
                    drafts,
                    lease=self._claim if begins and self.lease is None else self.lease,
                    lease_seconds=self._claim.lease_seconds,
                    blobs=blobs,
                    mark=mark,
                )
            except OutcomeUnknown as unknown:
                if unknown.appended is not None:
                    unsure.append(unknown.appended)
                raise
            except (SeqConflict, LeaseLost, IdempotencyRecordExists):
                # It may be an earlier attempt of this very append that is in the way.
                if (made := await self._find_recorded_attempt(unsure)) is None:
                    raise
                return made

        appended = await self._keep_trying(attempt, unsure)
        self.state, self.lease = appended.state, appended.lease
        self._stored_blobs.update(blobs)
        for event in appended.events:
            reach(event.type)
        return appended.events

    async def _keep_trying(self, attempt: Callable[[], Awaitable[T]], unsure: Sequence[object] = ()) -> T:
        patience = asyncio.get_running_loop().time() + _DOUBT_SECONDS

        def worthwhile(error: Exception) -> bool:
            return self.lease is not None or (bool(unsure) and asyncio.get_running_loop().time() < patience)

        return await retry_while_unavailable(attempt, worthwhile, f"session {self.key.id}")

    async def _find_recorded_attempt(self, unsure: Sequence[AppendResult]) -> AppendResult | None:
        """The attempt that was recorded after all, if one was: the log has the same hashes."""
        for appended in unsure:
            hashes = [event.hash for event in appended.events]
            found = await self._store.read(self.key, after=self.state.seq, limit=len(hashes))
            if hashes and hashes == [event.hash for event in found]:
                return msgspec.structs.replace(appended, lease=await self._find_lease_after(appended.state))
        return None

    async def _find_lease_after(self, state: State) -> Lease | None:
        if state.run is None or state.run.status != "running":
            return None
        head = await self._store.head(self.key)
        current = None if head is None else head.lease
        # One that was held and is not any more stays in the hand: the next append is refused for it.
        return self.lease or (current if current is not None and current.owner == self._claim.owner else None)

    async def _catch_up(self) -> None:
        before, self.state = self.state.run, await self._keep_trying(lambda: self._store.state(self.key))
        after = self.state.run
        if self.lease is not None and before is not None and after is not None and after.id != before.id:
            # Somebody ended the run, and with it the lease; the next one is not for this process to advance.
            raise LeaseLost(self.key.id)


def _decide_nothing(state: State) -> Sequence[EventDraft]:
    return ()


def make_timestamp() -> str:
    """The present in UTC, as events carry it."""
    return datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
