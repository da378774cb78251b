"""Replies and messages that went wrong somewhere, through every door: `cases.json` says what is right."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from openai import APIError, AsyncOpenAI

from swarmkeep.events.codec import Json
from swarmkeep.models.failures import MalformedReply
from tests.dialects.conversation import read_effects
from tests.dialects.doors import open_client
from tests.dialects.team import clerk
from tests.http.server import RunningServer, server_settings, start_server
from tests.runs.swarm.runners import AsyncRunner, SyncRunner
from tests.support.rules import find_faults
from tests.support.scripted import ScriptedModel
from tests.support.scripted.replies import Completion

pytestmark = pytest.mark.one_database

CASES = json.loads(Path(__file__).with_name("cases.json").read_text())
REPLIES: list[Json] = CASES["replies"]
MESSAGES: list[Json] = CASES["messages"]
ASKED = {"role": "user", "content": "Please."}


@dataclass
class Seen:
    """What a caller saw of a turn."""

    text: str = ""
    failed: bool = False
    deltas: list[str] = field(default_factory=list)


@pytest.fixture
def model() -> Iterator[ScriptedModel]:
    """A server that says a case's reply first, and then that it is done."""
    with ScriptedModel(default=lambda request: Completion(pieces=["Done."]), strict=False) as scripted:
        yield scripted


@pytest.fixture
async def server(ready_url: str, model: ScriptedModel) -> AsyncIterator[RunningServer]:
    settings: Any = {"openai_api_key": "test", "openai_base_url": model.url, "model_retries": 0}
    given = server_settings(database_url=ready_url, offline=False, agents=["tests.dialects.team"], **settings)
    async with start_server(given) as running:
        yield running


def script_reply(model: ScriptedModel, case: Json) -> bool:
    """Let the model begin with the case's reply; gives whether that is a stream."""
    streamed = isinstance(case["reply"], str)
    model.raw(case["reply"], content_type="text/event-stream" if streamed else "application/json")
    return streamed


async def ask_natively(server: RunningServer, client: AsyncOpenAI, stream: bool) -> Seen:
    session = await server.session(id="s", agent="Clerk")
    if not stream:
        run = await server.run(session, "Please.")
        return Seen(run["output_text"] or "", run["status"] == "failed")
    frames = await server.read_stream(f"{session}/runs", {"input": "Please.", "stream": True}, method="POST")
    run = frames[-1].data
    deltas = [frame.data["content"] for frame in frames if frame.event == "message.delta" and frame.data.get("content")]
    if run["status"] == "failed":
        assert run["error"]["retryable"] is True
    return Seen(run["output_text"] or "", run["status"] == "failed", deltas)


async def ask_by_completions(server: RunningServer, client: AsyncOpenAI, stream: bool) -> Seen:
    asked: Any = {"model": "Clerk", "messages": [ASKED], "extra_headers": {"X-Session-Id": "s"}}
    seen = Seen()
    try:
        if not stream:
            choice = (await client.chat.completions.create(**asked)).choices[0]
            return Seen(choice.message.content or "")
        async for chunk in await client.chat.completions.create(**asked, stream=True):
            seen.deltas += [choice.delta.content for choice in chunk.choices if choice.delta.content]
    except APIError:
        seen.failed = True
    seen.text = "".join(seen.deltas)
    return seen


async def ask_by_responses(server: RunningServer, client: AsyncOpenAI, stream: bool) -> Seen:
    await server.session(id="s", agent="Clerk")
    asked: Any = {"model": "Clerk", "input": "Please.", "conversation": "s"}
    if not stream:
        response = await client.responses.create(**asked)
        return Seen(response.output_text, response.status == "failed")
    seen, last = Seen(), None
    async for event in await client.responses.create(**asked, stream=True):
        last = event
        if event.type == "response.output_text.delta":
            seen.deltas.append(event.delta)
    ended: Any = last
    seen.text, seen.failed = ended.response.output_text, ended.response.status == "failed"
    return seen


Door = Callable[[RunningServer, AsyncOpenAI, bool], Awaitable[Seen]]
DOORS: dict[str, Door] = {"v1": ask_natively, "completions": ask_by_completions, "responses": ask_by_responses}


def check_seen(case: Json, seen: Seen) -> None:
    right = case["right"]
    assert seen.failed == right.get("failed", False)
    texts = [right.get("text", ""), *([] if seen.failed or right.get("text") else ["Done."])]
    assert seen.text in ("".join(texts), texts[-1])
    assert not any("\ud800" <= character <= "\udfff" for delta in seen.deltas for character in delta)
    if seen.deltas:
        assert "".join(seen.deltas) == "".join(texts)


def check_requests(case: Json, model: ScriptedModel, effects: Path) -> None:
    """What ran, and what the model was then told."""
    right = case["right"]
    assert [json.loads(line) for line in read_effects(effects).elements()] == right["ran"]
    results = [message for request in model.requests[1:2] for message in request["messages"]]
    results = [message["content"] for message in results if message["role"] == "tool"]
    assert len(results) == len(right["ran"]) + right.get("cut", 0)
    assert sum("was not run" in str(text) for text in results) == right.get("cut", 0)
    for path, value in right.get("sent_back", {}).items():
        found: Any = model.requests[1]
        for step in path.replace("[", ".").replace("]", "").split("."):
            found = found[int(step) if step.lstrip("-").isdigit() else step]
        assert found == value


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("case", REPLIES, ids=lambda case: case["name"])
async def test_a_reply_is_read_right_by_servers(
    server: RunningServer, model: ScriptedModel, effects: Path, case: Json, door: str
) -> None:
    stream = script_reply(model, case)
    async with open_client(server) as client:
        check_seen(case, await DOORS[door](server, client, stream))
        check_requests(case, model, effects)
        kept = (await server.get("/v1/sessions/s/messages")).json()["data"]
        texts = [message["content"] or "" for message in kept if message["role"] == "assistant"]
        assert right_texts(case) == [text for text in texts if text]
        # The session is of use to the next message.
        assert (await server.run("/v1/sessions/s", "And now?"))["output_text"] == "Done."


def right_texts(case: Json) -> list[str]:
    """The texts of the assistant that must be kept."""
    right = case["right"]
    said = [right["text"]] if right.get("text") else []
    return said if right.get("failed") or said else ["Done."]


@pytest.mark.parametrize("kind", [SyncRunner, AsyncRunner])
@pytest.mark.parametrize("case", REPLIES, ids=lambda case: case["name"])
def test_a_reply_is_read_right_by_swarm(model: ScriptedModel, effects: Path, case: Json, kind: Any) -> None:
    stream = script_reply(model, case)
    swarm, seen = kind(model.url), Seen()
    try:
        if stream:
            frames = swarm.stream(clerk, "Please.")
            seen.deltas = [frame["content"] for frame in frames if frame.get("content")]
            seen.text = "".join(seen.deltas)
        else:
            seen.text = swarm.run(clerk, "Please.").messages[-1]["content"]
    except MalformedReply:
        seen.failed = True
        seen.text = case["right"]["text"]
    check_seen(case, seen)
    check_requests(case, model, effects)


@pytest.mark.parametrize("case", MESSAGES, ids=lambda case: str(case["message"]["content"][0].get("type")))
async def test_message_is_taken_or_refused_with_place(server: RunningServer, model: ScriptedModel, case: Json) -> None:
    answer = await server.post("/v1/sessions", {"id": "s", "messages": [case["message"]]})
    if case["right"].get("refused"):
        assert answer.status_code == 400
        assert answer.json()["errors"][0]["pointer"].startswith("/messages/0/content/0")
        return
    assert (await server.run("/v1/sessions/s", "And now?"))["output_text"] == "Done."
    assert model.requests[0]["messages"][1] == case["right"]["sent"]
    assert find_faults(model.requests[0]["messages"]) == []
