"""What callers do with runs: start, await, follow, cancel, resume."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

import msgspec
from msgspec.structs import replace

from swarmkeep.domain.decisions.commands import StartRun, cancel_run, start_run
from swarmkeep.domain.decisions.resuming import Approval, ToolAnswer, resume_run
from swarmkeep.domain.envelope import EventDraft, RecordedEvent
from swarmkeep.domain.errors import Draining, RunNotFound
from swarmkeep.domain.events import RunEnded, RunStarted, RunWaiting
from swarmkeep.domain.state import State
from swarmkeep.domain.times import make_timestamp
from swarmkeep.domain.views import RunView, collect_runs, find_run, view_run
from swarmkeep.engine.agents.registry import Registry
from swarmkeep.engine.failpoints import ANSWER_READY, reach
from swarmkeep.engine.idempotency import IdempotentRequest, run_once
from swarmkeep.engine.limits import Limits
from swarmkeep.engine.loop import Item
from swarmkeep.engine.policy import Decide
from swarmkeep.engine.streaming import Hub, follow, read_pages
from swarmkeep.engine.worker.worker import Worker
from swarmkeep.store.ports import EventStore, IdempotencyRecord, SessionKey


class RunPosition(msgspec.Struct, frozen=True):
    """Where a run's stream begins: its id, and the seq that its events come after.

    `seq` is the last event of what the request did. Where an earlier one with the same idempotency key did it, it is
    `repeated`, and its answer is given again.
    """

    run_id: str
    after: int
    seq: int | None = None
    repeated: bool = False


class Runs:
    """Runs of every session. A run is a task of its own: nobody who watches or waits keeps it alive or ends it."""

    def __init__(self, store: EventStore, registry: Registry, conductor: Worker, hub: Hub, limits: Limits) -> None:
        self._store = store
        self._registry = registry
        self._worker = conductor
        self._hub = hub
        self._limits = limits
        self.is_draining = False

    async def start(self, key: SessionKey, wish: StartRun, *, once: IdempotentRequest | None = None) -> RunPosition:
        """Record the run and its input, and begin; returns once that is durable.

        Raises SessionBusy, AgentNotFound, AgentUnavailable, SessionNotFound, Draining, IdempotencyMismatch.
        """
        wish = self._apply_limits(wish)
        if wish.agent is not None:
            wish = replace(wish, agent=self._registry.get(wish.agent).name)

        def decide(state: State) -> Sequence[EventDraft]:
            agent = self._registry.get_active(wish.agent or state.agent)
            # An agent that has another name now is called by that from here on.
            chosen = wish if agent.name in (wish.agent, state.agent) else replace(wish, agent=agent.name)
            # What an interrupted run's model was just saying here is kept with it.
            return start_run(state, chosen, "" if state.run is None else self._hub.get_partial_text(key, state.run.id))

        return await self._begin_once(key, decide, wish.run_id, once)

    def _apply_limits(self, wish: StartRun) -> StartRun:
        options = replace(wish.options, loop_turns=self._limits.loop_turns, history_turns=self._limits.history_turns)
        return replace(wish, options=options)

    async def _begin_once(
        self, key: SessionKey, decide: Decide, run_id: str, once: IdempotentRequest | None
    ) -> RunPosition:
        """Start or resume a run; where an earlier request has done so already, its run is the answer."""

        async def begin() -> list[RecordedEvent]:
            if self.is_draining:
                raise Draining
            return await self._commit_change(key, decide, None if once is None else once.make_record(run_id))

        begun = await run_once(self._store, key, once, begin)
        if isinstance(begun, IdempotencyRecord):
            return replace(await self.feed(key, begun.run_id or run_id), seq=begun.seq, repeated=True)
        started = next((event.seq for event in begun if event.run_id == run_id), None)
        return await self.feed(key, run_id) if started is None else RunPosition(run_id, started - 1, begun[-1].seq)

    async def _commit_change(
        self, key: SessionKey, decide: Decide, mark: IdempotencyRecord | None = None
    ) -> list[RecordedEvent]:
        """Commit a decision, and drive what it set going."""
        remembered = await self._store.state(key, fresh=False)
        ledger = self._worker.open_session_log(key, remembered, is_remembered=True)
        events = await ledger.commit(decide, mark=mark)
        if _has_ended_active_run(events, ledger.state):
            self._worker.abandon(key)
        self._worker.continue_session(ledger, events)
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
                run = find_run(state, run_id)
                if run is None:
                    raise RunNotFound(run_id)
                if run.status not in ("running", "queued"):
                    reach(ANSWER_READY)
                    return view_run(key.id, state, run)
                await asyncio.wait([waiter], timeout=self._limits.lease_seconds)

    async def _find_earlier_answer(self, key: SessionKey, run_id: str, since: int) -> RunView | None:
        view = await self.get(key, run_id, at=since)
        if view.status not in ("running", "queued"):
            return view
        async with aclosing(read_pages(self._store, key, after=since)) as events:
            async for event in events:
                if event.run_id == run_id and isinstance(event.fact, RunEnded | RunWaiting):
                    return await self.get(key, run_id, at=event.seq)
        return None

    async def get(self, key: SessionKey, run_id: str, *, at: int | None = None) -> RunView:
        """The run now, or as it was after event `at`."""
        state = await self._store.state(key, at=at)
        run = find_run(state, run_id)
        if run is None:
            raise RunNotFound(run_id)
        return view_run(key.id, state, run)

    async def all(self, key: SessionKey) -> list[RunView]:
        """Every run of the session, newest first."""
        state = await self._store.state(key)
        return [view_run(key.id, state, run) for run in reversed(collect_runs(state))]

    async def feed(self, key: SessionKey, run_id: str) -> RunPosition:
        """Where the stream of a run that was started before begins."""
        run = find_run(await self._store.state(key), run_id)
        if run is None:
            raise RunNotFound(run_id)
        return RunPosition(run_id, run.first_seq - 1)

    async def stream(
        self, key: SessionKey, feed: RunPosition, *, after: int | None = None
    ) -> AsyncGenerator[Item | None]:
        """The run's own events after `after` and what passes in between, up to its end or until it waits.

        None is a sign of life, given when nothing happens for a while.
        """
        last = feed.after if after is None else max(after, feed.after)
        # A stale state would do harm here: the last event of a run that has ended will not come again.
        state = await self._store.state(key)
        if not _is_going_on(state, feed.run_id):
            upto = _find_last_seq(state, feed.run_id)
            async with aclosing(read_pages(self._store, key, after=last, upto=upto)) as events:
                async for event in events:
                    if event.run_id == feed.run_id:
                        yield event
            return
        items = follow(self._store, self._hub, key, after=last, poll_seconds=self._limits.poll_seconds)
        async with aclosing(items):
            async for item in items:
                if item is None:
                    yield None
                elif item.run_id == feed.run_id:
                    yield item
                    if isinstance(item, RecordedEvent) and await self._is_last_event(key, item):
                        return

    async def _is_last_event(self, key: SessionKey, event: RecordedEvent) -> bool:
        """Whether this event was the run's last; a run that waited or was interrupted may have gone on since."""
        if not isinstance(event.fact, RunEnded | RunWaiting):
            return False
        return not _is_going_on(await self._store.state(key), event.run_id or "")

    async def cancel(self, key: SessionKey, run_id: str, *, once: IdempotentRequest | None = None) -> RunView:
        """End a run; what it produced stays. A run that has ended already is left as it is."""
        partial = self._hub.get_partial_text(key, run_id)
        mark = None if once is None else once.make_record(run_id)
        done = await run_once(
            self._store,
            key,
            once,
            lambda: self._commit_change(key, lambda state: cancel_run(state, run_id, partial), mark),
        )
        return await self.get(key, run_id, at=done.seq if isinstance(done, IdempotencyRecord) else None)

    async def resume(
        self,
        key: SessionKey,
        run_id: str,
        *,
        tool_results: Sequence[ToolAnswer] = (),
        approvals: Sequence[Approval] = (),
        once: IdempotentRequest | None = None,
    ) -> RunPosition:
        """Go on with a waiting run, or try an interrupted one again; returns once that is durable.

        Raises RunNotWaiting, AlreadyDecided, InvalidRequest, RunNotFound, AgentUnavailable, Draining.
        """

        def decide(state: State) -> Sequence[EventDraft]:
            self._registry.get_active(state.agent)
            return resume_run(state, run_id, tool_results, approvals, now=make_timestamp())

        return await self._begin_once(key, decide, run_id, once)


def _has_ended_active_run(events: Sequence[RecordedEvent], state: State) -> bool:
    """Whether the active run was ended by these events, after which `state` holds; not so if a queued one was."""
    ended = any(isinstance(event.fact, RunEnded) for event in events)
    return ended and (state.run is None or any(isinstance(event.fact, RunStarted) for event in events))


def _find_last_seq(state: State, run_id: str) -> int:
    """The last event that may be the run's: while it waits, the session may have been changed besides."""
    run = find_run(state, run_id)
    return state.seq if run is None or run.status == "waiting" else run.last_seq


def _is_going_on(state: State, run_id: str) -> bool:
    run = find_run(state, run_id)
    return run is not None and run.status in ("running", "queued")
