"""Engines whose spans are caught."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from swarmkeep.models.failures import NO_SECRETS, Secrets
from swarmkeep.runs.tracing import SpanSettings, Tracing
from tests.support.spans import CaughtSpans

MakeTracing = Callable[..., Tracing]


@pytest.fixture
def spans() -> CaughtSpans:
    return CaughtSpans()


@pytest.fixture
def make_tracing(spans: CaughtSpans) -> MakeTracing:
    def make(*, has_content: bool = False, secrets: Secrets = NO_SECRETS, **provider: Any) -> Tracing:
        names = {"gen_ai.provider.name": "openai", "server.address": "model.example", "server.port": 443}
        return Tracing(
            SpanSettings(tracer=spans.tracer, provider=names | provider, secrets=secrets, has_content=has_content)
        )

    return make


@pytest.fixture
def tracing(make_tracing: MakeTracing) -> Tracing:
    return make_tracing()
