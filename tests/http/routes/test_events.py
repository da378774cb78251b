"""Messages and events over HTTP: pages, exports, and the requests behind a model's answers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from swarmkeep.events.codec import Json
from tests.http.server import RunningServer, check_problem
from tests.support.scripted import ScriptedModel

pytestmark = pytest.mark.one_database


async def read_pages(service: RunningServer, path: str, **params: Any) -> list[list[Json]]:
    """Every page of a list."""
    pages, cursor = [], None
    while True:
        answer = await service.get(path, params=params | ({} if cursor is None else {"cursor": cursor}))
        assert answer.status_code == 200, answer.text
        page = answer.json()
        assert set(page) == {"data", "next_cursor"}
        pages.append(page["data"])
        if (cursor := page["next_cursor"]) is None:
            return pages


async def test_messages_and_events_come_in_pages(service: RunningServer) -> None:
    history = [{"role": "user", "content": str(number)} for number in range(7)]
    session = await service.session(messages=history)
    pages = await read_pages(service, f"{session}/messages", limit=3)
    assert [[message["content"] for message in page] for page in pages] == [["0", "1", "2"], ["3", "4", "5"], ["6"]]
    pages = await read_pages(service, f"{session}/events", limit=4)
    assert [[event["seq"] for event in page] for page in pages] == [[1, 2, 3, 4], [5, 6, 7, 8]]
    pages = await read_pages(service, f"{session}/events", limit=4, after=5)
    assert [[event["seq"] for event in page] for page in pages] == [[6, 7, 8]]


async def test_messages_seen_as_they_were(service: RunningServer) -> None:
    session = await service.session(messages=[{"role": "user", "content": "a"}, {"role": "user", "content": "b"}])
    then = await service.get(f"{session}/messages?at=2")
    assert [message["content"] for message in then.json()["data"]] == ["a"]
    check_problem(await service.get(f"{session}/messages?at=9"), 404, "event_not_found")


async def test_events_filtered_by_type(service: RunningServer, model: ScriptedModel) -> None:
    model.say("hello")
    session = await service.session()
    await service.run(session)

    async def types(query: str) -> list[str]:
        return [event["type"] for event in (await service.get(f"{session}/events?{query}")).json()["data"]]

    assert await types("type=run.started") == ["run.started"]
    both = ["run.started", "run.completed"]
    assert await types("type=run.started&type=run.completed") == both
    assert await types("type=run.started,run.completed") == both
    assert await types("type=nothing.of.the.kind") == []
    assert await types("type=%00") == []
    assert await types("after=9007199254740991") == []


async def test_export_is_unpaged_lines(service: RunningServer) -> None:
    history = [{"role": "user", "content": f"line\nbreak \u2028 {number}"} for number in range(450)]
    session = await service.session(messages=history)
    answer = await service.get(f"{session}/events", headers={"Accept": "application/x-ndjson"})
    assert answer.headers["content-type"].startswith("application/x-ndjson")
    lines = answer.content.split(b"\n")
    assert lines.pop() == b""
    exported = [json.loads(line) for line in lines]
    last = {"format": 2, "seq": 451, "hash": exported[-1]["hash"], "alone": True}
    assert [event["export"] for event in exported if "export" in event] == [last]
    assert [event["seq"] for event in exported] == list(range(1, 452))
    listed = [event for page in await read_pages(service, f"{session}/events", limit=200) for event in page]
    added = ("salt", "commitment", "export")
    plain = [{name: value for name, value in event.items() if name not in added} for event in exported]
    assert plain == listed
    whole = await service.get(f"/v1/export?id={session.rpartition('/')[2]}")
    assert whole.content == answer.content
    answer = await service.get(f"{session}/events?after=449", headers={"Accept": "application/x-ndjson"})
    assert [json.loads(line) for line in answer.content.splitlines()] == listed[-2:]


async def test_accept_header_picks_format(service: RunningServer) -> None:
    session = await service.session()
    for accept, kind in {
        "*/*": "application/json",
        "text/html": "application/json",
        "application/json, text/event-stream": "application/json",
        "text/html, application/x-ndjson, application/json": "application/x-ndjson",
        "text/html, application/x-ndjson; q=0.9, application/json": "application/json",
        "application/json;q=0.8, application/x-ndjson;q=x": "application/x-ndjson",
        "text/event-stream;q=0": "application/json",
        "": "application/json",
    }.items():
        answer = await service.get(f"{session}/events", headers={"Accept": accept})
        assert answer.headers["content-type"].partition(";")[0] == kind


async def test_request_behind_answer_is_exact(service: RunningServer, model: ScriptedModel) -> None:
    model.call("get_weather", {"city": "Rome"}, id="c1")
    model.call("transfer_to_sales", {}, id="c2")
    model.say("It is sunny.")
    model.say("Bye.")
    session = await service.session(context_variables={"name": "Ann 😀"})
    await service.run(session, "Weather?")
    await service.read_stream(f"{session}/runs", {"input": "Bye", "stream": True}, method="POST")
    rebuilt = []
    for event in await service.events(session):
        answer = await service.get(f"{session}/events/{event['seq']}/request")
        if event["data"].get("message", {}).get("role") == "assistant":
            assert answer.headers["content-type"] == "application/json"
            rebuilt.append(answer.content)
        else:
            check_problem(answer, 404, "event_not_found")
    assert rebuilt == model.raw_requests
    check_problem(await service.get(f"{session}/events/999/request"), 404, "event_not_found")


async def test_fork_knows_shared_history_requests(service: RunningServer, model: ScriptedModel) -> None:
    model.say("hello")
    session = await service.session(id="s")
    run = await service.run(session)
    await service.post(f"{session}/fork", {"id": "f"})
    seq = run["messages"][-1]["seq"]
    answer = await service.get(f"/v1/sessions/f/events/{seq}/request")
    assert answer.content == model.raw_requests[0]


async def test_supplied_answer_has_no_request(service: RunningServer) -> None:
    session = await service.session(messages=[{"role": "assistant", "content": "hi"}])
    check_problem(await service.get(f"{session}/events/2/request"), 404, "event_not_found")
