"""The client of the configured model provider."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from openai import AsyncOpenAI


def provider_client(
    *, api_key: str | None, base_url: str | None, timeout_seconds: float, max_retries: int
) -> AsyncOpenAI:
    """An asynchronous openai client; the caller closes it. Servers of one's own often need no key."""
    from openai import AsyncOpenAI

    return AsyncOpenAI(api_key=api_key or "none", base_url=base_url, timeout=timeout_seconds, max_retries=max_retries)
