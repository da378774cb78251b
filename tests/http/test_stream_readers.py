"""Readers of streams as they are: cut off anywhere, on another server, too slow, or gone by the hundred."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from swarmkeep.events.facts import RecordedEvent
from swarmkeep.http.metrics import ServerLimits
from swarmkeep.runs.agents import Registry
from swarmkeep.runs.engine import build_engine
from swarmkeep.runs.hub import Hub, MessageDeltas, MessageStarted, join_text
from swarmkeep.runs.reader import flatten, follow_batches
from swarmkeep.serve.settings import Settings
from swarmkeep.store.opening import open_store
from swarmkeep.store.records import SessionKey
from tests.http.server import Frame, RunningServer, durable_frames, scripted, start_server
from tests.http.team import front
from tests.http.test_streams import content_of, wait_until_nobody_reads
from tests.support.processes import ServerProcess
from tests.support.scripted import ScriptedModel
from tests.support.waiting import wait_until

TEAM = str(Path(__file__).with_name("team.py"))


async def start_streaming_run(service: RunningServer, session: str) -> str:
    """The path of the stream of a new run, whose model speaks as if somebody listened."""
    async with service.stream(f"{session}/runs", {"input": "hi", "stream": True}, method="POST") as stream:
        run_id = (await stream.next()).data["run_id"]
    return f"{session}/runs/{run_id}/stream"


async def read_first_frames(service: RunningServer, path: str, count: int, last_seen: int) -> list[Frame]:
    """The first frames of a stream, whose connection is then cut."""
    async with service.stream(path, last_event_id=str(last_seen)) as stream:
        frames: list[Frame] = []
        while len(frames) < count:
            frame = await stream.next()
            if not frame.comment:
                frames.append(frame)
        return frames


@pytest.mark.parametrize("rejoin", ["on the same server", "on another server"])
async def test_cut_live_stream_resumes_on_any_server(
    pair: tuple[RunningServer, RunningServer], model: ScriptedModel, rejoin: str
) -> None:
    one = pair[0]
    again = one if rejoin == "on the same server" else pair[1]
    cuts = 0
    while True:
        model.call("get_weather", {"city": "Rome"}, id=f"c{cuts}")
        model.hang("It is ", then="sunny.")
        session = await one.session()
        path = await start_streaming_run(one, session)
        await model.wait_for_requests_async(2 * cuts + 2)
        # Those that are there while the model is in mid-answer: the durable ones, `message.started` and a piece.
        there = len(await one.events(session)) - 1 + 2
        seen = await read_first_frames(one, path, cuts + 1, 0)
        last = max(frame.seq or 0 for frame in seen)
        joined = asyncio.create_task(again.read_stream(path, last_event_id=str(last)))
        if rejoin == "on the same server":
            await wait_until(lambda: one.engine.hub.reader_count > 0)
        model.release()
        rest = await joined
        events = await one.events(session)
        assert [frame.data for frame in durable_frames(seen) + durable_frames(rest)] == events[1:]
        assert rest[-1].event == "done"
        assert rest[-1].data["output_text"] == "It is sunny."
        if rejoin == "on the same server" and content_of(rest):
            assert content_of(rest) == "It is sunny."
        cuts += 1
        if cuts == there:
            break
    assert cuts >= 6
    for server in pair:
        await wait_until_nobody_reads(server)


def read_over_http(server: ServerProcess, path: str, last_seen: int, count: int | None) -> list[tuple[int, str]]:
    """Durable frames (id, type) of a stream that is cut after `count` frames, or read to its end."""
    found: list[tuple[int, str]] = []
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
        head = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nLast-Event-ID: {last_seen}\r\n\r\n"
        connection.sendall(head.encode())
        lines = connection.makefile("rb")
        seq, frames = 0, 0
        for line in lines:
            text = line.decode().strip()
            if text.startswith("id: "):
                seq = int(text[4:])
            elif text.startswith("event: ") and seq:
                found.append((seq, text[7:]))
                seq = 0
            elif text.startswith("data: "):
                frames += 1
                if frames == count:
                    break
    return found


@pytest.mark.long
def test_cut_stream_rejoined_across_two_processes(ready_url: str, model: ScriptedModel, tmp_path: Path) -> None:
    model.call("get_weather", {"city": "Rome"}, id="c1")
    model.call("remember", {"key": "a", "value": "b"}, id="c2")
    model.say("It is sunny.")
    env = {"OPENAI_BASE_URL": model.url, "OPENAI_API_KEY": "test", "SWARMKEEP_POLL_SECONDS": "0.05"}

    def server(name: str) -> ServerProcess:
        folder = tmp_path / name
        folder.mkdir()
        return ServerProcess(folder, database_url=ready_url, agents=[TEAM], offline=False, env=env)

    with server("one") as one, server("other") as other:
        assert post(one, "/v1/sessions", {"id": "s"})["id"] == "s"
        run = post(one, "/v1/sessions/s/runs", {"input": "hi", "background": True})
        path = f"/v1/sessions/s/runs/{run['id']}/stream"
        seen: list[tuple[int, str]] = []
        for turn in range(100):
            frames = read_over_http((one, other)[turn % 2], path, seen[-1][0] if seen else 0, None if turn > 40 else 1)
            seen += frames
            if seen and seen[-1][1] == "run.completed":
                break
        assert [seq for seq, _ in seen] == list(range(2, len(seen) + 2))
        assert seen[-1][1] == "run.completed"
        assert one.stop() == other.stop() == 0


def post(server: ServerProcess, path: str, body: Any) -> Any:
    import http.client
    import json

    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    try:
        connection.request("POST", path, json.dumps(body))
        return json.loads(connection.getresponse().read())
    finally:
        connection.close()


# Slow readers.


async def test_late_reader_gets_message_in_one_piece() -> None:
    hub, key = Hub(feed_size=10), SessionKey("t", "s")
    hub.show(key, MessageStarted("r", "A", 1))
    for number in range(1000):
        hub.show(key, MessageDeltas("r", "A", 1, [{"content": f"{number} ", "tool_calls": None}]))
    with closing(hub.open_feed(key)) as feed:
        assert isinstance(feed.take(), MessageStarted)
        piece = feed.take()
        assert isinstance(piece, MessageDeltas)
        assert join_text(piece.deltas) == "".join(f"{number} " for number in range(1000))


async def test_lagging_reader_costs_little_misses_nothing(ready_url: str) -> None:
    settings = Settings(_env_file=None, offline=True)  # type: ignore[call-arg]
    engine = build_engine(settings, Registry([front]), open_store(ready_url), feed_characters=50_000)
    key = SessionKey("default", "s")
    await engine.sessions.create(key.tenant, session_id=key.id)
    reader = flatten(follow_batches(engine.store, engine.hub, key, after=0, silent_seconds=0.05))
    got = [await anext(reader)]
    for number in range(60):
        await engine.sessions.update(key, metadata={"text": str(number) * 10_000})
    (feed,) = engine.hub._list_feeds(key)
    assert sum(len(item.payload) for item in feed.items if isinstance(item, RecordedEvent)) <= 50_000
    while not (got and isinstance(got[-1], RecordedEvent) and got[-1].seq == 61):
        got.append(await anext(reader))
    await reader.aclose()
    await engine.stop()
    assert [item.seq for item in got if isinstance(item, RecordedEvent)] == list(range(1, 62))


async def test_long_log_sent_in_few_parts(ready_url: str) -> None:
    settings = Settings(_env_file=None, offline=True)  # type: ignore[call-arg]
    engine = build_engine(settings, Registry([front]), open_store(ready_url))
    key = SessionKey("default", "s")
    history = [{"role": "user", "content": str(number)} for number in range(450)]
    await engine.sessions.create(key.tenant, session_id=key.id, messages=history)
    sizes: list[int] = []
    async with aclosing(follow_batches(engine.store, engine.hub, key, after=0, silent_seconds=0.05)) as batches:
        while batch := await anext(batches):
            sizes.append(len(batch))
    await engine.stop()
    assert (sum(sizes), max(sizes), len(sizes) < 10) == (451, 100, True)


@pytest.mark.long
async def test_stalled_reader_dropped_and_may_return(ready_url: str, model: ScriptedModel) -> None:
    async with start_server(
        scripted(ready_url, model, max_metadata_bytes=2_000_000), ServerLimits(stalled_seconds=0.5)
    ) as service:
        await _stop_reading_and_come_back(service)


async def _stop_reading_and_come_back(service: RunningServer) -> None:
    session = await service.session()
    for number in range(20):
        await service.patch(session, {"metadata": {"text": str(number % 10) * 1_000_000}})
    with connect_without_reading(
        service, f"GET {session}/events HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n"
    ):
        await wait_until(lambda: service.engine.hub.reader_count == 1)
        # Nothing is read: what the sockets cannot hold waits in the log, and at last the connection is ended.
        await wait_until_nobody_reads(service)
    async with service.stream(f"{session}/events") as stream:
        assert [(await stream.next()).seq for _ in range(21)] == list(range(1, 22))


@contextmanager
def connect_without_reading(service: RunningServer, request: str) -> Iterator[socket.socket]:
    """A client that sends a request and reads nothing of the answer."""
    host, _, port = service.url.removeprefix("http://").partition(":")
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect((host, int(port)))
        client.sendall(request.encode())
        yield client


# Readers by the hundred.


def count_open_sockets() -> int:
    links = []
    for name in os.listdir("/proc/self/fd"):
        try:
            links.append(os.readlink(f"/proc/self/fd/{name}"))
        except OSError:
            # The folder's own.
            continue
    return sum(link.startswith("socket:") for link in links)


@asynccontextmanager
async def connect_and_leave(url: str, request: str, read: int) -> AsyncIterator[None]:
    """A client that goes away after so many bytes of the answer, without a word."""
    host, _, port = url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(request.encode())
        if read:
            await reader.read(read)
        yield
    finally:
        writer.transport.abort()


@pytest.mark.long
@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="open files cannot be counted here")
async def test_hundreds_of_readers_leave_nothing(service: RunningServer, model: ScriptedModel) -> None:
    model.hang("Half of ", then="it.")
    session = await service.session()
    paths = [await start_streaming_run(service, session), f"{session}/events", f"{session}/events?type=run.completed"]
    accept = "Host: localhost\r\nAccept: text/event-stream\r\n"

    async def come_and_go(number: int) -> None:
        path, wait = paths[number % 3], number % 4
        async with connect_and_leave(service.url, f"GET {path} HTTP/1.1\r\n{accept}\r\n", (0, 1, 100, 5000)[wait]):
            pass

    async def a_hundred(start: int) -> None:
        await asyncio.gather(*(come_and_go(number) for number in range(start, start + 100)))

    engine, mine = service.engine, asyncio.all_tasks()
    # The first ones open what stays open: the database's connections.
    await a_hundred(0)
    await wait_until_nobody_reads(service)
    await wait_until(lambda: len(asyncio.all_tasks()) <= len(mine))
    sockets = count_open_sockets()
    for start in range(100, 400, 100):
        await a_hundred(start)
    await wait_until_nobody_reads(service)
    await wait_until(lambda: len(asyncio.all_tasks()) <= len(mine))
    # A reader that leaves in the middle of a query takes its connection to the database along; the pool has 8.
    await wait_until(lambda: count_open_sockets() <= sockets + 8)
    assert engine.hub._feeds == {}
    model.release()
    frames = await service.read_stream(paths[0])
    assert frames[-1].data["output_text"] == "Half of it."


async def test_leaving_waiter_leaves_nothing(ready_url: str, model: ScriptedModel) -> None:
    model.call("refund", {"order": "17"}, id="c1")
    async with start_server(scripted(ready_url, model), ServerLimits(leaving_seconds=0.01)) as service:
        session = await service.session()
        assert (await service.run(session))["status"] == "waiting"
        waiters = service.engine._worker.waiters
        asking = asyncio.create_task(service.post(f"{session}/runs", {"input": "And?", "on_busy": "queue"}))
        await wait_until(lambda: len(waiters) == 1)
        asking.cancel()
        await wait_until(lambda: len(waiters) == 0)
        await asyncio.wait([asking])
        assert (await service.get(f"{session}/runs")).json()["data"][0]["status"] == "queued"
