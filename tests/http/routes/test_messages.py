"""Messages and events over HTTP: pages, exports, requests behind answers; added, taken out, made shorter, forked."""

from __future__ import annotations

import json
from typing import Any

import pytest

from swarmkeep.events.codec import Json
from swarmkeep.events.messages import INTERRUPTED
from swarmkeep.events.messages import SHORTENED_HEADING as HEADING
from swarmkeep.store.reading import SqlEventReader, decode_event
from tests.http.server import RunningServer, check_problem
from tests.support.calls import count_calls
from tests.support.scripted import ScriptedModel

pytestmark = pytest.mark.one_database


async def list_seqs(service: RunningServer, session: str, query: str = "") -> list[int]:
    return [message["seq"] for message in (await service.get(f"{session}/messages{query}")).json()["data"]]


async def test_removed_message_unlisted_but_logged(service: RunningServer, model: ScriptedModel) -> None:
    model.say("It was canary-1.")
    session = await service.session()
    run = await service.run(session, "Say canary-1.")
    asked, answered = await list_seqs(service, session)
    for _ in range(2):
        taken = await service.delete(f"{session}/messages/{answered}")
        assert (taken.status_code, taken.content) == (204, b"")
    assert await list_seqs(service, session) == [asked]
    assert await list_seqs(service, session, f"?at={answered}") == [asked, answered]
    found = (await service.get(f"{session}/runs/{run['id']}")).json()
    assert ([message["seq"] for message in found["messages"]], found["output_text"]) == ([asked], "")
    assert (await service.get(session)).json()["message_count"] == 1
    events = await service.events(session)
    assert [event["data"]["message_seq"] for event in events if event["type"] == "message.removed"] == [answered]
    assert "It was canary-1." in str(events)
    last = events[-1]["seq"]
    changes = (await service.get(f"{session}/diff?before={last - 1}&after={last}")).json()
    assert (changes["removed"], changes["messages"]) == ([answered], [])
    model.say("Again?")
    await service.run(session, "Once more.")
    assert "It was" not in str(model.requests[-1])
    transcript = (await service.get(f"{session}/transcript")).text
    assert f"message {answered}" in transcript


async def test_message_pages_omit_removed(service: RunningServer) -> None:
    history = [{"role": "user", "content": f"{number}"} for number in range(10)]
    session = await service.session(messages=history)
    every = await list_seqs(service, session)
    gone = {*every[2:7], every[9]}
    for seq in gone:
        assert (await service.delete(f"{session}/messages/{seq}")).status_code == 204
    seen: list[int] = []
    cursor = ""
    while True:
        page = (await service.get(f"{session}/messages?limit=2{cursor}")).json()
        seen += [message["seq"] for message in page["data"]]
        if page["next_cursor"] is None:
            break
        assert len(page["data"]) == 2
        cursor = f"&cursor={page['next_cursor']}"
    assert seen == [seq for seq in every if seq not in gone]


async def test_unremovable_message_refused(service: RunningServer, model: ScriptedModel) -> None:
    model.call("refund", {"order": "A-17"})
    session = await service.session()
    run = await service.run(session)
    assert run["status"] == "waiting"
    asked, _ = await list_seqs(service, session)
    refused = check_problem(await service.delete(f"{session}/messages/{asked}"), 409, "session_busy")
    assert refused["active_run_id"] == run["id"]
    check_problem(await service.delete(f"{session}/messages/1"), 404, "event_not_found")
    check_problem(await service.delete(f"{session}/messages/{2**70}"), 404, "event_not_found")
    check_problem(await service.delete(f"{session}/messages/{asked}?tool_call_id=c"), 404, "event_not_found")
    check_problem(await service.delete("/v1/sessions/nobody/messages/2"), 404, "session_not_found")


# Messages that are added to a session's history without a run.


async def test_next_run_reads_added_messages(service: RunningServer, model: ScriptedModel) -> None:
    session = await service.session()
    said = [{"role": "user", "content": "My name is Ann."}, {"role": "assistant", "content": "Hello Ann."}]
    answer = await service.post(f"{session}/messages", {"messages": said})
    assert answer.status_code == 200
    assert [(m["seq"], m["content"], m["run_id"]) for m in answer.json()["data"]] == [
        (2, "My name is Ann.", None),
        (3, "Hello Ann.", None),
    ]
    model.say("Ann.")
    await service.run(session, "Who am I?")
    assert [message["content"] for message in model.requests[0]["messages"][1:]] == [
        "My name is Ann.", "Hello Ann.", "Who am I?",
    ]  # fmt: skip
    assert (await service.get(f"{session}/verify")).json()["valid"]


async def test_the_same_key_adds_once(service: RunningServer) -> None:
    session = await service.session()
    body, key = {"messages": [{"role": "user", "content": "Hi."}]}, {"idempotency-key": "k"}
    await service.post(f"{session}/messages", {"messages": body["messages"] * 20})
    first = await service.post(f"{session}/messages", body, headers=key)
    await service.post(f"{session}/messages", body)
    with count_calls() as counted:
        again = await service.post(f"{session}/messages", body, headers=key)
    assert again.json() == first.json()
    # The session is not put together from its first event on.
    assert counted[decode_event.__code__] < 10
    assert (await service.get(session)).json()["message_count"] == 22
    other = await service.post(f"{session}/messages", {"messages": []}, headers=key)
    check_problem(other, 422, "idempotency_mismatch")


async def test_invalid_history_refused(service: RunningServer, model: ScriptedModel) -> None:
    session = await service.session()
    path = f"{session}/messages"
    stray = {"role": "tool", "tool_call_id": "c1", "content": "x"}
    check_problem(await service.post(path, {"messages": [stray]}), 400, "invalid_request")
    check_problem(await service.post(path, {"messages": [{"role": "nobody"}]}), 400, "invalid_request")
    check_problem(await service.post("/v1/sessions/nobody/messages", {"messages": []}), 404, "session_not_found")
    model.hang(then="done")
    run = await service.run(session, background=True)
    await model.wait_for_requests_async(1)
    check_problem(await service.post(path, {"messages": []}), 409, "session_busy")
    model.release()
    async with service.stream(f"{session}/runs/{run['id']}/stream") as frames:
        await frames.until("done")
    assert (await service.get(session)).json()["message_count"] == 2


# The list of what was forked from a session.


async def test_session_pages_its_own_forks(service: RunningServer) -> None:
    session = await service.session(metadata={"title": "Where it began"})
    origin = session.rpartition("/")[2]
    for name in ("one", "two", "three"):
        made = await service.post(f"{session}/fork", {"id": f"{origin}-{name}"})
        assert made.status_code == 201
    below = await service.post(f"{session}-two/fork", {"id": f"{origin}-below"})
    assert below.status_code == 201
    assert (await service.delete(f"{session}-three")).status_code == 204
    found, cursor, pages = [], "", 0
    while cursor is not None:
        page = (await service.get(f"{session}/forks?limit=1{cursor and f'&cursor={cursor}'}")).json()
        found += page["data"]
        cursor, pages = page["next_cursor"], pages + 1
    assert [one["id"] for one in found] == [f"{origin}-two", f"{origin}-one"]
    assert found[0]["forked_from"]["session_id"] == origin
    assert "context_variables" not in found[0]
    assert pages == 4, "the fork's own fork is passed over, and an empty page is the last"
    (last,) = (await service.get(f"{session}-two/forks")).json()["data"]
    assert last["id"] == f"{origin}-below"
    assert (await service.get(f"{session}-below/forks")).json() == {"data": [], "next_cursor": None}
    check_problem(await service.get("/v1/sessions/nobody/forks"), 404, "session_not_found")
    check_problem(await service.get(f"{session}/forks?cursor=x"), 400, "invalid_request")


# A session's history is made shorter for the model, over HTTP.


def make_history(turns: int) -> list[dict[str, Any]]:
    return [
        message
        for number in range(turns)
        for message in ({"role": "user", "content": f"ask {number}"}, {"role": "assistant", "content": f"say {number}"})
    ]


async def test_summary_replaces_messages_sent(service: RunningServer, model: ScriptedModel) -> None:
    session = await service.session(messages=make_history(6))
    model.say("They asked, and were told.")
    headers = {"Idempotency-Key": "k"}
    body = {"keep_turns": 2, "instructions": "Briefly."}
    with count_calls() as counted:
        done = await service.post(f"{session}/compact", body, headers=headers)
    assert done.status_code == 200, done.text
    # That would fold all of the session anew. Only a repeated request has to.
    assert not counted[SqlEventReader._read_state_at.__code__]
    found = done.json()
    seqs = [message["seq"] for message in (await service.get(f"{session}/messages")).json()["data"]]
    assert (found["summary"], found["error"]) == ("They asked, and were told.", None)
    assert (found["first_seq"], found["last_seq"]) == (seqs[0], seqs[7])
    assert len(seqs) == found["session"]["message_count"] == 12
    assert (await service.post(f"{session}/compact", body, headers=headers)).json() == found
    check_problem(await service.post(f"{session}/compact", {}, headers=headers), 422, "idempotency_mismatch")
    model.say("Good.")
    await service.run(session, "And now?")
    sent = [message["content"] for message in model.requests[-1]["messages"]][1:]
    summary = f"{HEADING}\n\nThey asked, and were told."
    assert sent == [summary, "ask 4", "say 4", "ask 5", "say 5", "And now?"]
    assert INTERRUPTED not in sent
    events = await service.events(session)
    made = next(event for event in events if event["type"] == "compaction.summarised")
    assert (await service.post(f"{session}/compact", body, headers=headers)).json() == found
    asked = (await service.get(f"{session}/events/{made['seq']}/request")).json()
    assert asked == model.requests[0]
    assert asked["messages"][0]["content"].endswith("Briefly.")
    usage = (await service.get("/v1/usage")).json()["data"][0]
    assert (usage["model_calls"], (await service.get(session)).json()["usage"]["model_calls"]) == (2, 2)
    assert (await service.get(f"{session}/verify")).json()["valid"]
    assert "in their place" in (await service.get(f"{session}/transcript")).text


async def test_no_summary_is_an_answer_too(service: RunningServer, model: ScriptedModel) -> None:
    session = await service.session(messages=make_history(6))
    model.fail(403)
    headers = {"Idempotency-Key": "k"}
    found = (await service.post(f"{session}/compact", {"keep_turns": 2}, headers=headers)).json()
    assert (found["summary"], found["error"]["code"]) == (None, "provider_permission")
    assert found["error"]["provider_status"] == 403
    assert [event["type"] for event in await service.events(session)][-2:] == [
        "compaction.started",
        "compaction.failed",
    ]
    model.say("Good.")
    await service.run(session, "And now?")
    again = await service.post(f"{session}/compact", {"keep_turns": 2}, headers=headers)
    assert (again.json(), len(model.requests)) == (found, 2)
    short = await service.session(messages=make_history(1))
    assert (await service.post(f"{short}/compact", None)).json()["summary"] is None


async def test_a_busy_session_is_not_compacted(service: RunningServer, model: ScriptedModel) -> None:
    model.call("refund", {"order": "A-17"})
    session = await service.session(messages=make_history(6))
    await service.run(session)
    check_problem(await service.post(f"{session}/compact", {}), 409, "session_busy")
    check_problem(await service.post("/v1/sessions/nobody/compact", {}), 404, "session_not_found")
    check_problem(await service.post(f"{session}/compact", {"keep_turns": 0}), 400, "invalid_request")


# Events: pages, exports, and the requests behind a model's answers.


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
