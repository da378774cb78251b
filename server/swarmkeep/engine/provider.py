"""The client of the configured model provider."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from openai import AsyncOpenAI


# A host that answers at all does so within this time; a model may take much longer.
_CONNECT_SECONDS = 10.0


def provider_client(*, api_key: str | None, base_url: str | None, timeout_seconds: float) -> AsyncOpenAI:
    """An asynchronous openai client, which asks once; the caller closes it. Servers of one's own often need no key."""
    from httpx2 import Timeout
    from openai import AsyncOpenAI

    timeout = Timeout(timeout_seconds, connect=min(timeout_seconds, _CONNECT_SECONDS))
    return AsyncOpenAI(api_key=api_key or "none", base_url=base_url, timeout=timeout, max_retries=0)
