"""Nothing on the event loop takes longer than 50 ms where there is very much: events, take-overs, imports."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from swarmkeep.decide.commands import create_session
from swarmkeep.decide.drafts import draft_events
from swarmkeep.events.codec import encode
from swarmkeep.events.facts import ContextUpdated, EventDraft, MessageAdded, RunCompleted, RunStarted, SessionEvent
from swarmkeep.events.records import RunOptions
from swarmkeep.events.state import State
from swarmkeep.runs.agents import Registry
from swarmkeep.runs.engine import build_engine
from swarmkeep.store.opening import SqlStore, open_store
from swarmkeep.store.records import SessionKey
from tests.http.server import RunningServer, scripted
from tests.http.team import front
from tests.http.test_event_loop import WatchedServer, watched
from tests.http.websocket.client import connect_session
from tests.support.loop_watch import measure_limit, watch_callbacks
from tests.support.scripted import ScriptedModel

__all__ = ["watched"]

LINES = {"content-type": "application/x-ndjson"}
KEY = SessionKey("default", "long")
PATH = f"/v1/sessions/{KEY.id}"
RUN = "run_1"
_AT_ONCE = 10_000


def make_facts(count: int) -> Iterator[SessionEvent]:
    """So many messages and patches."""
    for number in range(count):
        if number % 10 == 9:
            yield ContextUpdated(patch={"n": number})
        else:
            role = ("user", "assistant")[number % 2]
            yield MessageAdded(message={"role": role, "content": f"This is number {number}."})


async def fill(store: SqlStore, key: SessionKey, drafts: list[EventDraft]) -> None:
    """A new session of these events."""
    state = State()
    for start in range(0, len(drafts), _AT_ONCE):
        await store.append(key, state, drafts[start : start + _AT_ONCE])
        state = await store.state(key)


def forget_states(store: Any, *keys: SessionKey) -> None:
    """What is asked next about these sessions begins with what is in the database."""
    for key in keys:
        store._cache.drop(key)


def read_live(server: RunningServer, count: int) -> int:
    """The seq of the last of so many events that a new viewer is sent."""

    async def read() -> int:
        async with connect_session(server, PATH, "?after=0") as viewer:
            frames = [await viewer.next() for _ in range(count)]
            return frames[-1].seq or 0

    return asyncio.run(read())


@pytest.mark.chaos
async def test_a_session_of_100_000_events(watched: WatchedServer, model: ScriptedModel) -> None:
    store, count = watched.server.engine.store, 100_000
    facts = [*create_session("Front", {"name": "x"}, {}, []), *make_facts(count - 1)]
    await fill(store, KEY, draft_events("Front", facts, None))
    assert (await watched.server.get(PATH)).json()["seq"] == count
    for place in ("", "/messages?limit=200", "/events?limit=200", "/events?after=99000", "/runs", "?at=50000"):
        forget_states(store, KEY)
        await watched.ask("GET", PATH + place)
    assert (await watched.ask("GET", f"{PATH}/verify")).json()["valid"] is True
    await watched.ask("GET", f"{PATH}/transcript?format=html")
    await watched.ask("GET", f"{PATH}/events?after=10", headers={"accept": "application/x-ndjson"})
    assert await watched.watch(lambda: read_live(watched.server, count)) == count
    forget_states(store, KEY)
    await watched.ask("POST", f"{PATH}/fork", {"at": 50_000})
    await watched.ask("POST", f"{PATH}/replay", {})
    exported = await watched.ask("GET", f"/v1/export?id={KEY.id}")
    other = await watched.ask("POST", "/v1/import?as=other", content=exported.content, headers=LINES)
    assert other.json()["events"] == count
    forget_states(store, KEY)
    model.say("Yes.")
    await watched.ask("POST", f"{PATH}/runs", {"input": "hello"})
    await ask_by_openai(watched, model)
    await watched.ask("DELETE", PATH)


async def ask_by_openai(watched: WatchedServer, model: ScriptedModel) -> None:
    said, items = {"role": "user", "content": "And now?"}, f"/openai/v1/conversations/{KEY.id}/items"
    forget_states(watched.server.engine.store, KEY)
    first = (await watched.ask("GET", f"{items}?limit=100&order=asc")).json()["last_id"]
    assert (await watched.ask("GET", f"{items}?order=asc&after={first}")).json()["has_more"] is True
    assert (await watched.ask("GET", f"{items}/{first}")).json()["id"] == first
    await watched.ask("POST", items, {"items": [{"type": "message", **said}]})
    await watched.ask("DELETE", f"{items}/{first}")
    model.say("Now, too.")
    await watched.ask("POST", "/openai/v1/responses", {"model": "Front", "input": "hello", "conversation": KEY.id})
    model.say("Still.")
    asked = {"model": "Front", "messages": [said], "metadata": {"session_id": KEY.id}}
    await watched.ask("POST", "/openai/v1/chat/completions", asked)


@pytest.mark.chaos
async def test_many_sessions_are_imported_and_exported(watched: WatchedServer) -> None:
    texts = [[f"This is number {number}, {turn}." for turn in range(10)] for number in range(500)]
    roles = ("user", "assistant") * 5
    talks = [[{"role": role, "content": text} for role, text in zip(roles, each, strict=True)] for each in texts]
    lines = [encode({"messages": talk}) for talk in talks]
    report = await watched.ask("POST", "/v1/import?from=chat", content=b"\n".join(lines), headers=LINES)
    assert report.json()["imported"] == len(lines)
    exported = await watched.ask("GET", "/v1/export")
    report = await watched.ask("POST", "/v1/import", content=exported.content, headers=LINES)
    assert report.json()["present"] == len(lines) + 1


@pytest.mark.one_database
async def test_pages_of_turns_where_there_are_many(watched: WatchedServer) -> None:
    # With a message, so that no batch ends within a run, which would be taken over.
    drafts = draft_events("Front", [*create_session("Front", {}, {}, []), *make_facts(1)], None)
    for number in range(15_000):
        facts = [RunStarted(options=RunOptions()), RunCompleted(stop_reason="end_turn")]
        drafts += draft_events("Front", facts, f"run_{number}")
    await fill(watched.server.engine.store, KEY, drafts)
    await watched.server.get(PATH)
    for place in ("turns", "traces"):
        for order, ids in (("asc", [0, 1, 2]), ("desc", [14_999, 14_998, 14_997])):
            path = f"/openai/v1/agents/sessions/{KEY.id}/{place}?order={order}"
            page = (await watched.ask("GET", f"{path}&limit=2")).json()
            assert ([each["id"] for each in page["data"]], page["has_more"]) == ([f"run_{n}" for n in ids[:2]], True)
            following = (await watched.ask("GET", f"{path}&limit=1&after={page['last_id']}")).json()
            assert [each["id"] for each in following["data"]] == [f"run_{ids[2]}"]
            assert (await watched.server.get(f"{path}&after=run_none")).status_code == 404


def draft_abandoned_run(count: int) -> list[EventDraft]:
    """A session of so many events, whose run nobody advances."""
    begun = [RunStarted(options=RunOptions()), MessageAdded(message={"role": "user", "content": "hello"})]
    before = [*create_session("Front", {}, {}, []), *make_facts(count)]
    return [*draft_events("Front", before, None), *draft_events("Front", begun, RUN)]


@pytest.mark.chaos
async def test_many_runs_taken_over_at_start(ready_url: str, model: ScriptedModel) -> None:
    measure_limit()
    keys = [SessionKey("default", f"s{number}") for number in range(200)]
    engine = build_engine(scripted(ready_url, model), Registry([front]), open_store(ready_url))
    for number, key in enumerate(keys):
        await fill(engine.store, key, draft_abandoned_run(10_000 if number % 50 == 0 else 50))
        model.say("Yes.")
    forget_states(engine.store, *keys)
    try:
        with watch_callbacks() as watch:
            await engine.start()
            for key in keys:
                assert (await engine.runs.wait(key, RUN)).output_text == "Yes."
        assert watch.longest_seconds < 2 * measure_limit(), watch.longest
    finally:
        await engine.stop()
