"""Runs over HTTP: awaited, queued, cancelled, resumed; stray results, and what a provider's troubles leave behind."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from swarmkeep.events.codec import Json
from tests.http.server import RunningServer, check_problem, scripted, start_server
from tests.http.websocket.client import connect_session
from tests.support.scripted import ScriptedModel

pytestmark = pytest.mark.one_database


async def wait_for_end(service: RunningServer, session: str, run: Json) -> Json:
    """The run once it has ended or waits."""
    frames = await service.read_stream(f"{session}/runs/{run['id']}/stream")
    assert frames[-1].event == "done"
    return frames[-1].data


async def test_run_answered_at_its_end(service: RunningServer, model: ScriptedModel) -> None:
    model.call("get_weather", {"city": "Rome"}, id="c1")
    model.say("It is sunny.")
    session = await service.session(context_variables={"name": "Ann"})
    run = await service.run(session, "Weather?")
    assert (run["status"], run["stop_reason"], run["output_text"]) == ("completed", "end_turn", "It is sunny.")
    assert [message["role"] for message in run["messages"]] == ["user", "assistant", "tool", "assistant"]
    assert run["usage"]["model_calls"] == 2
    assert (run["session_id"], run["first_seq"], run["error"], run["pending"]) == (session[13:], 2, None, [])
    assert (await service.get(f"{session}/runs/{run['id']}")).json() == run
    assert (await service.get(session)).json()["seq"] == run["last_seq"]


async def test_every_run_option_takes_effect(service: RunningServer, model: ScriptedModel) -> None:
    model.call("get_weather", {"city": "Rome"}, id="c1")
    session = await service.session(context_variables={"a": 1})
    run = await service.run(
        session,
        [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "hi", "name": "ann"}],
        agent="Front",
        context_variables={"a": None, "b": 2},
        model="another-model",
        max_turns=1,
    )
    assert (run["stop_reason"], run["context_variables"]) == ("max_turns", {"b": 2})
    assert model.requests[0]["model"] == "another-model"
    assert [message["role"] for message in model.requests[0]["messages"]] == ["system", "system", "user"]
    options = next(event["data"]["options"] for event in await service.events(session) if event["seq"] == 2)
    asked = {"max_turns": 1, "model": "another-model", "execute_tools": True, "stream": False}
    assert asked.items() <= options.items()


async def test_failed_run_is_not_http_error(service: RunningServer, model: ScriptedModel) -> None:
    model.fail(401, message="bad key", headers={"x-should-retry": "false"})
    session = await service.session()
    run = await service.run(session)
    assert (run["status"], run["stop_reason"]) == ("failed", "error")
    assert (run["error"]["provider_status"], run["error"]["retryable"]) == (401, False)


async def test_background_run_answered_at_once(service: RunningServer, model: ScriptedModel) -> None:
    model.hang(then="done")
    session = await service.session()
    answer = await service.post(f"{session}/runs", {"input": "hello", "background": True})
    run = answer.json()
    assert (answer.status_code, run["status"], run["finished_at"]) == (202, "running", None)
    assert answer.headers["location"] == f"{session}/runs/{run['id']}"
    assert (await service.get(session)).json()["active_run_id"] == run["id"]
    assert [item["status"] for item in (await service.get("/v1/sessions?status=running")).json()["data"]] == ["running"]
    await model.wait_for_requests_async(1)
    model.release()
    assert (await wait_for_end(service, session, run))["output_text"] == "done"


async def test_a_busy_session_refuses_or_queues(service: RunningServer, model: ScriptedModel) -> None:
    model.hang(then="first")
    model.say("second")
    session = await service.session()
    first = await service.run(session, "one", background=True)
    await model.wait_for_requests_async(1)
    found = check_problem(await service.post(f"{session}/runs", {"input": "two"}), 409, "session_busy")
    assert found["active_run_id"] == first["id"]
    queued = await service.run(session, "two", background=True, on_busy="queue")
    assert queued["status"] == "queued"
    model.release()
    assert (await wait_for_end(service, session, queued))["output_text"] == "second"
    listed = (await service.get(f"{session}/runs")).json()["data"]
    assert [(run["id"], run["status"]) for run in listed] == [(queued["id"], "completed"), (first["id"], "completed")]


async def test_runs_paged_newest_first(service: RunningServer, model: ScriptedModel) -> None:
    session = await service.session()
    for number in range(3):
        model.say(f"answer {number}")
        await service.run(session, f"question {number}")
    first = (await service.get(f"{session}/runs?limit=2")).json()
    assert [run["output_text"] for run in first["data"]] == ["answer 2", "answer 1"]
    second = (await service.get(f"{session}/runs?limit=2&cursor={first['next_cursor']}")).json()
    assert ([run["output_text"] for run in second["data"]], second["next_cursor"]) == (["answer 0"], None)


async def test_cancelled_run_keeps_its_output(service: RunningServer, model: ScriptedModel) -> None:
    model.call("get_weather", {"city": "Rome"}, id="c1")
    model.hang()
    session = await service.session()
    run = await service.run(session, background=True)
    await model.wait_for_requests_async(2)
    for _ in range(2):
        answer = await service.client.post(f"{session}/runs/{run['id']}/cancel")
        assert (answer.status_code, answer.json()["status"]) == (200, "cancelled")
    assert [message["role"] for message in answer.json()["messages"]] == ["user", "assistant", "tool"]
    await model.wait_for_disconnects_async(1)


async def test_first_approval_decision_wins(service: RunningServer, model: ScriptedModel) -> None:
    model.calls([("refund", {"order": "1"}, "c1"), ("refund", {"order": "2"}, "c2")])
    model.say("Done.")
    session = await service.session()
    run = await service.run(session)
    assert (run["status"], run["stop_reason"]) == ("waiting", "approval")
    assert [(call["tool_call_id"], call["reason"]) for call in run["pending"]] == [
        ("c1", "approval"),
        ("c2", "approval"),
    ]
    check_problem(await service.post(f"{session}/runs", {"input": "x"}), 409, "session_busy")
    resume = f"{session}/runs/{run['id']}/resume"
    half = await service.post(resume, {"approvals": [{"tool_call_id": "c1", "decision": "approve"}]})
    assert (half.status_code, half.json()["status"], len(half.json()["pending"])) == (200, "waiting", 1)
    deny = {"tool_call_id": "c1", "decision": "deny", "reason": "no"}
    check_problem(await service.post(resume, {"approvals": [deny]}), 409, "already_decided")
    found = check_problem(await service.post(resume, {}), 400, "invalid_request")
    assert "approvals" in found["detail"]
    whole = await service.post(resume, {"approvals": [{**deny, "tool_call_id": "c2"}]})
    assert (whole.status_code, whole.json()["output_text"]) == (200, "Done.")
    tools = [message["content"] for message in whole.json()["messages"] if message["role"] == "tool"]
    assert tools == ["refunded 1", "Denied: refund was not approved and did not run. Reason: no"]
    check_problem(await service.post(resume, {}), 409, "run_not_waiting")


async def test_outside_results_continue_the_run(service: RunningServer, model: ScriptedModel) -> None:
    model.calls([("get_weather", {"city": "Rome"}, "c1"), ("get_weather", {"city": "Oslo"}, "c2")])
    model.say("Both known.")
    session = await service.session()
    run = await service.run(session, execute_tools=False)
    assert (run["status"], run["stop_reason"]) == ("waiting", "tool_calls")
    resume = f"{session}/runs/{run['id']}/resume"
    results = [{"tool_call_id": "c1", "content": "hot 🔥"}, {"tool_call_id": "c2", "content": "no", "is_error": True}]
    found = check_problem(
        await service.post(resume, {"tool_results": [{"tool_call_id": "c9", "content": ""}]}), 400, "invalid_request"
    )
    assert found["errors"][0]["pointer"] == "/tool_results"
    frames = await service.read_stream(resume, {"tool_results": results, "stream": True}, method="POST")
    assert [frame.event for frame in frames if frame.seq] == [
        "message.added", "message.added", "run.resumed", "message.added", "run.completed",
    ]  # fmt: skip
    assert frames[-1].data["output_text"] == "Both known."
    check_problem(await service.post(resume, {"tool_results": results}), 409, "already_decided")


async def test_unstarted_run_is_http_error(service: RunningServer) -> None:
    session = await service.session()
    runs = f"{session}/runs"
    check_problem(await service.post(runs, {"input": "x", "agent": "Nobody"}), 404, "agent_not_found")
    check_problem(await service.get(f"{runs}/nobody"), 404, "run_not_found")
    check_problem(await service.get(f"{runs}/nobody/stream"), 404, "run_not_found")
    check_problem(await service.post(f"{runs}/nobody/cancel"), 404, "run_not_found")
    check_problem(await service.post(f"{runs}/nobody/resume", {}), 404, "run_not_found")
    assert [event["type"] for event in await service.events(session)] == ["session.created"]


async def test_unserved_agent_session_names_alternatives(service: RunningServer, model: ScriptedModel) -> None:
    session = await service.session(agent="Front")
    registry = service.engine.registry
    gone = registry._agents.pop("Front")
    try:
        found = check_problem(await service.post(f"{session}/runs", {"input": "x"}), 409, "agent_unavailable")
        assert found["known_agents"] == ["Sales / EU ☃"]
        model.say("I am here.")
        assert (await service.run(session, agent="Sales / EU ☃"))["output_text"] == "I am here."
    finally:
        registry._agents["Front"] = gone


async def test_draining_server_refuses_runs_but_answers(service: RunningServer, model: ScriptedModel) -> None:
    session = await service.session()
    assert (await service.get("/health/ready")).json() == {"status": "ok"}
    await service.service.drain()
    answer = await service.post(f"{session}/runs", {"input": "x"})
    check_problem(answer, 503, "draining")
    assert answer.headers["retry-after"] == "1"
    check_problem(await service.get("/health/ready"), 503, "draining")
    assert (await service.get("/health/live")).status_code == 200
    assert (await service.get(session)).status_code == 200


# Tool messages among what a caller sends answer an open call, or are refused by their place.


HELLO = {"role": "user", "content": "hello"}


def calling(*call_ids: str) -> Json:
    calls = [
        {"id": call_id, "type": "function", "function": {"name": "get_weather", "arguments": "{}"}}
        for call_id in call_ids
    ]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def result(call_id: str) -> Json:
    return {"role": "tool", "tool_call_id": call_id, "content": f"of {call_id}"}


STRAY: list[tuple[list[Json], int]] = [
    ([result("c1")], 0),
    ([HELLO, result("c1")], 1),
    ([calling("c1"), result("c2")], 1),
    ([calling("c1"), result("c1"), result("c1")], 2),
    ([calling("c1"), HELLO, result("c1")], 2),
    ([calling("c1"), calling("c2"), result("c1")], 2),
]


@pytest.mark.parametrize(("messages", "place"), STRAY)
async def test_result_without_open_call_refused(service: RunningServer, messages: list[Json], place: int) -> None:
    session = await service.session()
    refused: dict[str, Any] = {
        f"/input/{place}": await service.post(f"{session}/runs", {"input": messages}),
        f"/messages/{place}": await service.post("/v1/sessions", {"messages": messages}),
    }
    for pointer, answer in refused.items():
        problem = check_problem(answer, 400, "invalid_request")
        assert [error["pointer"] for error in problem["errors"]] == [pointer]
        assert messages[place]["tool_call_id"] in problem["errors"][0]["detail"]
    assert len(await service.events(session)) == 1
    assert len((await service.get("/v1/sessions")).json()["data"]) == 1


async def test_history_final_calls_take_results_next(service: RunningServer, model: ScriptedModel) -> None:
    session = await service.session(messages=[HELLO, calling("c1", "c2"), result("c2")])
    check_problem(await service.post(f"{session}/runs", {"input": [result("c2")]}), 400, "invalid_request")
    model.say("thanks")
    run = await service.run(session, [result("c1"), HELLO])
    assert run["output_text"] == "thanks"
    sent = [message for message in model.requests[0]["messages"] if message["role"] == "tool"]
    assert sent == [result("c1"), result("c2")]


async def test_queued_results_are_judged_alone(service: RunningServer, model: ScriptedModel) -> None:
    model.call("get_weather", {"city": "Rome"}, id="c1")
    session = await service.session()
    run = await service.run(session, execute_tools=False)
    queue = {"on_busy": "queue", "background": True}
    refused = await service.post(f"{session}/runs", {"input": [result("c1")], **queue})
    check_problem(refused, 400, "invalid_request")
    pair = [calling("c1"), result("c1")]
    assert (await service.post(f"{session}/runs", {"input": pair, **queue})).status_code == 202
    model.say("done")
    await service.post(f"{session}/runs/{run['id']}/cancel")


async def test_interrupting_run_may_answer_awaited_call(service: RunningServer, model: ScriptedModel) -> None:
    model.call("get_weather", {"city": "Rome"}, id="c1")
    session = await service.session()
    await service.run(session, execute_tools=False)
    model.say("thanks")
    await service.run(session, [result("c1")], on_busy="interrupt")
    assert model.requests[1]["messages"][-1] == result("c1")


async def test_a_viewer_is_told_of_one(service: RunningServer) -> None:
    session = await service.session()
    async with connect_session(service, session, "?after=1") as viewer:
        answer = await viewer.answer("run.create", input=[HELLO, result("c1")])
    assert (answer.event, answer.data["code"]) == ("error", "invalid_request")
    assert answer.data["errors"][0]["pointer"] == "/input/1"


# A provider's troubles leave a run with a code, what was said by then, and a session that goes on.


@pytest.fixture
async def patient(ready_url: str, model: ScriptedModel) -> AsyncIterator[RunningServer]:
    """A server that asks its provider once more, on each kind of database in turn."""
    async with start_server(scripted(ready_url, model, model_retries=1)) as running:
        yield running


async def read_messages(service: RunningServer, session: str) -> list[tuple[str, Any]]:
    found = (await service.get(f"{session}/messages")).json()["data"]
    return [(message["role"], message["content"]) for message in found]


async def test_broken_stream_keeps_text_session_continues(patient: RunningServer, model: ScriptedModel) -> None:
    model.half_stream(["Half ", "a sen"])
    model.say("Whole.")
    session = await patient.session()
    frames = await patient.read_stream(f"{session}/runs", {"input": "hi", "stream": True}, method="POST")
    run = frames[-1].data
    assert (run["status"], run["stop_reason"]) == ("failed", "error")
    assert (run["error"]["code"], run["error"]["retryable"]) == ("provider_stream_cut", True)
    assert run["output_text"] == "Half a sen"
    events = await patient.events(session)
    assert [event["type"] for event in events][-2:] == ["message.added", "run.failed"]
    assert events[-2]["data"]["completion"]["partial"] is True
    assert (await patient.run(session, "Go on."))["output_text"] == "Whole."
    assert [role for role, _ in await read_messages(patient, session)] == ["user", "assistant", "user", "assistant"]
    assert [message["role"] for message in model.requests[-1]["messages"]] == ["system", "user", "assistant", "user"]
