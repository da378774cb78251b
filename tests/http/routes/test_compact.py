"""A session's history is made shorter for the model, over HTTP."""

from __future__ import annotations

from typing import Any

from swarmkeep.events.messages import INTERRUPTED
from swarmkeep.events.messages import SHORTENED_HEADING as HEADING
from swarmkeep.store.reading import SqlEventReader
from tests.http.server import RunningServer, check_problem
from tests.support.calls import count_calls
from tests.support.scripted import ScriptedModel


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
