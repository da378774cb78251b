"""The span of a tool call: `execute_tool {tool}`. It is the current one in the tool, in threads, too."""

from __future__ import annotations

from opentelemetry.trace import SpanKind

from swarmkeep.agent import Agent, Tool
from swarmkeep.domain.decisions.turns import ToolOutcome
from swarmkeep.domain.state import State, ToolCall
from swarmkeep.engine.calls.started import Perform
from swarmkeep.engine.tracing.content import describe_text
from swarmkeep.engine.tracing.settings import SpanSettings
from swarmkeep.engine.tracing.spans import CurrentSpan, clean_value, get_run_names, set_error


def trace_calls(perform: Perform, settings: SpanSettings) -> Perform:
    """The same, and each call a span."""

    async def perform_traced(state: State, agent: Agent | None, tool: Tool | None, call: ToolCall) -> ToolOutcome:
        current = _start_span(tool, call, settings)
        try:
            outcome = await perform(state, agent, tool, call)
            _describe_outcome(current, tool, outcome, settings)
            return outcome
        except Exception as error:
            set_error(current.span, type(error).__name__)
            raise
        except BaseException:
            current.span.set_attribute("swarmkeep.stop_reason", "abandoned")
            raise
        finally:
            current.end()

    return perform_traced


def _start_span(tool: Tool | None, call: ToolCall, settings: SpanSettings) -> CurrentSpan:
    # The name of a function that there is not is the model's invention: no name for a span.
    name = "execute_tool" if tool is None else f"execute_tool {clean_value(call.name, settings.secrets)}"
    names = get_run_names()
    attributes = {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": call.name,
        "gen_ai.tool.type": "function",
        "gen_ai.tool.call.id": call.id,
        "gen_ai.conversation.id": None if names is None else names.session_id,
        "gen_ai.agent.name": call.agent or None,
        "swarmkeep.run.id": None if names is None else names.run_id,
        "swarmkeep.tool.attempt": call.attempts,
    }
    span = settings.start_span(name, SpanKind.INTERNAL, attributes)
    if settings.has_content and span.is_recording():
        span.set_attribute("gen_ai.tool.call.arguments", describe_text(call.arguments, settings.secrets))
    return CurrentSpan(span)


def _describe_outcome(current: CurrentSpan, tool: Tool | None, outcome: ToolOutcome, settings: SpanSettings) -> None:
    if outcome.status != "ok":
        failed = "tool_error" if outcome.status == "error" else outcome.status
        set_error(current.span, "unknown_tool" if tool is None else failed)
    if settings.has_content and current.span.is_recording():
        current.span.set_attribute("gen_ai.tool.call.result", describe_text(outcome.content, settings.secrets))
