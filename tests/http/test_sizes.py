"""How large the context, the metadata and the messages of a session may be, on every way in; and pages of lists."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from swarmkeep.events.codec import Json
from tests.http.server import RunningServer, check_problem, scripted, server_settings, start_server
from tests.support.scripted import ScriptedModel

pytestmark = pytest.mark.one_database

LINES = {"Content-Type": "application/x-ndjson"}
LARGE = "x" * 200
CONTEXT, METADATA, MESSAGE = "MAX_CONTEXT_BYTES", "MAX_METADATA_BYTES", "MAX_MESSAGE_BYTES"


@pytest.fixture
async def small(ready_url: str, model: ScriptedModel) -> AsyncIterator[RunningServer]:
    """A server that keeps contexts and messages of 300 bytes, and metadata of 150."""
    limits = {"max_context_bytes": 300, "max_metadata_bytes": 150, "max_message_bytes": 300}
    async with start_server(scripted(ready_url, model, **limits)) as running:
        yield running


async def refuse(service: RunningServer, path: str, body: Any, setting: str, *, method: str = "POST") -> None:
    answer = await service.client.request(method, path, json=body)
    assert f"SWARMKEEP_{setting}" in check_problem(answer, 413, "too_large")["detail"]


async def test_initial_session_content_bounded(small: RunningServer) -> None:
    for body, setting in (
        ({"context_variables": {"a": LARGE * 2}}, CONTEXT),
        ({"metadata": {"a": LARGE}}, METADATA),
        ({"messages": [{"role": "user", "content": "hi"}, {"role": "user", "content": LARGE * 2}]}, MESSAGE),
        ({"messages": [{"role": "user", "content": "hi", "more": LARGE * 2}]}, MESSAGE),
    ):
        await refuse(small, "/v1/sessions", body, setting)
    assert (await small.get("/v1/sessions")).json()["data"] == []
    await small.session(context_variables={"a": LARGE}, metadata={"a": "x" * 100})


async def test_change_refused_for_its_resulting_size(small: RunningServer) -> None:
    session = await small.session(context_variables={"a": LARGE}, metadata={"a": "x" * 100})
    for body, setting in (({"context_variables": {"b": LARGE}}, CONTEXT), ({"metadata": {"b": "x" * 60}}, METADATA)):
        await refuse(small, session, body, setting, method="PATCH")
    await refuse(small, f"{session}/fork", {"metadata": {"b": "x" * 60}}, METADATA)
    await refuse(small, f"{session}/runs", {"input": "hi", "context_variables": {"b": LARGE}}, CONTEXT)
    assert (await small.get(session)).json()["seq"] == 1
    # What takes the place of something else has room.
    assert (await small.patch(session, {"context_variables": {"a": None, "b": LARGE}})).status_code == 200


async def test_run_input_and_results_bounded(small: RunningServer, model: ScriptedModel) -> None:
    model.call("get_weather", {"city": "Rome"}, id="c1")
    session = await small.session()
    await refuse(small, f"{session}/runs", {"input": LARGE * 2}, MESSAGE)
    await refuse(small, f"{session}/runs", {"input": [{"role": "user", "content": LARGE * 2}]}, MESSAGE)
    run = await small.run(session, execute_tools=False)
    result = {"tool_call_id": "c1", "content": LARGE * 2}
    await refuse(small, f"{session}/runs/{run['id']}/resume", {"tool_results": [result]}, MESSAGE)
    assert (await small.get(f"{session}/runs/{run['id']}")).json()["status"] == "waiting"


async def test_imports_bounded_and_refusal_leaves_nothing(small: RunningServer, tmp_path: Path) -> None:
    async with start_server(server_settings(database_url=f"sqlite:///{tmp_path}/other.db")) as other:
        for body, setting in (
            ({"context_variables": {"a": LARGE * 2}}, CONTEXT),
            ({"metadata": {"a": LARGE}}, METADATA),
            ({"messages": [{"role": "user", "content": LARGE * 2}]}, MESSAGE),
        ):
            session = await other.session(**body)
            file = (await other.get(f"/v1/export?id={session[13:]}")).content
            answer = await small.client.post("/v1/import", content=file, headers=LINES)
            assert f"SWARMKEEP_{setting}" in check_problem(answer, 413, "too_large")["detail"]
    chat = json.dumps({"messages": [{"role": "user", "content": LARGE * 2}]}).encode()
    answer = await small.client.post("/v1/import?from=chat", content=chat, headers=LINES)
    assert MESSAGE in check_problem(answer, 413, "too_large")["detail"]
    assert (await small.get("/v1/sessions")).json()["data"] == []


@pytest.mark.parametrize("store", [True, False])
async def test_response_instructions_bounded_stored_or_not(
    small: RunningServer, model: ScriptedModel, store: bool
) -> None:
    asked = {"model": "Front", "input": "hi", "instructions": LARGE * 2, "store": store}
    refused = await small.post("/openai/v1/responses", asked)
    assert refused.status_code == 413
    assert f"SWARMKEEP_{MESSAGE}" in refused.json()["error"]["message"]
    assert model.requests == []


# Pages of lists end early where their items are large, and lose nothing.


PAGE_BYTES = 2_000
WORDS = "ä" * 600


@pytest.fixture
async def paged(ready_url: str, model: ScriptedModel) -> AsyncIterator[RunningServer]:
    """A server whose pages end at 2,000 bytes."""
    async with start_server(scripted(ready_url, model)) as running:
        running.engine.reader.page_bytes = PAGE_BYTES
        yield running


async def read_all(service: RunningServer, path: str, **query: Any) -> tuple[list[Json], list[int]]:
    """The items of all pages, and how many were on each."""
    items: list[Json] = []
    counts: list[int] = []
    cursor = None
    while True:
        page = (await service.get(path, params=query | ({} if cursor is None else {"cursor": cursor}))).json()
        items += page["data"]
        counts.append(len(page["data"]))
        cursor = page["next_cursor"]
        if cursor is None:
            return items, counts


async def test_session_list_counts_shown_items(paged: RunningServer) -> None:
    for number in range(7):
        await paged.session(id=f"s{number}", context_variables={"a": WORDS})
    await paged.session(id="s7", metadata={"m": WORDS * 2})
    items, counts = await read_all(paged, "/v1/sessions")
    assert [item["id"] for item in items] == [f"s{number}" for number in (7, 6, 5, 4, 3, 2, 1, 0)]
    # The largest fills a page by itself, and seven without their contexts are of some 400 bytes each.
    assert (counts[0], len(counts)) == (1, 3)
    items, counts = await read_all(paged, "/v1/sessions", include="context_variables")
    assert [item["id"] for item in items] == [f"s{number}" for number in (7, 6, 5, 4, 3, 2, 1, 0)]
    assert counts == [1, 2, 2, 2, 1]
    items, counts = await read_all(paged, "/v1/sessions", include="context_variables", limit=1)
    assert counts == [1] * 8


async def test_messages_and_events_page_small(paged: RunningServer) -> None:
    messages = [{"role": "user", "content": f"{number} {WORDS}"} for number in range(5)]
    session = await paged.session(messages=[*messages, {"role": "user", "content": "last"}])
    items, counts = await read_all(paged, f"{session}/messages")
    assert [item["content"] for item in items] == [*(message["content"] for message in messages), "last"]
    assert counts == [2, 2, 2]
    items, counts = await read_all(paged, f"{session}/events")
    assert [item["seq"] for item in items] == [1, 2, 3, 4, 5, 6, 7]
    assert counts == [3, 2, 2]
    items, _ = await read_all(paged, f"{session}/events", type="message.added", after=2)
    assert [item["seq"] for item in items] == [3, 4, 5, 6, 7]


async def test_runs_come_in_small_pages(paged: RunningServer, model: ScriptedModel) -> None:
    session = await paged.session()
    for number in range(3):
        model.say(WORDS)
        await paged.run(session, f"{number} {WORDS}")
    items, counts = await read_all(paged, f"{session}/runs")
    assert [item["messages"][0]["content"][0] for item in items] == ["2", "1", "0"]
    assert counts == [1, 1, 1]


async def test_what_fits_is_one_page(paged: RunningServer) -> None:
    session = await paged.session(messages=[{"role": "user", "content": "hi"}] * 3)
    for path in ("/v1/sessions", f"{session}/messages", f"{session}/events", "/v1/audit"):
        assert len((await read_all(paged, path))[1]) == 1


async def test_streams_and_exports_ignore_page_size(paged: RunningServer) -> None:
    session = await paged.session(messages=[{"role": "user", "content": f"{number} {WORDS}"} for number in range(9)])
    async with paged.stream(f"{session}/events") as frames:
        assert [(await frames.next()).seq for _ in range(10)] == [*range(1, 11)]
    lines = {"accept": "application/x-ndjson"}
    part = (await paged.get(f"{session}/events?after=1", headers=lines)).content
    assert part.count(b"\n") == 9
    assert (await paged.get(f"{session}/verify")).json()["valid"]
    assert (await paged.get(f"{session}/transcript?format=html")).text.count(WORDS) == 9
