"""Runs guardrails where functions run, in their time; one that fails refuses, and says so."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Sequence
from functools import partial
from typing import Any

from swarmkeep.agent import Agent, Refusal, Tool, ToolArgumentsError
from swarmkeep.agent.guardrails import Guardrail, name_guardrail
from swarmkeep.agent.output import OUTPUT_TOOL
from swarmkeep.agent.values import copy_plain_object, to_plain_json
from swarmkeep.domain.codec import Json
from swarmkeep.domain.decisions.guardrails import Trip, find_new_input, read_passing_text
from swarmkeep.domain.decisions.sizes import is_heavy
from swarmkeep.domain.messages import Entry
from swarmkeep.domain.run_options import RunOptions
from swarmkeep.domain.state import Run, State, ToolCall
from swarmkeep.engine.policy import LoopPolicy
from swarmkeep.engine.tool_runners import ToolRunner, ToolTimeout, read_error_text, stops_this_program

log = logging.getLogger(__name__)

_MAX_ERROR_CHARACTERS = 2000


class Guards:
    """Asks guardrails. What they get are copies; what they return of them is masked as results of functions are."""

    def __init__(self, runner: ToolRunner, policy: LoopPolicy) -> None:
        self._runner = runner
        self._policy = policy

    async def check_input(self, agent: Agent, state: State, run: Run) -> tuple[Trip | None, Sequence[Entry]]:
        """The refusal of an agent's new messages, if it is refused, and those messages."""
        entries = find_new_input(state, run, agent.name)
        if not entries:
            return None, ()
        messages = [dict(entry.message) for entry in entries]
        return await self._find_trip(agent.input_guardrails, messages, state.context_variables), entries

    async def check_messages(self, agent: Agent, messages: Sequence[Json], context: Json) -> Trip | None:
        """The refusal of messages that are in no session yet, if they are refused."""
        return await self._find_trip(agent.input_guardrails, [dict(message) for message in messages], context)

    async def check_reply(
        self, agent: Agent, message: Json, context: Json, options: RunOptions
    ) -> tuple[Trip | None, str]:
        """The refusal of a reply, if it is refused, and what of it people would read."""
        text = read_passing_text(message, OUTPUT_TOOL if agent.output_mode == "tool" else None, options)
        if not text:
            return None, text
        return await self._find_trip(agent.output_guardrails, text, context, is_secret=True), text

    async def check_call(
        self, tool: Tool, call: ToolCall, context: Json, guardrails: Sequence[Guardrail] | None = None
    ) -> Trip | None:
        """The refusal of a call, if it is refused by its function's guardrails, or by these.

        One whose arguments cannot be read does not run anyway.
        """
        try:
            arguments = await self._do(partial(tool.parse_arguments, call.arguments), is_heavy(call.arguments))
        except ToolArgumentsError:
            return None
        passing = {"id": call.id, "name": call.name, "arguments": arguments}
        return await self._find_trip(tool.guardrails if guardrails is None else guardrails, passing, context)

    async def _find_trip(
        self, guardrails: Sequence[Guardrail], passing: Any, context: Json, *, is_secret: bool = False
    ) -> Trip | None:
        """The first refusal, whether a guardrail gives it or fails. What `is_secret` is in no error's text, either."""
        for function in guardrails:
            trip = await self._ask(function, passing, context, is_secret)
            if trip is not None:
                return trip
        return None

    async def _ask(self, function: Guardrail, passing: Any, context: Json, is_secret: bool) -> Trip | None:
        name = name_guardrail(function)
        seconds = self._policy.tool_seconds
        try:
            copied = await self._do(lambda: to_plain_json(passing, "passing"), is_heavy(passing))
            variables = await self._do(partial(copy_plain_object, context), is_heavy(context))
            is_async = inspect.iscoroutinefunction(function)
            verdict = await self._runner(partial(function, copied, variables), is_async=is_async, seconds=seconds)
            if verdict is None:
                return None
            if isinstance(verdict, Refusal):
                return Trip(name=name, message=self._policy.secrets.mask(verdict.message))
            return self._fail(name, f"it returned a {type(verdict).__name__}, and not None or a Refusal")
        except ToolTimeout:
            return self._fail(name, f"it took longer than {seconds:g} s")
        except BaseException as error:
            if stops_this_program(error):
                raise
            kind = type(error).__name__
            return self._fail(name, kind if is_secret else f"{kind}: {read_error_text(error)}")

    def _fail(self, name: str, error: str) -> Trip:
        masked = self._policy.secrets.mask(error.encode("utf-8", "replace").decode().replace("\0", ""))
        log.warning("the guardrail %s failed, which counts as a refusal: %s", name, masked)
        message = f"This was refused, because the guardrail {name} failed."
        return Trip(name=name, message=message, error=masked[:_MAX_ERROR_CHARACTERS])

    async def _do(self, work: Any, is_large: bool) -> Any:
        # Off the loop, where what is copied is large.
        return await self._runner(work, is_async=False, seconds=None) if is_large else work()
