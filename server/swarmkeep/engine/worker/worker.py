"""Runs as tasks: each advanced by one process at a time, taken over when that process dies."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING
from uuid import uuid4

from swarmkeep.domain.decisions.steps import list_needed_agents
from swarmkeep.domain.envelope import RecordedEvent
from swarmkeep.domain.errors import HistoryDamaged, LeaseLost, SessionDamaged, SessionNotFound
from swarmkeep.domain.events import RunEnded, RunError, RunFailed, RunInterrupted, RunWaiting
from swarmkeep.domain.state import State
from swarmkeep.engine.agents.approvals import ApprovalRules
from swarmkeep.engine.agents.registry import Registry
from swarmkeep.engine.attempts import log_failure
from swarmkeep.engine.limits import Limits
from swarmkeep.engine.loop import make_loop
from swarmkeep.engine.mcp.servers import ToolServers, name_scope
from swarmkeep.engine.models.model import Model
from swarmkeep.engine.models.pauses import Pauses, ServerStopping
from swarmkeep.engine.models.secrets import Secrets
from swarmkeep.engine.policy import decide_end
from swarmkeep.engine.session_log import StoreSessionLog, read_sound_texts
from swarmkeep.engine.streams.hub import Hub
from swarmkeep.engine.streams.items import Item
from swarmkeep.engine.tool_runners import ThreadRunner, ToolRunner
from swarmkeep.engine.worker.lease_keeper import LeaseKeeper
from swarmkeep.engine.worker.log_context import describe_session, follow_run, log_trouble
from swarmkeep.engine.worker.partials import PartialReplies
from swarmkeep.engine.worker.policy import SessionPolicy
from swarmkeep.engine.worker.recovery import Recovery
from swarmkeep.engine.worker.tasks import SessionTasks
from swarmkeep.engine.worker.teams import Teams
from swarmkeep.engine.worker.waiters import Waiters
from swarmkeep.engine.worker.watcher import Watcher
from swarmkeep.store.ports import Claim, EventStore, Lease, SessionKey

if TYPE_CHECKING:
    from swarmkeep.engine.tracing.tracing import Tracing

log = logging.getLogger(__name__)

_LOST_MESSAGE = "session %s: the run was ended or taken over by another process"
# The session was deleted, or its log cannot grow. Any other refusal is of what the run does, and ends the run.
_NOTHING_TO_ADD_TO = (SessionNotFound, SessionDamaged, HistoryDamaged)
_NOT_INTERRUPTED_MESSAGE = "session %s: the run could not be interrupted; recovery will take it over"


class Worker:
    """Advances the sessions whose lease this process holds, keeps the leases, and takes over abandoned runs.

    The parts: `SessionTasks` are the tasks, `Recovery` finds what nobody does, `Watcher` notices what others did.
    """

    teams: Teams  # set by whoever makes both

    def __init__(
        self,
        store: EventStore,
        registry: Registry,
        model: Model,
        hub: Hub,
        limits: Limits,
        pauses: Pauses,
        secrets: Secrets,
        tracing: Tracing | None = None,
        servers: ToolServers | None = None,
    ) -> None:
        self._store = store
        self._registry = registry
        self._model = model
        self._hub = hub
        self._limits = limits
        self._pauses = pauses
        self._secrets = secrets
        self._tracing = tracing
        self._servers = servers or ToolServers()
        self._tool_runner: ToolRunner = ThreadRunner()
        self._rules = ApprovalRules(registry, store.read_clock, limits.approval_seconds)
        self._background_tasks: list[asyncio.Task[None]] = []
        self._is_stopping = False
        self._has_stopped = False
        self.claim = Claim(owner=uuid4().hex, lease_seconds=limits.lease_seconds)
        self.waiters = Waiters()
        self.partials = PartialReplies(store, hub, self.claim.owner, limits.poll_seconds, self.is_advancing)
        self.tasks = SessionTasks(self._advance, self._on_task_end)
        self.watcher = Watcher(
            store, self._list_watched, self._is_watched, self._on_moved, limits.poll_seconds, hub.note_change
        )
        self._keeper = LeaseKeeper(store, self.tasks.list_leases, limits.lease_seconds)
        self.recovery = Recovery(
            store,
            registry,
            limits.max_recoveries,
            limits.recovery_sessions,
            limits.unserved_seconds,
            # What nobody serves is to fail, rather than wait for ever.
            open_log=partial(self.open_session_log, starts_unserved=True),
            is_advancing=self.is_advancing,
            continue_session=self.continue_session,
            get_teams=lambda: self.teams,
        )

    def open_session_log(
        self, key: SessionKey, state: State, *, is_remembered: bool = False, starts_unserved: bool = False
    ) -> StoreSessionLog:
        """A log to record in; one that `starts_unserved` leaves no queued run to others for want of its agent."""
        may_start = partial(self._may_start_queued, starts_unserved)
        parts = (self._store, key, state, self.claim, self._rules, self._limits.storage_quota)
        return StoreSessionLog(*parts, may_start_queued=may_start, is_remembered=is_remembered)

    def _may_start_queued(self, starts_unserved: bool, state: State) -> bool:
        # A server that stops leaves the queue to others.
        is_served = starts_unserved or all(name in self._registry for name in list_needed_agents(state))
        return is_served and not self._is_stopping

    def publish(self, key: SessionKey, events: list[RecordedEvent], state: State | None = None) -> None:
        """Show recorded events to those who look on, and to those who wait for a run to end.

        `state` is the session's after them, where it is known.
        """
        if not events:
            return
        self.watcher.note_seen(key, events[-1])
        self._hub.publish(key, *events)
        for event in events:
            if isinstance(event.fact, RunEnded | RunWaiting):
                self.waiters.wake(key, event.run_id, state)
                log_trouble(key, event)

    def continue_session(self, session_log: StoreSessionLog, events: list[RecordedEvent]) -> None:
        """Show what was recorded in a session, and advance it from there if it is this process's to advance."""
        self.publish(session_log.key, events, session_log.state)
        if session_log.lease is not None:
            self.tasks.start_task(session_log, events)

    def is_advancing(self, key: SessionKey) -> bool:
        return key in self.tasks

    def abandon(self, key: SessionKey) -> None:
        """Stop working on a session whose run was ended by somebody: a model call is dropped, a late result ignored.

        Its readers look into the log: if it was deleted, one that gets its id is another.
        """
        self.tasks.abandon(key)
        self._hub.signal_log_change(key)

    def _on_task_end(self, key: SessionKey) -> None:
        """Nobody advances this session here any more: whoever waits for it looks again."""
        self._hub.drop_partial(key)
        self.waiters.wake(key)

    async def _advance(self, session_log: StoreSessionLog, begun: list[RecordedEvent]) -> None:
        """Run after run, until there is none left that is this process's to advance."""
        describe_session(session_log.key, session_log.state)
        if self._has_stopped:
            # Of a request that was recorded after all others were interrupted: no task renews its lease any more.
            return await self._interrupt(session_log)
        while True:
            try:
                return await self._run_loop(session_log, begun)
            except ServerStopping:
                return await self._interrupt(session_log)
            except LeaseLost:
                return log.warning(_LOST_MESSAGE, session_log.key.id)
            except _NOTHING_TO_ADD_TO as error:
                return log.info("session %s: %s", session_log.key.id, error)
            except Exception:
                log.exception("session %s: an unexpected error stopped the run", session_log.key.id)
                begun = await self._record_failure(session_log)
                if not begun or session_log.lease is None:
                    return None

    async def _run_loop(self, session_log: StoreSessionLog, begun: list[RecordedEvent]) -> None:
        key, agents = session_log.key, self.teams.open_agents(session_log.key)
        policy = SessionPolicy(self._store, self._limits, self._hub, key, self._rules, self._secrets, agents)
        async with aclosing(self._run_items(session_log, policy, begun)) as items:
            async for item in items:
                if isinstance(item, RecordedEvent):
                    follow_run(item)
                    self.publish(session_log.key, [item], session_log.state)
                else:
                    self._hub.show(session_log.key, item)

    def _run_items(
        self, session_log: StoreSessionLog, policy: SessionPolicy, begun: list[RecordedEvent]
    ) -> AsyncGenerator[Item]:
        """What the loop gives; with traces, each run is a span, and so are its calls."""
        key, scope = session_log.key, name_scope(session_log.key, session_log.state.created_at)
        read_texts = partial(read_sound_texts, self._store, key)
        toolbox = self._servers.make_toolbox(scope, self._tool_runner, read_texts)
        parts = (session_log, self._registry, self._model, self._tool_runner, policy, begun)
        tracing = self._tracing
        loop = make_loop(*parts, toolbox=toolbox, trace_calls=None if tracing is None else tracing.trace_calls)
        return loop.advance() if tracing is None else tracing.follow_runs(session_log, begun, loop.advance())

    async def _record_failure(self, session_log: StoreSessionLog) -> list[RecordedEvent]:
        """Record the run as failed, and what then begins; nothing if that was not possible."""
        error = RunError(code="internal_error", message="the server met an unexpected error; its log says more")
        try:
            said = self._hub.get_partial(session_log.key)
            events = await session_log.commit(decide_end(RunFailed, "error", error, said))
        except Exception:
            log.exception(
                "session %s: the failure could not be recorded; recovery will take the run over", session_log.key.id
            )
            return []
        self.publish(session_log.key, events, session_log.state)
        for event in events:
            follow_run(event)
        return events

    async def start(self) -> None:
        """Begin to renew leases and to look after abandoned runs, the first time before this returns."""
        # First the leases: with many to take over, the first ones would run out again.
        works = (self._renew_leases, self.watcher.run, self._keeper.beat_regularly)
        self._background_tasks = [asyncio.create_task(work()) for work in works]
        self._keeper.start()
        await self.recovery.recover()
        self._background_tasks.append(asyncio.create_task(self._recover_regularly()))

    async def _recover_regularly(self) -> None:
        pause = min(self._limits.lease_seconds / 3, self._limits.recovery_seconds)
        while True:
            await asyncio.sleep(pause)
            try:
                if not self._is_stopping:
                    await self.recovery.recover()
            except Exception as error:
                log_failure(log, error, "could not look for abandoned runs; trying again")

    async def _renew_leases(self) -> None:
        # On its own, because nothing else may hold it up.
        renewal = self._limits.lease_seconds / 3
        pause = renewal
        while True:
            await asyncio.sleep(pause)
            pause = renewal
            try:
                if leases := self.tasks.list_leases():
                    lost = await self._store.renew(leases, lease_seconds=self.claim.lease_seconds)
                    await self._drop_lost(leases, lost)
            except Exception as error:
                log_failure(log, error, "could not renew leases; trying again")
                pause = min(renewal, self._limits.recovery_seconds)

    async def _drop_lost(self, leases: Mapping[SessionKey, Lease], lost: Iterable[SessionKey]) -> None:
        for key in lost:
            if self.tasks.drop_lost(key, leases[key]):
                log.warning(_LOST_MESSAGE, key.id, extra={"tenant": key.tenant, "session_id": key.id})

    def _list_watched(self) -> set[SessionKey]:
        return set().union(self._hub.list_watched_keys(), self.waiters.list_keys(), self.tasks.list_keys())

    def _is_watched(self, key: SessionKey) -> bool:
        return key in self.tasks or key in self.waiters or self._hub.is_watched(key)

    async def _on_moved(self, keys: set[SessionKey]) -> None:
        leases = self.tasks.list_leases(keys)
        heads = await self._store.read_heads(leases) if leases else {}
        await self._drop_lost(leases, [key for key in leases if key not in heads or heads[key].lease != leases[key]])
        await self.partials.answer(leases, heads)
        for key in keys:
            self._hub.signal_log_change(key)
            self.waiters.wake(key)

    async def stop(self) -> None:
        """Give running runs their grace time; what still runs then is interrupted, and may be resumed.

        What only waits to ask its model again is interrupted at once.
        """
        self._is_stopping = True
        self._pauses.stop_waiting()
        stopped = await self.tasks.stop(self._limits.grace_seconds)
        self._has_stopped = True
        await asyncio.gather(*(self._interrupt(session_log) for session_log in stopped))
        # Last: a lease that is not renewed while its run has its grace time could be taken over.
        self._keeper.stop()
        keepers, self._background_tasks = self._background_tasks, []
        for keeper in keepers:
            keeper.cancel()
        await asyncio.gather(*keepers, return_exceptions=True)
        self.waiters.close()

    async def _interrupt(self, session_log: StoreSessionLog) -> None:
        describe_session(session_log.key, session_log.state)
        error = RunError(code="draining", message="the server was stopped; resume the run to go on", retryable=True)
        try:
            async with asyncio.timeout(self._limits.interrupt_seconds):
                events = await session_log.commit(decide_end(RunInterrupted, "interrupted", error))
                self.publish(session_log.key, events, session_log.state)
        except (LeaseLost, *_NOTHING_TO_ADD_TO) as refused:
            # Another process has taken over, or the session is gone.
            log.info("session %s: %s", session_log.key.id, refused)
        except TimeoutError:
            log.warning(_NOT_INTERRUPTED_MESSAGE, session_log.key.id)
        except Exception:
            log.exception(_NOT_INTERRUPTED_MESSAGE, session_log.key.id)
