"""Messages that are added to a session's history without a run."""

from __future__ import annotations

from swarmkeep.store.reading import decode_event
from tests.http.server import RunningServer, check_problem
from tests.support.calls import count_calls
from tests.support.scripted import ScriptedModel


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
