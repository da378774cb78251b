"""What a piece of a stream costs in kind, from the provider's bytes to the reader's. Times are for the benchmarks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import closing

import httpx2
import pytest
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from swarmkeep.api.sse import frame, item_frame
from swarmkeep.domain.codec import decode, encode
from swarmkeep.engine.models.chunks import read_text_chunk
from swarmkeep.engine.streams.feed import Feed
from swarmkeep.engine.streams.items import MessageDelta
from swarmkeep.store.ports import SessionKey
from tests.api.server import RunningServer, scripted, start_server
from tests.api.test_streams import wait_until
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


async def test_a_piece_is_decoded_once_encoded_once_and_a_frame_of_its_own(
    server: RunningServer, model: ScriptedModel
) -> None:
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


async def test_pieces_that_wait_are_sent_at_once_and_written_once_for_all_readers(server: RunningServer) -> None:
    session = await server.session()
    key = SessionKey("default", session.rpartition("/")[2])
    path = f"{session}/events"
    async with server.stream(path) as one, server.stream(path) as other:
        for stream in (one, other):
            assert (await stream.next()).event == "session.created"
        await wait_until(lambda: server.engine.hub.reader_count == 2)
        with count_calls() as counted:
            for number in range(50):
                server.engine.hub.show(key, MessageDelta("r", "A", 1, {"content": f"{number} "}))
            for stream in (one, other):
                said = [(await stream.next()).data["content"] for _ in range(50)]
                assert said == [f"{number} " for number in range(50)]
    assert counted[item_frame.__code__] == 50
    # For each of the two.
    assert counted[RequestResponseCycle.send.__code__] == 2


async def test_a_reader_sets_one_timer_however_many_pieces_come() -> None:
    with closing(Feed(10, 1000)) as feed, count_calls() as counted:
        for _ in range(PIECES):
            waiting = asyncio.create_task(feed.wait(60))
            await asyncio.sleep(0)
            feed.put(MessageDelta("r", "A", 1, {"content": "word "}))
            await waiting
            assert feed.take() is not None
    assert counted[Feed._set_timer.__code__] == 1


async def test_a_piece_takes_three_turns_of_the_event_loop_at_most(server: RunningServer, model: ScriptedModel) -> None:
    await read_stream(server, model, 1)
    counts = []
    for pieces in (1, PIECES + 1):
        with watch_callbacks() as watch:
            await read_stream(server, model, pieces)
        counts.append(watch.count)
    # The provider's bytes arrive; the run's task passes them on; the reader's task writes them. And some for the rest.
    assert counts[1] - counts[0] < 3.5 * PIECES
