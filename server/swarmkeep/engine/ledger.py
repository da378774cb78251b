"""Where a loop keeps its session: a state, and one way to add to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Protocol

from swarmkeep.domain.commands import provisional, settle
from swarmkeep.domain.errors import SeqConflict
from swarmkeep.domain.events import Draft, Recorded, RunResumed, RunStarted
from swarmkeep.domain.state import State, evolve
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
        while (decided := decide(self.state)) is not None:
            drafts = settle(self.state, decided)
            if not drafts and mark is None:
                break
            begins = any(isinstance(draft.fact, RunStarted | RunResumed) for draft in drafts)
            try:
                appended = await self._store.append(
                    self.key,
                    self.state,
                    drafts,
                    lease=self._claim if begins and self.lease is None else self.lease,
                    lease_seconds=self._claim.lease_seconds,
                    blobs=new,
                    mark=mark,
                )
            except SeqConflict:
                self.state = await self._store.state(self.key)
                continue
            self.state, self.lease = appended.state, appended.lease
            self._blobs.update(new)
            for event in appended.events:
                reach(event.type)
            return appended.events
        return []


def now() -> str:
    """The present in UTC, as events carry it."""
    return datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
