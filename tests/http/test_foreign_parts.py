"""Messages with parts of other interfaces: at each door converted or refused with their place, never stored as they
are, so that no message makes every later request of its session one that a strict provider refuses."""

from __future__ import annotations

import io
import json
from collections.abc import Awaitable, Callable

import pytest

from swarmkeep.decide.commands import create_session
from swarmkeep.decide.drafts import draft_events
from swarmkeep.events.codec import Json, digest
from swarmkeep.events.errors import InvalidImport
from swarmkeep.events.facts import MessageAdded
from swarmkeep.events.records import CompletionRecord, RequestRecord
from swarmkeep.events.state import State
from swarmkeep.history.conversations import import_conversations
from swarmkeep.request.request import Profile, build_request
from swarmkeep.store.records import SessionKey
from tests.http.server import RunningServer, server_settings, start_server
from tests.http.websocket.client import connect_session
from tests.support.logs.hostile import FOREIGN_PARTS
from tests.support.rules import find_body_faults, find_faults
from tests.support.scripted import ScriptedModel

pytestmark = pytest.mark.one_database

PNG = "iVBORw0KGgo="
CALL = {"type": "tool_use", "id": "t", "name": "f", "input": {}}
FOREIGN: list[Json] = [
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "x"}]},
    {"role": "user", "content": [{"type": "input_text", "text": "x"}]},
    {"role": "user",
     "content": [{"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}}]},
    {"role": "user", "content": [{"type": "image", "source": {"type": "file", "file_id": "f"}}]},
    {"role": "user", "content": [{"type": "text"}]},
    {"role": "user", "content": [{"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}]},
    {"role": "user", "content": [{"type": "text", "text": "x", "colour": "red"}]},
    {"role": "user", "content": [{"type": "image_url", "image_url": "https://example.com/a.png"}]},
    {"role": "user", "content": [{"type": "video_url", "video_url": {"url": "https://example.com/a.mp4"}}]},
    {"role": "user", "content": "x", "images": [PNG]},
    {"role": "system", "content": [{"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}]},
    {"role": "assistant", "content": [{"type": "text", "text": "l"}, CALL]},
    {"role": "assistant", "content": [{"type": "thinking", "thinking": [{"type": "text", "text": "hmm"}]},
                                      {"type": "text", "text": "answer"}]},
    {"role": "assistant", "content": [{"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}]},
]  # fmt: skip
SAID = {"role": "user", "content": "hi"}
Door = Callable[[RunningServer, Json], Awaitable[tuple[int, Json, str]]]
"""Gives the status, the answer and the session that the message is in, if it was taken."""


async def run_with(server: RunningServer, message: Json) -> tuple[int, Json, str]:
    session = await server.session()
    answer = await server.post(f"{session}/runs", {"input": [message, SAID]})
    return answer.status_code, answer.json(), session


async def begin_with(server: RunningServer, message: Json) -> tuple[int, Json, str]:
    answer = await server.post("/v1/sessions", {"messages": [message]})
    return answer.status_code, answer.json(), f"/v1/sessions/{answer.json().get('id')}"


async def add(server: RunningServer, message: Json) -> tuple[int, Json, str]:
    session = await server.session()
    answer = await server.post(f"{session}/messages", {"messages": [message]})
    return answer.status_code, answer.json(), session


async def queue(server: RunningServer, message: Json) -> tuple[int, Json, str]:
    session = await server.session()
    body = {"input": [message, SAID], "on_busy": "queue", "background": True}
    answer = await server.post(f"{session}/runs", body)
    if answer.status_code == 202:
        await server.get(f"{session}/runs/{answer.json()['id']}/stream")
    return answer.status_code, answer.json(), session


async def speak_live(server: RunningServer, message: Json) -> tuple[int, Json, str]:
    session = await server.session()
    async with connect_session(server, session) as socket:
        frame = await socket.answer("run.create", input=[message, SAID])
        if frame.event == "error":
            return frame.data["status"], frame.data, session
        await socket.until("done")
    return 200, frame.data, session


async def chat(server: RunningServer, message: Json) -> tuple[int, Json, str]:
    body = {"model": "Front", "messages": [message, SAID], "metadata": {"session_id": "chat"}}
    answer = await server.post("/openai/v1/chat/completions", body)
    return answer.status_code, answer.json(), "/v1/sessions/chat"


async def respond(server: RunningServer, message: Json) -> tuple[int, Json, str]:
    conversation = (await server.post("/openai/v1/conversations", {})).json()["id"]
    body = {"model": "Front", "input": [message, SAID], "conversation": conversation}
    answer = await server.post("/openai/v1/responses", body)
    return answer.status_code, answer.json(), f"/v1/sessions/{conversation}"


async def add_item(server: RunningServer, message: Json) -> tuple[int, Json, str]:
    conversation = (await server.post("/openai/v1/conversations", {})).json()["id"]
    answer = await server.post(f"/openai/v1/conversations/{conversation}/items", {"items": [message]})
    return answer.status_code, answer.json(), f"/v1/sessions/{conversation}"


async def import_file(server: RunningServer, message: Json) -> tuple[int, Json, str]:
    file = io.BytesIO(json.dumps([message]).encode())
    try:
        report = await import_conversations(server.engine.store, "default", file, "chat", agent="Front")
    except InvalidImport as error:
        return 400, {"errors": [{"pointer": str(error).partition(": ")[0]}]}, ""
    return 200, {}, f"/v1/sessions/{report.sessions[0].id}"


DOORS: list[Door] = [run_with, begin_with, add, queue, speak_live, chat, respond, add_item, import_file]


@pytest.mark.parametrize("door", DOORS)
async def test_no_part_makes_later_requests_invalid(ready_url: str, door: Door) -> None:
    taken = 0
    async with start_server(server_settings(database_url=ready_url)) as server:
        for message in FOREIGN:
            status, answer, session = await door(server, message)
            if status >= 400:
                place = answer["error"]["param"] if "error" in answer else answer["errors"][0]["pointer"]
                assert status == 400
                assert "content" in place or "images" in place, answer
                continue
            taken += 1
            run = await server.run(session, "and?")
            assert run["status"] == "completed", run
            request = (await server.get(f"{session}/events/{run['messages'][-1]['seq']}/request")).json()
            assert find_faults(request["messages"]) == []
            await server.delete(session)
    assert taken >= 3


async def test_old_sessions_with_foreign_parts_go_on(service: RunningServer, model: ScriptedModel) -> None:
    """Older releases recorded them as they came: from now on the request is valid, and past ones are as they were."""
    key, store = SessionKey("default", "old"), service.engine.store
    contents = [[part] for part in FOREIGN_PARTS]
    said = [MessageAdded(message={"role": role, "content": c}) for c in contents for role in ("user", "assistant")]
    asked = {"role": "user", "content": [{"type": "tool_result", "content": "x"}]}
    request = RequestRecord(instructions=digest("Be kind."), params={"model": "m"})
    answer = MessageAdded(
        message={"role": "assistant", "content": "Hm."}, completion=CompletionRecord(model="m", request=request)
    )
    facts = [*create_session("Front", {}, {}, []), MessageAdded(message=asked), answer, *said]
    await store.append(key, State(), draft_events("Front", facts, None), blobs={digest("Be kind."): "Be kind."})
    path = "/v1/sessions/old"
    assert (await service.get(f"{path}/events/3/request")).json()["messages"][-1] == asked
    for seq in range(1, len(facts) + 1):
        state = await store.state(key, at=seq)
        profile = Profile(name="Front", model="m", instructions="Be kind.")
        assert find_faults(build_request(state, profile).messages) == []
    model.say("Go on.")
    run = await service.run(path, "and?")
    assert find_body_faults(model.raw_requests[-1]) == []
    rebuilt = await service.get(f"{path}/events/{run['messages'][-1]['seq']}/request")
    assert rebuilt.content == model.raw_requests[-1]
    assert "tool_result" in rebuilt.text
