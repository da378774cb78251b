"""Runs as tasks: each advanced by one process at a time, taken over when that process dies."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator
from contextlib import aclosing, contextmanager
from uuid import uuid4

from swarmkeep.domain.commands import expire_approvals
from swarmkeep.domain.drafts import drafted
from swarmkeep.domain.envelope import Draft, Recorded
from swarmkeep.domain.errors import DomainError, LeaseLost, SessionNotFound
from swarmkeep.domain.events import RunEnded, RunError, RunFailed, RunInterrupted, RunResumed, RunWaiting
from swarmkeep.domain.state import Run, State
from swarmkeep.domain.turns import ended
from swarmkeep.engine.ledger import StoreLedger, now
from swarmkeep.engine.limits import Limits, SessionPolicy
from swarmkeep.engine.live import Hub
from swarmkeep.engine.loop import Loop
from swarmkeep.engine.model import Model
from swarmkeep.engine.registry import Registry
from swarmkeep.engine.tools import Caller, InThreads
from swarmkeep.store.port import Claim, EventStore, SessionKey

log = logging.getLogger(__name__)


# How often to look for runs that nobody advances: a take-over comes that much after the lease's end at the latest.
_LOOK_SECONDS = 1.0


class Conductor:
    """Advances the sessions whose lease this process holds, renews the leases, and takes over abandoned runs."""

    def __init__(self, store: EventStore, registry: Registry, model: Model, hub: Hub, limits: Limits) -> None:
        self._store = store
        self._registry = registry
        self._model = model
        self._hub = hub
        self._limits = limits
        self._caller: Caller = InThreads()
        self._tasks: dict[SessionKey, asyncio.Task[None]] = {}
        self._ledgers: dict[SessionKey, StoreLedger] = {}
        self._waiters: dict[tuple[SessionKey, str], set[asyncio.Future[None]]] = {}
        self._keeper: asyncio.Task[None] | None = None
        self._stopping = False
        self.claim = Claim(owner=uuid4().hex, lease_seconds=limits.lease_seconds)

    def ledger(self, key: SessionKey, state: State) -> StoreLedger:
        return StoreLedger(self._store, key, state, self.claim)

    def publish(self, key: SessionKey, events: list[Recorded]) -> None:
        """Show recorded events to those who look on, and to those who wait for a run to end."""
        for event in events:
            self._hub.publish(key, event)
            if isinstance(event.fact, RunEnded | RunWaiting):
                _wake_all(self._waiters.get((key, event.run_id or ""), ()))

    def _wake(self, key: SessionKey) -> None:
        """Let everybody who waits for a run of this session look again: it is not advanced here any more."""
        for (waited, _), waiters in self._waiters.items():
            if waited == key:
                _wake_all(waiters)

    def drive(self, ledger: StoreLedger, begun: list[Recorded]) -> None:
        """Go on with a session whose lease the ledger holds, in a task of its own; `begun` is what set it going."""
        self._ledgers[ledger.key] = ledger
        self._tasks[ledger.key] = asyncio.create_task(self._drive(ledger, begun, self._tasks.get(ledger.key)))

    def drives(self, key: SessionKey) -> bool:
        return key in self._tasks

    @contextmanager
    def expecting(self, key: SessionKey, run_id: str) -> Iterator[asyncio.Future[None]]:
        """A future that is done when the run ends or waits, provided that this process gets it there."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiters = self._waiters.setdefault((key, run_id), set())
        waiters.add(waiter)
        try:
            yield waiter
        finally:
            waiters.discard(waiter)
            if not waiters:
                self._waiters.pop((key, run_id), None)

    def abandon(self, key: SessionKey) -> None:
        """Stop working on a session whose run was ended by somebody: a model call is dropped, a late result ignored."""
        task = self._tasks.get(key)
        if task is not None:
            task.cancel()

    async def _drive(self, ledger: StoreLedger, begun: list[Recorded], before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await asyncio.wait([before])
        try:
            await self._advance(ledger, begun)
        except LeaseLost:
            log.warning("session %s: another process has taken the run over", ledger.key.id)
        except DomainError as error:
            # The session was deleted, or moved on without this run.
            log.info("session %s: %s", ledger.key.id, error)
        except Exception:
            log.exception("session %s: the run stopped on an unexpected error", ledger.key.id)
            await self._give_up(ledger)
        finally:
            self._hub.hush(ledger.key)
            if self._tasks.get(ledger.key) is asyncio.current_task():
                del self._tasks[ledger.key], self._ledgers[ledger.key]
                self._wake(ledger.key)

    async def _advance(self, ledger: StoreLedger, begun: list[Recorded]) -> None:
        policy = SessionPolicy(self._limits, self._hub, ledger.key)
        loop = Loop(ledger, self._registry, self._model, self._caller, policy, begun)
        async with aclosing(loop.advance()) as items:
            async for item in items:
                if isinstance(item, Recorded):
                    self.publish(ledger.key, [item])
                else:
                    self._hub.publish(ledger.key, item)

    async def _give_up(self, ledger: StoreLedger) -> None:
        error = RunError(code="internal_error", message="the server met an unexpected error; its log says more")

        def fail(state: State) -> list[Draft] | None:
            run = state.run
            return None if run is None else drafted(state.agent, ended(state, run, RunFailed, "error", error), run.id)

        try:
            self.publish(ledger.key, await ledger.commit(fail))
        except Exception:
            log.exception("session %s: the failure could not be recorded; recovery will go on", ledger.key.id)

    async def start(self) -> None:
        """Begin to renew leases and to look after abandoned runs, the first time before this returns."""
        await self.recover()
        self._keeper = asyncio.create_task(self._keep())

    async def _keep(self) -> None:
        renewal = self._limits.lease_seconds / 3
        clock = asyncio.get_running_loop().time
        renewed = clock()
        while True:
            await asyncio.sleep(min(renewal, _LOOK_SECONDS))
            try:
                if self._tasks and clock() - renewed >= renewal - _LOOK_SECONDS / 2:
                    renewed = clock()
                    await self._store.renew(self.claim.owner, lease_seconds=self._limits.lease_seconds)
                if not self._stopping:
                    await self.recover()
            except Exception:
                log.exception("leases could not be renewed; the next attempt follows")

    async def recover(self) -> None:
        """Take over the runs that nobody advances: fold, and go on with what comes next."""
        for key in await self._store.abandoned():
            if key in self._tasks:
                continue
            try:
                await self._take_over(key)
            except (LeaseLost, SessionNotFound):
                # Another process was quicker, or the session was deleted.
                continue

    async def _take_over(self, key: SessionKey) -> None:
        ledger = self.ledger(key, await self._store.state(key))
        events = await ledger.commit(self._recovered)
        self.publish(key, events)
        if ledger.lease is not None:
            log.info("session %s: took over run %s", key.id, ledger.state.run and ledger.state.run.id)
            self.drive(ledger, events)

    def _recovered(self, state: State) -> list[Draft] | None:
        run = state.run
        if run is None:
            # What waits in the queue follows by itself.
            return [] if state.queue else None
        if run.status != "running":
            return expire_approvals(state, now())
        error = self._hopeless(state, run)
        if error is not None:
            return drafted(state.agent, ended(state, run, RunInterrupted, "interrupted", error), run.id)
        return drafted(state.agent, [RunResumed(reason="recovery")], run.id)

    def _hopeless(self, state: State, run: Run) -> RunError | None:
        if state.agent not in self._registry:
            return RunError(code="agent_unavailable", message=f"agent {state.agent!r} is not served here")
        if run.recoveries >= self._limits.max_recoveries:
            return RunError(
                code="too_many_recoveries", message=f"the run was taken over {run.recoveries} times in vain"
            )
        return None

    async def stop(self) -> None:
        """Give running runs their grace time; what still runs then is interrupted, and may be resumed."""
        self._stopping = True
        if self._tasks:
            await asyncio.wait(list(self._tasks.values()), timeout=self._limits.grace_seconds)
        for key, task in list(self._tasks.items()):
            ledger = self._ledgers[key]
            task.cancel()
            await asyncio.wait([task])
            try:
                await self._interrupt(ledger)
            except DomainError as refused:
                # Another process has taken over, or the session was deleted.
                log.info("session %s: %s", key.id, refused)
            except Exception:
                log.exception("session %s: the run could not be interrupted; recovery will go on", key.id)
        # Last: a lease that is not renewed while its run has its grace time could be taken over.
        if self._keeper is not None:
            self._keeper.cancel()

    async def _interrupt(self, ledger: StoreLedger) -> None:
        error = RunError(code="draining", message="the server was stopped; resume the run to go on", retryable=True)

        def interrupt(state: State) -> list[Draft] | None:
            run = state.run
            if run is None or run.status != "running":
                return None
            return drafted(state.agent, ended(state, run, RunInterrupted, "interrupted", error), run.id)

        self.publish(ledger.key, await ledger.commit(interrupt))


def _wake_all(waiters: Iterable[asyncio.Future[None]]) -> None:
    for waiter in waiters:
        if not waiter.done():
            waiter.set_result(None)
