"""Agents that are asked by others on a server: each in a session of its own, by a run that is as durable as any."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from functools import partial

import msgspec
from msgspec import UNSET, UnsetType

from swarmkeep.agent import Tool
from swarmkeep.decide.commands import Approval, StartRun, cancel_run, create_session, keep_limits, resume_run
from swarmkeep.decide.drafts import apply_drafts, draft_events, go_on_with_session, list_awaited
from swarmkeep.decide.steps import list_needed_agents
from swarmkeep.decide.turns import ToolOutcome, record_result
from swarmkeep.events.codec import Json
from swarmkeep.events.errors import (
    DomainError,
    Draining,
    InvalidRequest,
    RunNotFound,
    RunNotWaiting,
    SessionExists,
    SessionNotFound,
)
from swarmkeep.events.facts import EventDraft, RecordedEvent, RunEnded, RunResumed, RunStarted
from swarmkeep.events.patch import diff
from swarmkeep.events.records import RunOptions
from swarmkeep.events.redaction import REDACTED
from swarmkeep.events.sizes import is_heavy
from swarmkeep.events.state import Run, State, ToolCall, refuse_damaged
from swarmkeep.events.views import RunView, find_run
from swarmkeep.logs import log_fields
from swarmkeep.models.model import ServerStopping
from swarmkeep.runs import identifiers
from swarmkeep.runs.agents import Registry
from swarmkeep.runs.limits import Limits, check_session_quotas
from swarmkeep.runs.loop import UNAVAILABLE, Attempts
from swarmkeep.runs.policy import AskedAgents, Decide, SessionPlan, make_plan
from swarmkeep.runs.reader import RunPosition, SessionReader
from swarmkeep.runs.runs import IdempotentRequest, Runs, run_once
from swarmkeep.runs.worker import Worker
from swarmkeep.store.opening import SqlStore
from swarmkeep.store.records import IdempotencyRecord, SessionKey

# Make the answer of an agent that was asked: a run that is over, as the outcome of a call.


def make_answer(tool: Tool, run: RunView, before: Json) -> ToolOutcome:
    """Make the answer of a run that is over for the agent that asked. `before` is the context that it began with.

    A failed one leaves the context as it was, as a failed function does.
    """
    usage = run.usage if run.total_usage is UNSET else run.total_usage
    session_id = run.session_id or None
    if run.status == "completed" and run.stop_reason == "end_turn":
        patch, nulls = diff(before, run.context_variables)
        return ToolOutcome(
            status="ok", content=run.output_text, patch=patch, nulls=nulls, session_id=session_id, usage=usage
        )
    text = f"Error: {describe_asked(tool)} {_describe_end(run)}"
    return ToolOutcome(status="error", content=text, session_id=session_id, usage=usage)


def describe_asked(tool: Tool) -> str:
    name = "" if tool.asked_agent is None else tool.asked_agent.name
    return f"agent {name!r}, asked by {tool.name},"


def _describe_end(run: RunView) -> str:
    said = f" It said last: {run.output_text}" if run.output_text else ""
    match run.status:
        case "waiting":
            return "waits for an approval, which nobody can give here."
        case "cancelled":
            return f"was cancelled.{said}"
        case "completed" if run.stop_reason == "guardrail":
            return f"gave no answer: a guardrail refused.{said}"
        case "completed":
            return f"did not come to an end ({run.stop_reason}).{said}"
        case _:
            reason = "" if run.error is None else f" ({run.error.code}): {run.error.message}"
            return f"gave no answer{reason}"


def make_error(tool: Tool, text: str, session_id: str | None = None) -> ToolOutcome:
    return ToolOutcome(status="error", content=f"Error: {describe_asked(tool)} {text}", session_id=session_id)


# Sessions above those in which agents are asked: told that these go on, and asked whether they are still wanted.

log = logging.getLogger(__name__)


def _find_awaited(state: State) -> tuple[str, tuple[str, ...]]:
    """The active run, and its calls whose sessions it waits for."""
    return ("", ()) if state.run is None else (state.run.id, state.run.awaited_calls)


def _give_up(state: State, run_id: str, call_id: str) -> list[EventDraft] | None:
    """Go on without the answer of a session that was deleted: to ask again would be to do all of it twice."""
    drafts = go_on_with_session(state, run_id, call_id)
    if drafts is None:
        return None
    after = apply_drafts(state, drafts)
    run = after.run
    call = None if run is None else next((open_call for open_call in run.open_calls if open_call.id == call_id), None)
    if run is None or call is None:
        return drafts
    text = f"Error: {call.name} has no answer: the session in which it was asked was deleted."
    facts = record_result(after, run, call, ToolOutcome(status="error", content=text, session_id=call.session_id))
    return [*drafts, *draft_events(after.agent, facts, run_id)]


class Parents:
    """Reads and wakes the sessions that ask."""

    def __init__(self, store: SqlStore, registry: Registry, worker: Worker) -> None:
        self._store = store
        self._registry = registry
        self._worker = worker

    async def wake(self, key: SessionKey, state: State) -> None:
        """Have the session above go on, if it waits for this one; and those above it.

        If that fails, recovery does it: a session that waits for another is due all the time.
        """
        parent = state.parent
        if parent is None or parent.session_id == REDACTED:
            return
        above = SessionKey(key.tenant, parent.session_id)
        # It may be just about to wait: then it is found at the next look.
        self._worker.recovery.look_soon(above)
        try:
            if self._worker.is_advancing(above):
                return
            found = await self._store.state(above)
            run_id, calls = _find_awaited(found)
            awaited = next(
                (call for call in calls if identifiers.derive_child(above, found, run_id, call) == key), None
            )
            if awaited is None or not all(name in self._registry for name in list_needed_agents(found)):
                return
            session_log = self._worker.open_session_log(above, found)
            events = await session_log.commit(lambda state: go_on_with_session(state, run_id, awaited))
            self._worker.continue_session(session_log, events)
        except Exception as error:
            log.info("session %s: the run that waits for it could not continue yet: %s", key.id, error)
            return
        await self.wake(above, session_log.state)

    async def find_take_over(self, key: SessionKey, state: State) -> Decide | None:
        """Find the decision on a session that no process advances, if asking concerns it."""
        run_id, calls = _find_awaited(state)
        for awaited in calls:
            is_waiting = await self._is_child_waiting(identifiers.derive_child(key, state, run_id, awaited))
            if is_waiting is None:
                return partial(_give_up, run_id=run_id, call_id=awaited)
            if not is_waiting:
                return partial(go_on_with_session, run_id=run_id, call_id=awaited)
        if await self.is_orphan(key, state):
            return lambda state: cancel_run(state, identifiers.derive_child_run(key))
        return None

    async def _is_child_waiting(self, child: SessionKey) -> bool | None:
        """None if there is no such session any more."""
        try:
            run = find_run(await self._store.state(child), identifiers.derive_child_run(child))
        except SessionNotFound:
            return None
        return run is not None and run.status == "waiting"

    async def is_orphan(self, key: SessionKey, state: State) -> bool:
        """Tell if a run that was asked for is active, and no caller waits for its answer any more, now or once another
        run is resumed."""
        parent = state.parent
        if parent is None or parent.session_id == REDACTED:
            return False
        if state.run is None or state.run.id != identifiers.derive_child_run(key):
            return False
        above = SessionKey(key.tenant, parent.session_id)
        try:
            found = await self._store.state(above)
        except SessionNotFound:
            return True
        except DomainError:
            return False
        run = find_run(found, parent.run_id)
        if run is None or identifiers.derive_child(above, found, run.id, parent.tool_call_id) != key:
            return True
        if run.status == "interrupted" and (found.run is not None or found.finished[-1].id != run.id):
            return True
        asked = any(call.id == parent.tool_call_id for call in run.open_calls)
        return not asked or run.status in ("completed", "failed", "cancelled")


# The time that a caller waits in vain while the database is away; a process that advances a run waits longer.
_DOUBT_SECONDS = 5.0


class ChildSessions:
    """Makes the sessions in which agents are asked, and has their runs end with those that asked.

    `parents` are the sessions above them.
    """

    def __init__(
        self, store: SqlStore, registry: Registry, worker: Worker, runs: Runs, parents: Parents, limits: Limits
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
        if identifiers.find_depth(state) >= identifiers.MOST_DEPTH:
            return make_error(tool, f"was not asked: agents may ask one another up to {identifiers.MOST_DEPTH} deep")
        child = identifiers.derive_child(key, state, run.id, call.id)
        found = await self._open_session(child, key, state, tool, call, text)
        if not identifiers.is_child_of(found, run.id, call.id):
            return make_error(tool, f"could not be asked: session {child.id} is somebody else's")
        view = await self._wait(child, found, run, call, text)
        await identifiers.reach(identifiers.CHILD_ENDED)
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
        parent = identifiers.make_parent(key, state, state.run.id, call.id)
        facts = create_session(agent, state.context_variables, {}, (), parent)
        plan = await make_plan(draft_events(agent, facts, None))
        with suppress(SessionExists):
            await self._start(child, identifiers.derive_child_run(child), state.run, call, text, plan)
        return await self._store.state(child, fresh=False)

    async def _wait(self, child: SessionKey, found: State, asking: Run, call: ToolCall, text: str) -> RunView:
        """Return the run in which a child session is asked, once it is over or waits for an answer.

        One that was interrupted, as its server stopped, goes on here.
        """
        run_id = identifiers.derive_child_run(child)
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
        # Another caller may have been quicker to say something in it.
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
        """Cancel the session asked by the call: no caller waits for its answer any more."""
        if state.run is not None:
            await self._cancel_run(identifiers.derive_child(key, state, state.run.id, call.id))

    async def cancel_run(self, key: SessionKey, state: State, run_id: str) -> None:
        """A run has ended: what it asked others for is over, too. One that is only interrupted may go on."""
        run = find_run(state, run_id)
        if run is not None and run.status not in ("running", "waiting", "queued", "interrupted"):
            for child in identifiers.list_open_children(key, state, run):
                await self._cancel_run(child)

    async def end_orphan(self, key: SessionKey, run_id: str) -> None:
        """End a run without a waiting caller, as a crash between the ends of two may leave it: nothing is done for a
        caller that has ended."""
        state = await self._store.state(key, fresh=False)
        if state.run is not None and state.run.id == run_id and await self._parents.is_orphan(key, state):
            await self._runs.cancel(key, run_id)

    async def cancel_sessions(self, children: Sequence[SessionKey]) -> None:
        """Cancel these sessions: no caller waits for their answers any more."""
        for child in children:
            await self._cancel_run(child)

    async def _cancel_run(self, child: SessionKey) -> None:
        try:
            await self._runs.cancel(child, identifiers.derive_child_run(child))
        except (SessionNotFound, RunNotFound):
            log.debug("session %s: there is nothing to cancel", child.id)
        except Exception as error:
            # Recovery finds it, once no process advances it: see `Parents.find_take_over`.
            log.warning("session %s: its run could not be cancelled: %s", child.id, error)

    async def follow_change(self, key: SessionKey, state: State, events: Sequence[RecordedEvent]) -> None:
        """Follow changes that a command recorded of a session's runs: they concern those below and above."""
        for event in events:
            if isinstance(event.fact, RunEnded) and event.run_id is not None:
                await self.cancel_run(key, state, event.run_id)
            if isinstance(event.fact, RunEnded | RunStarted) and event.run_id is not None:
                replaced = identifiers.find_replaced_run(state, event.run_id)
                await self.cancel_sessions(
                    [] if replaced is None else identifiers.list_open_children(key, state, replaced)
                )
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


# Decisions on calls of agents that are asked, given where these were asked from: both sessions go on.


class ApprovalBelow(msgspec.Struct, frozen=True):
    """A decision on a call of a run in another session."""

    session_id: str
    run_id: str
    approval: Approval


class ApprovalsBelow:
    """Gives decisions to the sessions that a waiting run waits for."""

    def __init__(self, store: SqlStore, reader: SessionReader, worker: Worker, runs: Runs, limits: Limits) -> None:
        self._store = store
        self._reader = reader
        self._worker = worker
        self._runs = runs
        self._limits = limits

    async def decide(
        self,
        key: SessionKey,
        run_id: str,
        decisions: Sequence[ApprovalBelow],
        *,
        own: Sequence[Approval] = (),
        options: RunOptions | UnsetType = UNSET,
        idempotency: IdempotentRequest | None = None,
    ) -> RunPosition:
        """Have a run go on, by `options`, once what it waits for in sessions below is decided, and `own` calls of it.

        The run goes on first, so that this request is answered by what it does then; should the decisions not be
        recorded after all, it waits again. Raises what `Runs.resume` raises.
        """
        below = _group(key, decisions)
        chosen = UNSET if options is UNSET else self._runs.apply_limits(options)

        async def begin() -> list[RecordedEvent]:
            await self._runs.check_capacity(key)
            await self._check(below)
            return await self._go_on(key, run_id, below, own, chosen, idempotency)

        begun = await run_once(self._store, key, idempotency, begin)
        if isinstance(begun, IdempotencyRecord):
            position = await self._reader.find_position(key, begun.run_id or run_id)
            return msgspec.structs.replace(position, seq=begun.seq, repeated=True)
        return RunPosition(run_id, begun[0].seq - 1, begun[-1].seq)

    async def _check(self, below: dict[tuple[SessionKey, str], list[Approval]]) -> None:
        """Raise what the decisions would be refused with."""
        now = await self._store.read_clock()
        for (child, child_run), approvals in below.items():
            state = await self._store.sound_state(child)
            check_session_quotas(state, resume_run(state, child_run, (), approvals, now=now), self._limits)

    async def _go_on(
        self,
        key: SessionKey,
        run_id: str,
        below: dict[tuple[SessionKey, str], list[Approval]],
        own: Sequence[Approval],
        options: RunOptions | UnsetType,
        idempotency: IdempotentRequest | None,
    ) -> list[RecordedEvent]:
        now = await self._store.read_clock()

        def decide(state: State) -> list[EventDraft]:
            awaited = () if state.run is None else state.run.awaited_calls
            decided = resume_run(state, run_id, (), own, now=now) if own and awaited else []
            after = apply_drafts(state, decided)
            going_on = awaited and go_on_with_session(after, run_id, awaited[0], keep_limits(after, options))
            if not going_on:
                raise RunNotWaiting(run_id, "running")
            drafts = [*decided, *going_on]
            check_session_quotas(state, drafts, self._limits)
            return drafts

        session_log = self._worker.open_session_log(key, await self._store.sound_state(key))
        mark = None if idempotency is None else idempotency.make_record(run_id)
        events = await session_log.commit(decide, mark=mark, within_quota=True)
        try:
            for (child, child_run), approvals in below.items():
                await self._runs.resume(child, child_run, approvals=approvals, is_asked=True)
        finally:
            self._worker.continue_session(session_log, events)
            # It may itself be waited for.
            await self._worker.teams.follow_change(key, session_log.state, events)
        return events


def _group(key: SessionKey, decisions: Sequence[ApprovalBelow]) -> dict[tuple[SessionKey, str], list[Approval]]:
    found: dict[tuple[SessionKey, str], list[Approval]] = {}
    for each in decisions:
        found.setdefault((SessionKey(key.tenant, each.session_id), each.run_id), []).append(each.approval)
    return found
