"""Runs guardrails where functions run, in their time; one that fails refuses, and says so."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Sequence
from functools import partial
from typing import Any

from msgspec import UNSET

from swarmkeep.agent import Agent, Refusal, Tool, ToolArgumentsError
from swarmkeep.agent.guardrails import Guardrail, name_guardrail
from swarmkeep.agent.output import OUTPUT_TOOL, InvalidOutput, OutputFormat
from swarmkeep.agent.values import copy_plain_object, to_plain_json
from swarmkeep.decide.turns import (
    InputVerdict,
    NewInput,
    Trip,
    Verdict,
    describe_message,
    find_new_input,
    read_passing_texts,
)
from swarmkeep.events.codec import Json
from swarmkeep.events.messages import find_cut_calls
from swarmkeep.events.records import CompletionRecord, RunOptions
from swarmkeep.events.sizes import is_heavy
from swarmkeep.events.state import Run, State, ToolCall, make_calls
from swarmkeep.events.wording import join_content
from swarmkeep.runs.policy import LoopPolicy
from swarmkeep.runs.tool_runners import ToolRunner, ToolTimeout, read_error_text, stops_this_program

log = logging.getLogger(__name__)

_MAX_ERROR_CHARACTERS = 2000
# Of no more, what is new is found within a few milliseconds.
_FEW_MESSAGES = 1_000
_INSTRUCTING = ("system", "developer")
_ANSWERING = ("assistant", "tool")


class Guards:
    """Asks guardrails. What they get are copies; what they return of them is masked as results of functions are."""

    def __init__(self, runner: ToolRunner, policy: LoopPolicy) -> None:
        self._runner = runner
        self._policy = policy

    async def check_input(self, agent: Agent, state: State, run: Run) -> InputVerdict:
        """The verdict on all that is new to an agent's model."""
        new = await self._find_new(state, run, agent)
        context = state.context_variables
        history = [entry.message for entry in new.history]
        refused = await find_refused(self, agent, history, context) if history else []
        past = tuple((trip, tuple(new.history[place] for place in places)) for trip, places in refused)
        messages = [*new.request, *(entry.message for entry in new.entries)]
        trip = await self.check_messages(agent, messages, context) if messages else None
        return InputVerdict(trip=trip, entries=new.entries, past=past)

    async def check_state(self, agent: Agent, state: State, *given: Json) -> Trip | None:
        """The refusal of all that is new to an agent's model outside of runs, with what is `given` besides."""
        new = await self._find_new(state, None, agent)
        messages = [*(entry.message for entry in (*new.history, *new.entries)), *given]
        return await self.check_messages(agent, messages, state.context_variables) if messages else None

    async def _find_new(self, state: State, run: Run | None, agent: Agent) -> NewInput:
        if not agent.input_guardrails:
            return NewInput()
        is_long = len(state.messages) > _FEW_MESSAGES
        new: NewInput = await self._do(partial(find_new_input, state, run, agent.name), is_long)
        return new

    async def check_messages(self, agent: Agent, messages: Sequence[Json], context: Json) -> Trip | None:
        """The refusal of messages, whether they are in a session yet or not, if they are refused."""

        def describe() -> list[Json]:
            return [describe_message(message) for message in messages]

        described = await self._do(describe, is_heavy(messages))
        return await self._find_trip(agent.input_guardrails, described, context)

    async def check_reply(
        self, agent: Agent, message: Json, context: Json, options: RunOptions
    ) -> tuple[Trip | None, str]:
        """The refusal of a reply, if it is refused, and what of it people would read."""
        output_tool = OUTPUT_TOOL if agent.output_mode == "tool" else None
        texts = await self._do(partial(read_passing_texts, message, output_tool, options), is_heavy(message))
        for text in texts:
            trip = await self._find_trip(agent.output_guardrails, text, context, is_secret=True)
            if trip is not None:
                return trip, texts[0]
        return None, texts[0] if texts else ""

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


async def find_refused(
    guards: Guards, agent: Agent, messages: Sequence[Json], context: Json
) -> list[tuple[Trip, list[int]]]:
    """Find what of a history that was brought along may not go to the agent's model: refusals, with the places of what
    they refuse. What is refused goes with the answer to it.

    All are looked at together first, and only if they are refused so, each exchange by itself.
    """
    everything = list(range(len(messages)))
    if not agent.input_guardrails or await _find_trip_of(guards, agent, messages, everything, context) is None:
        return []
    refused: list[tuple[Trip, list[int]]] = []
    for exchange in split_exchanges(messages):
        trip = await _find_trip_of(guards, agent, messages, exchange, context)
        if trip is None:
            continue
        instructing = [place for place in exchange if messages[place]["role"] in _INSTRUCTING]
        if instructing and await _find_trip_of(guards, agent, messages, instructing, context) is None:
            exchange = [place for place in exchange if place not in instructing]
        refused.append((trip, exchange))
    return refused


async def _find_trip_of(
    guards: Guards, agent: Agent, messages: Sequence[Json], places: Sequence[int], context: Json
) -> Trip | None:
    return await guards.check_messages(agent, [messages[place] for place in places], context)


def split_exchanges(messages: Sequence[Json]) -> list[list[int]]:
    """The places of what was said, and then answered, one after the other."""
    exchanges: list[list[int]] = []
    for place, message in enumerate(messages):
        was_answered = bool(place) and messages[place - 1]["role"] in _ANSWERING
        if not place or (was_answered and message["role"] not in _ANSWERING):
            exchanges.append([])
        exchanges[-1].append(place)
    return exchanges


# Judges a model's final answers, where its agent says what they have to be.

_CUT_OFF = "it was cut off at the limit of tokens; raise that limit (max_tokens or max_completion_tokens)"
_CALL_CUT = "it was cut off before it was complete, so nothing was taken of it: give a shorter one"
_NOT_CALLED = f"it has to be given by calling the function {OUTPUT_TOOL}"


async def judge_reply(
    agent: Agent, run: Run, message: Json, completion: CompletionRecord, policy: LoopPolicy
) -> Verdict | None:
    """The verdict on a reply; None if it is no final answer, or may be any."""
    output = _find_output(agent, run)
    if output is None:
        return None
    calls = make_calls(message)
    if agent.output_mode == "tool":
        given = tuple(call for call in calls if call.name == OUTPUT_TOOL)
        if given and given[0].id in find_cut_calls(message, completion):
            return Verdict(problems=(_CALL_CUT,), retries=agent.output_retries, calls=given)
        if given:
            return await judge_calls(agent, output, given, policy)
        text = None
    else:
        text = join_content(message.get("content"))
    if calls or message.get("refusal"):
        return None
    problems = (_NOT_CALLED,) if text is None else await _find_problems(output, text, policy)
    if text is not None and completion.ending == "length" and (problems or _may_go_on(text)):
        # The next answer would be paid for and cut at the same limit.
        return Verdict(problems=(_CUT_OFF, *problems), retries=0)
    return Verdict(problems=problems, retries=agent.output_retries)


def _may_go_on(text: str) -> bool:
    """Return whether more of the same text could have made another value of it: only numbers have no end."""
    return text.rstrip()[-1:].isdigit()


async def judge_calls(agent: Agent, output: OutputFormat, calls: tuple[ToolCall, ...], policy: LoopPolicy) -> Verdict:
    """The verdict on calls that give the output."""
    problems = await _find_problems(output, calls[0].arguments, policy)
    return Verdict(problems=problems, retries=agent.output_retries, calls=calls)


def find_called_output(agent: Agent | None, run: Run, call: ToolCall) -> OutputFormat | None:
    """The output that a call gives, if it does."""
    if agent is None or call.name != OUTPUT_TOOL or agent.output_mode != "tool":
        return None
    return _find_output(agent, run)


def _find_output(agent: Agent, run: Run) -> OutputFormat | None:
    return agent.output() if run.options.response_format is UNSET else None


async def _find_problems(output: OutputFormat, text: str, policy: LoopPolicy) -> tuple[str, ...]:
    def find() -> tuple[str, ...]:
        try:
            output.check(text)
        except InvalidOutput as error:
            return tuple(error.problems)
        return ()

    # Validators of a type are the team's code, and may take their time.
    return await policy.run_aside(find) if output.runs_code or is_heavy(text) else find()
