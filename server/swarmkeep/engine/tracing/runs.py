"""The spans of runs: `invoke_agent {agent}` for each stretch that one process advances a run without a wait.

A handover begins another below it, for the agent that has the floor. A run that is taken up again links to the trace
of the request that once started it, which its first event tells.
"""

from __future__ import annotations

from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanContext, SpanKind

from swarmkeep.domain.envelope import RecordedEvent
from swarmkeep.domain.events import HandoffMade, RunEnded, RunResumed, RunStarted, RunWaiting
from swarmkeep.domain.state import State
from swarmkeep.engine.tracing.settings import SpanSettings
from swarmkeep.engine.tracing.spans import (
    CurrentSpan,
    RunNames,
    clean_value,
    make_parent_context,
    name_run,
    read_traceparent,
    set_attributes,
    set_error,
)
from swarmkeep.store.ports import SessionKey


class RunSpans:
    """The spans of the runs that one task advances, one after the other. To be used in that task alone."""

    def __init__(self, key: SessionKey, settings: SpanSettings) -> None:
        self.run_id: str | None = None
        """The run whose span is open."""
        self.key = key
        self._settings = settings
        self._run: CurrentSpan | None = None
        self._delegate: CurrentSpan | None = None
        self._is_end_described = False

    def note(self, event: RecordedEvent, state: State) -> None:
        """Begin and end what an event begins and ends; `state` is that after its commit."""
        match event.fact:
            case RunStarted(traceparent=traceparent):
                parent = make_parent_context(read_traceparent(traceparent))
                self._begin(event, state.agent, parent, None)
            case RunResumed():
                run = state.run
                first = None if run is None or run.id != event.run_id else read_traceparent(run.traceparent)
                self._begin(event, state.agent, None, first)
            case HandoffMade(to_agent=agent) if event.run_id == self.run_id:
                self._hand_over(agent)
            case RunEnded() | RunWaiting() if event.run_id == self.run_id:
                self.describe_end(event)
                self.end()

    def _begin(self, event: RecordedEvent, agent: str, parent: Context | None, first: SpanContext | None) -> None:
        self.end()
        self.run_id = event.run_id or ""
        links = [] if first is None else [Link(first, {"swarmkeep.link": "first_trace"})]
        self._run = self._invoke(agent, parent, links)
        if isinstance(event.fact, RunResumed):
            self._set(self._run.span, {"swarmkeep.run.resumed": event.fact.reason})

    def _hand_over(self, agent: str) -> None:
        if self._delegate is not None:
            self._delegate.end()
        self._delegate = self._invoke(agent, None, [])

    def _invoke(self, agent: str, parent: Context | None, links: list[Link]) -> CurrentSpan:
        name = f"invoke_agent {clean_value(agent, self._settings.secrets)}"
        names = RunNames(self.key.id, self.run_id or "", agent)
        attributes = {
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.provider.name": self._settings.provider.get("gen_ai.provider.name"),
            "gen_ai.agent.name": agent,
            "gen_ai.conversation.id": names.session_id,
            "swarmkeep.run.id": names.run_id,
            "swarmkeep.tenant": self.key.tenant,
        }
        span = self._settings.start_span(name, SpanKind.INTERNAL, attributes, parent, links)
        return CurrentSpan(span, name_run(parent, names))

    def describe_end(self, event: RecordedEvent) -> None:
        """Say on the run's span how the run has ended, or what it waits for."""
        if self._run is None or event.run_id != self.run_id:
            return
        self._is_end_described = True
        span = self._run.span
        match event.fact:
            case RunWaiting(pending=pending):
                reasons = {call.reason for call in pending}
                reason = next((each for each in ("person", "approval") if each in reasons), "tool_calls")
                self._set(span, {"swarmkeep.stop_reason": reason})
            case RunEnded(stop_reason=reason, usage=usage, error=error):
                tokens = {
                    "gen_ai.usage.input_tokens": usage.prompt_tokens,
                    "gen_ai.usage.output_tokens": usage.completion_tokens,
                }
                self._set(span, {"swarmkeep.stop_reason": reason, **(tokens if usage.model_calls else {})})
                if error is not None:
                    set_error(span, error.code)

    def fail(self, error: Exception) -> None:
        """The task cannot go on."""
        if self._run is not None and not self._is_end_described:
            self._is_end_described = True
            set_error(self._run.span, getattr(error, "code", None) or type(error).__name__)

    def end(self) -> None:
        """End what is open. If nobody has told how the run ended, it goes on elsewhere, or later."""
        if self._run is not None and not self._is_end_described:
            self._set(self._run.span, {"swarmkeep.stop_reason": "abandoned"})
        for current in (self._delegate, self._run):
            if current is not None:
                current.end()
        self._delegate = self._run = self.run_id = None
        self._is_end_described = False

    def _set(self, span: Span, attributes: dict[str, object]) -> None:
        set_attributes(span, attributes, self._settings.secrets)
