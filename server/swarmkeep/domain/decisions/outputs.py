"""The facts that a final answer leads to, where it has to be of a certain form: it is taken, sent back, or given up."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import UNSET, UnsetType

from swarmkeep.domain.decisions.turns import make_result_message
from swarmkeep.domain.events import MessageAdded, RunError, RunFailed, SessionEvent, ToolRecord, Usage
from swarmkeep.domain.state import Run, ToolCall
from swarmkeep.domain.wording import CORRECTOR

OUTPUT_INVALID = "output_invalid"
_TAKEN = "The answer is taken."
_SUPERFLUOUS = "Error: only the first call of this function in a reply counts."


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """Of a final answer. `problems` say what is wrong with it; `calls` are those that give it, if calls do: the first
    one counts. `retries`: how many wrong answers of a run are sent back.
    """

    problems: tuple[str, ...]
    retries: int
    calls: tuple[ToolCall, ...] = ()


def record_verdict(run: Run, verdict: Verdict, agent: str, usage: Usage) -> list[SessionEvent]:
    """What follows from a verdict. `run` is as it was before the answer, `usage` includes it."""
    number = run.corrections + 1
    is_last = bool(verdict.problems) and number > verdict.retries
    said = _describe_problems(verdict)
    facts: list[SessionEvent] = []
    for place, call in enumerate(verdict.calls):
        if place:
            facts.append(_answer_call(call, agent, _SUPERFLUOUS, taken=False))
        elif verdict.problems:
            facts.append(_answer_call(call, agent, f"Error: {said}", taken=False, correction=number))
        else:
            facts.append(_answer_call(call, agent, _TAKEN, taken=True))
    if is_last:
        error = RunError(code=OUTPUT_INVALID, message=_describe_failure(number, verdict.problems), retryable=True)
        facts.append(RunFailed(stop_reason="error", usage=usage, error=error))
    elif verdict.problems and not verdict.calls:
        message = {"role": "user", "content": said, "sender": CORRECTOR}
        facts.append(MessageAdded(message=message, correction=number))
    return facts


def _describe_problems(verdict: Verdict) -> str:
    listed = "\n".join(f"- {problem}" for problem in verdict.problems)
    return f"Your answer does not have the form that is needed:\n{listed}\nGive the whole answer again, in that form."


def _describe_failure(count: int, problems: Sequence[str]) -> str:
    answers = "the answer is" if count == 1 else f"{count} answers in this run were"
    return f"{answers} not of the form that the agent's output_type needs; last: {'; '.join(problems)}"


def _answer_call(
    call: ToolCall, agent: str, content: str, *, taken: bool, correction: int | UnsetType = UNSET
) -> MessageAdded:
    tool = ToolRecord(name=call.name, status="ok" if taken else "error", output=True if taken else UNSET)
    return MessageAdded(message=make_result_message(call, content, agent), tool=tool, correction=correction)
