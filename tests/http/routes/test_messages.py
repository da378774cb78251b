"""A session's messages over HTTP: listed, and taken out."""

from __future__ import annotations

from tests.http.server import RunningServer, check_problem
from tests.support.scripted import ScriptedModel


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
