"""Which sessions change, as a stream: for lists, on any server, from now on."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from swarmkeep.runs.feed import ChangedSession, Changes, SessionChanges
from swarmkeep.store.records import StoreUnavailable
from tests.http.server import Frame, RunningServer, check_problem, scripted, start_server
from tests.support.scripted import ScriptedModel
from tests.support.waiting import wait_until

pytestmark = pytest.mark.one_database

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
