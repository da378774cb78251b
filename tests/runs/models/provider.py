"""The client that a server makes of its settings, on a scripted model."""

from __future__ import annotations

from openai import AsyncOpenAI

from swarmkeep.models.clients import make_provider_client
from swarmkeep.models.replies import ReplyLimits
from swarmkeep.serve.settings import Settings


def open_provider(
    url: str, *, timeout: float = 30, api_key: str = "test", limits: ReplyLimits | None = None
) -> AsyncOpenAI:
    settings = Settings(openai_api_key=api_key, openai_base_url=url)  # type: ignore[arg-type]
    return make_provider_client(settings, timeout_seconds=timeout, limits=limits)
