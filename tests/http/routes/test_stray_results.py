"""Tool messages among what a caller sends: they answer an open call, or are refused by their place."""

from __future__ import annotations

from typing import Any

import pytest

from swarmkeep.events.codec import Json
from tests.http.server import RunningServer, check_problem
from tests.http.websocket.client import connect_session
from tests.support.scripted import ScriptedModel

pytestmark = pytest.mark.one_database

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
