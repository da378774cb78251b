"""Agents that are asked by others on a server: each in a session of its own, by a run that is as durable as any."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress

from swarmkeep.agent import Tool
from swarmkeep.domain.decisions.commands import StartRun, create_session
from swarmkeep.domain.decisions.drafts import draft_events
from swarmkeep.domain.decisions.sizes import is_heavy
from swarmkeep.domain.decisions.teams import list_awaited
from swarmkeep.domain.decisions.turns import ToolOutcome
from swarmkeep.domain.envelope import RecordedEvent
from swarmkeep.domain.errors import (
    DomainError,
    Draining,
    InvalidRequest,
    RunNotFound,
    RunNotWaiting,
    SessionExists,
    SessionNotFound,
)
from swarmkeep.domain.events import RunEnded, RunResumed, RunStarted
from swarmkeep.domain.state import Run, State, ToolCall, refuse_damaged
from swarmkeep.domain.views import RunView, find_run
from swarmkeep.engine.agents.registry import Registry
from swarmkeep.engine.attempts import UNAVAILABLE, Attempts
from swarmkeep.engine.failpoints import CHILD_ENDED, reach
from swarmkeep.engine.limits import Limits
from swarmkeep.engine.models.pauses import ServerStopping
from swarmkeep.engine.policy import AskedAgents, Decide
from swarmkeep.engine.runs import Runs
from swarmkeep.engine.session_plans import SessionPlan, make_plan
from swarmkeep.engine.teams.answers import make_answer, make_error
from swarmkeep.engine.teams.links import (
    MOST_DEPTH,
    derive_child,
    derive_child_run,
    find_depth,
    find_replaced_run,
    is_child_of,
    list_open_children,
    make_parent,
)
from swarmkeep.engine.teams.parents import Parents
from swarmkeep.engine.worker.worker import Worker
from swarmkeep.logs.context import log_fields
from swarmkeep.store.archive import Archive
from swarmkeep.store.ports import SessionKey

log = logging.getLogger(__name__)

# What a caller waits for in vain while the database is away; whoever advances a run waits longer.
_DOUBT_SECONDS = 5.0


class ChildSessions:
    """Makes the sessions in which agents are asked, and has their runs end with those that asked.

    `parents` are the sessions above them.
    """

    def __init__(
        self, store: Archive, registry: Registry, worker: Worker, runs: Runs, parents: Parents, limits: Limits
    ) -> None:
        self._store = store
        self._registry = registry
        self._runs = runs
        self._parents = parents
        self._worker = worker
        self._limits = limits

    def open_agents(self, key: SessionKey) -> AskedAgents:
        return ChildrenOfSession(self, key)

    async def find_take_over(self, key: SessionKey, state: State) -> Decide | None:
        return await self._parents.find_take_over(key, state)

    async def ask(self, key: SessionKey, state: State, tool: Tool, call: ToolCall, text: str) -> ToolOutcome:
        """Have a call's agent answer; taken up again, the call finds the same session, and waits for the same run.

        As any run that is under way, it waits for a database that is away.
        """
        attempts = Attempts(key.id, _DOUBT_SECONDS)
        while True:
            try:
                return await self._ask_once(key, state, tool, call, text)
            except Draining:
                raise ServerStopping from None
            except UNAVAILABLE as error:
                await attempts.pause(error)
            except DomainError as error:
                return make_error(tool, f"could not be asked: {error}")

    async def _ask_once(self, key: SessionKey, state: State, tool: Tool, call: ToolCall, text: str) -> ToolOutcome:
        run = state.run
        assert run is not None
        if find_depth(state) >= MOST_DEPTH:
            return make_error(tool, f"was not asked: agents may ask one another up to {MOST_DEPTH} deep")
        child = derive_child(key, state, run.id, call.id)
        found = await self._open_session(child, key, state, tool, call, text)
        if not is_child_of(found, run.id, call.id):
            return make_error(tool, f"could not be asked: session {child.id} is somebody else's")
        view = await self._wait(child, found, run, call, text)
        await reach(CHILD_ENDED)
        if view.status == "waiting":
            awaited = list_awaited(view.pending, child.id, view.id, view.agent)
            return ToolOutcome(status="waiting", content="", session_id=child.id, waits=True, approvals=tuple(awaited))
        # What is answered is what was recorded.
        refuse_damaged(child.id, await self._store.state(child, fresh=False))
        before = (await self._store.state(child, at=1)).context_variables
        aside = is_heavy(before, view.context_variables)
        return await asyncio.to_thread(make_answer, tool, view, before) if aside else make_answer(tool, view, before)

    async def _open_session(
        self, child: SessionKey, key: SessionKey, state: State, tool: Tool, call: ToolCall, text: str
    ) -> State:
        """The session of a call; made with its run, in one commit, if it is not there."""
        try:
            return await self._store.sound_state(child)
        except SessionNotFound:
            assert state.run is not None
            assert tool.asked_agent is not None
        agent = self._registry.get(tool.asked_agent.name).name
        parent = make_parent(key, state, state.run.id, call.id)
        facts = create_session(agent, state.context_variables, {}, (), parent)
        plan = await make_plan(draft_events(agent, facts, None))
        with suppress(SessionExists):
            await self._start(child, derive_child_run(child), state.run, call, text, plan)
        return await self._store.state(child, fresh=False)

    async def _wait(self, child: SessionKey, found: State, asking: Run, call: ToolCall, text: str) -> RunView:
        """The run in which a child session is asked, once it is over or waits for somebody.

        One that was interrupted, as its server stopped, goes on here.
        """
        run_id = derive_child_run(child)
        known = find_run(found, run_id)
        if known is None:
            await self._start(child, run_id, asking, call, text)
        elif known.status == "interrupted":
            await self._resume(child, run_id)
        while True:
            view = await self._wait_for_end(child, run_id)
            stopped = view.status == "interrupted" and view.error is not None and view.error.code == "draining"
            if not stopped:
                return view
            await self._resume(child, run_id)

    async def _wait_for_end(self, child: SessionKey, run_id: str) -> RunView:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._limits.lease_seconds):
                    return await self._runs.wait(child, run_id)
            # Who looks after no sessions but its own, as a chat without a server does, looks after this one, too.
            await self._worker.recovery.take_over(child)

    async def _start(
        self, child: SessionKey, run_id: str, asking: Run, call: ToolCall, text: str, plan: SessionPlan | None = None
    ) -> None:
        if call.redacted:
            raise InvalidRequest("what it was to be asked was redacted")
        message = {"role": "user", "content": text, "sender": call.agent or asking.agent}
        # Somebody may have been quicker to say something in it.
        command = StartRun(run_id=run_id, messages=(message,), on_busy="queue", by=asking.by)
        # What is logged of it is not said of this call.
        with log_fields(tool=None, tool_call_id=None, attempt=None):
            await self._runs.start(child, command, is_asked=True, plan=plan)

    async def _resume(self, child: SessionKey, run_id: str) -> None:
        try:
            await self._runs.resume(child, run_id, is_asked=True)
        except RunNotWaiting as refused:
            # It goes on already, or was followed by another run: what it came to stays.
            log.info("session %s: %s", child.id, refused)

    async def cancel(self, key: SessionKey, state: State, call: ToolCall) -> None:
        """Nobody waits for the call's answer any more."""
        if state.run is not None:
            await self._cancel_run(derive_child(key, state, state.run.id, call.id))

    async def cancel_run(self, key: SessionKey, state: State, run_id: str) -> None:
        """A run has ended: what it asked others for is over, too. One that is only interrupted may go on."""
        run = find_run(state, run_id)
        if run is not None and run.status not in ("running", "waiting", "queued", "interrupted"):
            for child in list_open_children(key, state, run):
                await self._cancel_run(child)

    async def end_orphan(self, key: SessionKey, run_id: str) -> None:
        """End a run that nobody waits for any more, as a crash between the ends of two may leave it: nothing is done
        for a caller that has ended."""
        state = await self._store.state(key, fresh=False)
        if state.run is not None and state.run.id == run_id and await self._parents.is_orphan(key, state):
            await self._runs.cancel(key, run_id)

    async def cancel_sessions(self, children: Sequence[SessionKey]) -> None:
        """Nobody waits for these answers any more."""
        for child in children:
            await self._cancel_run(child)

    async def _cancel_run(self, child: SessionKey) -> None:
        try:
            await self._runs.cancel(child, derive_child_run(child))
        except (SessionNotFound, RunNotFound):
            log.debug("session %s: there is nothing to cancel", child.id)
        except Exception as error:
            # Recovery finds it, once nobody advances it: see `Parents.find_take_over`.
            log.warning("session %s: its run could not be cancelled: %s", child.id, error)

    async def follow_change(self, key: SessionKey, state: State, events: Sequence[RecordedEvent]) -> None:
        """What was recorded of a session's runs, by somebody's command: it concerns those below and above."""
        for event in events:
            if isinstance(event.fact, RunEnded) and event.run_id is not None:
                await self.cancel_run(key, state, event.run_id)
            if isinstance(event.fact, RunEnded | RunStarted) and event.run_id is not None:
                replaced = find_replaced_run(state, event.run_id)
                await self.cancel_sessions([] if replaced is None else list_open_children(key, state, replaced))
        if state.parent is not None and any(isinstance(event.fact, RunEnded | RunResumed) for event in events):
            await self._parents.wake(key, state)


class ChildrenOfSession:
    """The agents that one session's agents ask."""

    def __init__(self, children: ChildSessions, key: SessionKey) -> None:
        self._children = children
        self._key = key

    async def ask(self, state: State, tool: Tool, call: ToolCall, text: str) -> ToolOutcome:
        return await self._children.ask(self._key, state, tool, call, text)

    async def cancel(self, state: State, call: ToolCall) -> None:
        await self._children.cancel(self._key, state, call)
