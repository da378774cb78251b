"""Settings: the server's address, the key, and how long to wait."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import version

import httpx2

DEFAULT_URL = "http://127.0.0.1:8000"
CONNECT_TIMEOUT_SECONDS = 5.0
READ_TIMEOUT_SECONDS = 600.0
# A server sends at least a comment every 15 seconds: three missed ones mean that the connection is gone.
STREAM_IDLE_SECONDS = 45.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """A client's settings, checked. The key is in `headers` only, and never shown."""

    base_url: str
    headers: Mapping[str, str] = field(repr=False)
    timeout: httpx2.Timeout
    stream_timeout: httpx2.Timeout
    max_retries: int


def make_settings(
    base_url: str | None,
    api_key: str | None,
    *,
    timeout: float | httpx2.Timeout | None,
    stream_idle_seconds: float,
    max_retries: int,
) -> Settings:
    """Check what was given, and complete it from SWARMKEEP_URL and SWARMKEEP_API_KEY.

    Raises ValueError, which never quotes the key.
    """
    whole = timeout if isinstance(timeout, httpx2.Timeout) else _make_timeout(timeout)
    stream = httpx2.Timeout(connect=whole.connect, read=stream_idle_seconds, write=whole.write, pool=whole.pool)
    headers = {"User-Agent": f"swarmkeep-client/{version('swarmkeep-client')}", "Accept": "application/json"}
    key = _check_key(api_key or os.environ.get("SWARMKEEP_API_KEY"))
    if key:
        headers["Authorization"] = f"Bearer {key}"
    return Settings(
        base_url=_check_url(base_url or os.environ.get("SWARMKEEP_URL") or DEFAULT_URL),
        headers=headers,
        timeout=whole,
        stream_timeout=stream,
        max_retries=max_retries,
    )


def _make_timeout(seconds: float | None) -> httpx2.Timeout:
    connect = CONNECT_TIMEOUT_SECONDS if seconds is None else min(seconds, CONNECT_TIMEOUT_SECONDS)
    return httpx2.Timeout(seconds, connect=connect)


def _check_key(text: str | None) -> str:
    key = (text or "").strip()
    if not key.isascii() or not (key.isprintable() and " " not in key):
        raise ValueError(
            "the API key contains characters that are not allowed; pass it as `swarmkeep keys create` printed it"
        )
    return key


def _check_url(text: str) -> str:
    try:
        url = httpx2.URL(text.strip())
    except httpx2.InvalidURL as error:
        raise ValueError(f"the base URL is not a URL: {error}") from None
    if url.userinfo:
        raise ValueError("a key or password does not belong in the URL; pass it as api_key")
    if url.scheme not in ("http", "https") or not url.host or url.query or url.fragment:
        raise ValueError(f"the base URL must look like {DEFAULT_URL}, not {text!r}")
    return str(url).rstrip("/")
