"""What a piece of a stream costs in kind, from the provider's bytes to the reader's. Times are for the benchmarks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import closing

import httpx2
import pytest
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from swarmkeep.events.codec import Json, decode, encode
from swarmkeep.http.sse import frame, write_item
from swarmkeep.models.limits import read_text_chunk
from swarmkeep.runs.hub import Feed, Hub, MessageDeltas
from swarmkeep.store.records import SessionKey
from tests.http.server import RunningServer, scripted, start_server
from tests.http.test_streams import wait_until
from tests.support.calls import count_calls
from tests.support.loop_watch import watch_callbacks
from tests.support.scripted import ScriptedModel

PIECES = 300


@pytest.fixture
async def server(sqlite_ready: str, model: ScriptedModel) -> AsyncIterator[RunningServer]:
    async with start_server(scripted(sqlite_ready, model)) as running:
        yield running


async def read_stream(server: RunningServer, model: ScriptedModel, pieces: int) -> str:
    model.say(["word "] * pieces)
    session = await server.session()

    def read() -> str:
        answer = httpx2.post(
            f"{server.url}{session}/runs", json={"input": "hello", "stream": True}, timeout=60, verify=False
        )
        return answer.text

    return await asyncio.to_thread(read)


async def test_piece_decoded_and_encoded_once(server: RunningServer, model: ScriptedModel) -> None:
    await read_stream(server, model, 1)
    calls = []
    for pieces in (1, PIECES + 1):
        with count_calls() as counted:
            text = await read_stream(server, model, pieces)
        assert text.count("event: message.delta\n") == pieces
        calls.append(counted)
    few, many = calls
    for function in (read_text_chunk, encode, frame):
        code = function.__code__
        assert many[code] - few[code] == PIECES, function
    # As a plain object only what is not a piece of text.
    assert many[decode.__code__] - few[decode.__code__] < 10


async def test_simultaneous_pieces_travel_together(server: RunningServer, model: ScriptedModel) -> None:
    texts = [f"{number} " for number in range(50)]
    chunks = [{"choices": [{"index": 0, "delta": {"content": text}}]} for text in texts]
    end: Json = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
    model.chunks([b"".join(b"data: %b\n\n" % encode(chunk) for chunk in [*chunks, end])])
    session = await server.session()
    async with server.stream(f"{session}/events") as other:
        with count_calls() as counted:
            body = {"input": "hello", "stream": True}
            frames = await server.read_stream(f"{session}/runs", body, method="POST")
            frames_of_other = await other.until("run.completed")
    for seen in (frames, frames_of_other):
        assert [frame.data["content"] for frame in seen if frame.event == "message.delta"] == texts
    # That it begins, what it says, and its end; one read of a socket may be two.
    assert counted[Hub.show.__code__] <= 4
    assert counted[encode.__code__] >= len(texts)
    assert counted[write_item.__code__] < 20


async def test_waiting_pieces_written_once_for_readers(server: RunningServer) -> None:
    session = await server.session()
    key = SessionKey("default", session.rpartition("/")[2])
    path = f"{session}/events"
    async with server.stream(path) as one, server.stream(path) as other:
        for stream in (one, other):
            assert (await stream.next()).event == "session.created"
        await wait_until(lambda: server.engine.hub.reader_count == 2)
        with count_calls() as counted:
            for number in range(50):
                server.engine.hub.show(key, MessageDeltas("r", "A", 1, [{"content": f"{number} "}]))
            for stream in (one, other):
                said = [(await stream.next()).data["content"] for _ in range(50)]
                assert said == [f"{number} " for number in range(50)]
    assert counted[write_item.__code__] == 50
    # For each of the two.
    assert counted[RequestResponseCycle.send.__code__] == 2


async def test_reader_sets_one_timer() -> None:
    with closing(Feed(10, 1000)) as feed, count_calls() as counted:
        for _ in range(PIECES):
            waiting = asyncio.create_task(feed.wait(60))
            await asyncio.sleep(0)
            feed.put(MessageDeltas("r", "A", 1, [{"content": "word "}]))
            await waiting
            assert feed.take() is not None
    assert counted[Feed._set_timer.__code__] == 1


async def test_piece_takes_three_loop_turns(server: RunningServer, model: ScriptedModel) -> None:
    await read_stream(server, model, 1)
    counts = []
    for pieces in (1, PIECES + 1):
        with watch_callbacks() as watch:
            await read_stream(server, model, pieces)
        counts.append(watch.count)
    # The provider's bytes arrive; the run's task passes them on; the reader's task writes them. And some for the rest.
    assert counts[1] - counts[0] < 3.5 * PIECES
