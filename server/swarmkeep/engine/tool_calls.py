"""One tool call of a run: carried out in its time; whatever happens becomes an outcome that the model can read."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import msgspec

from swarmkeep.agent import Agent, NotJsonError, Result, Tool, ToolArgumentsError, to_result
from swarmkeep.agent.values import copy_plain_object
from swarmkeep.domain.codec import Json
from swarmkeep.domain.decisions.sizes import SizeLimits, is_heavy
from swarmkeep.domain.decisions.turns import ToolOutcome
from swarmkeep.domain.errors import TooLarge
from swarmkeep.domain.patch import apply, diff
from swarmkeep.domain.state import State, ToolCall
from swarmkeep.engine.agents.registry import Registry
from swarmkeep.engine.policy import LoopPolicy, RunTimedOut
from swarmkeep.engine.tool_runners import ToolRunner, ToolTimeout, is_loop_running
from swarmkeep.logs.context import log_fields

T = TypeVar("T")


async def perform_call(
    registry: Registry,
    runner: ToolRunner,
    policy: LoopPolicy,
    state: State,
    agent: Agent | None,
    tool: Tool | None,
    call: ToolCall,
) -> ToolOutcome:
    """Run a call; the end of the run's time becomes an outcome as well."""
    if tool is None:
        return make_unknown_tool_outcome(call, list(agent.tools()) if agent is not None else [])
    assert state.run is not None
    try:
        async with policy.time_limit(state.run):
            with log_fields(tool=call.name, tool_call_id=call.id, attempt=call.attempts):
                outcome, result = await call_tool(tool, call, state.context_variables, runner, policy.tool_seconds)
    except RunTimedOut as over:
        text = f"Error: {call.name} was abandoned: {over}. It may or may not have taken effect."
        return ToolOutcome(status="timeout", content=text)
    return outcome if result.agent is None else apply_handoff(registry, outcome, result.agent)


def apply_handoff(registry: Registry, outcome: ToolOutcome, agent: Agent) -> ToolOutcome:
    """The outcome of a call that returned an agent; one that is not served would leave the session stranded."""
    if registry.admit(agent):
        return msgspec.structs.replace(outcome, handoff=agent.name)
    content = f"Error: agent {agent.name!r} is not served here, so nothing was handed over to it."
    return msgspec.structs.replace(outcome, status="error", content=content, patch={}, nulls=())


def fit_outcome(state: State, call: ToolCall, outcome: ToolOutcome, sizes: SizeLimits) -> ToolOutcome:
    """The outcome, if what it gives and changes is small enough to be kept; if not, the model is told so."""
    try:
        sizes.check_content(outcome.content, "the result")
        if outcome.patch or outcome.nulls:
            after = apply(state.context_variables, outcome.patch, outcome.nulls)
            sizes.check_context(after, state.context_variables)
    except TooLarge as error:
        text = f"Error: {call.name} ran, but nothing that it gave or changed here was kept: {error}."
        return ToolOutcome(status="error", content=text, duration_ms=outcome.duration_ms)
    return outcome


def make_unknown_outcome(call: ToolCall) -> ToolOutcome:
    text = (
        f"Interrupted: {call.name} had been started when the process stopped. It may or may not have taken effect; "
        "find out before doing it again."
    )
    return ToolOutcome(status="unknown_outcome", content=text)


async def call_tool(
    tool: Tool, call: ToolCall, context: Json, runner: ToolRunner, seconds: float | None
) -> tuple[ToolOutcome, Result]:
    """Run a call against a copy of the context; a failed call leaves the context as it was.

    `seconds` limits it when the tool sets no time-out of its own.
    """
    started = time.perf_counter()
    is_large = is_heavy(context)

    async def do(work: Callable[[], T]) -> T:
        # A large context takes a while to be copied and compared.
        done: T = await runner(work, is_async=False, seconds=None) if is_large else work()
        return done

    def outcome(status: Any, content: str, after: Json | None = None) -> ToolOutcome:
        duration = round((time.perf_counter() - started) * 1000, 3)
        patch, nulls = diff(context, context if after is None else after)
        return ToolOutcome(status=status, content=content, duration_ms=duration, patch=patch, nulls=nulls)

    limit = tool.timeout or seconds
    try:
        copy = await do(partial(copy_plain_object, context))
        is_large = is_large or is_heavy(call.arguments)
        bound = await do(lambda: tool.bind(call.arguments, context_variables=copy, tool_call_id=call.id))
        value = await runner(bound, is_async=tool.is_async, seconds=limit)
        is_large = is_large or is_heavy(value, copy)
        result = await do(lambda: to_result(value))
        is_large = is_large or is_heavy(result.context_variables)
        after = await do(lambda: copy_plain_object({**copy, **result.context_variables}, "context_variables"))
        return await do(lambda: outcome("ok", result.value, after)), result
    except ToolArgumentsError as error:
        return outcome("error", f"Error: {error}"), Result()
    except ToolTimeout:
        text = f"Error: {call.name} did not finish within {limit:g} s. It may or may not have taken effect."
        return outcome("timeout", text), Result()
    except NotJsonError as error:
        return outcome("error", f"Error: {call.name} gave something that JSON cannot hold: {error}"), Result()
    except BaseException as error:
        if _stops_this_program(error):
            raise
        return outcome(
            "error", f"Error: {call.name} failed: {type(error).__name__}: {_read_error_text(error)}"
        ), Result()


def _read_error_text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # the text of an exception is the tool's code, too
        return "(it has no text)"


def _stops_this_program(error: BaseException) -> bool:
    """Whether it is this program that is to stop, rather than the tool that gave up with the same word."""
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task() if is_loop_running() else None
        return task is not None and task.cancelling() > 0
    return isinstance(error, KeyboardInterrupt | GeneratorExit)


def make_unknown_tool_outcome(call: ToolCall, known: Sequence[str]) -> ToolOutcome:
    names = ", ".join(known) or "none"
    return ToolOutcome(
        status="error", content=f"Error: there is no function called {call.name!r}. Valid functions: {names}."
    )
