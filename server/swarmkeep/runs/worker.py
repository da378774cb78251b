"""Runs as tasks: each advanced by one process at a time, taken over when that process dies."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, TypeVar
from uuid import uuid4

import msgspec

from swarmkeep.decide.settle import find_outside_step
from swarmkeep.decide.steps import AskModel, list_needed_agents
from swarmkeep.events.codec import decode, encode_text
from swarmkeep.events.errors import HistoryDamaged, LeaseLost, SessionDamaged, SessionNotFound
from swarmkeep.events.facts import (
    RecordedEvent,
    RunEnded,
    RunError,
    RunFailed,
    RunInterrupted,
    RunStarted,
    RunWaiting,
    SessionTakenOver,
)
from swarmkeep.events.state import NOTHING_SAID, STATUS_BY_ENDING, PartialReply, Run, State
from swarmkeep.models.failures import Secrets
from swarmkeep.models.model import Model, Pauses, ServerStopping
from swarmkeep.runs.agents import Registry
from swarmkeep.runs.approvals import ApprovalRules
from swarmkeep.runs.hub import Hub, Item
from swarmkeep.runs.limits import Limits, check_tokens_left
from swarmkeep.runs.loop import UNAVAILABLE, log_failure, make_loop
from swarmkeep.runs.policy import AskedAgents, RunTimedOut, Teams, decide_end, describe_session, follow_run, log_trouble
from swarmkeep.runs.recovery import LeaseKeeper, Recovery
from swarmkeep.runs.session_log import StoreSessionLog, read_sound_texts
from swarmkeep.runs.tool_runners import ThreadRunner, ToolRunner
from swarmkeep.runs.tool_servers import ToolServers, name_scope
from swarmkeep.runs.watcher import Waiters, Watcher
from swarmkeep.store.opening import SqlStore
from swarmkeep.store.records import Claim, Lease, SessionHead, SessionKey
from swarmkeep.store.usage import SqlTotals

if TYPE_CHECKING:
    from swarmkeep.runs.tracing import Tracing


# Find the text that a model is just saying, to end its run: asked of the server that hears it, if another.

# How often to look whether the other server has answered.
_LOOK_SECONDS = 0.02


class PartialReplies:
    """Asks other servers what their models have said so far, and tells them. `owner` is the name of this one.

    The wish and the answer are in the session's row. A server that is asked knows it at its next poll or hint, so one
    that does not answer within two polls and a bit is dead or stands still, and what it heard is lost.
    """

    def __init__(
        self,
        store: SqlStore,
        hub: Hub,
        owner: str,
        poll_seconds: float,
        is_advancing: Callable[[SessionKey], bool],
    ) -> None:
        self._store = store
        self._hub = hub
        self._owner = owner
        self._patience_seconds = 2 * poll_seconds + 0.5
        self._is_advancing = is_advancing

    async def find(self, key: SessionKey, run_id: str | None = None) -> PartialReply:
        """Find the text that the model of the session's active run has said so far, on any server.

        With `run_id`, only if that is the active one. Raises SessionNotFound.
        """
        if self._is_advancing(key):
            return self._hub.get_partial(key)
        if not _is_model_asked(await self._store.state(key), run_id):
            return NOTHING_SAID
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._patience_seconds):
                return await self._ask_other(key)
        return NOTHING_SAID

    async def _ask_other(self, key: SessionKey) -> PartialReply:
        if not await self._store.ask_for_partial(key, self._owner):
            return NOTHING_SAID
        while True:
            head = await self._store.read_head(key)
            if head is None or head.partial is None:
                # The run is over, or another process has taken it over.
                return NOTHING_SAID
            if head.partial:
                return _read_answer(head.partial)
            await asyncio.sleep(_LOOK_SECONDS)

    async def answer(self, leases: Mapping[SessionKey, Lease], heads: Mapping[SessionKey, SessionHead]) -> None:
        """Tell what is asked for in these rows, of the runs that are still this server's."""
        for key, lease in leases.items():
            head = heads.get(key)
            if head is not None and head.is_partial_wanted and head.lease == lease:
                await self._store.answer_partial(key, lease, encode_text(self._hub.get_partial(key)))


def _is_model_asked(state: State, run_id: str | None) -> bool:
    if state.run is None or run_id not in (None, state.run.id):
        return False
    return isinstance(find_outside_step(state), AskModel)


def _read_answer(text: str) -> PartialReply:
    try:
        return decode(text, PartialReply)
    except ValueError:
        return NOTHING_SAID


# The policy that a server gives the loop of each session.

T = TypeVar("T")


class SessionPolicy:
    """The policy for the loop of one session."""

    shortens_history = True
    compacts_history = True

    def __init__(
        self,
        store: SqlTotals,
        limits: Limits,
        hub: Hub,
        key: SessionKey,
        rules: ApprovalRules,
        secrets: Secrets,
        agents: AskedAgents,
    ) -> None:
        self._store = store
        self._limits = limits
        self._hub = hub
        self._key = key
        self._rules = rules
        self.tool_seconds = limits.tool_seconds
        self.secrets = secrets
        self.agents = agents
        self.sizes = limits.sizes
        self.files = limits.files
        self._began: tuple[str, str] | None = None
        self._ends_at = 0.0

    async def run_aside(self, work: Callable[[], T]) -> T:
        return await asyncio.to_thread(work)

    def should_stream(self, run: Run) -> bool:
        return run.options.stream or self._hub.has_readers(self._key)

    async def approval_expires_at(self) -> str | None:
        return await self._rules.expires_at()

    async def check_tokens_left(self) -> None:
        # A run does not fail for a database that is away for a while.
        with suppress(*UNAVAILABLE):
            await check_tokens_left(self._store, self._key.tenant, self._limits)

    @asynccontextmanager
    async def time_limit(self, run: Run) -> AsyncGenerator[None]:
        if self._limits.run_seconds is None:
            yield
            return
        began = (run.id, run.active_since)
        if began != self._began:
            # By this process's own clock. The event's time is that of another host's, if this run was taken over.
            self._began, self._ends_at = began, asyncio.get_running_loop().time() + self._limits.run_seconds
        try:
            async with asyncio.timeout_at(self._ends_at) as limit:
                yield
        except TimeoutError:
            if limit.expired():
                raise RunTimedOut(self._limits.run_seconds) from None
            raise


# The sessions that this process advances, each by a task of its own.

# The time that a stopped task may take to tidy up before no one waits for it any more.
_CLEANUP_SECONDS = 2.0

Advance = Callable[[StoreSessionLog, list[RecordedEvent]], Awaitable[None]]


class _SessionTask(msgspec.Struct, frozen=True):
    session_log: StoreSessionLog
    task: asyncio.Task[None]

    @property
    def is_concluding(self) -> bool:
        """True if it is about to end by itself: its run is over, or it is just finding out."""
        return self.session_log.lease is None or self.session_log.is_committing


class SessionTasks:
    """Begins, replaces and stops the tasks. `advance` is what they do; `on_end` is told which session has none now."""

    def __init__(self, advance: Advance, on_end: Callable[[SessionKey], None]) -> None:
        self._advance = advance
        self._on_task_end = on_end
        self._by_session: dict[SessionKey, _SessionTask] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def __contains__(self, key: SessionKey) -> bool:
        return key in self._by_session

    def __len__(self) -> int:
        return len(self._by_session)

    def count_tenant(self, tenant: str) -> int:
        """Count the runs of a tenant that are active here; one that is over counts no more."""
        active = (key for key, current in self._by_session.items() if current.session_log.lease is not None)
        return sum(key.tenant == tenant for key in active)

    def start_task(self, session_log: StoreSessionLog, begun: list[RecordedEvent]) -> None:
        """Go on with a session whose lease the log holds; `begun` is what set it going.

        What was going on there before is over. If it does not know that yet, it is stopped, without a wait for its
        farewell; if it does, what it recorded last is shown first.
        """
        before = self._by_session.get(session_log.key)
        if before is not None and not before.is_concluding:
            self.abandon(session_log.key)
            before = None
        task = asyncio.create_task(self._run_task(session_log, begun, before))
        self._by_session[session_log.key] = _SessionTask(session_log, task)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run_task(
        self, session_log: StoreSessionLog, begun: list[RecordedEvent], before: _SessionTask | None
    ) -> None:
        try:
            if before is not None:
                await asyncio.wait([before.task])
            await self._advance(session_log, begun)
        finally:
            current = self._by_session.get(session_log.key)
            if current is not None and current.session_log is session_log:
                self._forget(session_log.key)

    def abandon(self, key: SessionKey) -> None:
        """Stop working on a session: a model call is dropped, a late result ignored."""
        current = self._by_session.get(key)
        if current is not None:
            current.task.cancel()
            self._forget(key)

    def _forget(self, key: SessionKey) -> None:
        del self._by_session[key]
        self._on_task_end(key)

    def list_keys(self) -> Collection[SessionKey]:
        return self._by_session

    def list_leases(self, keys: Iterable[SessionKey] | None = None) -> dict[SessionKey, Lease]:
        """The leases in hand, of these sessions or of all."""
        found = self._by_session.items() if keys is None else [(key, self._by_session.get(key)) for key in keys]
        return {
            key: current.session_log.lease
            for key, current in found
            if current is not None and current.session_log.lease is not None
        }

    def drop_lost(self, key: SessionKey, lease: Lease) -> bool:
        """Stop working on a session whose lease is not this one any more; True if that was news."""
        current = self._by_session.get(key)
        if current is None or current.is_concluding or current.session_log.lease != lease:
            return False
        self.abandon(key)
        return True

    async def stop(self, seconds: float) -> list[StoreSessionLog]:
        """Let them end in that time, then stop the others; returns the logs of those."""
        if self._by_session:
            await asyncio.wait([current.task for current in self._by_session.values()], timeout=seconds)
        stopped = [current.session_log for current in self._by_session.values()]
        for session_log in stopped:
            self.abandon(session_log.key)
        if self._tasks:
            await asyncio.wait(list(self._tasks), timeout=_CLEANUP_SECONDS)
        return stopped


def has_stopped_run(events: Sequence[RecordedEvent], state: State) -> bool:
    """Tell if the active run was ended by these events, after which `state` holds, or has to wait because a person has
    taken over; not so if a queued one was ended."""
    kinds = {type(event.fact) for event in events}
    if SessionTakenOver in kinds:
        return state.status == "waiting"
    return not kinds.isdisjoint(STATUS_BY_ENDING) and (state.run is None or RunStarted in kinds)


log = logging.getLogger(__name__)

_LOST_MESSAGE = "session %s: the run was ended or taken over by another process"
# The session was deleted, or its log cannot grow. Any other refusal is of what the run does, and ends the run.
_NOTHING_TO_ADD_TO = (SessionNotFound, SessionDamaged, HistoryDamaged)
_NOT_INTERRUPTED_MESSAGE = "session %s: the run could not be interrupted; recovery will take it over"


class Worker:
    """Advances the sessions whose lease this process holds, keeps the leases, and takes over abandoned runs.

    The parts: `SessionTasks` are the tasks, `Recovery` finds what no process does, `Watcher` sees others' work.
    """

    teams: Teams  # set by the engine, which makes both

    def __init__(
        self,
        store: SqlStore,
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
            # A run that no server serves is to fail, rather than wait for ever.
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
        """Stop working on a session whose run a command ended: a model call is dropped, a late result ignored.

        Its readers look into the log: if it was deleted, one that gets its id is another.
        """
        self.tasks.abandon(key)
        self._hub.signal_log_change(key)

    def _on_task_end(self, key: SessionKey) -> None:
        """Note that this session is no longer advanced here: those that wait for it look again."""
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
                async with aclosing(self._open_loop(session_log, begun)) as parts:
                    async for items in parts:
                        self._show(session_log, items)
                return None
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

    def _show(self, session_log: StoreSessionLog, items: Sequence[Item]) -> None:
        """Show what a model says, and what was recorded."""
        events: list[RecordedEvent] = []
        for item in items:
            if isinstance(item, RecordedEvent):
                events.append(item)
            else:
                self._hub.show(session_log.key, item)
        if events:
            self.publish(session_log.key, events, session_log.state)
        for event in events:
            follow_run(event)

    def _open_loop(self, session_log: StoreSessionLog, begun: list[RecordedEvent]) -> AsyncGenerator[Sequence[Item]]:
        """Yield what the loop does; with traces, each run is a span, and so are its calls."""
        key, agents = session_log.key, self.teams.open_agents(session_log.key)
        policy = SessionPolicy(self._store, self._limits, self._hub, key, self._rules, self._secrets, agents)
        scope = name_scope(key, session_log.state.created_at)
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
