"""What a piece of a stream costs in kind, from the provider's bytes to the reader's. Times are for the benchmarks."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from types import CodeType, FrameType

import httpx2
import pytest

from swarmkeep.api.sse import frame
from swarmkeep.domain.codec import decode, encode
from tests.api.server import RunningServer, scripted, start_server
from tests.support.loop_watch import watch_callbacks
from tests.support.scripted import ScriptedModel

PIECES = 300


@pytest.fixture
async def server(sqlite_ready: str, model: ScriptedModel) -> AsyncIterator[RunningServer]:
    async with start_server(scripted(sqlite_ready, model)) as running:
        yield running


@contextmanager
def count_calls() -> Iterator[Counter[CodeType]]:
    """How often each function is called in this thread."""
    found: Counter[CodeType] = Counter()

    def note(called: FrameType, kind: str, argument: object) -> None:
        if kind == "call":
            found[called.f_code] += 1

    sys.setprofile(note)
    try:
        yield found
    finally:
        sys.setprofile(None)


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
    for function in (decode, encode, frame):
        code = function.__code__
        assert many[code] - few[code] == PIECES, function


async def test_a_piece_takes_three_turns_of_the_event_loop_at_most(server: RunningServer, model: ScriptedModel) -> None:
    await read_stream(server, model, 1)
    counts = []
    for pieces in (1, PIECES + 1):
        with watch_callbacks() as watch:
            await read_stream(server, model, pieces)
        counts.append(watch.count)
    # The provider's bytes arrive; the run's task passes them on; the reader's task writes them. And some for the rest.
    assert counts[1] - counts[0] < 3.5 * PIECES
