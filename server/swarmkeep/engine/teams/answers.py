"""What an agent that was asked gives back: a run that is over, as the outcome of a call."""

from __future__ import annotations

from msgspec import UNSET

from swarmkeep.agent import Tool
from swarmkeep.domain.codec import Json
from swarmkeep.domain.decisions.turns import ToolOutcome
from swarmkeep.domain.patch import diff
from swarmkeep.domain.views import RunView


def make_answer(tool: Tool, run: RunView, before: Json) -> ToolOutcome:
    """What a run that is over gives the one who asked. `before` is the context that it began with.

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
