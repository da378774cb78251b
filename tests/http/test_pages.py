"""Pages of lists end early where their items are large, and lose nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from swarmkeep.events.codec import Json
from tests.http.server import RunningServer, scripted, start_server
from tests.support.scripted import ScriptedModel

pytestmark = pytest.mark.one_database

PAGE_BYTES = 2_000
LARGE = "ä" * 600


@pytest.fixture
async def small(ready_url: str, model: ScriptedModel) -> AsyncIterator[RunningServer]:
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


async def test_session_list_counts_shown_items(small: RunningServer) -> None:
    for number in range(7):
        await small.session(id=f"s{number}", context_variables={"a": LARGE})
    await small.session(id="s7", metadata={"m": LARGE * 2})
    items, counts = await read_all(small, "/v1/sessions")
    assert [item["id"] for item in items] == [f"s{number}" for number in (7, 6, 5, 4, 3, 2, 1, 0)]
    # The largest fills a page by itself, and seven without their contexts are of some 400 bytes each.
    assert (counts[0], len(counts)) == (1, 3)
    items, counts = await read_all(small, "/v1/sessions", include="context_variables")
    assert [item["id"] for item in items] == [f"s{number}" for number in (7, 6, 5, 4, 3, 2, 1, 0)]
    assert counts == [1, 2, 2, 2, 1]
    items, counts = await read_all(small, "/v1/sessions", include="context_variables", limit=1)
    assert counts == [1] * 8


async def test_messages_and_events_page_small(small: RunningServer) -> None:
    messages = [{"role": "user", "content": f"{number} {LARGE}"} for number in range(5)]
    session = await small.session(messages=[*messages, {"role": "user", "content": "last"}])
    items, counts = await read_all(small, f"{session}/messages")
    assert [item["content"] for item in items] == [*(message["content"] for message in messages), "last"]
    assert counts == [2, 2, 2]
    items, counts = await read_all(small, f"{session}/events")
    assert [item["seq"] for item in items] == [1, 2, 3, 4, 5, 6, 7]
    assert counts == [3, 2, 2]
    items, _ = await read_all(small, f"{session}/events", type="message.added", after=2)
    assert [item["seq"] for item in items] == [3, 4, 5, 6, 7]


async def test_runs_come_in_small_pages(small: RunningServer, model: ScriptedModel) -> None:
    session = await small.session()
    for number in range(3):
        model.say(LARGE)
        await small.run(session, f"{number} {LARGE}")
    items, counts = await read_all(small, f"{session}/runs")
    assert [item["messages"][0]["content"][0] for item in items] == ["2", "1", "0"]
    assert counts == [1, 1, 1]


async def test_what_fits_is_one_page(small: RunningServer) -> None:
    session = await small.session(messages=[{"role": "user", "content": "hi"}] * 3)
    for path in ("/v1/sessions", f"{session}/messages", f"{session}/events", "/v1/audit"):
        assert len((await read_all(small, path))[1]) == 1


async def test_streams_and_exports_ignore_page_size(small: RunningServer) -> None:
    session = await small.session(messages=[{"role": "user", "content": f"{number} {LARGE}"} for number in range(9)])
    async with small.stream(f"{session}/events") as frames:
        assert [(await frames.next()).seq for _ in range(10)] == [*range(1, 11)]
    lines = {"accept": "application/x-ndjson"}
    part = (await small.get(f"{session}/events?after=1", headers=lines)).content
    assert part.count(b"\n") == 9
    assert (await small.get(f"{session}/verify")).json()["valid"]
    assert (await small.get(f"{session}/transcript?format=html")).text.count(LARGE) == 9
