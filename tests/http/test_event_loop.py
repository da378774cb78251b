"""Nothing on the event loop takes longer than 50 ms, whatever is sent or stored."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import httpx2
import pytest
from benchmarks.verify import BLOBS, make_turn

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
from tests.http.server import RunningServer, scripted, start_server
from tests.http.team import front
from tests.http.websocket.client import connect_session
from tests.support.loop_watch import measure_limit, watch_callbacks
from tests.support.pictures import hash_content, make_inline_picture, make_message, make_png
from tests.support.scripted import ScriptedModel

pytestmark = pytest.mark.one_database

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

    async def refuse(self, method: str, path: str, body: Any) -> httpx2.Response:
        answer: httpx2.Response = await self.watch(lambda: self._client.request(method, path, json=body))
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

    async def fill_turns(self, count: int) -> None:
        """A session of so many events, at least, by turns; its state is not in memory, either."""
        store: Any = self.server.engine.store
        created = draft_events("Front", create_session("Front", {}, {}, []), None)
        state = (await store.append(KEY, State(), created, blobs=BLOBS)).state
        numbers = itertools.count()
        while state.seq < count:
            turns = itertools.islice(numbers, 250)
            drafts = [draft for number in turns for draft in draft_events("Front", make_turn(number), f"run_{number}")]
            state = (await store.append(KEY, state, drafts)).state
        store._cache.drop(KEY)

    def close(self) -> None:
        self._client.close()


# The store encodes and decodes beside the loop whichever the database: one is enough for what is not about its rows.
ON_SQLITE, ON_POSTGRES = (
    pytest.mark.parametrize("ready_url", [kind], indirect=True) for kind in ("sqlite", "postgres")
)


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
async def test_long_session_shown_run_and_redacted(watched: WatchedServer, model: ScriptedModel) -> None:
    await watched.fill(9_999)
    model.say("Yes.")
    assert (await watched.ask("POST", f"{PATH}/runs", {"input": "hello"})).json()["output_text"] == "Yes."
    for place in ("", "/messages?limit=200", "/events?limit=200", "/runs", "?at=5000"):
        await watched.ask("GET", PATH + place)
    redaction = await watched.ask("POST", f"{PATH}/redact", {"seqs": list(range(10, 1000)), "reason": "asked for"})
    assert len(redaction.json()["seqs"]) == 990
    await watched.ask("POST", f"{PATH}/replay", {})


@pytest.mark.long
async def test_a_session_of_20_000_events(watched: WatchedServer, model: ScriptedModel) -> None:
    await watched.fill_turns(20_000)
    await watched.ask("GET", PATH)
    model.say("Yes.")
    assert (await watched.ask("POST", f"{PATH}/runs", {"input": "hello"})).json()["output_text"] == "Yes."
    assert (await watched.ask("GET", f"{PATH}/verify")).json()["valid"]
    exported = await watched.ask("GET", f"{PATH}/events", headers={"accept": "application/x-ndjson"})
    assert exported.text.count("\n") > 20_000
    await watched.ask("GET", f"{PATH}/transcript?format=markdown")
    await watched.ask("GET", "/openai/v1/conversations/long/items?limit=100")
    await watched.ask("POST", f"{PATH}/fork", {})
    await watched.ask("POST", f"{PATH}/redact", {"seqs": [3], "reason": "asked for"})
    await watched.ask("DELETE", PATH)


@pytest.mark.long
@ON_SQLITE
async def test_long_session_becomes_documents_and_streams(watched: WatchedServer) -> None:
    await watched.fill(3_000)
    for form in ("markdown", "html"):
        await watched.ask("GET", f"{PATH}/transcript?format={form}")

    def follow() -> None:
        with watched._client.stream("GET", f"{PATH}/events", headers={"accept": "text/event-stream"}) as answer:
            ids = (line for line in answer.iter_lines() if line.startswith("id: "))
            assert list(itertools.islice(ids, 3_751))[-1] == "id: 3751"

    await watched.watch(follow)


@pytest.mark.long
@ON_POSTGRES
async def test_wide_context_made_changed_and_used(watched: WatchedServer, model: ScriptedModel) -> None:
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
@ON_POSTGRES
async def test_maximum_messages_begin_sessions_and_runs(watched: WatchedServer, model: ScriptedModel) -> None:
    made = await watched.ask("POST", "/v1/sessions", {"messages": MESSAGES})
    model.say("All of it.")
    await watched.ask("POST", f"/v1/sessions/{made.json()['id']}/runs", {"input": MESSAGES})


@pytest.mark.long
@ON_SQLITE
async def test_chat_resends_maximum_messages(watched: WatchedServer, model: ScriptedModel) -> None:
    path, headers = "/openai/v1/chat/completions", {"X-Session-Id": "chat"}
    for more in ({}, {"store": False}, {"stream": True}):
        model.say("All of it.")
        body = {"model": "Front", "messages": MESSAGES, **more}
        answer = await watched.ask("POST", path, body, headers=headers)
        assert "All of it." in answer.text or '"of "' in answer.text
    calls: list[Any] = []
    for number in range(4_999):
        function = {"name": "open_door", "arguments": "{}"}
        call = {"id": f"c{number}", "type": "function", "function": function}
        calls.append({"role": "assistant", "content": None, "tool_calls": [call]})
        calls.append({"role": "tool", "tool_call_id": f"c{number}", "content": "open"})
    for answered in ([], [{"role": "assistant", "content": "All open."}]):
        model.say("All open.")
        body = {"model": "Front", "messages": [*calls, *answered, {"role": "user", "content": "Well?"}]}
        await watched.ask("POST", path, body, headers={"X-Session-Id": "doors"})
    model.say("Yes.")
    parts = [{"type": "text", "text": "y"}] * 60_000
    await watched.ask("POST", path, {"model": "Front", "messages": [{"role": "user", "content": parts}]})
    model.say(["piece "] * 10_000)
    answer = await watched.ask("POST", path, {"model": "Front", "messages": MESSAGES[:1], "stream": True})
    assert answer.text.count('"content":"piece "') == 10_000


@pytest.mark.long
@ON_SQLITE
async def test_model_sends_large_calls_and_many_pieces(watched: WatchedServer, model: ScriptedModel) -> None:
    session = await watched.server.session()
    model.call("get_weather", {"city": [[1]] * 60_000})
    model.say("No such city.")
    await watched.ask("POST", f"{session}/runs", {"input": "Where?"})
    model.say(["piece "] * 10_000)
    answer = await watched.ask("POST", f"{session}/runs", {"input": "Tell me.", "stream": True})
    assert answer.text.count("event: message.delta") == 10_000
    for large in ("[" + "1," * 19_990 + "1]", "[" + "1," * 1_000_000 + "1]"):
        model.say(large)
        asked = {"input": "Tell me.", "response_format": {"type": "json_object"}}
        ran = await watched.ask("POST", f"{session}/runs", asked)
        assert (ran.json()["output"] is None) is (len(large) > 1_000_000)
    for _ in range(8):
        model.say("[" + "1," * 19_990 + "1]")
        await watched.ask("POST", f"{session}/runs", {"input": "x", "response_format": {"type": "json_object"}})
    assert len((await watched.ask("GET", f"{session}/runs")).json()["data"]) >= 8
    model.say("x" * 5_000_000)
    await watched.ask("POST", f"{session}/runs", {"input": "Tell me more."})
    model.say("Yes.")
    await watched.ask("POST", f"{session}/runs", {"input": "y" * 5_000_000})


@pytest.mark.long
@ON_POSTGRES
async def test_large_pictures_received_sent_and_returned(watched: WatchedServer, model: ScriptedModel) -> None:
    session = (await watched.ask("POST", "/v1/sessions", {})).json()["id"]
    path, last = f"/v1/sessions/{session}", 0
    for seed in range(3):
        picture = make_png(4_900_000, seed)
        model.say("A cat.")
        await watched.ask("POST", f"{path}/runs", {"input": [make_message(make_inline_picture(picture))]})
    await watched.ask("GET", f"{path}/blobs/{hash_content(picture)}")
    for event in (await watched.ask("GET", f"{path}/events?type=message.added&limit=200")).json()["data"]:
        last = event["seq"]
    await watched.ask("GET", f"{path}/events/{last}/request")
    await watched.ask("GET", f"{path}/verify")
    await watched.ask("GET", f"{path}/events", headers={"Accept": "application/x-ndjson"})
    await watched.ask("POST", f"{path}/fork", {})
    for limit in (1, 100):
        await watched.ask("GET", f"/openai/v1/conversations/{session}/items?limit={limit}")
    await watched.ask("POST", f"{path}/redact", {"seqs": [last - 1], "reason": "private"})
    await watched.ask("DELETE", path)


@pytest.mark.long
@ON_SQLITE
async def test_long_inputs_of_openai_s_clients(watched: WatchedServer, model: ScriptedModel) -> None:
    said = [*MESSAGES[:9_900], {"role": "user", "content": "hello"}]
    for path, name in (("chat/completions", "messages"), ("responses", "input")):
        for store in (True, False):
            model.say("Yes.")
            await watched.ask("POST", f"/openai/v1/{path}", {"model": "Front", name: said, "store": store})
    short = [{"role": message["role"], "content": "x"} for message in said]
    for _ in range(3):
        model.say("A summary.")
    await watched.ask("POST", "/openai/v1/responses/compact", {"model": "Front", "input": short})


@pytest.mark.long
async def test_agents_that_clients_make(watched: WatchedServer, model: ScriptedModel) -> None:
    url, large = "/openai/v1/agents", {"type": "function", "name": "f", "parameters": {"type": "object"}}
    shape = {"type": "object", "properties": {f"p{number}": {"type": "string"} for number in range(1_000)}}
    tools = [{**large, "name": f"f{number}"} for number in range(60_000)]
    for body in ({"tools": tools}, {"instructions": "x" * 7_000_000}, {"tools": [{**large, "parameters": WIDE}]}):
        answer = await watched.refuse("POST", url, {"model": "Front", **body})
        assert answer.status_code in (400, 413), answer.text[:500]
    for number in range(100):
        made = await watched.ask("POST", url, {"model": "Front", "tools": [{**large, "parameters": shape}]})
        if number < 3:
            await watched.ask("POST", f"{url}/{made.json()['id']}", {"name": str(number)})
    assert len((await watched.ask("GET", f"{url}?limit=100")).json()["data"]) > 10
    model.say("Hello.")
    body = {"agent_id": made.json()["id"], "environment": {"type": "none"}, "input": "Hi."}
    await watched.ask("POST", f"{url}/sessions", {**body, "stream": True})


@pytest.mark.long
@ON_SQLITE
async def test_many_references_and_names_are_counted_first(watched: WatchedServer) -> None:
    named = [{"type": "item_reference", "id": f"msg_{'x' * 20}.c{number}"} for number in range(60_000)]
    tools = [{"type": "function", "name": f"f{number}"} for number in range(60_000)]
    choice = {"type": "allowed_tools", "mode": "auto", "tools": tools}
    chosen = [{"type": "function", "function": {"name": tool["name"]}} for tool in tools]
    chat = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": chosen}}
    session = await watched.server.session()
    for path, body in (
        ("/openai/v1/responses", {"model": "Front", "input": named}),
        ("/openai/v1/responses", {"model": "Front", "input": "hi", "tool_choice": choice}),
        ("/openai/v1/chat/completions", {"model": "Front", "messages": MESSAGES[:1], "tool_choice": chat}),
        (f"{session}/runs", {"input": "hi", "tool_choice": chat}),
    ):
        answer = await watched.refuse("POST", path, body)
        assert answer.status_code in (400, 413), answer.text[:500]


# Where there is very much: events, take-overs, imports.


__all__ = ["watched"]

LINES = {"content-type": "application/x-ndjson"}
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
