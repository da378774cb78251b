"""The span of a model call: `chat {model}`. It ends with the answer, or when nobody waits for that any more."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from opentelemetry import trace
from opentelemetry.trace import SpanKind

from swarmkeep.domain.codec import Json
from swarmkeep.domain.request import ModelRequest
from swarmkeep.engine.models.model import Deltas, Model, Reply, TurnFailed
from swarmkeep.engine.tracing.content import describe_input, describe_instructions, describe_output
from swarmkeep.engine.tracing.settings import SpanSettings
from swarmkeep.engine.tracing.spans import await_within, clean_value, get_run_names, set_attributes, set_error


class TracedModel:
    """A model each of whose calls is a span, with all attempts that it took."""

    def __init__(self, model: Model, settings: SpanSettings) -> None:
        self._model = model
        self._settings = settings

    async def ask(self, request: ModelRequest, *, stream: bool) -> AsyncGenerator[Deltas | Reply]:
        call = _ChatSpan(request, stream, self._settings)
        try:
            async with aclosing(self._model.ask(request, stream=stream)) as pieces:
                while (piece := await await_within(call.context, anext(pieces, None))) is not None:
                    call.note(piece)
                    yield piece
        except TurnFailed as failure:
            call.fail(failure)
            raise
        except Exception as error:
            set_error(call.span, type(error).__name__)
            raise
        finally:
            call.end()


_SETTINGS = {
    "temperature": "temperature",
    "top_p": "top_p",
    "seed": "seed",
    "max_tokens": "max_tokens",
    "max_completion_tokens": "max_tokens",
    "frequency_penalty": "frequency_penalty",
    "presence_penalty": "presence_penalty",
}


def _read_settings(params: Json) -> dict[str, int | float]:
    """The parameters that the conventions have a name for."""
    found: dict[str, int | float] = {}
    for name, convention in _SETTINGS.items():
        value = params.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 2**63:
            found[f"gen_ai.request.{convention}"] = value
    return found


class _ChatSpan:
    def __init__(self, request: ModelRequest, stream: bool, settings: SpanSettings) -> None:
        self._settings = settings
        model = clean_value(str(request.params.get("model", "")), settings.secrets)
        names = get_run_names()
        attributes = {
            "gen_ai.operation.name": "chat",
            **settings.provider,
            "gen_ai.request.model": model,
            "gen_ai.request.stream": True if stream else None,
            **_read_settings(request.params),
            "gen_ai.conversation.id": None if names is None else names.session_id,
            "gen_ai.agent.name": None if names is None else names.agent,
            "swarmkeep.run.id": None if names is None else names.run_id,
        }
        self.span = settings.start_span(f"chat {model}".strip(), SpanKind.CLIENT, attributes)
        self.context = trace.set_span_in_context(self.span)
        self._is_open = True
        self._is_answered = False
        self._first_at: float | None = None
        self._started = time.perf_counter()
        if settings.has_content and self.span.is_recording():
            self.span.set_attribute(
                "gen_ai.system_instructions", describe_instructions(request.instructions, settings.secrets)
            )
            self.span.set_attribute("gen_ai.input.messages", describe_input(request.entries, settings.secrets))

    def note(self, piece: Deltas | Reply) -> None:
        """What has come of it: the first piece, or all of it, which ends the span."""
        if self._first_at is None and isinstance(piece, Deltas):
            self._first_at = time.perf_counter() - self._started
        if isinstance(piece, Reply):
            self._describe_reply(piece)
            self._is_answered = True
            self.end()

    def _describe_reply(self, reply: Reply) -> None:
        found = reply.completion
        usage = found.usage or {}
        self._set(
            {
                "gen_ai.response.id": found.id,
                "gen_ai.response.model": found.model,
                "gen_ai.response.finish_reasons": None if found.finish_reason is None else [found.finish_reason],
                "gen_ai.response.time_to_first_chunk": self._first_at,
                "gen_ai.usage.input_tokens": _read_count(usage.get("prompt_tokens")),
                "gen_ai.usage.output_tokens": _read_count(usage.get("completion_tokens")),
            }
        )
        if self._settings.has_content and self.span.is_recording():
            text = describe_output(reply.message, found.finish_reason, self._settings.secrets)
            self.span.set_attribute("gen_ai.output.messages", text)

    def fail(self, failure: TurnFailed) -> None:
        self._is_answered = True
        self._set({"http.response.status_code": failure.error.provider_status})
        set_error(self.span, failure.error.code)

    def end(self) -> None:
        if self._is_open:
            self._is_open = False
            if not self._is_answered:
                self._set({"swarmkeep.stop_reason": "abandoned", "gen_ai.response.time_to_first_chunk": self._first_at})
            self.span.end()

    def _set(self, attributes: dict[str, Any]) -> None:
        set_attributes(self.span, attributes, self._settings.secrets)


def _read_count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
