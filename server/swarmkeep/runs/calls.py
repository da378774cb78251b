"""One tool call of a run: carried out in its time; each event becomes an outcome that the model can read."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any, TypeVar

import msgspec

from swarmkeep.agent import Agent, File, NotJsonError, Result, Tool, ToolArgumentsError, ToolFailed, to_result
from swarmkeep.agent.values import copy_plain_object
from swarmkeep.decide.checks import FileLimits, KeptFiles, keep_files
from swarmkeep.decide.steps import find_last_reply, is_cut
from swarmkeep.decide.turns import (
    ToolOutcome,
    Trip,
    Verdict,
    preview_contexts,
    record_result,
    record_verdict,
    record_waits,
    request_approval,
    restart_tool,
)
from swarmkeep.events.codec import Json
from swarmkeep.events.errors import QuotaExceeded, TooLarge
from swarmkeep.events.facts import RecordedEvent, SessionEvent, ToolStarted
from swarmkeep.events.patch import diff
from swarmkeep.events.sizes import SizeLimits, is_heavy
from swarmkeep.events.state import Run, State, ToolCall
from swarmkeep.logs import log_fields
from swarmkeep.models.failures import NO_SECRETS, Secrets
from swarmkeep.runs.agents import Registry
from swarmkeep.runs.guardrails import Guards, find_called_output, judge_calls
from swarmkeep.runs.identifiers import TOOL_DONE, reach
from swarmkeep.runs.policy import Decide, LoopPolicy, RunTimedOut, SessionLog, restrict_to_run
from swarmkeep.runs.tool_runners import ToolRunner, ToolTimeout, is_loop_running, read_error_text, stops_this_program
from swarmkeep.runs.toolbox import Toolbox

T = TypeVar("T")
# So many are hashed in a tenth of a millisecond.
_LIGHT_BYTES = 100_000
_USUAL_FILES = FileLimits()


class ToolCalls:
    """Carries out the calls of a run, one at a time."""

    def __init__(self, registry: Registry, runner: ToolRunner, policy: LoopPolicy, toolbox: Toolbox) -> None:
        self._registry = registry
        self._runner = runner
        self._policy = policy
        self._toolbox = toolbox
        self._guards = Guards(runner, policy)

    async def perform(self, state: State, agent: Agent | None, tool: Tool | None, call: ToolCall) -> ToolOutcome:
        """Run a call; the end of the run's time becomes an outcome as well."""
        if tool is None:
            return make_unknown_tool_outcome(call, self._toolbox.list_tools(agent, state) if agent is not None else ())
        assert state.run is not None
        try:
            async with self._policy.time_limit(state.run):
                with log_fields(tool=call.name, tool_call_id=call.id, attempt=call.attempts):
                    return await self._perform_in_time(state, state.run, tool, call)
        except RunTimedOut as over:
            if tool.asked_agent is not None:
                await self._policy.agents.cancel(state, call)
            text = f"Error: {call.name} was abandoned: {over}. It may or may not have taken effect."
            return ToolOutcome(status="timeout", content=text)

    async def _perform_in_time(self, state: State, run: Run, tool: Tool, call: ToolCall) -> ToolOutcome:
        # Those of an agent's call have looked at it when it was asked; what they looked at may be gone.
        if tool.guardrails and not (call.redacted and tool.asked_agent is not None):
            trip = await self._guards.check_call(tool, call, state.context_variables)
            if trip is not None:
                return make_refused_outcome(call, trip)
        if tool.asked_agent is not None:
            return await ask_agent(self._policy, state, tool, call)
        outcome, result = await call_tool(
            tool,
            call,
            state.context_variables,
            self._runner,
            self._policy.tool_seconds,
            files=self._policy.files,
            secrets=self._policy.secrets,
            is_alone=runs_alone(run, call),
        )
        return outcome if result.agent is None else apply_handoff(self._registry, outcome, result.agent)


def runs_alone(run: Run, call: ToolCall) -> bool:
    """Tell if nothing runs beside the call, and nothing before it is still to come."""
    first, *others = run.own_open_calls
    return first.id == call.id and not any(other.attempts for other in others)


async def ask_agent(policy: LoopPolicy, state: State, tool: Tool, call: ToolCall) -> ToolOutcome:
    """The answer of another agent. It has its own limits, that of this run and the tool's, if it sets one."""
    started = time.perf_counter()
    try:
        # One whose arguments were redacted is not asked again, but goes on with what it was asked.
        bound = None if call.redacted else tool.bind(call.arguments, context_variables={}, tool_call_id=call.id)
    except ToolArgumentsError as error:
        return ToolOutcome(status="error", content=f"Error: {error}")
    try:
        outcome = await _ask_in_time(policy, state, tool, call, "" if bound is None else bound.keywords["input"])
    except ToolTimeout:
        await policy.agents.cancel(state, call)
        outcome = ToolOutcome(
            status="timeout", content=f"Error: {call.name} did not finish within {tool.timeout:g} s, and was cancelled."
        )
    return msgspec.structs.replace(outcome, duration_ms=round((time.perf_counter() - started) * 1000, 3))


async def _ask_in_time(policy: LoopPolicy, state: State, tool: Tool, call: ToolCall, text: str) -> ToolOutcome:
    asking = policy.agents.ask(state, tool, call, text)
    # The synchronous loop, in which nothing can be cut off, has no clock.
    if tool.timeout is None or not is_loop_running():
        return await asking
    try:
        async with asyncio.timeout(tool.timeout) as limit:
            return await asking
    except TimeoutError:
        if limit.expired():
            raise ToolTimeout from None
        raise


def apply_handoff(registry: Registry, outcome: ToolOutcome, agent: Agent) -> ToolOutcome:
    """The outcome of a call that returned an agent; one that is not served would leave the session stranded."""
    if registry.admit(agent):
        return msgspec.structs.replace(outcome, handoff=agent.name)
    content = f"Error: agent {agent.name!r} is not served here, so nothing was handed over to it."
    return outcome.fail(content)


def fit_outcome(state: State, run: Run, call: ToolCall, outcome: ToolOutcome, sizes: SizeLimits) -> ToolOutcome:
    """The outcome, if what it gives and changes is small enough to be kept; if not, the model is told so."""
    change = outcome.change
    try:
        sizes.check_content(outcome.content, "the result")
        if change is not None:
            for after in preview_contexts(state, run, call, change):
                sizes.check_context(after, state.context_variables)
    except TooLarge as error:
        return outcome.fail(f"Error: {call.name} ran, but nothing that it gave or changed here was kept: {error}.")
    return outcome


def make_refused_outcome(call: ToolCall, trip: Trip) -> ToolOutcome:
    return ToolOutcome(status="refused", content=f"Refused: {call.name} did not run. {trip.message}", trip=trip)


def make_unknown_outcome(call: ToolCall) -> ToolOutcome:
    text = (
        f"Interrupted: {call.name} had been started when the process stopped. It may or may not have taken effect; "
        "find out before doing it again."
    )
    return ToolOutcome(status="unknown_outcome", content=text)


async def call_tool(
    tool: Tool,
    call: ToolCall,
    context: Json,
    runner: ToolRunner,
    seconds: float | None,
    *,
    files: FileLimits = _USUAL_FILES,
    secrets: Secrets = NO_SECRETS,
    is_alone: bool = True,
) -> tuple[ToolOutcome, Result]:
    """Run a call against a copy of the context; a failed call leaves the context as it was.

    `seconds` limits it when the tool sets no time-out of its own. Of one that is not alone the outcome tells which keys
    were given a value as a whole, for the context may be another one by the time that this is applied. Of the files
    that it gives those are kept that `files` allow, without `secrets` in what is text; its own text names all of them.
    """
    started = time.perf_counter()
    is_large = is_heavy(context)

    async def do(work: Callable[[], T]) -> T:
        # A large context takes a while to be copied and compared.
        done: T = await runner(work, is_async=False, seconds=None) if is_large else work()
        return done

    def outcome(status: Any, content: str, after: Json | None = None, replaced: Collection[str] = ()) -> ToolOutcome:
        duration = round((time.perf_counter() - started) * 1000, 3)
        after = context if after is None else after
        values = {key: after[key] for key in replaced}
        patch, nulls = diff(_leave_out(context, replaced), _leave_out(after, replaced))
        return ToolOutcome(
            status=status, content=content, duration_ms=duration, patch=patch, nulls=nulls, values=values
        )

    limit = tool.timeout or seconds
    try:
        copy = await do(partial(copy_plain_object, context))
        given = None if is_alone else dict(copy)
        is_large = is_large or is_heavy(call.arguments)
        bound = await do(lambda: tool.bind(call.arguments, context_variables=copy, tool_call_id=call.id))
        value = await runner(bound, is_async=tool.is_async, seconds=limit)
        is_large = is_large or is_heavy(value, copy)
        result = await do(lambda: to_result(value))
        is_large = is_large or is_heavy(result.context_variables)
        after = await do(lambda: copy_plain_object({**copy, **result.context_variables}, "context_variables"))
        replaced = () if given is None else _find_replaced(given, copy, result.context_variables)
        kept = await _keep_files(result.files, files, secrets, runner)
        text = "\n".join([*([result.value] if result.value else ()), *kept.lines])
        done = await do(lambda: outcome("ok", text, after, replaced))
        return msgspec.structs.replace(_add_files(done, kept), assign=result.assign), result
    except ToolArgumentsError as error:
        return outcome("error", f"Error: {error}"), Result()
    except ToolFailed as error:
        kept = await _keep_files(error.files, files, secrets, runner)
        text = "\n".join([f"Error: {call.name} failed: {error}", *kept.lines])
        return _add_files(outcome("error", text), kept), Result()
    except ToolTimeout:
        text = f"Error: {call.name} did not finish within {limit:g} s. It may or may not have taken effect."
        return outcome("timeout", text), Result()
    except NotJsonError as error:
        return outcome("error", f"Error: {call.name} gave something that JSON cannot hold: {error}"), Result()
    except BaseException as error:
        if stops_this_program(error):
            raise
        return outcome(
            "error", f"Error: {call.name} failed: {type(error).__name__}: {read_error_text(error)}"
        ), Result()


async def _keep_files(given: Sequence[File], limits: FileLimits, secrets: Secrets, runner: ToolRunner) -> KeptFiles:
    keep = partial(keep_files, given, limits, secrets.mask_content)
    if sum(len(file.data) for file in given) <= _LIGHT_BYTES:
        return keep()
    kept: KeptFiles = await runner(keep, is_async=False, seconds=None)
    return kept


def _add_files(outcome: ToolOutcome, kept: KeptFiles) -> ToolOutcome:
    return msgspec.structs.replace(outcome, files=kept.parts, file_content=kept.content)


def _find_replaced(given: Json, changed: Json, returned: Json) -> list[str]:
    """The keys that a function has returned, or put an object of its own at. One that it changed in place is the same
    object still."""
    put = (key for key, value in changed.items() if isinstance(value, dict) and value is not given.get(key))
    return list(dict.fromkeys([*put, *returned]))


def _leave_out(context: Json, keys: Collection[str]) -> Json:
    return {key: value for key, value in context.items() if key not in keys} if keys else context


def make_unknown_tool_outcome(call: ToolCall, known: Iterable[str]) -> ToolOutcome:
    names = ", ".join(known) or "none"
    return ToolOutcome(
        status="error", content=f"Error: there is no function called {call.name!r}. Valid functions: {names}."
    )


def goes_on(tool: Tool | None, call: ToolCall) -> bool:
    """Tell if a call that was cut off goes on where it was: another agent was asked, whose run is kept by itself."""
    asks = tool is not None and tool.asked_agent is not None and call.session_id is not None
    return asks and (not call.imported or call.approval == "approve")


# Calls that run at once: each a task of its own, whose outcome is given when it ends.

CarryOut = Callable[[ToolCall], Awaitable[ToolOutcome]]
RunTogether = Callable[[Sequence[ToolCall], CarryOut], AsyncGenerator[tuple[ToolCall, ToolOutcome]]]


async def run_together(calls: Sequence[ToolCall], carry_out: CarryOut) -> AsyncGenerator[tuple[ToolCall, ToolOutcome]]:
    """Begin all of them, and give each with its outcome as it ends; what ends together, in the order of the calls.

    Those that still run when the caller stops taking outcomes are cancelled. To be closed by a caller who stops early.
    """
    tasks = {asyncio.ensure_future(carry_out(call)): call for call in calls}
    pending = set(tasks)
    try:
        while pending:
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            for task, call in tasks.items():
                if task in done:
                    yield call, task.result()
    finally:
        for task in pending:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


# The calls whose starts are recorded: carried out, alone or at once, and their results recorded.

Wait = tuple[ToolCall, ToolOutcome]
Events = TypeVar("Events", bound=Sequence[RecordedEvent])
Perform = Callable[[State, Agent | None, Tool | None, ToolCall], Awaitable[ToolOutcome]]


class StartedCalls:
    """Carries out calls for a loop. `perform` does one, `together` several at once.

    `_own_starts` are the calls whose start was recorded for this very loop to carry out, by itself or by the commit
    that set it going (`begun`), and that it has not carried out yet; a started call that is not among them was cut
    off, and its outcome is unknown.
    """

    def __init__(
        self,
        log: SessionLog,
        registry: Registry,
        policy: LoopPolicy,
        toolbox: Toolbox,
        perform: Perform,
        together: RunTogether,
        begun: Sequence[RecordedEvent],
    ) -> None:
        self.asking_agent: Agent | None = None
        """The agent whose model was asked last."""
        self._log = log
        self._registry = registry
        self._policy = policy
        self._toolbox = toolbox
        self._perform = perform
        self._together = together
        self._own_starts: set[tuple[str, int]] = set()
        self.note_starts(begun)

    def note_starts(self, events: Events) -> Events:
        """The events, once it is known which calls they start."""
        for event in events:
            if isinstance(event.fact, ToolStarted):
                self._own_starts.add((event.fact.tool_call_id, event.fact.attempt))
        return events

    async def run_together(self, run: Run, calls: Sequence[ToolCall]) -> AsyncGenerator[list[RecordedEvent]]:
        """Carry out calls at once, once it is known of each that it was not cut off; each result is recorded as it
        comes. The run waits for the calls that wait for an answer once nothing else is under way."""
        alone = next((call for call in calls if not self._is_carried_out(call, self._find_tool(call)[1])), None)
        if alone is not None:
            yield await self.run(run, alone)
            return
        known = 0
        while True:
            waiting: list[Wait] = []
            async with aclosing(self._carry_out(run, calls, waiting)) as parts:
                async for events in parts:
                    yield events
            if not (waiting and self._is_going_on(run)):
                return
            if len(waiting) == known:
                break
            # What they wait for may have been decided while others were under way: they are looked at again.
            known, waiting_ids = len(waiting), {call.id for call, _ in waiting}
            calls = [call for call in calls if call.id in waiting_ids]
        outcomes = {call.id: outcome for call, outcome in waiting}
        in_order = [(call, outcomes[call.id]) for call in calls]
        yield await self._commit(restrict_to_run(run, lambda state, run: record_waits(run, in_order)))

    async def _carry_out(
        self, run: Run, calls: Sequence[ToolCall], waiting: list[Wait]
    ) -> AsyncGenerator[list[RecordedEvent]]:
        """Record the outcomes of calls; those that come to wait for an answer are added to `waiting`."""
        self._own_starts -= {(call.id, call.attempts) for call in calls}
        before = self._log.state

        async def carry_out(call: ToolCall) -> ToolOutcome:
            agent, tool = self._find_tool(call)
            return await self._mask_outcome(await self._perform(before, agent, tool, call))

        async with aclosing(self._together(calls, carry_out)) as outcomes:
            async for call, outcome in outcomes:
                if outcome.waits:
                    waiting.append((call, outcome))
                    continue
                await reach(TOOL_DONE)
                yield await self._record_outcome(run, call, outcome)
                if not self._is_going_on(run):
                    return

    def _is_going_on(self, run: Run) -> bool:
        current = self._log.state.run
        return current is not None and current.id == run.id and current.status == "running"

    def _find_tool(self, call: ToolCall) -> tuple[Agent | None, Tool | None]:
        agent = self._find_calling_agent(call.agent or self._log.state.agent)
        return agent, None if agent is None else self._toolbox.list_tools(agent, self._log.state).get(call.name)

    async def run(self, run: Run, call: ToolCall) -> list[RecordedEvent]:
        """Carry out a call, or record what becomes of one that was cut off."""
        agent, tool = self._find_tool(call)
        if agent is not None and (output := find_called_output(agent, run, call)) is not None:
            return await self._take_output(run, call, await judge_calls(agent, output, (call,), self._policy))
        if self._is_carried_out(call, tool):
            self._own_starts.discard((call.id, call.attempts))
            outcome = await self._mask_outcome(await self._perform(self._log.state, agent, tool, call))
            await reach(TOOL_DONE)
        elif tool is not None and tool.idempotent and not self._was_cut(run, tool, call):
            return await self._commit(restrict_to_run(run, await self._decide_restart(tool, call), call.agent))
        else:
            outcome = make_unknown_outcome(call)
        return await self._record_outcome(run, call, outcome)

    def _was_cut(self, run: Run, tool: Tool, call: ToolCall) -> bool:
        """Return whether a call that an earlier release started was cut by the end of its reply."""
        reply = find_last_reply(self._log.state, run)
        return reply is not None and is_cut(run, reply, call, () if tool.has_parameters else (call.name,))

    def _is_carried_out(self, call: ToolCall, tool: Tool | None) -> bool:
        """Tell if a call was not cut off, or goes on where it was."""
        return (call.id, call.attempts) in self._own_starts or goes_on(tool, call)

    async def _record_outcome(self, run: Run, call: ToolCall, outcome: ToolOutcome) -> list[RecordedEvent]:
        """Record what came of a call. Its files are left out where the tenant may not have them: what a run has done is
        recorded in any case."""
        try:
            return await self._commit_outcome(run, call, outcome)
        except QuotaExceeded as error:
            return await self._commit_outcome(run, call, outcome.leave_out_files(str(error)))

    async def _commit_outcome(self, run: Run, call: ToolCall, outcome: ToolOutcome) -> list[RecordedEvent]:
        def decide(state: State, run: Run) -> list[SessionEvent]:
            return record_result(state, run, call, fit_outcome(state, run, call, outcome, self._policy.sizes))

        current = self._log.state.run or run
        has_changes = outcome.change is not None or any(other.held is not None for other in current.calls)
        aside = is_heavy(outcome) or (has_changes and is_heavy(self._log.state.context_variables))
        files = outcome.file_content
        return await self._commit(restrict_to_run(run, decide), files, aside=aside, within_quota=bool(files))

    async def _take_output(self, run: Run, call: ToolCall, verdict: Verdict) -> list[RecordedEvent]:
        """Record what becomes of a call that gives the output, where a reply was parted from it: nothing is done by it,
        so it is no matter whether it was started before."""

        def decide(state: State, run: Run) -> list[SessionEvent]:
            if not any(open_call.id == call.id for open_call in run.open_calls):
                return []
            return record_verdict(run, verdict, state.agent, run.usage)

        return await self._commit(restrict_to_run(run, decide, call.agent))

    async def _mask_outcome(self, outcome: ToolOutcome) -> ToolOutcome:
        parts: list[Any] = [outcome.content, outcome.patch, list(outcome.nulls), outcome.values, list(outcome.files)]
        content, patch, nulls, values, files = await mask(self._policy, parts, aside=is_heavy(parts))
        return msgspec.structs.replace(
            outcome, content=content, patch=patch, nulls=tuple(nulls), values=values, files=tuple(files)
        )

    async def _decide_restart(self, tool: Tool, call: ToolCall) -> Callable[[State, Run], list[SessionEvent]]:
        """Start an idempotent call again, once it is approved if that is needed by now."""
        if call.approval == "approve" or not (tool.requires_approval or call.imported):
            return lambda state, run: restart_tool(run, call)
        expires_at = await self._policy.approval_expires_at()
        return lambda state, run: [request_approval(call, expires_at)]

    def _find_calling_agent(self, name: str) -> Agent | None:
        # In one process agents may share a name: then only memory tells which of them asked.
        if self.asking_agent is not None and self.asking_agent.name == name:
            return self.asking_agent
        return self._registry.get_active(name) if name in self._registry else None

    async def _commit(
        self,
        decide: Decide,
        files: Mapping[str, bytes] | None = None,
        *,
        aside: bool = False,
        within_quota: bool = False,
    ) -> list[RecordedEvent]:
        return self.note_starts(await self._log.commit(decide, files, aside=aside, within_quota=within_quota))


async def mask(policy: LoopPolicy, value: T, *, aside: bool) -> T:
    """Return a received value without its secrets."""
    work = partial(policy.secrets.mask, value)
    return await policy.run_aside(work) if aside else work()
