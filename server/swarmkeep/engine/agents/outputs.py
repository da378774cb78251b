"""Judges a model's final answers, where its agent says what they have to be."""

from __future__ import annotations

from msgspec import UNSET

from swarmkeep.agent import Agent
from swarmkeep.agent.output import OUTPUT_TOOL, InvalidOutput, OutputFormat
from swarmkeep.domain.codec import Json
from swarmkeep.domain.decisions.outputs import Verdict
from swarmkeep.domain.decisions.sizes import is_heavy
from swarmkeep.domain.events import CompletionRecord
from swarmkeep.domain.messages import find_cut_calls
from swarmkeep.domain.state import Run, ToolCall, make_calls
from swarmkeep.domain.wording import join_content
from swarmkeep.engine.policy import LoopPolicy

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

    # Validators of a type are somebody's code, and may take their time.
    return await policy.run_aside(find) if output.runs_code or is_heavy(text) else find()
