"""The desk over HTTP: owners, notes, feedback; a person takes over, answers, hands back, and edits arguments."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.http.auth.keys import create_key
from tests.http.server import RunningServer, check_problem
from tests.support.scripted import ScriptedModel

pytestmark = pytest.mark.one_database

NOTE = "canary: refunded twice before"


async def list_ids(service: RunningServer, name: str, **filters: str) -> list[str]:
    answer = await service.client.get("/v1/sessions", params={"assignee": name, **filters})
    return [session["id"] for session in answer.json()["data"]]


async def test_sessions_are_assigned_and_found(service: RunningServer) -> None:
    for name in ("one", "two", "three"):
        await service.session(id=name)
    answer = await service.post("/v1/sessions/one/assign", {"to": "billing", "reason": "an invoice"})
    assert (answer.status_code, answer.json()["assignee"]) == (200, "billing")
    assert answer.headers["ETag"] == f'"{answer.json()["seq"]}"'
    again = await service.post("/v1/sessions/one/assign", {"to": "billing"})
    assert again.json()["seq"] == answer.json()["seq"]
    await service.post("/v1/sessions/two/assign", {"to": "Änne O'Neil"})
    assert await list_ids(service, "billing") == ["one"]
    assert await list_ids(service, "Änne O'Neil") == ["two"]
    assert await list_ids(service, "none") == ["three"]
    assert await list_ids(service, "billing", status="waiting") == []
    assert await list_ids(service, "billing", order="activity") == ["one"]
    assert await list_ids(service, "none", order="activity") == ["three"]
    assert await list_ids(service, "nobody") == []
    listed = (await service.client.get("/v1/sessions")).json()["data"]
    assert {each["id"]: each.get("assignee") for each in listed} == {
        "one": "billing", "two": "Änne O'Neil", "three": None,
    }  # fmt: skip
    gone = await service.post("/v1/sessions/one/assign", {"to": None})
    assert "assignee" not in gone.json()
    assert await list_ids(service, "none") == ["three", "one"]
    assert (await service.get("/v1/sessions/one?at=2")).json()["assignee"] == "billing"
    for name in ("one", "two"):
        assert (await service.get(f"/v1/sessions/{name}/verify")).json()["valid"]


async def test_wrong_assignments_and_notes_are_refused(service: RunningServer) -> None:
    session = await service.session()
    for body in ({}, {"to": ""}, {"to": "none"}, {"to": "n" * 201}, {"to": "a\nb"}, {"to": 3}, {"to": "a", "x": 1}):
        check_problem(await service.post(f"{session}/assign", body), 400, "invalid_request")
    for body in ({}, {"text": ""}, {"text": " "}, {"text": "n" * 10_001}):
        check_problem(await service.post(f"{session}/notes", body), 400, "invalid_request")
    for path, body in (("assign", {"to": "a"}), ("notes", {"text": "a"})):
        check_problem(await service.post(f"/v1/sessions/absent/{path}", body), 404, "session_not_found")


async def test_redacted_assignment_leaves_no_name(service: RunningServer) -> None:
    session = await service.session(id="case")
    await service.post(f"{session}/assign", {"to": "Ann", "reason": "hers"})
    await service.post(f"{session}/notes", {"text": NOTE})
    await service.post(f"{session}/redact", {"seqs": [2, 3], "reason": "asked for"})
    assert (await list_ids(service, "Ann"), await list_ids(service, "none")) == ([], ["case"])
    told = (await service.get(f"{session}/events")).text
    assert "Ann" not in told
    assert NOTE not in told
    assert (await service.get(f"{session}/verify")).json()["valid"]


async def test_note_reaches_no_model_and_no_run(service: RunningServer, model: ScriptedModel) -> None:
    session = await service.session()
    model.say("one")
    await service.run(session, "1")
    headers = {"Idempotency-Key": "k"}
    noted = [await service.post(f"{session}/notes", {"text": NOTE}, headers=headers) for _ in range(2)]
    assert (noted[0].status_code, noted[0].json()) == (201, noted[1].json())
    assert (noted[0].json()["type"], noted[0].json()["run_id"], noted[0].json()["data"]["text"]) == (
        "note.added", None, NOTE,
    )  # fmt: skip
    model.say("two")
    streamed = await service.read_stream(f"{session}/runs", {"input": "2", "stream": True}, method="POST")
    model.say("three")
    name = session.removeprefix("/v1/sessions/")
    chat = {"model": "Front", "messages": [{"role": "user", "content": "3"}]}
    completed = await service.post("/openai/v1/chat/completions", chat, headers={"X-Session-Id": name})
    model.say("four")
    response = await service.post("/openai/v1/responses", {"model": "Front", "input": "4", "conversation": name})
    runs = await service.get(f"{session}/runs")
    seen: list[Any] = [streamed, completed.text, response.text, runs.text]
    for run in runs.json()["data"]:
        seen.append(await service.read_stream(f"{session}/runs/{run['id']}/stream"))
    for path in (
        f"{session}/messages",
        f"/openai/v1/conversations/{name}/items",
        f"/openai/v1/responses/{response.json()['id']}",
        f"/openai/v1/responses/{response.json()['id']}/input_items",
        f"/openai/v1/conversations/{name}",
    ):
        answer = await service.get(path)
        assert answer.status_code == 200, path
        seen.append(answer.text)
    assert "canary" not in str(seen)
    assert "canary" not in json.dumps(model.requests)
    assert NOTE in (await service.get(f"{session}/events")).text
    replayed = (await service.post(f"{session}/replay")).json()
    assert (replayed["matches"], replayed["divergences"]) == (True, [])


async def test_note_stays_out_of_run_stream(service: RunningServer, model: ScriptedModel) -> None:
    session = await service.session()
    model.hang("Let me")
    started = (await service.post(f"{session}/runs", {"input": "1", "background": True})).json()
    await model.wait_for_requests_async(1)
    await service.post(f"{session}/notes", {"text": NOTE})
    await service.post(f"{session}/assign", {"to": "billing", "reason": "canary"})
    await service.post(f"{session}/runs/{started['id']}/cancel")
    streamed = await service.read_stream(f"{session}/runs/{started['id']}/stream")
    assert "canary" not in str(streamed)
    assert (await service.get(f"{session}/verify")).json()["valid"]


async def test_takeover_assigns_to_the_name_of_the_key(plain: RunningServer) -> None:
    ann = await create_key(plain, "acme", role="support", name="Ann")
    for name in ("one", "two"):
        await plain.post("/v1/sessions", {"id": name}, headers=ann)
    taken = (await plain.post("/v1/sessions/one/takeover", {}, headers=ann)).json()
    assert taken["assignee"] == "Ann"
    back = (await plain.post("/v1/sessions/one/handback", {}, headers=ann)).json()
    assert back["assignee"] == "Ann"
    listed = await plain.client.get("/v1/sessions", params={"assignee": "Ann"}, headers=ann)
    assert [each["id"] for each in listed.json()["data"]] == ["one"]


async def test_support_does_not_speak_as_the_user(service: RunningServer, model: ScriptedModel) -> None:
    ann = await create_key(service, "acme", role="support", name="Ann")
    await service.post("/v1/sessions", {"id": "case"}, headers=ann)
    said = [{"role": "user", "content": "Hi."}]
    refused = [
        ("/v1/sessions/case/runs", {"input": "Hi."}),
        ("/v1/sessions/case/runs", {"input": said}),
        ("/v1/sessions/case/messages", {"messages": said}),
        ("/v1/sessions", {"id": "other", "messages": said}),
    ]
    for path, body in refused:
        detail = check_problem(await service.post(path, body, headers=ann), 403, "forbidden")["detail"]
        assert "/answer" in detail
        assert "relayed" in detail
    for path, body in (
        ("chat/completions", {"model": "Front", "messages": said}),
        ("responses", {"model": "Front", "input": "Hi."}),
        ("responses", {"model": "Front", "input": "Hi.", "store": False}),
        ("conversations", {"items": [{"type": "message", **said[0]}]}),
        ("conversations/case/items", {"items": [{"type": "message", **said[0]}]}),
    ):
        answer = await service.post(f"/openai/v1/{path}", body, headers=ann)
        assert (answer.status_code, "relayed" in answer.json()["error"]["message"]) == (403, True), path
    assert model.requests == []
    for path, body in refused:
        if path.endswith("/runs"):
            model.say("Hello.")
        assert (await service.post(path, {**body, "relayed": True}, headers=ann)).status_code in (200, 201)


REMARK = "canary: the price is wrong"


async def test_feedback_is_recorded_and_found(service: RunningServer, model: ScriptedModel) -> None:
    answers = {}
    for name in ("one", "two", "three"):
        model.say("Hello.")
        session = await service.session(id=name)
        run = await service.run(session, "Hi")
        answers[name] = (run, next(message["seq"] for message in reversed(run["messages"])))
    headers = {"Idempotency-Key": "k"}
    body = {"value": "down", "run_id": answers["one"][0]["id"], "comment": REMARK}
    added = [await service.post("/v1/sessions/one/feedback", body, headers=headers) for _ in range(2)]
    assert (added[0].status_code, added[0].json()) == (201, added[1].json())
    event = added[0].json()
    assert (event["type"], event["run_id"], event["data"]["value"], event["data"]["comment"]) == (
        "feedback.added", None, "down", REMARK,
    )  # fmt: skip
    seq = event["data"]["seq"]
    await service.post("/v1/sessions/two/feedback", {"value": "up", "seq": seq})

    async def find(value: str, **filters: str) -> list[str]:
        answer = await service.client.get("/v1/sessions", params={"feedback": value, **filters})
        return [session["id"] for session in answer.json()["data"]]

    assert (await find("down"), await find("up")) == (["one"], ["two"])
    assert (await find("down", assignee="none"), await find("down", order="activity")) == (["one"], ["one"])
    assert await find("down", status="waiting") == []
    listed = {each["id"]: each.get("feedback") for each in (await service.get("/v1/sessions")).json()["data"]}
    assert listed == {"one": {"up": 0, "down": 1}, "two": {"up": 1, "down": 0}, "three": None}
    await service.post("/v1/sessions/one/feedback", {"value": "up", "seq": seq})
    assert (await find("down"), await find("up")) == ([], ["two", "one"])
    for name in ("one", "two"):
        assert (await service.get(f"/v1/sessions/{name}/verify")).json()["valid"]
    model.say("two")
    streamed = await service.read_stream("/v1/sessions/one/runs", {"input": "2", "stream": True}, method="POST")
    assert "canary" not in json.dumps(model.requests) + str(streamed)
    await service.post("/v1/sessions/one/redact", {"seqs": [event["seq"]], "reason": "asked for"})
    assert "canary" not in (await service.get("/v1/sessions/one/events")).text
    assert (await service.get("/v1/sessions/one/verify")).json()["valid"]
    assert await find("up") == ["two", "one"]


async def test_wrong_feedback_is_refused(service: RunningServer, model: ScriptedModel) -> None:
    session = await service.session()
    model.say("Hello.")
    await service.run(session, "Hi")
    for body in (
        {}, {"value": "up"}, {"value": "good", "seq": 4}, {"value": "up", "seq": 0},
        {"value": "up", "seq": 4, "run_id": "r"},
        {"value": "up", "seq": 4, "comment": "n" * 10_001}, {"value": "up", "seq": "4"},
    ):  # fmt: skip
        check_problem(await service.post(f"{session}/feedback", body), 400, "invalid_request")
    check_problem(await service.post(f"{session}/feedback", {"value": "up", "seq": 1}), 404, "event_not_found")
    check_problem(await service.post(f"{session}/feedback", {"value": "up", "run_id": "none"}), 404, "run_not_found")
    absent = await service.post("/v1/sessions/absent/feedback", {"value": "up", "seq": 4})
    check_problem(absent, 404, "session_not_found")
    check_problem(await service.client.get("/v1/sessions?feedback=bad"), 400, "invalid_request")


# A person takes a session over.


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
    assert run["pending"] == [{"tool_call_id": "", "name": "", "arguments": "", "reason": "person", "expires_at": None}]
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
