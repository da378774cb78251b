"""What a provider's troubles leave behind: a run with a code, what was said by then, and a session that goes on."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.http.server import RunningServer, scripted, start_server
from tests.support.scripted import ScriptedModel

pytestmark = pytest.mark.one_database


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


async def test_failed_generation_leaves_half_a_text(patient: RunningServer, model: ScriptedModel) -> None:
    model.say("", finish_reason="error")
    model.say("half an ans", finish_reason="network_error")
    session = await patient.session()
    frames = await patient.read_stream(f"{session}/runs", {"input": "hi", "stream": True}, method="POST")
    run = frames[-1].data
    assert (run["status"], run["output_text"]) == ("failed", "half an ans")
    assert (run["error"]["code"], run["error"]["retryable"]) == ("provider_failed", True)
    completion = (await patient.events(session))[-2]["data"]["completion"]
    assert (completion["partial"], completion["finish_reason"]) == (True, "network_error")


async def test_work_before_failure_stays(patient: RunningServer, model: ScriptedModel) -> None:
    model.call("get_weather", {"city": "Rome"}, id="c1")
    model.fail(400, code="context_length_exceeded", message="too long")
    session = await patient.session()
    run = await patient.run(session)
    assert run["error"] == {
        "code": "context_length_exceeded",
        "message": "too long",
        "retryable": False,
        "provider_status": 400,
    }
    assert [role for role, _ in await read_messages(patient, session)] == ["user", "assistant", "tool"]
    assert run["usage"]["model_calls"] == 1


async def test_passing_trouble_shows_only_in_time(patient: RunningServer, model: ScriptedModel) -> None:
    model.fail(503, headers={"retry-after": "0"})
    model.say("At last.")
    session = await patient.session()
    frames = await patient.read_stream(f"{session}/runs", {"input": "hi", "stream": True}, method="POST")
    assert frames[-1].data["output_text"] == "At last."
    assert [frame.event for frame in frames].count("message.started") == 1
    assert frames[-1].data["usage"]["model_calls"] == 1


async def test_cancel_ends_provider_wait(patient: RunningServer, model: ScriptedModel) -> None:
    model.fail(429, headers={"retry-after": "50"})
    session = await patient.session()
    run = await patient.run(session, background=True)
    await model.wait_for_requests_async(1)
    cancelled = (await patient.post(f"{session}/runs/{run['id']}/cancel")).json()
    assert cancelled["status"] == "cancelled"
    model.say("And now?")
    assert (await patient.run(session))["output_text"] == "And now?"
