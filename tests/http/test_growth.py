"""Costs in kind: what a server holds does not grow with use; nothing that takes its time takes somebody else's."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import uuid4

import httpx2
import pytest
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from swarmkeep.events.codec import decode, encode
from swarmkeep.http.sse import frame, write_item
from swarmkeep.models.replies import read_text_chunk
from swarmkeep.runs.hub import MessageDeltas
from swarmkeep.store.records import SessionKey
from tests.http.server import RunningServer, scripted, server_settings, start_server
from tests.http.test_streams import wait_until_nobody_reads
from tests.support.calls import count_calls
from tests.support.growth import measure
from tests.support.processes import ServerProcess
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


# Tools that block, and models that are slow, hold nobody up.


SLOW_TEAM = '''
import time
from pathlib import Path

from swarmkeep import Agent


def wait_for_file(path: str) -> str:
    """Block the thread until there is such a file, for two minutes at most."""
    for _ in range(1200):
        if Path(path).exists():
            return "it is there"
        time.sleep(0.1)
    return "it never came"


def read_up(context_variables: dict) -> str:
    """Instructions that have to be fetched from somewhere."""
    return wait_for_file(context_variables["path"]) if "path" in context_variables else "You wait."


waiter = Agent(name="Waiter", instructions=read_up, functions=[wait_for_file])
'''


@pytest.mark.long
async def test_blocking_tools_hold_up_no_others(tmp_path: Path) -> None:
    team, signal = tmp_path / "slow_team.py", tmp_path / "signal"
    team.write_text(SLOW_TEAM)
    with ScriptedModel(default=lambda request: "Hello.") as model:
        env = {"OPENAI_BASE_URL": model.url, "OPENAI_API_KEY": "test"}
        server = ServerProcess(tmp_path, agents=[str(team)], offline=False, env=env)
        with server:
            service = RunningServer(None, server.url)  # type: ignore[arg-type]
            slow = []
            for number in range(20):
                reader = await service.session(context_variables={"path": str(signal)})
                slow.append((reader, await service.run(reader, background=True)))
                model.call("wait_for_file", {"path": str(signal)}, id=f"c{number}")
                session = await service.session()
                slow.append((session, await service.run(session, background=True)))
            await model.wait_for_requests_async(20)
            for _ in range(20):
                assert (await service.get("/health/live")).status_code == 200
                assert (await service.run(await service.session()))["output_text"] == "Hello."
            assert (await service.get("/health/ready")).status_code == 200
            for session, run in slow:
                assert (await service.get(f"{session}/runs/{run['id']}")).json()["status"] == "running"
            signal.touch()
            for session, run in slow:
                frames = await service.read_stream(f"{session}/runs/{run['id']}/stream")
                assert frames[-1].data["output_text"] == "Hello."
            await service.client.aclose()


# It is PostgreSQL whose connections could run out.
@pytest.mark.long
@pytest.mark.parametrize("ready_url", ["postgres"], indirect=True)
async def test_two_hundred_waiting_runs_block_none(service: RunningServer, model: ScriptedModel) -> None:
    count = 200
    for _ in range(count):
        model.hang(then="At last.")
    slow = []
    for _ in range(count):
        session = await service.session()
        slow.append((session, await service.run(session, background=True)))
    await model.wait_for_requests_async(count, within=60)
    model.say("At once.")
    assert (await service.run(await service.session()))["output_text"] == "At once."
    for path in ("live", "ready"):
        assert (await service.get(f"/health/{path}")).status_code == 200
    assert len((await service.get("/v1/sessions?status=running&limit=200")).json()["data"]) == count
    model.release()

    async def outcome(session: str, run: str) -> str:
        frames = await service.read_stream(f"{session}/runs/{run}/stream")
        return str(frames[-1].data["output_text"])

    assert await asyncio.gather(*(outcome(session, run["id"]) for session, run in slow)) == ["At last."] * count
