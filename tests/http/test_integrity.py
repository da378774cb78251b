"""A session that was changed in the database goes on by no door: every route of the document that could advance one."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from swarmkeep.events.errors import HistoryDamaged
from swarmkeep.store.opening import open_store
from swarmkeep.store.records import SessionKey
from swarmkeep.store.tables import events, files, sessions
from tests.history.verify.rows import change_row, read_rows
from tests.http.operations import Operation, read_operations
from tests.http.server import RunningServer, check_problem, scripted, start_server
from tests.support.pictures import make_inline_picture, make_message, make_png
from tests.support.scripted import ScriptedModel

CALL = {"order": "5"}
SAID = {"role": "user", "content": "more"}
# These change nothing of a session, or end it.
NOT_ADVANCING = {"DELETE /v1/sessions/{session_id}", "POST /v1/sessions/{session_id}/replay"}
BODIES: dict[str, Any] = {
    "/redact": {"seqs": [2], "reason": "asked for"},
    "/messages": {"messages": [{"role": "user", "content": "more"}]},
    "/fork": {},
    "/runs": {"input": "more"},
    "/takeover": {},
    "/answer": {"content": "hello"},
}


async def begin(service: RunningServer, model: ScriptedModel, session_id: str = "s1") -> str:
    """A session whose run waits for the approval of a refund; gives the run's id."""
    model.call("refund", CALL, id="call_1")
    session = await service.session(id=session_id)
    run = await service.run(session, [make_message(make_inline_picture(make_png(20)))])
    assert run["status"] == "waiting"
    return str(run["id"])


async def change(url: str, old: str, new: str, session_id: str = "s1") -> int:
    """Change payloads as somebody does who may write to the database; gives the first seq."""
    changed = []
    store = open_store(url)
    for row in await read_rows(store, events, session_id=session_id):
        if old in row["payload"]:
            await change_row(store, events, row, payload=row["payload"].replace(old, new))
            changed.append(row["seq"])
    await store.close()
    return min(changed)


async def begin_and_change_file(url: str, model: ScriptedModel) -> tuple[str, Any]:
    """A run that waits, of which a picture was changed since; and the row as it was."""
    async with start_server(scripted(url, model)) as service:
        run_id = await begin(service, model)
    store = open_store(url)
    (row,) = await read_rows(store, files)
    await change_row(store, files, row, content=make_png(30))
    await store.close()
    return run_id, row


def make_body(operation: Operation) -> Any:
    ends = [body for end, body in BODIES.items() if operation.path.endswith(end)]
    return ends[0] if ends else operation.body


def decide(**more: Any) -> dict[str, Any]:
    return {"approvals": [{"tool_call_id": "call_1", "decision": "approve", **more}]}


async def test_every_route_that_could_advance_it_refuses(ready_url: str, model: ScriptedModel) -> None:
    async with start_server(scripted(ready_url, model)) as service:
        run_id = await begin(service, model)
    seq = await change(ready_url, '\\"5\\"', '\\"5000\\"')
    async with start_server(scripted(ready_url, model)) as service:
        refused = 0
        values = {"session_id": "s1", "run_id": run_id, "seq": "2", "hash": "0" * 64, "name": "Front"}
        for operation in await read_operations(service):
            if "session_id" not in operation.parameters or not set(operation.parameters) <= values.keys():
                continue
            body = decide() if operation.path.endswith("/resume") else make_body(operation)
            answer = await service.client.request(
                operation.method, operation.url(values), json=body, params=operation.needed
            )
            if operation.method == "GET":
                # 400: no eval case is made of a message with a picture.
                assert answer.status_code in (200, 400, 404, 409), (operation.name, answer.text)
                assert "history_damaged" not in answer.text, operation.name
            elif operation.name not in NOT_ADVANCING:
                assert check_problem(answer, 409, "history_damaged")["seq"] == seq, operation.name
                refused += 1
        assert refused >= 9
        session = (await service.get("/v1/sessions/s1")).json()
        assert (session["status"], session["damaged_seq"]) == ("waiting", seq)
        listed = (await service.get("/v1/sessions", params={"damaged": "true"})).json()["data"]
        assert [(one["id"], one["damaged_seq"]) for one in listed] == [("s1", seq)]
        assert (await service.get("/v1/counts")).json()["damaged"]["count"] == 1
        assert "swarmkeep_sessions_damaged_total 1.0" in (await service.get("/metrics")).text
        told = (await service.get("/v1/audit")).json()["data"]
        assert [entry["type"] for entry in told] == ["session.damaged"]
        assert len(model.requests) == 1


OPENAI_DOORS: dict[str, tuple[str, str, Any]] = {
    "a response in it": ("POST", "responses", {"input": "more", "conversation": "s1"}),
    "one that is not stored": ("POST", "responses", {"input": "more", "conversation": "s1", "store": False}),
    "a response after it": ("POST", "responses", {"input": "more", "previous_response_id": "RESPONSE"}),
    "its input tokens": ("POST", "responses/input_tokens", {"input": "x", "previous_response_id": "RESPONSE"}),
    "a compaction": ("POST", "responses/compact", {"previous_response_id": "RESPONSE"}),
    "a cancel": ("POST", "responses/RESPONSE/cancel", {}),
    "a deleted response": ("DELETE", "responses/RESPONSE", None),
    "a chat": ("POST", "chat/completions", {"messages": [SAID], "metadata": {"session_id": "s1"}}),
    "more items": ("POST", "conversations/s1/items", {"items": [SAID]}),
    "a title": ("POST", "conversations/s1", {"metadata": {"title": "more"}}),
}


async def test_openai_clients_are_refused_in_their_own_words(ready_url: str, model: ScriptedModel) -> None:
    async with start_server(scripted(ready_url, model)) as service:
        model.say("hello")
        await service.session(id="s1")
        answer = await service.post("/openai/v1/responses", {"model": "Front", "input": "say 5", "conversation": "s1"})
        assert answer.status_code == 200, answer.text
    response = answer.json()["id"]
    seq = await change(ready_url, "say 5", "say 5000")
    async with start_server(scripted(ready_url, model)) as service:
        for name, (method, path, body) in OPENAI_DOORS.items():
            url = f"/openai/v1/{path.replace('RESPONSE', response)}"
            named = {} if "conversations" in path or not body else {"model": "Front"}
            text = json.dumps(body and {**body, **named}).replace("RESPONSE", response)
            refused = await service.client.request(
                method, url, content=text if body is not None else None, headers={"content-type": "application/json"}
            )
            error = refused.json()["error"]
            assert (refused.status_code, error["code"]) == (409, "history_damaged"), (name, refused.text)
            assert f"event {seq}" in error["message"]
        for path in (f"responses/{response}", "conversations/s1", "conversations/s1/items"):
            assert (await service.get(f"/openai/v1/{path}")).status_code == 200
        assert len(model.requests) == 1


@pytest.mark.parametrize("door", ["resume", "run"])
async def test_cold_session_of_running_server_is_checked(ready_url: str, model: ScriptedModel, door: str) -> None:
    """By a second server, and by one that keeps no states."""
    async with start_server(scripted(ready_url, model)) as first:
        run_id = await begin(first, model)
        async with start_server(scripted(ready_url, model, state_cache_bytes=1)) as second:
            seq = await change(ready_url, '\\"5\\"', '\\"5000\\"')
            path = "runs" if door == "run" else f"runs/{run_id}/resume"
            body = {"input": "more", "on_busy": "interrupt"} if door == "run" else decide()
            assert (
                check_problem(await second.post(f"/v1/sessions/s1/{path}", body), 409, "history_damaged")["seq"] == seq
            )
            # Set aside by one, it is by all: also where its true state is in memory.
            assert (
                check_problem(await first.post(f"/v1/sessions/s1/{path}", body), 409, "history_damaged")["seq"] == seq
            )
    assert len(model.requests) == 1


async def test_changed_abandoned_run_is_not_taken_over(ready_url: str, model: ScriptedModel) -> None:
    async with start_server(scripted(ready_url, model)) as service:
        await begin(service, model)
    await change(ready_url, '\\"5\\"', '\\"5000\\"')
    store = open_store(ready_url)
    (head,) = await read_rows(store, sessions)
    await change_row(store, sessions, head, status="running")
    async with start_server(scripted(ready_url, model)) as service:
        # The first look is taken before a server is ready.
        assert len((await service.get("/v1/sessions", params={"damaged": "true"})).json()["data"]) == 1
        assert [event["type"] for event in await service.events("/v1/sessions/s1")][-1] == "run.waiting"
    await store.close()


async def test_a_file_that_was_changed_reaches_no_model(ready_url: str, model: ScriptedModel) -> None:
    run_id, row = await begin_and_change_file(ready_url, model)
    async with start_server(scripted(ready_url, model)) as service:
        await service.post(f"/v1/sessions/s1/runs/{run_id}/resume", {**decide(), "stream": False}, timeout=5.0)
        assert (await service.get("/v1/sessions", params={"damaged": "true"})).json()["data"][0]["damaged_seq"] == 3
        check_problem(await service.post(f"/v1/sessions/s1/runs/{run_id}/cancel"), 409, "history_damaged")
        assert len(model.requests) == 1
        store = open_store(ready_url)
        await change_row(store, files, row, content=row["content"])
        await store.close()
        assert (await service.get("/v1/sessions/s1/verify")).json()["valid"]
        assert (await service.get("/v1/sessions", params={"damaged": "true"})).json()["data"] == []


async def test_who_waits_at_another_server_is_told(ready_url: str, model: ScriptedModel) -> None:
    run_id, _ = await begin_and_change_file(ready_url, model)
    given = scripted(ready_url, model, lease_seconds=1.0)
    async with start_server(given) as service, start_server(given) as other:
        # The other one knows the session from before, when nothing was wrong with it.
        assert (await other.get("/v1/sessions/s1")).json()["status"] == "waiting"
        resumed = await service.post(f"/v1/sessions/s1/runs/{run_id}/resume", decide())
        check_problem(resumed, 409, "history_damaged")
        async with asyncio.timeout(20):
            with pytest.raises(HistoryDamaged):
                await other.engine.runs.wait(SessionKey("default", "s1"), run_id)


async def test_stream_of_a_damaged_session_ends(ready_url: str, model: ScriptedModel) -> None:
    run_id, _ = await begin_and_change_file(ready_url, model)
    async with start_server(scripted(ready_url, model)) as service:
        resume = f"/v1/sessions/s1/runs/{run_id}/resume"
        async with asyncio.timeout(20), service.stream(resume, {**decide(), "stream": True}, method="POST") as stream:
            assert "done" not in [frame.event for frame in await stream.read_rest()]
        assert len(model.requests) == 1


async def test_decision_counts_for_the_shown_arguments(service: RunningServer, model: ScriptedModel) -> None:
    run_id = await begin(service, model)
    (call,) = (await service.get(f"/v1/sessions/s1/runs/{run_id}")).json()["pending"]
    resume = f"/v1/sessions/s1/runs/{run_id}/resume"
    check_problem(await service.post(resume, decide(arguments_digest="0" * 64)), 409, "arguments_changed")
    check_problem(await service.post(resume, decide(arguments_digest="short")), 400, "invalid_request")
    model.say("done")
    answer = await service.post(resume, decide(arguments_digest=call["arguments_digest"].upper()))
    assert answer.json()["status"] == "completed"
    # It is in no event: of arguments that are redacted it would tell.
    assert all("arguments_digest" not in str(event) for event in await service.events("/v1/sessions/s1"))


async def test_a_session_goes_on_after_it_was_repaired(ready_url: str, model: ScriptedModel) -> None:
    async with start_server(scripted(ready_url, model)) as service:
        run_id = await begin(service, model)
    await change(ready_url, '\\"5\\"', '\\"5000\\"')
    async with start_server(scripted(ready_url, model)) as service:
        resume = f"/v1/sessions/s1/runs/{run_id}/resume"
        check_problem(await service.post(resume, decide()), 409, "history_damaged")
        await change(ready_url, '\\"5000\\"', '\\"5\\"')
        assert (await service.get("/v1/sessions/s1/verify")).json()["valid"]
        model.say("done")
        assert (await service.post(resume, decide())).json()["status"] == "completed"
        told = (await service.get("/v1/audit")).json()["data"]
        assert [entry["type"] for entry in told] == ["session.damaged", "session.mended", "approval.decided"]
