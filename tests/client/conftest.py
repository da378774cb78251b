from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from swarmkeep_client import AsyncClient, Client
from tests.client.stub_server import StubServer


class Naps:
    """Stands in for sleeping: remembers for how long, and wastes no time."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def nap(self, seconds: float) -> None:
        self.seconds.append(seconds)

    async def anap(self, seconds: float) -> None:
        self.seconds.append(seconds)


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SWARMKEEP_URL", "SWARMKEEP_API_KEY", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def server() -> Iterator[StubServer]:
    with StubServer() as stub:
        yield stub


@pytest.fixture
def naps() -> Naps:
    return Naps()


@pytest.fixture
def client(server: StubServer, naps: Naps) -> Iterator[Client]:
    with Client(server.url, sleep=naps.nap) as client:
        yield client


@pytest.fixture
async def async_client(server: StubServer, naps: Naps) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(server.url, sleep=naps.anap) as client:
        yield client
