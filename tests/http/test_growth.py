"""Costs in kind: what a server holds does not grow with use; what reading a session and a stream's piece take."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import closing
from uuid import uuid4

import httpx2
import pytest
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from swarmkeep.events.codec import Json, decode, encode
from swarmkeep.http.sse import frame, write_item
from swarmkeep.models.replies import read_text_chunk
from swarmkeep.runs.hub import Feed, Hub, MessageDeltas
from swarmkeep.store.reading import decode_event
from swarmkeep.store.records import SessionKey
from tests.http.server import RunningServer, scripted, server_settings, start_server
from tests.http.test_streams import wait_until_nobody_reads
from tests.support.calls import count_calls
from tests.support.growth import measure
from tests.support.loop_watch import watch_callbacks
from tests.support.scripted import ScriptedModel
from tests.support.waiting import wait_until


async def use_everything(service: RunningServer) -> None:
    """Sessions, runs, streams, OpenAI's API and refusals, under names of which each is new; then all is deleted."""
    name = uuid4().hex
    path = await service.session(id=name, metadata={name: name}, messages=[{"role": "user", "content": name}])
    await service.run(path, f"Say {name}.", model=f"model-{name}", instructions=name)
    waiting = await service.run(path, "Wait.", execute_tools=False, background=True)
    await service.post(f"{path}/runs/{waiting['id']}/cancel")
    async with service.stream(f"{path}/runs", {"input": "Hello!", "stream": True}, method="POST") as frames:
        await frames.next()
    async with service.stream(f"{path}/events") as frames, service.stream("/v1/sessions") as changes:
        await frames.next()
        await changes.next()
    await service.post(f"{path}/fork", {"id": f"{name}-fork"})
    await service.post(f"{path}/redact", {"seqs": [2], "reason": name})
    await service.post(f"{path}/replay")
    for store in (True, False):
        body = {"model": "Front", "input": name, "store": store}
        await service.post("/openai/v1/responses", body, headers={"idempotency-key": f"{name}{store}"})
    chat = {"model": "Front", "messages": [{"role": "user", "content": name}]}
    await service.post("/openai/v1/chat/completions", chat, headers={"x-session-id": f"{name}-chat"})
    for refused in (f"/v1/sessions/{name}-none", f"/v1/{name}", f"/v1/sessions?{name}=1", f"/v1/sessions?q={name}"):
        await service.get(refused, headers={"x-request-id": name, "authorization": f"Bearer sk_{name}"})
    for session in (await service.get("/v1/sessions?children=true&limit=200")).json()["data"]:
        await service.delete(f"/v1/sessions/{session['id']}?force=true")


ROUNDS = 2
# What is prepared for the database when it is first needed is not of interest, and comes when it comes.
PACKAGES = ("swarmkeep.events.", "swarmkeep.http.", "swarmkeep.openai.", "swarmkeep.runs.", "swarmkeep.store.records.")


@pytest.mark.long
@pytest.mark.one_database
async def test_server_memory_does_not_grow(ready_url: str) -> None:
    def measure_held() -> Counter[str]:
        return measure(service.app.state.service, *PACKAGES)

    async with start_server(server_settings(database_url=ready_url)) as service:
        for _ in range(ROUNDS):
            await use_everything(service)
        await wait_until_nobody_reads(service)
        held = measure_held()
        for _ in range(ROUNDS):
            await use_everything(service)
        # What only happens to be there is less than one for each round.
        await wait_until(lambda: all(count < ROUNDS for count in (measure_held() - held).values()))


# How much is read of a session that was read before: as much as the memory for states allows.


@pytest.mark.parametrize("is_kept", [True, False])
async def test_states_kept_within_memory_limit(sqlite_ready: str, model: ScriptedModel, is_kept: bool) -> None:
    bounds = {} if is_kept else {"state_cache_bytes": 1}
    async with start_server(scripted(sqlite_ready, model, **bounds)) as server:
        session = await server.session()
        for number in range(3):
            model.say(f"answer {number}")
            (await server.post(f"{session}/runs", {"input": "hello"})).raise_for_status()
        with count_calls() as counted:
            shown = await server.get(session)
        assert shown.json()["message_count"] == 6
        # One, to see that it is still where it was; or its creation, and four of each run.
        assert counted[decode_event.__code__] == (1 if is_kept else 1 + 3 * 4)


# What a piece of a stream costs in kind, from the provider's bytes to the reader's. Times are for the benchmarks.

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
