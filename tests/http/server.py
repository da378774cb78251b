"""The real application over real HTTP, in the test's own event loop."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import AsyncIterator, Collection, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, cast

import httpx2
import pytest
from litestar import Litestar
from litestar.datastructures import State
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource
from uvicorn import Config
from uvicorn.server import ServerState

from swarmkeep.events.codec import Json
from swarmkeep.http.auth import Service as Inside
from swarmkeep.http.metrics import ServerLimits
from swarmkeep.runs.engine import Engine
from swarmkeep.serve.app import build_api, make_lifespan
from swarmkeep.serve.server import build_http_config
from swarmkeep.serve.settings import Settings
from tests.support.scripted import ScriptedModel

PATIENCE_SECONDS = 20.0
# So long after the last one that ended, tasks that are still there will not end.
STANDSTILL_SECONDS = 10.0


class RunningServer:
    """A running server, and a client of it."""

    def __init__(self, app: Litestar, url: str, connections: Collection[Any] = ()) -> None:
        self.app = app
        self.url = url
        self.connections = connections
        """The protocols of the connections that there are."""
        # Nothing is encrypted: to read every authority's certificate would take longer than most tests.
        self.client = httpx2.AsyncClient(base_url=url, timeout=PATIENCE_SECONDS, verify=False)

    @property
    def service(self) -> Inside:
        return cast(Inside, self.app.state.service)

    @property
    def engine(self) -> Engine:
        return self.service.engine

    async def get(self, path: str, **options: Any) -> httpx2.Response:
        return await self.client.get(path, **options)

    async def post(self, path: str, body: Any = None, **options: Any) -> httpx2.Response:
        return await self.client.post(path, json=body, **options)

    async def patch(self, path: str, body: Any, **options: Any) -> httpx2.Response:
        return await self.client.patch(path, json=body, **options)

    async def delete(self, path: str, **options: Any) -> httpx2.Response:
        return await self.client.delete(path, **options)

    async def session(self, **body: Any) -> str:
        """The path of a new session."""
        answer = await self.post("/v1/sessions", body)
        assert answer.status_code == 201, answer.text
        return f"/v1/sessions/{answer.json()['id']}"

    async def run(self, session: str, text: Any = "hello", **body: Any) -> Json:
        """What became of a new run."""
        answer = await self.post(f"{session}/runs", {"input": text, **body})
        assert answer.status_code in (200, 202), answer.text
        found: Json = answer.json()
        return found

    async def events(self, session: str) -> list[Json]:
        answer = await self.get(f"{session}/events", params={"limit": 200})
        found: list[Json] = answer.json()["data"]
        return found

    @asynccontextmanager
    async def stream(
        self, path: str, body: Any = None, *, method: str = "GET", **headers: str
    ) -> AsyncIterator[FrameReader]:
        """The frames of a stream as they come."""
        sent = {"accept": "text/event-stream"} | {name.replace("_", "-"): value for name, value in headers.items()}
        async with self.client.stream(method, path, json=body, headers=sent) as answer:
            assert answer.status_code == 200, await answer.aread()
            assert answer.headers["content-type"].startswith("text/event-stream")
            yield FrameReader(answer)

    async def read_stream(self, path: str, body: Any = None, *, method: str = "GET", **headers: str) -> list[Frame]:
        """All frames of a stream that ends."""
        async with self.stream(path, body, method=method, **headers) as frames:
            return await frames.read_rest()

    async def raw(self, request: bytes) -> bytes:
        """What the server answers to exactly these bytes, until it or we close the connection."""
        host, _, port = self.url.removeprefix("http://").partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(request)
        async with asyncio.timeout(PATIENCE_SECONDS):
            head = await reader.readuntil(b"\r\n\r\n")
            length = next(
                int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")
            )
            answer = head + await reader.readexactly(length)
        writer.close()
        await writer.wait_closed()
        return answer


class Frame:
    """A server-sent event, strictly read: exactly the lines that we promise, in our order."""

    def __init__(self, lines: list[str]) -> None:
        self.lines = lines
        fields = [line.split(": ", 1) for line in lines]
        names = [name for name, _ in fields]
        assert names in (["event", "data"], ["id", "event", "data"], [""]), lines
        values = dict(fields)
        self.comment = values.get("")
        self.id = values.get("id")
        self.seq = int(self.id) if self.id is not None and self.id.isdecimal() else None
        self.event = values.get("event", "")
        self.data: Json = json.loads(values["data"]) if "data" in values else {}

    def __repr__(self) -> str:
        return f"Frame({self.seq} {self.event or self.comment})"


class FrameReader:
    def __init__(self, answer: httpx2.Response) -> None:
        self.answer = answer
        self._lines = answer.aiter_lines()

    async def next(self) -> Frame:
        """The next frame. Raises StopAsyncIteration at the stream's end."""
        lines: list[str] = []
        async with asyncio.timeout(PATIENCE_SECONDS):
            while (line := await anext(self._lines)) or not lines:
                lines.append(line)
        return Frame(lines)

    async def until(self, event: str) -> list[Frame]:
        """Frames up to the first of this kind."""
        found = [await self.next()]
        while found[-1].event != event:
            found.append(await self.next())
        return found

    async def read_rest(self) -> list[Frame]:
        found = []
        try:
            while True:
                found.append(await self.next())
        except StopAsyncIteration:
            return found


def durable_frames(frames: list[Frame]) -> list[Frame]:
    return [frame for frame in frames if frame.seq is not None]


def check_problem(answer: httpx2.Response, status: int, code: str) -> Json:
    """The problem document of an answer that is to be one."""
    assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json"), answer.text
    found: Json = answer.json()
    assert found["type"] == f"urn:swarmkeep:problem:{code}"
    assert (found["status"], found["code"]) == (status, code)
    assert found["title"]
    assert isinstance(found["detail"], str)
    return found


class GivenSettings(Settings):
    """Settings from their arguments alone: to look for each in the environment takes longer than many a test."""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        **_: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return (init_settings,)


def server_settings(**given: Any) -> Settings:
    """Settings of a test's own, whatever is in the environment. Nothing waits for these times."""
    values: dict[str, Any] = {
        "agents": ["tests.http.team"],
        "offline": True,
        "poll_seconds": 0.05,
        "grace_seconds": 0.05,
    } | given
    return GivenSettings(**values)


def scripted(database_url: str, model: ScriptedModel, **given: Any) -> Settings:
    """Settings of a server whose model says what the test wrote, and which asks it once."""
    asked = {"openai_api_key": "test", "openai_base_url": model.url, "model_retries": 0}
    return server_settings(database_url=database_url, offline=False, **(asked | given))


def with_settings(**given: Any) -> pytest.MarkDecorator:
    """Have the test's `service` run with these settings."""
    return pytest.mark.parametrize("given", [given], ids=["given"])


def serve_team(name: str) -> pytest.MarkDecorator:
    """Have the test's `service` serve the agents of one of the modules beside this."""
    return with_settings(agents=[f"tests.http.{name}"])


_free: dict[tuple[Any, ...], list[Litestar]] = defaultdict(list)


@contextmanager
def application(given: Settings, limits: ServerLimits) -> Iterator[Litestar]:
    """The application, as `create_app` makes it: all that is behind its routes is new, the routes themselves are not.

    To make them takes longer than most tests, so that each set is used by one test after another.
    """
    routes = {
        "max_body_bytes": given.max_body_bytes,
        "max_import_bytes": given.max_import_bytes,
        "cors_origins": tuple(given.cors_origins),
        "session_headers": tuple(given.openai_session_headers),
        "access_log": given.access_log,
    }
    free = _free[tuple(routes.values())]
    opened = make_lifespan(given, limits)
    app = free.pop() if free else build_api(lifespan=lambda app: app.state.opened(app), **routes)
    before = app.state.dict()
    app.state.opened = opened
    yield app
    app.state = State(before)
    free.append(app)


@asynccontextmanager
async def start_server(given: Settings, limits: ServerLimits | None = None) -> AsyncIterator[RunningServer]:
    """The application on a port of its own, without the pauses of a server process; see test_serve for that."""
    limits = limits or ServerLimits()
    with application(given, limits) as app:
        async with _listening(app, build_http_config(app, given, limits)) as service:
            yield service


@asynccontextmanager
async def _listening(app: Litestar, config: Config) -> AsyncIterator[RunningServer]:
    config.load()
    state = ServerState()
    before = asyncio.all_tasks()
    async with run_lifespan(app):
        loop = asyncio.get_running_loop()
        server = await loop.create_server(
            lambda: config.http_protocol_class(config=config, server_state=state, app_state={}),  # type: ignore[call-arg]
            host="127.0.0.1",
        )
        host, port = server.sockets[0].getsockname()
        service = RunningServer(app, f"http://{host}:{port}", state.connections)
        try:
            yield service
        finally:
            await service.client.aclose()
            server.close()
            await wait_for_open_requests(state)
    left = asyncio.all_tasks() - before - {asyncio.current_task()}
    while left:
        # Another server on this loop has tasks that come and go. What was forgotten here stays.
        gone, left = await asyncio.wait(left, timeout=STANDSTILL_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        assert gone, f"tasks were left behind: {left}"


@asynccontextmanager
async def run_lifespan(app: Litestar) -> AsyncIterator[None]:
    """The application's lifespan in a task of its own: a fixture's two halves run in different ones."""
    ready, stop = asyncio.Event(), asyncio.Event()

    async def live() -> None:
        async with app.lifespan():
            ready.set()
            await stop.wait()

    life = asyncio.create_task(live())
    waiting = asyncio.create_task(ready.wait())
    await asyncio.wait({life, waiting}, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    if not ready.is_set():
        await life
    try:
        yield
    finally:
        stop.set()
        await life


async def wait_for_open_requests(state: ServerState) -> None:
    """Wait for the requests whose clients have gone."""
    for connection in list(state.connections):
        connection.shutdown()
    if state.tasks:
        await asyncio.wait(list(state.tasks), timeout=PATIENCE_SECONDS)
    assert not state.tasks, f"requests are still being answered: {state.tasks}"
