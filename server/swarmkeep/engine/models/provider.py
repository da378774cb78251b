"""The client of the configured model: of a provider, or the offline one."""

from __future__ import annotations

import threading
from contextlib import suppress
from functools import partial
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from pydantic import SecretStr

from swarmkeep.engine.models.bounded_client import ENCODINGS, bound_response
from swarmkeep.engine.models.direct import DirectTransport
from swarmkeep.engine.models.reply_limits import ReplyLimits

if TYPE_CHECKING:
    from openai import AsyncOpenAI


# A host that answers at all does so within this time; a model may take much longer.
_CONNECT_SECONDS = 10.0


class ModelSettings(Protocol):
    """The settings of the model."""

    offline: bool
    openai_api_key: SecretStr | None
    openai_base_url: str | None
    model_timeout_seconds: float


def make_model_client(settings: ModelSettings) -> AsyncOpenAI:
    """An asynchronous client of the configured model; the caller closes it."""
    from swarmkeep.engine.models.offline import make_offline_client

    if settings.offline:
        return make_offline_client()
    return make_provider_client(settings, timeout_seconds=settings.model_timeout_seconds)


def load_model_client(settings: ModelSettings) -> None:
    """Load what `make_model_client` and a first request need, and make nothing."""
    from openai import AsyncOpenAI, DefaultAioHttpClient  # noqa: F401

    if settings.offline:
        from swarmkeep.engine.models import offline  # noqa: F401
    else:
        import aiohttp  # noqa: F401
        from httpx2 import AsyncHTTPTransport

        # The first of them loads what they are built on.
        AsyncHTTPTransport(verify=False)


def load_in_background(settings: ModelSettings) -> None:
    """Begin to load it in a thread, for a server that is ready: its first run would wait for seconds otherwise.

    Nobody waits for the thread. What is wrong shows at the first request, which loads it again.
    """

    def load() -> None:
        with suppress(Exception):
            load_model_client(settings)

    threading.Thread(target=load, name="swarmkeep-model-client", daemon=True).start()


def make_provider_client(
    settings: ModelSettings, *, timeout_seconds: float, limits: ReplyLimits | None = None
) -> AsyncOpenAI:
    """An asynchronous openai client, which asks once; the caller closes it. Servers of one's own often need no key."""
    from httpx2 import Limits, Timeout
    from openai import AsyncOpenAI, DefaultAioHttpClient

    class ProviderClient(AsyncOpenAI):
        """An official client, to which belongs a way of its own to the same server."""

        def __init__(self, **options: Any) -> None:
            super().__init__(**options)
            self.transport = None if _needs_proxy(str(self.base_url)) else DirectTransport(self, reply_limits)

        async def close(self) -> None:
            if self.transport is not None:
                await self.transport.close()
            await super().close()

    reply_limits = limits or ReplyLimits()
    key = settings.openai_api_key
    timeout = Timeout(timeout_seconds, connect=min(timeout_seconds, _CONNECT_SECONDS))
    http_client = DefaultAioHttpClient(
        headers={"Accept-Encoding": ENCODINGS},
        # As many connections as there are runs, which have limits of their own: one that waited for another's would
        # seem to hang.
        limits=Limits(max_connections=None, max_keepalive_connections=100),
        follow_redirects=False,
        # Of one conversation nothing is kept for the next, and none of what a server makes up.
        cookies=CookieJar(DefaultCookiePolicy(allowed_domains=())),
        event_hooks={"response": [partial(bound_response, limits=reply_limits)]},
    )
    return ProviderClient(
        api_key=(key.get_secret_value() if key is not None else None) or "none",
        base_url=settings.openai_base_url,
        timeout=timeout,
        max_retries=0,
        http_client=http_client,
    )


def _needs_proxy(url: str) -> bool:
    """Whether the environment has a proxy between here and there, which the official client knows how to use."""
    parts = urlsplit(url)
    proxies = getproxies()
    return bool(proxies.get(parts.scheme) or proxies.get("all")) and not proxy_bypass(parts.hostname or "")
