"""The openai package's own clients, with the offline model in place of a network."""

from typing import TYPE_CHECKING

import httpx2

from swarmkeep.engine.models.offline.transport import OfflineTransport

if TYPE_CHECKING:
    from openai import AsyncOpenAI, OpenAI

# A name that no resolver knows: should a request ever get past the transport, it goes nowhere.
BASE_URL = "http://offline.invalid/v1"
API_KEY = "offline"


def make_offline_client() -> "AsyncOpenAI":
    """An asynchronous openai client that the offline model answers; the caller closes it."""
    from openai import AsyncOpenAI

    http_client = httpx2.AsyncClient(transport=OfflineTransport())
    return AsyncOpenAI(api_key=API_KEY, base_url=BASE_URL, http_client=http_client)


def make_sync_offline_client() -> "OpenAI":
    """A synchronous openai client that the offline model answers; the caller closes it."""
    from openai import OpenAI

    return OpenAI(api_key=API_KEY, base_url=BASE_URL, http_client=httpx2.Client(transport=OfflineTransport()))
