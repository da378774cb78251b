"""Traces of what an engine does, as OpenTelemetry spans. Loaded only where they are wanted."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from msgspec.structs import replace

from swarmkeep.domain.decisions.commands import StartRun
from swarmkeep.domain.envelope import RecordedEvent
from swarmkeep.domain.events import RunEnded
from swarmkeep.engine.calls.started import Perform
from swarmkeep.engine.models.model import Model
from swarmkeep.engine.session_log import StoreSessionLog
from swarmkeep.engine.streams.items import Item
from swarmkeep.engine.tracing.calls import trace_calls
from swarmkeep.engine.tracing.models import TracedModel
from swarmkeep.engine.tracing.requests import Handler, trace_requests
from swarmkeep.engine.tracing.runs import RunSpans
from swarmkeep.engine.tracing.settings import SpanSettings
from swarmkeep.engine.tracing.spans import format_traceparent


class Tracing:
    """Makes the spans of one engine."""

    def __init__(self, settings: SpanSettings) -> None:
        self._settings = settings
        # By session, too: a fork may go on with the run that its original is at.
        self._open: dict[tuple[str, str], RunSpans] = {}

    def trace_model(self, model: Model) -> Model:
        return TracedModel(model, self._settings)

    def trace_calls(self, perform: Perform) -> Perform:
        return trace_calls(perform, self._settings)

    def trace_requests(self, handler: Handler) -> Handler:
        return trace_requests(handler, self._settings)

    def mark_command(self, command: StartRun) -> StartRun:
        """The command, with where it stands in the trace of the request."""
        found = format_traceparent()
        return command if found is None else replace(command, traceparent=found)

    async def follow_runs(
        self, session_log: StoreSessionLog, begun: Sequence[RecordedEvent], items: AsyncGenerator[Item]
    ) -> AsyncGenerator[Item]:
        """The same items, while each run that they are of is the current span of the task that asks for them."""
        spans = RunSpans(session_log.key, self._settings)
        try:
            for event in begun:
                self._note(spans, event, session_log)
            async with aclosing(items):
                async for item in items:
                    if isinstance(item, RecordedEvent):
                        self._note(spans, item, session_log)
                    yield item
        except Exception as error:
            spans.fail(error)
            raise
        finally:
            self._forget(spans)
            spans.end()

    def _note(self, spans: RunSpans, event: RecordedEvent, session_log: StoreSessionLog) -> None:
        self._forget(spans)
        spans.note(event, session_log.state)
        if spans.run_id is not None:
            self._open[spans.key.id, spans.run_id] = spans

    def _forget(self, spans: RunSpans) -> None:
        if spans.run_id is not None and self._open.get((spans.key.id, spans.run_id)) is spans:
            del self._open[spans.key.id, spans.run_id]

    def observe_event(self, event: RecordedEvent) -> None:
        """Note how a run has ended by somebody else's word: its task is told only that it is to stop."""
        spans = self._open.get((event.session_id, event.run_id or ""))
        if spans is not None and isinstance(event.fact, RunEnded):
            spans.describe_end(event)
