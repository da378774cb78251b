"""Commands on runs: start, cancel, resume; and waiting for one to end."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING

from msgspec.structs import replace

from swarmkeep.domain.decisions.commands import StartRun, cancel_run, start_run
from swarmkeep.domain.decisions.partial import NOTHING_SAID
from swarmkeep.domain.decisions.resuming import Approval, ToolAnswer, resume_run
from swarmkeep.domain.decisions.sizes import is_heavy
from swarmkeep.domain.envelope import EventDraft, RecordedEvent
from swarmkeep.domain.errors import Draining, RunNotFound
from swarmkeep.domain.events import RunEnded, RunStarted, RunWaiting
from swarmkeep.domain.state import State
from swarmkeep.domain.views import RunView, find_run, view_run
from swarmkeep.engine.agents.registry import Registry
from swarmkeep.engine.failpoints import ANSWER_READY, reach
from swarmkeep.engine.idempotency import IdempotentRequest, run_once
from swarmkeep.engine.limits import Limits, check_active_runs, check_session_quotas, check_tokens_left
from swarmkeep.engine.policy import Decide
from swarmkeep.engine.reader import RunPosition, SessionReader, is_open
from swarmkeep.engine.worker.worker import Worker
from swarmkeep.store.ports import EventStore, IdempotencyRecord, SessionKey, StorageQuota

if TYPE_CHECKING:
    from swarmkeep.engine.tracing.tracing import Tracing


class Runs:
    """Runs of every session. A run is a task of its own: nobody who watches or waits keeps it alive or ends it."""

    def __init__(
        self,
        store: EventStore,
        reader: SessionReader,
        registry: Registry,
        worker: Worker,
        limits: Limits,
        tracing: Tracing | None = None,
    ) -> None:
        self._store = store
        self._reader = reader
        self._registry = registry
        self._worker = worker
        self._limits = limits
        self._sizes = limits.sizes
        self._tracing = tracing
        self.is_draining = False

    async def start(
        self, key: SessionKey, command: StartRun, *, idempotency: IdempotentRequest | None = None
    ) -> RunPosition:
        """Record the run and its input, and begin; returns once that is durable.

        Raises SessionBusy, AgentNotFound, AgentUnavailable, SessionNotFound, Draining, IdempotencyMismatch, TooLarge,
        QuotaExceeded.
        """
        command = self._apply_limits(command)
        if self._tracing is not None:
            command = self._tracing.mark_command(command)
        await self._check_sizes(command)
        if command.agent is not None:
            command = replace(command, agent=self._registry.get(command.agent).name)

        def decide(state: State) -> Sequence[EventDraft]:
            agent = self._registry.get_active(command.agent or state.agent)
            self._sizes.check_run_context(state, command.context_variables)
            # An agent that has another name now is called by that from here on.
            chosen = command if agent.name in (command.agent, state.agent) else replace(command, agent=agent.name)
            drafts = start_run(state, chosen, said)
            check_session_quotas(state, drafts, self._limits)
            return drafts

        # What an interrupted run's model was just saying is kept with it.
        said = await self._worker.partials.find(key) if command.on_busy == "interrupt" else NOTHING_SAID
        aside = is_heavy(command.messages, command.context_variables)
        return await self._begin_once(key, decide, command.run_id, idempotency, aside)

    async def _check_sizes(self, command: StartRun) -> None:
        check = partial(self._sizes.check_messages, command.messages, "/input")
        if is_heavy(command.messages):
            await asyncio.to_thread(check)
        else:
            check()

    def _apply_limits(self, command: StartRun) -> StartRun:
        options = replace(command.options, loop_turns=self._limits.loop_turns, history_turns=self._limits.history_turns)
        return replace(command, options=options)

    async def _begin_once(
        self, key: SessionKey, decide: Decide, run_id: str, idempotency: IdempotentRequest | None, aside: bool
    ) -> RunPosition:
        """Start or resume a run; where an earlier request has done so already, its run is the answer."""

        async def begin() -> list[RecordedEvent]:
            if self.is_draining:
                raise Draining
            if not self._worker.is_advancing(key):
                check_active_runs(self._worker.tasks.count_tenant(key.tenant), self._limits)
            await check_tokens_left(self._store, key.tenant, self._limits)
            mark = None if idempotency is None else idempotency.make_record(run_id)
            return await self._commit_change(key, decide, mark, self._limits.storage_quota, aside=aside)

        begun = await run_once(self._store, key, idempotency, begin)
        if isinstance(begun, IdempotencyRecord):
            return replace(await self._reader.find_position(key, begun.run_id or run_id), seq=begun.seq, repeated=True)
        started = next((event.seq for event in begun if event.run_id == run_id), None)
        if started is None:
            return await self._reader.find_position(key, run_id)
        return RunPosition(run_id, started - 1, begun[-1].seq)

    async def _commit_change(
        self,
        key: SessionKey,
        decide: Decide,
        mark: IdempotencyRecord | None = None,
        quota: StorageQuota | None = None,
        *,
        aside: bool = False,
    ) -> list[RecordedEvent]:
        """Commit a decision, and drive what it set going."""
        remembered = await self._store.state(key, fresh=False)
        session_log = self._worker.open_session_log(key, remembered, is_remembered=True)
        events = await session_log.commit(decide, mark=mark, quota=quota, aside=aside)
        if _has_ended_active_run(events, session_log.state):
            self._worker.abandon(key)
        self._worker.continue_session(session_log, events)
        return events

    async def wait(self, key: SessionKey, run_id: str, *, since: int | None = None) -> RunView:
        """The run once it has ended or waits for somebody; at once if it does already.

        With `since`, as it was when it first did after that event, whatever has become of it later.
        """
        if since is not None and (answer := await self._find_earlier_answer(key, run_id, since)) is not None:
            return answer
        while True:
            with self._worker.waiters.add_waiter(key, run_id) as waiter:
                state = await self._store.state(key, fresh=not self._worker.is_advancing(key))
                if find_run(state, run_id) is None:
                    # Another server may have put it into the queue.
                    state = await self._store.state(key)
                if (ended := _view_if_over(key, state, run_id)) is not None:
                    return ended
                await asyncio.wait([waiter], timeout=self._limits.lease_seconds)
                state_after = waiter.result() if waiter.done() else None
                if state_after is not None and (ended := _view_if_over(key, state_after, run_id)) is not None:
                    return ended

    async def _find_earlier_answer(self, key: SessionKey, run_id: str, since: int) -> RunView | None:
        view = await self._reader.get_run(key, run_id, at=since)
        if not is_open(view):
            return view
        async with aclosing(self._reader.read_pages(key, after=since)) as events:
            async for event in events:
                if event.run_id == run_id and isinstance(event.fact, RunEnded | RunWaiting):
                    return await self._reader.get_run(key, run_id, at=event.seq)
        return None

    async def cancel(self, key: SessionKey, run_id: str, *, idempotency: IdempotentRequest | None = None) -> RunView:
        """End a run; what it produced stays. A run that has ended already is left as it is."""
        said = await self._worker.partials.find(key, run_id)
        mark = None if idempotency is None else idempotency.make_record(run_id)
        done = await run_once(
            self._store,
            key,
            idempotency,
            lambda: self._commit_change(key, lambda state: cancel_run(state, run_id, said), mark),
        )
        return await self._reader.get_run(key, run_id, at=done.seq if isinstance(done, IdempotencyRecord) else None)

    async def resume(
        self,
        key: SessionKey,
        run_id: str,
        *,
        tool_results: Sequence[ToolAnswer] = (),
        approvals: Sequence[Approval] = (),
        idempotency: IdempotentRequest | None = None,
    ) -> RunPosition:
        """Go on with a waiting run, or try an interrupted one again; returns once that is durable.

        Raises RunNotWaiting, AlreadyDecided, InvalidRequest, RunNotFound, AgentUnavailable, Draining, TooLarge,
        QuotaExceeded.
        """

        def check() -> None:
            for place, answer in enumerate(tool_results):
                self._sizes.check_content(answer.content, f"/tool_results/{place}/content")

        await asyncio.to_thread(check) if is_heavy(tool_results) else check()

        # Whether it is too late for a decision says the clock that says it to every server.
        now = await self._store.read_clock() if approvals else None

        def decide(state: State) -> Sequence[EventDraft]:
            self._registry.get_active(state.agent)
            drafts = resume_run(state, run_id, tool_results, approvals, now=now)
            check_session_quotas(state, drafts, self._limits)
            return drafts

        return await self._begin_once(key, decide, run_id, idempotency, is_heavy(tool_results))


def _view_if_over(key: SessionKey, state: State, run_id: str) -> RunView | None:
    """The run, unless it goes on by itself. Raises RunNotFound."""
    run = find_run(state, run_id)
    if run is None:
        raise RunNotFound(run_id)
    if is_open(run):
        return None
    reach(ANSWER_READY)
    return view_run(key.id, state, run)


def _has_ended_active_run(events: Sequence[RecordedEvent], state: State) -> bool:
    """Whether the active run was ended by these events, after which `state` holds; not so if a queued one was."""
    ended = any(isinstance(event.fact, RunEnded) for event in events)
    return ended and (state.run is None or any(isinstance(event.fact, RunStarted) for event in events))
