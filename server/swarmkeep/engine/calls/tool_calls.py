"""One tool call of a run: carried out in its time; whatever happens becomes an outcome that the model can read."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from typing import Any, TypeVar

import msgspec

from swarmkeep.agent import Agent, File, NotJsonError, Result, Tool, ToolArgumentsError, ToolFailed, to_result
from swarmkeep.agent.values import copy_plain_object
from swarmkeep.domain.checking.files import FileLimits
from swarmkeep.domain.checking.result_files import KeptFiles, keep_files
from swarmkeep.domain.codec import Json
from swarmkeep.domain.decisions.concurrent_calls import preview_contexts
from swarmkeep.domain.decisions.guardrails import Trip
from swarmkeep.domain.decisions.sizes import SizeLimits, is_heavy
from swarmkeep.domain.decisions.turns import ToolOutcome
from swarmkeep.domain.envelope import RecordedEvent
from swarmkeep.domain.errors import TooLarge
from swarmkeep.domain.events import ToolStarted
from swarmkeep.domain.patch import diff
from swarmkeep.domain.state import Run, State, ToolCall
from swarmkeep.engine.agents.guardrails import Guards
from swarmkeep.engine.agents.registry import Registry
from swarmkeep.engine.models.secrets import NO_SECRETS, Secrets
from swarmkeep.engine.policy import LoopPolicy, RunTimedOut
from swarmkeep.engine.tool_runners import (
    ToolRunner,
    ToolTimeout,
    is_loop_running,
    read_error_text,
    stops_this_program,
)
from swarmkeep.engine.toolbox.toolbox import Toolbox
from swarmkeep.logs.context import log_fields

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
    """Whether nothing runs beside the call, and nothing before it is still to come."""
    first, *others = run.own_open_calls
    return first.id == call.id and not any(other.attempts for other in others)


async def ask_agent(policy: LoopPolicy, state: State, tool: Tool, call: ToolCall) -> ToolOutcome:
    """The answer of another agent. It has its own limits, that of this run and the tool's, if it sets one."""
    started = time.perf_counter()
    try:
        # One whose arguments were redacted is not asked anew, but goes on with what it was asked.
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
        return _add_files(done, kept), result
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
    """Whether a call that was cut off goes on where it was: another agent was asked, whose run is kept by itself."""
    asks = tool is not None and tool.asked_agent is not None and call.session_id is not None
    return asks and (not call.imported or call.approval == "approve")


def find_started_calls(events: Sequence[RecordedEvent]) -> set[tuple[str, int]]:
    """The calls that these events start, each with its attempt."""
    return {(event.fact.tool_call_id, event.fact.attempt) for event in events if isinstance(event.fact, ToolStarted)}
