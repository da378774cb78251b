"""Where a loop keeps its session: a state, and one way to add to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Protocol

from swarmkeep.domain.drafts import provisional
from swarmkeep.domain.envelope import Draft, Recorded
from swarmkeep.domain.errors import LeaseLost, SeqConflict
from swarmkeep.domain.events import RunEnded, RunResumed, RunStarted
from swarmkeep.domain.fold import evolve
from swarmkeep.domain.settling import settle
from swarmkeep.domain.state import State
from swarmkeep.engine.killpoints import reach
from swarmkeep.store.port import Claim, EventStore, Lease, Mark, SessionKey

Decide = Callable[[State], Sequence[Draft] | None]


class Ledger(Protocol):
    @property
    def state(self) -> State:
        """The session as far as this process knows it."""
        ...

    async def commit(self, decide: Decide, blobs: Mapping[str, str] | None = None) -> list[Recorded]:
        """Record what `decide` makes of the state, and what follows from that by itself; nothing if it says None.

        If the session has moved on meanwhile, `decide` is asked again with the newer state.
        """
        ...


class MemoryLedger:
    """A session that lives as long as the call: what `Swarm.run` works on."""

    def __init__(self) -> None:
        self.state = State()

    async def commit(self, decide: Decide, blobs: Mapping[str, str] | None = None) -> list[Recorded]:
        drafts = decide(self.state)
        recorded: list[Recorded] = []
        for draft in () if drafts is None else settle(self.state, drafts):
            event = provisional(self.state, draft, now())
            self.state = evolve(self.state, event)
            recorded.append(event)
        return recorded


class StoreLedger:
    """A stored session. Whoever starts or resumes a run in it claims the lease with that append, and then holds it."""

    def __init__(self, store: EventStore, key: SessionKey, state: State, claim: Claim) -> None:
        self.key = key
        self.state = state
        self.lease: Lease | None = None
        self._store = store
        self._claim = claim
        self._blobs: set[str] = set()

    async def commit(
        self, decide: Decide, blobs: Mapping[str, str] | None = None, *, mark: Mark | None = None
    ) -> list[Recorded]:
        """As Ledger says, with `mark` in the same transaction.

        Raises what `decide` raises, LeaseLost when another process advances the session, MarkExists and
        IdempotencyMismatch when the mark was used before.
        """
        new = {name: text for name, text in (blobs or {}).items() if name not in self._blobs}
        alone = False
        while (decided := decide(self.state)) is not None:
            drafts = list(decided) if alone else settle(self.state, decided)
            if not drafts and mark is None:
                break
            try:
                events = await self._append(drafts, new, mark)
            except SeqConflict:
                await self._catch_up()
            except LeaseLost:
                # A run may be ended by anybody, but what waits behind it begins under a lease, and that is still with
                # whoever advances the run. It ends with the run: so that comes first, and then what follows from it.
                alone = len(drafts) > len(decided) and any(isinstance(draft.fact, RunEnded) for draft in decided)
                if not alone or self.lease is not None:
                    raise
            else:
                return events + await self.commit(lambda state: []) if alone else events
        return []

    async def _append(self, drafts: Sequence[Draft], blobs: Mapping[str, str], mark: Mark | None) -> list[Recorded]:
        begins = any(isinstance(draft.fact, RunStarted | RunResumed) for draft in drafts)
        appended = await self._store.append(
            self.key,
            self.state,
            drafts,
            lease=self._claim if begins and self.lease is None else self.lease,
            lease_seconds=self._claim.lease_seconds,
            blobs=blobs,
            mark=mark,
        )
        self.state, self.lease = appended.state, appended.lease
        self._blobs.update(blobs)
        for event in appended.events:
            reach(event.type)
        return appended.events

    async def _catch_up(self) -> None:
        before, self.state = self.state.run, await self._store.state(self.key)
        after = self.state.run
        if self.lease is not None and before is not None and after is not None and after.id != before.id:
            # Somebody ended the run, and with it the lease; the next one is not for this process to advance.
            raise LeaseLost(self.key.id)


def now() -> str:
    """The present in UTC, as events carry it."""
    return datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
