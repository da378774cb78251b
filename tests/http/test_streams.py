"""Server-sent events: framing, reconnection at every seq, following a session, and leaving nothing behind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from swarmkeep.http.metrics import ServerLimits
from tests.http.server import (
    Frame,
    RunningServer,
    check_problem,
    durable_frames,
    scripted,
    server_settings,
    start_server,
)
from tests.support.scripted import ScriptedModel
from tests.support.waiting import wait_until

pytestmark = pytest.mark.one_database


async def wait_until_nobody_reads(service: RunningServer) -> None:
    await wait_until(lambda: service.engine.hub.reader_count == 0)


def content_of(frames: list[Frame]) -> str:
    return "".join(frame.data.get("content", "") for frame in frames if frame.event == "message.delta")


async def test_running_run_can_be_watched(service: RunningServer, model: ScriptedModel) -> None:
    model.call("get_weather", {"city": "Rome"}, id="c1")
    model.say(["It ", "is\n", "sunny ☀."])
    session = await service.session()
    async with service.stream(f"{session}/runs", {"input": "hi", "stream": True}, method="POST") as stream:
        assert stream.answer.headers["cache-control"] == "no-cache"
        assert stream.answer.headers["x-accel-buffering"] == "no"
        frames = [frame for frame in await stream.read_rest() if not frame.comment]
    events = await service.events(session)
    assert [frame.data for frame in durable_frames(frames)] == events[1:]
    assert [(frame.seq, frame.event) for frame in durable_frames(frames)] == [
        (event["seq"], event["type"]) for event in events[1:]
    ]
    run_id = frames[0].data["run_id"]
    passing = [frame for frame in frames if frame.seq is None]
    assert [frame.data for frame in passing if frame.event == "message.started"] == [
        {"run_id": run_id, "agent": "Front"}
    ] * 2
    assert content_of(passing) == "It is\nsunny ☀."
    for frame in passing:
        if frame.event == "message.delta":
            assert set(frame.data) in ({"run_id", "agent", "content"}, {"run_id", "agent", "tool_calls"})
    assert passing[-1] is frames[-1]
    assert frames[-1].event == "done"
    assert frames[-1].data == (await service.get(f"{session}/runs/{run_id}")).json()
    await wait_until_nobody_reads(service)


async def test_starter_sees_all_of_fast_run(service: RunningServer, model: ScriptedModel) -> None:
    session = await service.session()
    for number in range(30):
        model.say(["It ", "is ", f"{number}."])
        frames = await service.read_stream(f"{session}/runs", {"input": "hi", "stream": True}, method="POST")
        assert content_of(frames) == f"It is {number}."
    await wait_until_nobody_reads(service)


async def test_repeated_request_shows_run_from_log(service: RunningServer, model: ScriptedModel) -> None:
    model.say("Hello.")
    session, body = await service.session(), {"input": "hi", "stream": True}
    first, again = [
        await service.read_stream(f"{session}/runs", body, method="POST", idempotency_key="k") for _ in range(2)
    ]
    assert [frame.data for frame in durable_frames(first)] == [frame.data for frame in durable_frames(again)]
    assert (first[-1].event, first[-1].data) == (again[-1].event, again[-1].data)
    check_problem(await service.post(f"{session}/runs", {**body, "agent": "Nobody"}), 404, "agent_not_found")
    await wait_until_nobody_reads(service)


async def test_returning_reader_misses_nothing(service: RunningServer, model: ScriptedModel) -> None:
    model.call("get_weather", {"city": "Rome"}, id="c1")
    model.say("It is sunny.")
    session = await service.session()
    run = await service.run(session)
    events = await service.events(session)
    for seq in range(len(events) + 1):
        frames = await service.read_stream(f"{session}/runs/{run['id']}/stream", last_event_id=str(seq))
        assert [frame.data for frame in durable_frames(frames)] == [event for event in events[1:] if event["seq"] > seq]
        assert (frames[-1].event, frames[-1].data) == ("done", run)


async def test_run_continues_after_client_leaves(service: RunningServer, model: ScriptedModel) -> None:
    model.hang("Half of ", then="it.")
    session = await service.session()
    async with service.stream(f"{session}/runs", {"input": "hi", "stream": True}, method="POST") as stream:
        frames = await stream.until("message.delta")
    await wait_until_nobody_reads(service)
    model.release()
    run = frames[0].data["run_id"]
    frames = await service.read_stream(f"{session}/runs/{run}/stream")
    assert frames[-1].data["output_text"] == "Half of it."


async def test_session_replayed_then_followed(service: RunningServer, model: ScriptedModel) -> None:
    model.say("hello")
    session = await service.session()
    async with service.stream(f"{session}/events") as stream:
        assert (await stream.next()).event == "session.created"
        run = await service.run(session)
        frames = [frame for frame in await stream.until("run.completed") if not frame.comment]
        await service.patch(session, {"metadata": {"a": 1}})
        frames += await stream.until("session.updated")
    assert [frame.data for frame in durable_frames(frames)] == (await service.events(session))[1:]
    assert {frame.data["run_id"] for frame in frames[:-1]} == {run["id"]}
    assert "message.started" in [frame.event for frame in frames]
    await wait_until_nobody_reads(service)


async def test_followed_session_begins_at_reader_position(service: RunningServer) -> None:
    session = await service.session(messages=[{"role": "user", "content": str(number)} for number in range(4)])
    for query, header, first in (
        ("after=2", {}, 3),
        ("", {"last_event_id": "3"}, 4),
        ("after=2", {"last_event_id": ""}, 3),
        ("after=2", {"last_event_id": "4"}, 5),
    ):
        async with service.stream(f"{session}/events?{query}", **header) as stream:
            assert (await stream.next()).seq == first
    for wrong in ("x", "-1", "1.5", "9" * 30):
        headers = {"Accept": "text/event-stream", "Last-Event-ID": wrong}
        found = check_problem(await service.get(f"{session}/events", headers=headers), 400, "invalid_request")
        assert found["errors"][0]["pointer"] == "/header/Last-Event-ID"
    check_problem(
        await service.get("/v1/sessions/no/events", headers={"Accept": "text/event-stream"}), 404, "session_not_found"
    )
    check_problem(
        await service.get("/v1/sessions/no/events", headers={"Accept": "application/x-ndjson"}),
        404,
        "session_not_found",
    )


async def test_only_requested_types_followed(service: RunningServer, model: ScriptedModel) -> None:
    model.say("hello")
    session = await service.session()
    async with service.stream(f"{session}/events?type=run.started,run.completed") as stream:
        await service.run(session)
        assert [(await stream.next()).event for _ in range(2)] == ["run.started", "run.completed"]


@pytest.fixture
async def strict(ready_url: str, model: ScriptedModel) -> AsyncIterator[RunningServer]:
    """A server that looks at once whether a session is gone."""
    async with start_server(scripted(ready_url, model), ServerLimits(gone_seconds=0.0)) as running:
        yield running


async def test_following_ends_with_the_session(strict: RunningServer) -> None:
    session = await strict.session()
    async with strict.stream(f"{session}/events") as stream:
        await stream.next()
        await strict.delete(session)
        assert await stream.read_rest() == []
    await wait_until_nobody_reads(strict)


async def test_reader_follows_recreated_session(ready_url: str, model: ScriptedModel) -> None:
    # Patient enough not to end while there is no session of that name.
    async with start_server(scripted(ready_url, model), ServerLimits(gone_seconds=60.0)) as service:
        session = await service.session(id="s1", messages=[{"role": "user", "content": "old"}] * 3)
        async with service.stream(f"{session}/events") as stream:
            for seq in range(1, 5):
                assert (await stream.next()).seq == seq
            await service.delete(session)
            await service.session(id="s1", messages=[{"role": "user", "content": "new"}])
            new = [frame for frame in await stream.until("message.added") if not frame.comment]
        assert [frame.data for frame in new] == await service.events(session)


async def test_deleted_session_ends_stream_without_done(strict: RunningServer, model: ScriptedModel) -> None:
    model.hang()
    session = await strict.session()
    async with strict.stream(f"{session}/runs", {"input": "hi", "stream": True}, method="POST") as stream:
        await stream.until("message.started")
        await model.wait_for_requests_async(1)
        await strict.delete(f"{session}?force=true")
        assert "done" not in [frame.event for frame in await stream.read_rest()]
    await model.wait_for_disconnects_async(1)
    await wait_until_nobody_reads(strict)


async def test_silent_stream_sends_heartbeats(sqlite_ready: str) -> None:
    async with start_server(server_settings(database_url=sqlite_ready), ServerLimits(ping_seconds=0.0)) as lively:
        session = await lively.session()
        async with lively.stream(f"{session}/events?after=1") as stream:
            assert [(await stream.next()).comment for _ in range(3)] == ["ping"] * 3


def test_heartbeats_come_within_15_seconds() -> None:
    # A reader who is told nothing looks at the clock every two seconds.
    assert ServerLimits().ping_seconds + 2 < 15


async def test_streams_end_when_the_server_stops(service: RunningServer, model: ScriptedModel) -> None:
    model.hang("Half of ", then="it.")
    session = await service.session()
    async with (
        service.stream(f"{session}/events") as following,
        service.stream(f"{session}/runs", {"input": "hi", "stream": True}, method="POST") as running,
    ):
        await running.until("message.delta")
        await service.service.drain()
        frames = await running.read_rest()
        assert (frames[-1].event, frames[-1].data["status"]) == ("done", "interrupted")
        assert (await following.read_rest())[-1].comment == "the server is shutting down"
    await model.wait_for_disconnects_async(1)


async def test_stopping_server_tells_waiters_of_continued_run(service: RunningServer, model: ScriptedModel) -> None:
    model.hang()
    session = await service.session(id="s1")
    await service.run(session, background=True)
    await model.wait_for_requests_async(1)
    native = service.post(f"{session}/runs", {"input": "hi", "on_busy": "queue"})
    response = {"model": "Front", "conversation": "s1", "input": "hi"}
    waiting = [asyncio.create_task(asked) for asked in (native, service.post("/openai/v1/responses", response))]
    async with asyncio.timeout(20):
        async with service.stream(f"{session}/events") as stream:
            await stream.until("run.queued")
            await stream.until("run.queued")
        await service.service.drain()
        run, response_told = await asyncio.gather(*waiting)
    check_problem(run, 503, "draining")
    assert (response_told.status_code, response_told.json()["error"]["code"]) == (503, "draining")
    assert response_told.headers["x-should-retry"] == "false"
    runs = (await service.get(f"{session}/runs")).json()["data"]
    assert [run["status"] for run in runs] == ["queued", "queued", "interrupted"]
    await model.wait_for_disconnects_async(1)


async def test_unknown_event_id_means_the_beginning(service: RunningServer, model: ScriptedModel) -> None:
    """Of a session that was deleted and made anew under its id, say: a browser sends the last id that it saw."""
    model.say("hello")
    session = await service.session()
    run = await service.run(session)
    events = await service.events(session)
    async with service.stream(f"{session}/events", last_event_id="50") as stream:
        assert [(await stream.next()).data for _ in events] == events
    async with service.stream(f"{session}/events?after=50&type=message.added") as stream:
        assert (await stream.next()).data == next(event for event in events if event["type"] == "message.added")
    frames = await service.read_stream(f"{session}/runs/{run['id']}/stream", last_event_id="50")
    assert [frame.data for frame in durable_frames(frames)] == events[1:]
    assert frames[-1].event == "done"
