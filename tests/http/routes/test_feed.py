"""The feed of all events, and of which sessions change: pages, waiting, streams, and the places of consumers."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from swarmkeep.events.codec import Json
from swarmkeep.http.routes import health
from swarmkeep.runs import feed as feeds
from swarmkeep.runs.feed import ChangedSession, Changes, SessionChanges
from swarmkeep.store.keys import SqlApiKeys
from swarmkeep.store.records import StoreUnavailable
from tests.http.server import Frame, RunningServer, check_problem, scripted, start_server
from tests.support.scripted import ScriptedModel
from tests.support.waiting import wait_until


async def read_all(server: RunningServer, after: str | None = None, **given: Any) -> tuple[list[Json], str]:
    found: list[Json] = []
    while True:
        chosen = {**given, **({} if after is None else {"after": after})}
        page = (await server.get("/v1/events", params=chosen)).json()
        found += page["data"]
        if after == page["next_cursor"]:
            return found, page["next_cursor"]
        after = page["next_cursor"]


async def test_feed_has_what_sessions_have(pair: tuple[RunningServer, RunningServer], model: ScriptedModel) -> None:
    one, other = pair
    assert (await one.get("/v1/events")).json() == {"data": [], "next_cursor": "1-0"}
    model.say("Hello.")
    first = await one.session(metadata={"customer": "c1"})
    await one.run(first)
    second = await other.session()
    found, end = await read_all(other, limit=2)
    alone = [*await one.events(first), *await one.events(second)]
    assert sorted(({**event, "cursor": None} for event in found), key=str) == sorted(
        ({**event, "cursor": None} for event in alone), key=str
    )
    for event in found:
        rest, _ = await read_all(one, event["cursor"])
        assert rest == found[found.index(event) + 1 :]
    messages, _ = await read_all(one, type="message.added,run.started")
    assert {event["type"] for event in messages} == {"message.added", "run.started"}
    assert (await read_all(one, **{"metadata.customer": "c1"}))[0] == [
        event for event in found if first.endswith(event["session_id"])
    ]
    assert (await read_all(one, agent="Nobody"))[0] == []
    assert (await one.get("/v1/events", params={"after": "end"})).json() == {"data": [], "next_cursor": end}
    # What was redacted meanwhile is not told.
    seq = next(event["seq"] for event in messages if event["type"] == "message.added")
    await one.post(f"{first}/redact", {"seqs": [seq], "reason": "asked for"})
    again, _ = await read_all(other, type="message.added")
    assert again[0]["data"]["redacted"] is True
    assert [event["type"] for event in (await read_all(other, end))[0]] == ["session.redacted"]


async def test_waiting_reader_is_told_at_once(
    pair: tuple[RunningServer, RunningServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = pair
    _, end = await read_all(other)
    for writer in (one, other):
        waiting = asyncio.create_task(other.get("/v1/events", params={"after": end, "wait": 30}))
        await asyncio.sleep(0)
        path = await writer.session()
        page = (await waiting).json()
        assert [path.rpartition("/")[2]] == [event["session_id"] for event in page["data"]]
        end = page["next_cursor"]
    began = time.monotonic()
    assert (await other.get("/v1/events", params={"after": end, "wait": 0.2})).json()["data"] == []
    assert time.monotonic() - began >= 0.2
    # A server that stops lets nobody wait.
    waiting = asyncio.create_task(other.get("/v1/events", params={"after": end, "wait": 60}))
    await asyncio.sleep(0)
    other.service.stopping.set()
    assert (await waiting).json()["data"] == []


async def test_stream_goes_on_from_any_cursor(pair: tuple[RunningServer, RunningServer]) -> None:
    one, other = pair
    await one.session(id="a")
    async with other.stream("/v1/events?type=session.created") as frames:
        told = await frames.next()
        assert (told.event, told.data["session_id"], told.id) == ("session.created", "a", told.data["cursor"])
        for server, name in ((one, "b"), (other, "c"), (one, "d")):
            await server.session(id=name)
            while (frame := await frames.next()).comment:
                pass
            assert frame.data["session_id"] == name
    assert told.id is not None
    async with one.stream("/v1/events?after=end", last_event_id=told.id) as frames:
        assert [(await frames.next()).data["session_id"] for _ in "bcd"] == ["b", "c", "d"]
        one.service.stopping.set()
        assert (await frames.read_rest())[-1].comment == "the server is shutting down"


async def test_consumers_go_on_where_they_were(service: RunningServer) -> None:
    await service.session(id="a")
    await service.session(id="b")
    given = {"consumer": "crm", "limit": 1}
    [first] = (await service.get("/v1/events", params=given)).json()["data"]
    assert (await service.get("/v1/events", params=given)).json()["data"] == [first]
    check_problem(await service.get("/v1/consumers/crm"), 404, "consumer_not_found")
    check_problem(await service.delete("/v1/consumers/crm"), 404, "consumer_not_found")
    moved = await service.client.put("/v1/consumers/crm", json={"cursor": first["cursor"]})
    assert moved.status_code == 200
    assert {**moved.json(), "updated_at": None} == {
        "name": "crm", "cursor": first["cursor"], "lag": 2, "updated_at": None,
    }  # fmt: skip
    [second] = (await service.get("/v1/events", params=given)).json()["data"]
    assert (first["session_id"], second["session_id"]) == ("a", "b")
    listed = (await service.get("/v1/consumers")).json()
    assert listed == {"data": [moved.json()], "next_cursor": None}
    # Nobody reads, and yet the metrics tell how much there is to read.
    await service.session(id="c")
    metrics = (await service.get("/metrics")).text
    assert 'swarmkeep_feed_lag{consumer="crm",tenant="default"} 3.0' in metrics
    assert (await service.get("/v1/consumers/crm")).json()["lag"] == 3
    assert (await service.delete("/v1/consumers/crm")).status_code == 204
    assert "swarmkeep_feed_lag{" not in (await service.get("/metrics")).text
    for cursor in ("", "1", "1-x", "0-0", "1-0-0", "9" * 17 + "-1", "-1-0", "77-0"):
        refused = check_problem(
            await service.client.put("/v1/consumers/crm", json={"cursor": cursor}), 400, "invalid_request"
        )
        assert refused["errors"][0]["pointer"] == "/cursor"
        refused = check_problem(await service.get("/v1/events", params={"after": cursor}), 400, "invalid_request")
        assert refused["errors"][0]["pointer"] == "/query/after"
    for path in (
        "/v1/events?after=1-0&consumer=crm",
        "/v1/events?wait=61",
        "/v1/events?wait=-1",
        "/v1/events?wait=nan",
        "/v1/events?type=" + ",".join(f"t{number}" for number in range(51)),
    ):
        check_problem(await service.get(path), 400, "invalid_request")
    refused = await service.client.put("/v1/consumers/a%20b", json={"cursor": "1-0"})
    assert check_problem(refused, 400, "invalid_request")["errors"][0]["pointer"] == "/name"


async def test_tenants_have_their_own_feeds(service: RunningServer) -> None:
    keys = SqlApiKeys(service.engine.store.database)
    _, ours = await keys.create("acme", role="run")
    _, theirs = await keys.create("other", role="read")
    mine, others = ({"authorization": f"Bearer {key}"} for key in (ours, theirs))
    await service.post("/v1/sessions", {"id": "a"}, headers=mine)
    [event] = (await service.get("/v1/events", headers=mine)).json()["data"]
    assert (await service.get("/v1/events", headers=others)).json()["data"] == []
    moved = {"cursor": event["cursor"]}
    check_problem(await service.client.put("/v1/consumers/crm", json=moved, headers=others), 403, "forbidden")
    assert (await service.client.put("/v1/consumers/crm", json=moved, headers=mine)).status_code == 200
    check_problem(await service.get("/v1/consumers/crm", headers=others), 404, "consumer_not_found")


async def test_what_nobody_told_of_is_found(service: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """An import keeps its times, so that only a look at all sessions finds it where no hint came."""
    monkeypatch.setattr(feeds, "_LEAST_SECONDS", 0.0)
    monkeypatch.setattr(feeds, "_REST", 0.0)
    await service.session(id="a")
    line = (await service.get("/v1/sessions/a/events", headers={"accept": "application/x-ndjson"})).text
    assert (await service.delete("/v1/sessions/a")).status_code == 204
    _, end = await read_all(service)
    taken = await service.client.post("/v1/import", content=line, headers={"content-type": "application/x-ndjson"})
    assert taken.status_code == 200, taken.text
    service.engine.feed._tenants["default"].noted.clear()
    found, _ = await read_all(service, end)
    assert [event["type"] for event in found] == ["session.created", "session.imported"]


async def test_metrics_are_there_while_the_database_is_not(
    service: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    await service.session(id="a")
    await service.client.put("/v1/consumers/crm", json={"cursor": "1-0"})
    assert 'swarmkeep_feed_lag{consumer="crm",tenant="default"} 1.0' in (await service.get("/metrics")).text
    await service.session(id="b")

    async def fail(*_: object, **__: object) -> None:
        raise StoreUnavailable("the database is away")

    async def hang(*_: object, **__: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(health, "_LAGS_TIMEOUT_SECONDS", 0.05)
    for stand_in in (fail, hang):
        monkeypatch.setattr(service.engine.store, "list_consumers", stand_in)
        shown = await service.get("/metrics")
        assert shown.status_code == 200
        assert 'swarmkeep_feed_lag{consumer="crm",tenant="default"} 1.0' in shown.text


# Which sessions change, as a stream: for lists, on any server, from now on.


PATH = "/v1/sessions"


async def wait_for_change(stream: Any, session_id: str, status: str | None, last: str | None = None) -> list[Frame]:
    """The frames up to the one that says this of the session; without a status, that it was deleted."""
    frames = []
    while True:
        frame = await stream.next()
        if frame.comment:
            continue
        frames.append(frame)
        assert frame.seq is None
        assert frame.event == "sessions.changed"
        told = {one["id"]: (one["status"], one["last_run_status"]) for one in frame.data["sessions"]}
        if told.get(session_id) == (status, last) or (status is None and session_id in frame.data["deleted"]):
            return frames


@pytest.mark.one_database
async def test_list_learns_changes_from_any_server(
    pair: tuple[RunningServer, RunningServer], model: ScriptedModel
) -> None:
    one, other = pair
    await one.session(id="before")
    async with one.stream(PATH) as here, other.stream(PATH) as there:
        for stream in (here, there):
            # First that the list is to be read: what was there before is not told.
            assert (await stream.next()).data == {"sessions": [], "deleted": [], "more": True}
        model.fail(401)
        await other.session(id="s1")
        await other.post("/v1/sessions/s1/runs", {"input": "hi"})
        for stream in (here, there):
            frames = await wait_for_change(stream, "s1", "idle", "failed")
            assert not any(frame.data["more"] or frame.data["deleted"] for frame in frames)
            assert {told["id"] for frame in frames for told in frame.data["sessions"]} == {"s1"}
            assert set(frames[-1].data["sessions"][0]) == {"id", "status", "last_run_status"}
        await one.delete("/v1/sessions/s1")
        for stream in (here, there):
            await wait_for_change(stream, "s1", None)
    await wait_until(lambda: one.engine.changes.reader_count == other.engine.changes.reader_count == 0)


@pytest.mark.one_database
async def test_tenants_separate_and_stop_ends_stream(ready_url: str, model: ScriptedModel) -> None:
    async with start_server(scripted(ready_url, model)) as server:
        changes = server.engine.changes
        theirs = changes.follow("other", silent_seconds=0.1)
        # Until the first look is done there is nothing to tell.
        while (first := await anext(theirs)) is None:
            pass
        assert first == Changes(more=True)
        async with server.stream(PATH) as stream:
            await stream.next()
            await server.session(id="mine")
            await wait_for_change(stream, "mine", "idle")
            assert await anext(theirs) is None
            await theirs.aclose()
            check_problem(
                await server.get(f"{PATH}?limit=3", headers={"accept": "text/event-stream"}), 400, "invalid_request"
            )
            server.service.stopping.set()
            rest = await stream.read_rest()
            assert rest[-1].comment == "the server is shutting down"
        await wait_until(lambda: changes.reader_count == 0)


@pytest.mark.one_database
async def test_slow_reader_told_little_loses_nothing(ready_url: str, model: ScriptedModel) -> None:
    settings = scripted(ready_url, model)
    async with start_server(settings) as server:
        changes = SessionChanges(server.engine.store, poll_seconds=0.02, page_bytes=4_000_000)
        reading = changes.follow("default", silent_seconds=5)
        assert await anext(reading) == Changes(more=True)
        quick = changes.follow("default", silent_seconds=5)
        assert await anext(quick) == Changes(more=True)
        # More than a reader is told at once: it is sent to the list.
        for number in range(101):
            await server.session(id=f"s{number}")
        told: set[str] = set()
        while "s100" not in told:
            found = await anext(quick)
            assert found is not None
            told |= {session.id for session in found.sessions}
        assert await anext(reading) == Changes(more=True)
        # One that was displaced by others is not taken for deleted, and one that is deleted is told.
        await server.session(id="last")
        found = await anext(reading)
        assert found == Changes([ChangedSession("last", "idle", None)])
        await server.delete(f"{PATH}/last")
        found = await anext(reading)
        assert found is not None
        assert found.deleted == ["last"]
        await reading.aclose()
        await quick.aclose()
        assert changes.reader_count == 0


@pytest.mark.one_database
async def test_large_sessions_read_one_page(ready_url: str, model: ScriptedModel) -> None:
    async with start_server(scripted(ready_url, model)) as server:
        await server.session(id="deleted")
        for number in range(3):
            await server.session(id=f"s{number}", metadata={"a": "x" * 1000})
        changes = SessionChanges(server.engine.store, poll_seconds=0.02, page_bytes=1500)
        reading = changes.follow("default", silent_seconds=5)
        assert await anext(reading) == Changes(more=True)
        # Two are looked at: where both are new, others may be, too, and those that they displaced are still there.
        for number in range(3, 5):
            await server.session(id=f"s{number}", metadata={"a": "x" * 1000})
        told: set[str] = set()
        more = False
        while not {"s3", "s4"} <= told and not more:
            found = await anext(reading)
            assert found is not None
            assert found.deleted == []
            told |= {session.id for session in found.sessions}
            more = found.more
        # What could not be looked at for a moment is told later.
        read_heads, refused = server.engine.store.read_heads, asyncio.Event()

        async def refuse_once(keys: Any) -> Any:
            if not refused.is_set():
                refused.set()
                raise StoreUnavailable("gone")
            return await read_heads(keys)

        server.engine.store.read_heads = refuse_once  # type: ignore[method-assign]
        await server.delete(f"{PATH}/s4")
        found = await anext(reading)
        assert found is not None
        assert (refused.is_set(), found.deleted) == (True, ["s4"])
        await reading.aclose()
