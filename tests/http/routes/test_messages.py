"""Messages of a session over HTTP: listed, added, taken out, made shorter; and what was forked."""

from __future__ import annotations

from typing import Any

import pytest

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


async def test_call_removed_with_its_result(service: RunningServer) -> None:
    calls = [
        {"id": call_id, "type": "function", "function": {"name": "f", "arguments": "{}"}} for call_id in ("c1", "c2")
    ]
    history = [
        {"role": "user", "content": "Do it."},
        {"role": "assistant", "content": None, "tool_calls": calls},
        *({"role": "tool", "tool_call_id": call_id, "content": call_id} for call_id in ("c1", "c2")),
    ]
    session = await service.session(messages=history)
    asked, calling, first, second = await list_seqs(service, session)
    assert (await service.delete(f"{session}/messages/{calling}?tool_call_id=c1")).status_code == 204
    messages = (await service.get(f"{session}/messages")).json()["data"]
    assert [message["seq"] for message in messages] == [asked, calling, second]
    assert [call["id"] for call in messages[1]["tool_calls"]] == ["c2"]
    assert (await service.delete(f"{session}/messages/{second}")).status_code == 204
    assert await list_seqs(service, session) == [asked]
    assert first not in await list_seqs(service, session)


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
