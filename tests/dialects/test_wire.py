"""What a plain OpenAI server is sent does not change from release to release, to the byte.

`requests.json.gz` was recorded before other servers had rules of their own. Where a change is meant, record it again:
`RECORD_REQUESTS=1 python -m pytest tests/dialects/test_wire.py -k sqlite`.
"""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from swarmkeep.events.codec import Json
from tests.dialects.conversation import WEATHER, Script
from tests.dialects.doors import DOORS, go_on
from tests.dialects.test_swarm import hold_conversation
from tests.http.server import RunningServer, server_settings, start_server
from tests.runs.swarm.runners import SyncRunner
from tests.support.dialects import DIALECTS, Answer, DialectModel
from tests.support.rules import find_body_faults
from tests.support.scripted import ScriptedModel

pytestmark = pytest.mark.one_database

RECORDED = Path(__file__).with_name("requests.json.gz")
MODEL = DIALECTS["openai"].model
PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo=", "detail": "low"}}
FUNCTION = {
    "type": "function",
    "function": {"name": "open_door", "description": "Ö.", "parameters": {"type": "object", "properties": {}}},
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "form", "schema": {"type": "object"}, "strict": True}}
HISTORY: Sequence[Json] = (
    {"role": "developer", "content": "Be brief.", "name": "boss"},
    {"role": "user", "content": "lone \ud83d, NUL \x00, é, 😀, \u2028", "name": "ann"},
    {"role": "assistant", "content": None, "refusal": "I may not."},
    {"role": "user", "content": [{"type": "text", "text": "Look:"}, PICTURE]},
    {
        "role": "assistant",
        "content": "Both.",
        "tool_calls": [
            {"id": "a", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Rome"}'}},
            {"id": "b", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": 1'}},
        ],
    },
    {"role": "tool", "tool_call_id": "b", "content": "no"},
    {"role": "tool", "tool_call_id": "a", "content": [{"type": "text", "text": "sunny"}]},
    {"role": "assistant", "content": [{"type": "text", "text": "Sunny."}, {"type": "text", "text": " And dry."}]},
)
# Fields of runs on /v1: of each agent and of callers.
RUNS: Sequence[Json] = (
    {"agent": "Picky", "input": "1", "context_variables": {"name": "Ann"}},
    {"input": [{"role": "user", "content": [{"type": "text", "text": "2"}, PICTURE]}], "stream": True},
    {"input": "3", "model_settings": {"temperature": None, "top_p": 0.5, "max_completion_tokens": 50}},
    {"input": "4", "tools": [FUNCTION], "tool_choice": {"type": "function", "function": {"name": "open_door"}}},
    {"input": "5", "response_format": FORMAT, "instructions": "Be short."},
    {"agent": "Formal", "input": "6", "stream": True},
    {"agent": "Triage", "input": [{"role": "system", "content": "7"}, {"role": "user", "content": "seven"}]},
)
# Fields of chat completions.
ASKED: Sequence[Json] = (
    {"model": "Picky", "max_tokens": 10, "temperature": 1, "tools": [FUNCTION], "parallel_tool_calls": True},
    {"model": "Formal", "max_completion_tokens": 10, "reasoning_effort": "low", "stream": True},
)


@pytest.fixture
def script(request: pytest.FixtureRequest) -> Any:
    """The conversation; or, for what asks for other things, one answer to all."""
    return Script() if "way" in request.fixturenames else lambda messages: Answer('{"city": "Rome", "degrees": 5}')


@pytest.fixture
async def server(ready_url: str, model: ScriptedModel) -> AsyncIterator[RunningServer]:
    settings: Any = {"openai_api_key": "test", "openai_base_url": model.url, "model_retries": 0, "model": MODEL}
    given = server_settings(database_url=ready_url, offline=False, agents=["tests.dialects.team"], **settings)
    async with start_server(given) as running:
        yield running


def check_requests(name: str, bodies: list[bytes]) -> None:
    """Compare with what was recorded under the name; or record it, if that is wanted."""
    recorded = json.loads(gzip.decompress(RECORDED.read_bytes())) if RECORDED.exists() else {}
    texts = [body.decode() for body in bodies]
    if os.environ.get("RECORD_REQUESTS"):
        recorded[name] = texts
        RECORDED.write_bytes(gzip.compress(json.dumps(recorded, indent=1, sort_keys=True).encode(), mtime=0))
    assert texts == recorded[name]
    assert [faults for body in bodies if (faults := find_body_faults(body))] == []


@pytest.mark.parametrize("way", DOORS)
@pytest.mark.parametrize("stream", [True, False])
async def test_conversation_sends_openai_same_bytes(
    server: RunningServer, way: str, stream: bool, script: Script, model: ScriptedModel, effects: Path
) -> None:
    script.crashing.set()
    await DOORS[way](server, go_on(server), stream)
    check_requests(f"{way}, {'streamed' if stream else 'whole'}", model.raw_requests)


@pytest.mark.parametrize("way", ["Swarm"])
@pytest.mark.parametrize("stream", [True, False])
def test_swarm_sends_openai_the_same_bytes(
    way: str, stream: bool, script: Script, model: ScriptedModel, effects: Path
) -> None:
    script.crashing.set()
    hold_conversation(SyncRunner(model.url), MODEL, stream)
    check_requests(f"{way}, {'streamed' if stream else 'whole'}", model.raw_requests)


async def test_options_send_openai_same_bytes(server: RunningServer, model: ScriptedModel, fake: DialectModel) -> None:
    # Written here, because not every client can send a lone surrogate.
    body = json.dumps({"id": "options", "messages": HISTORY})
    made = await server.client.post("/v1/sessions", content=body, headers={"content-type": "application/json"})
    assert made.status_code == 201, made.text
    session = "/v1/sessions/options"
    for body in RUNS:
        if body.get("stream"):
            await server.read_stream(f"{session}/runs", body, method="POST")
        else:
            run = await server.run(session, body["input"], **{key: body[key] for key in body if key != "input"})
            assert (run["status"], run["error"]) == ("completed", None)
    for number, body in enumerate(ASKED):
        messages = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": WEATHER}]
        sent = {"messages": messages, "metadata": {"session_id": f"asked-{number}"}, **body}
        answer = await server.post("/openai/v1/chat/completions", sent)
        assert answer.status_code == 200, answer.text
    assert fake.refused == []
    check_requests("options", model.raw_requests)
