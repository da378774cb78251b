from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from swarmkeep_client import AsyncClient, Client, Session
from tests.client import samples
from tests.client.stub_server import StubServer, make_json_reply


class RecordedSleeps:
    """Stands in for sleeping: remembers for how long, and wastes no time."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.seconds.append(seconds)

    async def async_sleep(self, seconds: float) -> None:
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
def sleeps() -> RecordedSleeps:
    return RecordedSleeps()


@pytest.fixture
def client(server: StubServer, sleeps: RecordedSleeps) -> Iterator[Client]:
    with Client(server.url, sleep=sleeps.sleep) as client:
        yield client


@pytest.fixture
async def async_client(server: StubServer, sleeps: RecordedSleeps) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(server.url, sleep=sleeps.async_sleep) as client:
        yield client


@pytest.fixture
def session(server: StubServer, client: Client) -> Session:
    server.script(make_json_reply(samples.make_session()))
    session = client.sessions.get("s1")
    server.received.clear()
    return session
