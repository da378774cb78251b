"""Runs as tasks: each advanced by one process at a time, taken over when that process dies."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from contextlib import aclosing
from uuid import uuid4

from swarmkeep.domain.decisions.drafts import draft_events
from swarmkeep.domain.decisions.turns import Ending, end_run
from swarmkeep.domain.envelope import EventDraft, RecordedEvent
from swarmkeep.domain.errors import DomainError, LeaseLost
from swarmkeep.domain.events import RunEnded, RunError, RunFailed, RunInterrupted, RunWaiting, StopReason
from swarmkeep.domain.state import State
from swarmkeep.engine.drivers import Drivers
from swarmkeep.engine.insisting import complain
from swarmkeep.engine.ledger import Decide, StoreLedger
from swarmkeep.engine.limits import Limits, SessionPolicy
from swarmkeep.engine.live import Hub
from swarmkeep.engine.lookout import Lookout
from swarmkeep.engine.loop import Loop
from swarmkeep.engine.model import Model
from swarmkeep.engine.pauses import Pauses, Stopped
from swarmkeep.engine.recovery import Recovery
from swarmkeep.engine.registry import Registry
from swarmkeep.engine.tools import Caller, InThreads
from swarmkeep.engine.waiters import Waiters
from swarmkeep.store.ports import Claim, EventStore, Lease, SessionKey

log = logging.getLogger(__name__)


_LOST = "session %s: the run was ended or taken over by another process"
# How often to look for runs that nobody advances: a take-over comes that much after the lease's end at the latest.
_LOOK_SECONDS = 1.0
_NOT_INTERRUPTED = "session %s: the run could not be interrupted; recovery will go on"
# A database that cannot be reached does not keep a server from stopping.
_INTERRUPT_SECONDS = 5.0


class Conductor:
    """Advances the sessions whose lease this process holds, keeps the leases, and takes over abandoned runs.

    The parts: `Drivers` are the tasks, `Recovery` finds what nobody does, `Lookout` notices what others did.
    """

    def __init__(
        self, store: EventStore, registry: Registry, model: Model, hub: Hub, limits: Limits, pauses: Pauses
    ) -> None:
        self._store = store
        self._registry = registry
        self._model = model
        self._hub = hub
        self._limits = limits
        self._pauses = pauses
        self._caller: Caller = InThreads()
        self._keepers: list[asyncio.Task[None]] = []
        self._stopping = False
        self.claim = Claim(owner=uuid4().hex, lease_seconds=limits.lease_seconds)
        self.waiters = Waiters()
        self.drivers = Drivers(self._advance, self._left)
        self._lookout = Lookout(store, self._interest, self._moved, limits.poll_seconds)
        self._recovery = Recovery(
            store,
            registry,
            limits.max_recoveries,
            ledger=self.ledger,
            drives=self.drives,
            take_up=self.go_on,
        )

    def ledger(self, key: SessionKey, state: State) -> StoreLedger:
        # A server that stops leaves the queue to others.
        return StoreLedger(self._store, key, state, self.claim, begins_queued=lambda: not self._stopping)

    def publish(self, key: SessionKey, events: list[RecordedEvent]) -> None:
        """Show recorded events to those who look on, and to those who wait for a run to end."""
        for event in events:
            self._lookout.note(key, event.seq)
            self._hub.publish(key, event)
            if isinstance(event.fact, RunEnded | RunWaiting):
                self.waiters.wake(key, event.run_id)

    def go_on(self, ledger: StoreLedger, events: list[RecordedEvent]) -> None:
        """Show what was recorded in a session, and advance it from there if it is this process's to advance."""
        self.publish(ledger.key, events)
        if ledger.lease is not None:
            self.drivers.drive(ledger, events)

    @property
    def driven_count(self) -> int:
        return len(self.drivers)

    def drives(self, key: SessionKey) -> bool:
        return key in self.drivers

    def abandon(self, key: SessionKey) -> None:
        """Stop working on a session whose run was ended by somebody: a model call is dropped, a late result ignored."""
        self.drivers.abandon(key)

    def _left(self, key: SessionKey) -> None:
        """Nobody advances this session here any more: whoever waits for it looks again."""
        self._hub.hush(key)
        self.waiters.wake(key)

    async def _advance(self, ledger: StoreLedger, begun: list[RecordedEvent]) -> None:
        """Run after run, until there is none left that is this process's to advance."""
        while True:
            try:
                return await self._run(ledger, begun)
            except Stopped:
                return await self._interrupt(ledger)
            except LeaseLost:
                return log.warning(_LOST, ledger.key.id)
            except DomainError as error:
                # The session was deleted, or moved on without this run.
                return log.info("session %s: %s", ledger.key.id, error)
            except Exception:
                log.exception("session %s: the run stopped on an unexpected error", ledger.key.id)
                begun = await self._give_up(ledger)
                if not begun or ledger.lease is None:
                    return None

    async def _run(self, ledger: StoreLedger, begun: list[RecordedEvent]) -> None:
        policy = SessionPolicy(self._limits, self._hub, ledger.key)
        loop = Loop(ledger, self._registry, self._model, self._caller, policy, begun)
        async with aclosing(loop.advance()) as items:
            async for item in items:
                if isinstance(item, RecordedEvent):
                    self.publish(ledger.key, [item])
                else:
                    self._hub.publish(ledger.key, item)

    async def _give_up(self, ledger: StoreLedger) -> list[RecordedEvent]:
        """Record the run as failed, and what then begins; nothing if that was not possible."""
        error = RunError(code="internal_error", message="the server met an unexpected error; its log says more")
        try:
            events = await ledger.commit(_ending(RunFailed, "error", error))
        except Exception:
            log.exception("session %s: the failure could not be recorded; recovery will go on", ledger.key.id)
            return []
        self.publish(ledger.key, events)
        return events

    async def start(self) -> None:
        """Begin to renew leases and to look after abandoned runs, the first time before this returns."""
        # First the leases: with many to take over, the first ones would run out again.
        self._keepers = [asyncio.create_task(work()) for work in (self._keep_leases, self._lookout.run)]
        await self.recover()
        self._keepers.append(asyncio.create_task(self._keep_recovering()))

    async def recover(self) -> None:
        await self._recovery.recover()

    async def _keep_recovering(self) -> None:
        pause = min(self._limits.lease_seconds / 3, _LOOK_SECONDS)
        while True:
            await asyncio.sleep(pause)
            try:
                if not self._stopping:
                    await self.recover()
            except Exception as error:
                complain(log, error, "abandoned runs could not be looked for; the next attempt follows")

    async def _keep_leases(self) -> None:
        # On its own, because nothing else may hold it up.
        renewal = self._limits.lease_seconds / 3
        pause = renewal
        while True:
            await asyncio.sleep(pause)
            pause = renewal
            try:
                if leases := self.drivers.leases():
                    await self._drop(leases, await self._store.renew(leases, lease_seconds=self.claim.lease_seconds))
            except Exception as error:
                complain(log, error, "leases could not be renewed; the next attempt follows")
                pause = min(renewal, _LOOK_SECONDS)

    async def _drop(self, leases: Mapping[SessionKey, Lease], lost: Iterable[SessionKey]) -> None:
        for key in lost:
            if self.drivers.lost(key, leases[key]):
                log.warning(_LOST, key.id)

    def _interest(self) -> set[SessionKey]:
        return {*self._hub.sessions(), *self.waiters.sessions(), *self.drivers.leases()}

    async def _moved(self, keys: set[SessionKey]) -> None:
        leases = {key: lease for key, lease in self.drivers.leases().items() if key in keys}
        heads = await self._store.heads(leases) if leases else {}
        await self._drop(leases, [key for key in leases if key not in heads or heads[key].lease != leases[key]])
        for key in keys:
            self._hub.stir(key)
            self.waiters.wake(key)

    async def stop(self) -> None:
        """Give running runs their grace time; what still runs then is interrupted, and may be resumed.

        What only waits to ask its model again is interrupted at once.
        """
        self._stopping = True
        self._pauses.end()
        stopped = await self.drivers.stop(self._limits.grace_seconds)
        await asyncio.gather(*(self._interrupt(ledger) for ledger in stopped))
        # Last: a lease that is not renewed while its run has its grace time could be taken over.
        keepers, self._keepers = self._keepers, []
        for keeper in keepers:
            keeper.cancel()
        await asyncio.gather(*keepers, return_exceptions=True)

    async def _interrupt(self, ledger: StoreLedger) -> None:
        error = RunError(code="draining", message="the server was stopped; resume the run to go on", retryable=True)
        try:
            async with asyncio.timeout(_INTERRUPT_SECONDS):
                self.publish(ledger.key, await ledger.commit(_ending(RunInterrupted, "interrupted", error)))
        except DomainError as refused:
            # Another process has taken over, or the session was deleted.
            log.info("session %s: %s", ledger.key.id, refused)
        except TimeoutError:
            log.warning(_NOT_INTERRUPTED, ledger.key.id)
        except Exception:
            log.exception(_NOT_INTERRUPTED, ledger.key.id)


def _ending(ending: Ending, stop_reason: StopReason, error: RunError) -> Decide:
    """Decide to end the run that is running, if one is."""

    def decide(state: State) -> list[EventDraft] | None:
        run = state.run
        if run is None or run.status != "running":
            return None
        return draft_events(state.agent, end_run(state, run, ending, stop_reason, error), run.id)

    return decide
