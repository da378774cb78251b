"""Nothing on the event loop takes longer than 50 ms, whatever is sent or stored."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx2
import pytest

from swarmkeep.domain.decisions.commands import create_session
from swarmkeep.domain.decisions.drafts import draft_events
from swarmkeep.domain.events import ContextUpdated, MessageAdded
from swarmkeep.domain.state import State
from swarmkeep.store.ports import SessionKey
from tests.api.server import RunningServer, scripted, start_server
from tests.support.loop_watch import measure_limit, watch_callbacks
from tests.support.scripted import ScriptedModel

KEY = SessionKey("default", "long")
PATH = f"/v1/sessions/{KEY.id}"
MESSAGES = [
    {"role": ("user", "assistant")[number % 2], "content": f"This is number {number}."} for number in range(9_999)
]
# As wide as bodies may be: all of it is copied, compared and merged.
WIDE = {str(number): {"b": number} for number in range(30_000)}


class WatchedServer:
    """A server whose event loop is watched while it answers; who asks has a thread of his own."""

    def __init__(self, server: RunningServer) -> None:
        self.server = server
        self._client = httpx2.Client(base_url=server.url, timeout=120, verify=False)

    async def ask(self, method: str, path: str, body: Any = None, **options: Any) -> httpx2.Response:
        answer: httpx2.Response = await self.watch(lambda: self._client.request(method, path, json=body, **options))
        assert answer.status_code < 300, answer.text[:500]
        return answer

    async def watch(self, work: Callable[[], Any]) -> Any:
        with watch_callbacks() as watch:
            result = await asyncio.to_thread(work)
        # Twice: what others do beside it on the same processor takes from its caches, too.
        assert watch.longest_seconds < 2 * measure_limit(), watch.longest
        return result

    async def fill(self, count: int) -> None:
        """A session of so many messages, whose state is not in memory."""
        facts = [MessageAdded(message=message) for message in MESSAGES[:count]]
        patches = [ContextUpdated(patch={"n": number}) for number in range(count // 4)]
        drafts = draft_events("Front", [*create_session("Front", {"name": "x"}, {}, []), *facts, *patches], None)
        store: Any = self.server.engine.store
        await store.append(KEY, State(), drafts)
        store._cache.drop(KEY)

    def close(self) -> None:
        self._client.close()


@pytest.fixture
async def watched(ready_url: str, model: ScriptedModel) -> AsyncIterator[WatchedServer]:
    measure_limit()
    async with start_server(scripted(ready_url, model)) as running:
        # What is opened at the first request of all: the model's client, the certificates.
        model.say("Hello.")
        await running.run(await running.session())
        opened = WatchedServer(running)
        yield opened
        await asyncio.to_thread(opened.close)


@pytest.mark.long
async def test_a_long_session_is_shown_run_and_redacted(watched: WatchedServer, model: ScriptedModel) -> None:
    await watched.fill(9_999)
    model.say("Yes.")
    assert (await watched.ask("POST", f"{PATH}/runs", {"input": "hello"})).json()["output_text"] == "Yes."
    for place in ("", "/messages?limit=200", "/events?limit=200", "/runs", "/verify", "?at=5000"):
        await watched.ask("GET", PATH + place)
    await watched.ask("GET", f"{PATH}/events", headers={"accept": "application/x-ndjson"})
    redaction = await watched.ask("POST", f"{PATH}/redact", {"seqs": list(range(10, 1000)), "reason": "asked for"})
    assert len(redaction.json()["seqs"]) == 990
    await watched.ask("POST", f"{PATH}/fork", {})
    await watched.ask("POST", f"{PATH}/replay", {})


@pytest.mark.long
async def test_a_long_session_becomes_documents_and_streams(watched: WatchedServer) -> None:
    await watched.fill(3_000)
    for form in ("markdown", "html"):
        await watched.ask("GET", f"{PATH}/transcript?format={form}")

    def follow() -> None:
        with watched._client.stream("GET", f"{PATH}/events", headers={"accept": "text/event-stream"}) as answer:
            ids = (line for line in answer.iter_lines() if line.startswith("id: "))
            assert list(itertools.islice(ids, 3_751))[-1] == "id: 3751"

    await watched.watch(follow)


@pytest.mark.long
async def test_a_wide_context_is_made_changed_and_given_to_a_tool(watched: WatchedServer, model: ScriptedModel) -> None:
    made = await watched.ask("POST", "/v1/sessions", {"context_variables": WIDE})
    session = f"/v1/sessions/{made.json()['id']}"
    model.call("remember", {"key": "k", "value": "v"})
    model.say("Kept.")
    await watched.ask("POST", f"{session}/runs", {"input": "Keep it."})
    assert (await watched.ask("GET", session)).json()["context_variables"] == {**WIDE, "k": "v"}
    await watched.ask("PATCH", session, {"context_variables": {key: {"b": None} for key in WIDE}})
    model.say("Hello.")
    await watched.ask("POST", f"{session}/runs", {"input": "hello", "context_variables": WIDE})
    for place in ("", "/events", "/verify", "/transcript?format=html"):
        await watched.ask("GET", session + place)


@pytest.mark.long
async def test_as_many_messages_as_may_be_begin_sessions_and_runs(watched: WatchedServer, model: ScriptedModel) -> None:
    made = await watched.ask("POST", "/v1/sessions", {"messages": MESSAGES})
    model.say("All of it.")
    await watched.ask("POST", f"/v1/sessions/{made.json()['id']}/runs", {"input": MESSAGES})


@pytest.mark.long
async def test_a_model_may_send_large_calls_and_many_pieces(watched: WatchedServer, model: ScriptedModel) -> None:
    session = await watched.server.session()
    model.call("get_weather", {"city": [[1]] * 60_000})
    model.say("No such city.")
    await watched.ask("POST", f"{session}/runs", {"input": "Where?"})
    model.say(["piece "] * 10_000)
    answer = await watched.ask("POST", f"{session}/runs", {"input": "Tell me.", "stream": True})
    assert answer.text.count("event: message.delta") == 10_000
    model.say("x" * 5_000_000)
    await watched.ask("POST", f"{session}/runs", {"input": "Tell me more."})
    model.say("Yes.")
    await watched.ask("POST", f"{session}/runs", {"input": "y" * 5_000_000})
