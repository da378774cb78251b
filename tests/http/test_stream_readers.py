"""Readers of streams as they are: cut off anywhere, on another server, too slow, or gone by the hundred."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from swarmkeep.http.metrics import ServerLimits
from tests.http.server import Frame, RunningServer, durable_frames, scripted, start_server
from tests.http.test_streams import content_of, wait_until_nobody_reads
from tests.support.scripted import ScriptedModel
from tests.support.waiting import wait_until


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


# Slow readers.


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
