"""A person takes a session over, answers in it and hands it back, over HTTP; and approves with other arguments."""

from __future__ import annotations

from typing import Any

import pytest

from tests.http.server import RunningServer, check_problem
from tests.support.scripted import ScriptedModel

pytestmark = pytest.mark.one_database


async def complete(service: RunningServer, session: str, text: str) -> Any:
    """A chat completion in a session."""
    body = {"model": "Front", "messages": [{"role": "user", "content": text}]}
    headers = {"X-Session-Id": session.removeprefix("/v1/sessions/")}
    return await service.post("/openai/v1/chat/completions", body, headers=headers)


async def test_conversation_goes_to_person_and_back(service: RunningServer, model: ScriptedModel) -> None:
    session = await service.session()
    check_problem(await service.post(f"{session}/answer", {"content": "Hello."}), 409, "not_taken_over")
    check_problem(await service.post(f"{session}/handback"), 409, "not_taken_over")
    check_problem(await service.post(f"{session}/takeover", {"note": "n" * 10_001}), 400, "invalid_request")
    taken = await service.post(f"{session}/takeover", {"note": "asks for a person"})
    assert (taken.json()["taken_over"]["by"], taken.json()["taken_over"]["note"]) == (None, "asks for a person")
    assert taken.headers["ETag"] == f'"{taken.json()["seq"]}"'
    run = await service.run(session, "Is anybody there?")
    assert (run["status"], run["stop_reason"]) == ("waiting", "person")
    assert run["pending"] == [
        {"tool_call_id": "", "name": "", "arguments": "", "reason": "person", "expires_at": None},
    ]
    check_problem(await service.post(f"{session}/runs/{run['id']}/resume", {}), 400, "invalid_request")
    waiting = (await service.get("/v1/sessions?status=waiting")).json()["data"][0]
    assert (waiting["id"], waiting["taken_over"]) == (taken.json()["id"], taken.json()["taken_over"])
    check_problem(await service.post(f"{session}/answer", {"content": ""}), 400, "invalid_request")
    headers = {"Idempotency-Key": "k"}
    said = [await service.post(f"{session}/answer", {"content": "I am."}, headers=headers) for _ in range(2)]
    assert said[0].json() == said[1].json()
    (message,) = said[0].json()["data"]
    assert (message["content"], message["person"], message["sender"]) == ("I am.", "person", "person")
    found = (await service.get(f"{session}/runs/{run['id']}")).json()
    assert (found["status"], found["output_text"], found["messages"][-1]) == ("completed", "I am.", message)
    # OpenAI's clients see an answer without text, and are told to wait for the person.
    silent = await complete(service, session, "And you?")
    assert (silent.status_code, silent.json()["choices"][0]["message"]["content"] or "") == (200, "")
    refused = await complete(service, session, "Hello?")
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "approval_pending")
    response = await service.post(
        "/openai/v1/responses", {"input": "Hello?", "conversation": session.removeprefix("/v1/sessions/")}
    )
    assert response.status_code == 400
    model.say("Welcome back.")
    back = (await service.post(f"{session}/handback", {"note": "be brief"})).json()
    assert "taken_over" not in back
    waited = (await service.get(f"{session}/runs")).json()["data"][0]
    await service.read_stream(f"{session}/runs/{waited['id']}/stream", method="GET")
    assert (await service.get(f"{session}/runs/{waited['id']}")).json()["output_text"] == "Welcome back."
    assert "be brief" in model.requests[-1]["messages"][-1]["content"]
    assert (await service.get(f"{session}/verify")).json()["valid"]
    for form in ("markdown", "html"):
        transcript = (await service.get(f"{session}/transcript?format={form}")).text
        for words in ("takes the conversation over", "in the agent", "hands the conversation back", "tells the agent"):
            assert words in transcript
    await service.post(f"{session}/redact", {"seqs": list(range(1, back["seq"])), "reason": "asked"})
    left = str(await service.events(session))
    assert not any(words in left for words in ("asks for a person", "I am.", "Is anybody"))
    assert (await service.get(f"{session}/verify")).json()["valid"]


async def test_an_approval_may_change_the_arguments(service: RunningServer, model: ScriptedModel) -> None:
    session = await service.session()
    model.call("refund", {"order": "A-1"}, id="c1")
    run = await service.run(session)
    resume = f"{session}/runs/{run['id']}/resume"
    decision = {"tool_call_id": "c1", "decision": "approve", "arguments": {"order": ["A-1"]}}
    problem = await service.post(resume, {"approvals": [decision]})
    check_problem(problem, 400, "invalid_request")
    assert problem.json()["errors"][0]["pointer"] == "/approvals/0/arguments"
    model.say("Done.")
    run = (await service.post(resume, {"approvals": [{**decision, "arguments": {"order": "B-2"}}]})).json()
    assert (run["status"], run["output_text"]) == ("completed", "Done.")
    decided = next(event for event in await service.events(session) if event["type"] == "approval.decided")
    assert decided["data"]["arguments"] == '{"order":"B-2"}'
    assert "with other arguments" in (await service.get(f"{session}/transcript")).text
