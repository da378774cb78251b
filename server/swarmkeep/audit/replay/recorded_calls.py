"""Tool calls of a recorded conversation: their results stand in, today's functions are only asked whether they fit."""

from __future__ import annotations

from msgspec import UNSET

from swarmkeep.agent import Agent, Tool, ToolArgumentsError
from swarmkeep.agent.values import copy_plain_object
from swarmkeep.audit.replay.recorded_guards import RecordedGuards, read_trip
from swarmkeep.audit.replay.recorded_log import RecordedLog
from swarmkeep.domain.codec import Json
from swarmkeep.domain.decisions.turns import ToolOutcome
from swarmkeep.domain.envelope import is_redacted
from swarmkeep.domain.events import ContextUpdated, MessageAdded, PendingCall, RunWaiting
from swarmkeep.domain.files.results import list_result_parts
from swarmkeep.domain.state import State, ToolCall
from swarmkeep.engine.agents.registry import Registry
from swarmkeep.engine.calls.tool_calls import make_refused_outcome, make_unknown_tool_outcome
from swarmkeep.engine.toolbox.toolbox import Toolbox


class RecordedCalls:
    """Stands in for what carries out a loop's calls."""

    def __init__(self, recording: RecordedLog, registry: Registry, guards: RecordedGuards, toolbox: Toolbox) -> None:
        self._recording = recording
        self._registry = registry
        self._guards = guards
        self._toolbox = toolbox

    async def perform(self, state: State, agent: Agent | None, tool: Tool | None, call: ToolCall) -> ToolOutcome:
        """How the call ended then; what would be otherwise today is noted."""
        outcome = self._read_outcome(state, call)
        if agent is None:
            return outcome
        if outcome.status == "error" and is_redacted(self._recording.next_event):
            # Why it failed is not known any more: maybe there was no such function then.
            self._recording.note_redacted()
            return outcome
        was_unknown = outcome.content.startswith(make_unknown_tool_outcome(call, ()).content.removesuffix("none."))
        if tool is None and not was_unknown:
            self._recording.note("missing_tool", call.name, sorted(self._toolbox.list_tools(agent, state)))
        elif tool is not None and was_unknown:
            self._recording.note("missing_tool", None, call.name)
        elif tool is not None and outcome.status == "ok" and self._recording.knows_arguments:
            self._check_arguments(state, tool, call)
        if tool is not None and (outcome.trip is not None or (tool.guardrails and outcome.status == "ok")):
            await self._guards.compare_call(tool, call, state.context_variables, outcome.trip)
        if outcome.handoff is not None and outcome.handoff not in self._registry:
            self._recording.note("agent", outcome.handoff, self._registry.names)
        return outcome

    def _check_arguments(self, state: State, tool: Tool, call: ToolCall) -> None:
        try:
            tool.bind(
                call.arguments, context_variables=copy_plain_object(state.context_variables), tool_call_id=call.id
            )
        except ToolArgumentsError as error:
            self._recording.note("arguments", f"{call.name}: {call.arguments}", str(error))

    def _read_outcome(self, state: State, call: ToolCall) -> ToolOutcome:
        """How the call ended then, with the change of the context that was recorded beside it."""
        event, after = self._recording.next_event, self._recording.event_after_next
        trip = read_trip(event, "tool")
        if trip is not None:
            if after is None or not isinstance(after.fact, MessageAdded):
                # A fork was cut off between the refusal and the result that came with it.
                return make_refused_outcome(call, trip)
            event, after = after, None
        fact = event.fact
        if isinstance(fact, RunWaiting):
            for waited in fact.pending:
                if _is_awaited(waited, call):
                    approvals = () if waited.approvals is UNSET else waited.approvals
                    return ToolOutcome(
                        status="waiting", content="", session_id=call.session_id, waits=True, approvals=approvals
                    )
        if not isinstance(fact, MessageAdded) or fact.tool is None or fact.message.get("tool_call_id") != call.id:
            raise self._recording.note_mismatch(MessageAdded.type)
        patch: Json = {}
        nulls: tuple[str, ...] = ()
        values: Json = {}
        if fact.tool.context is not UNSET:
            held = fact.tool.context
            patch, nulls = held.patch, () if held.nulls is UNSET else held.nulls
            values = {} if held.values is UNSET else held.values
        elif after is not None and isinstance(after.fact, ContextUpdated) and after.fact.tool_call_id == call.id:
            patch, nulls = after.fact.patch, () if after.fact.nulls is UNSET else after.fact.nulls
        content = fact.message.get("content")
        return ToolOutcome(
            status=fact.tool.status,
            content=content if isinstance(content, str) else "",
            duration_ms=fact.tool.duration_ms,
            handoff=None if fact.tool.handoff is UNSET else fact.tool.handoff,
            patch=patch,
            nulls=nulls,
            values=values,
            trip=trip,
            files=list_result_parts(fact.tool),
        )


def _is_awaited(waited: PendingCall, call: ToolCall) -> bool:
    return waited.reason == "session" and waited.tool_call_id == call.id
