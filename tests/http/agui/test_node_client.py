"""AG-UI's own client for JavaScript, under Node: it refuses streams that break the protocol."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from swarmkeep.events.codec import Json
from tests.http.server import RunningServer
from tests.support.npm import NODE, install_packages
from tests.support.scripted import ScriptedModel

pytestmark = [pytest.mark.one_database, pytest.mark.long]

RUN_SECONDS = 60


async def converse(folder: Path, url: str) -> dict[str, Json]:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(NODE, "conversation.mjs", url, cwd=folder, stdout=pipe, stderr=pipe)
    async with asyncio.timeout(RUN_SECONDS):
        output, complaints = await process.communicate()
    assert process.returncode == 0, complaints.decode()
    found = [json.loads(line) for line in output.splitlines()]
    return {part["name"]: part for part in found}


def list_roles(part: Json) -> list[str]:
    return [message["role"] for message in part["messages"]]


async def test_conversation(
    service: RunningServer, model: ScriptedModel, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = await asyncio.to_thread(install_packages, tmp_path_factory.getbasetemp())
    if folder is None:
        pytest.skip("npm cannot install packages here")
    model.calls([("get_weather", {"city": "Rome"}, "c1"), ("remember", {"key": "city", "value": "Rome"}, "c2")])
    model.say(["Sun", "ny."])
    model.call("refund", {"order": "1"}, id="c3", text="I will.")
    model.say("Paid.")
    model.call("open_door", {}, id="c4")
    model.say("Come in.")
    model.fail(400)
    said = await converse(folder, service.url)
    assert said["failed"]["warnings"] == []
    first = ["user", "assistant", "tool", "tool", "assistant"]
    assert list_roles(said["calls"]) == first
    assert said["calls"]["messages"][-1]["content"] == "Sunny."
    assert said["calls"]["state"] == {"name": "Ann", "city": "Rome"}
    assert said["interrupt"]["asked"] == [{"reason": "tool_call", "toolCallId": "c3"}]
    assert said["joined"]["same"]
    assert said["joined"]["messages"] == said["interrupt"]["messages"]
    assert said["joined"]["state"] == said["calls"]["state"]
    assert said["resumed"]["open"] == 0
    assert list_roles(said["resumed"]) == [*first, "user", "assistant", "tool", "assistant"]
    assert said["resumed"]["messages"][-2]["content"] == "refunded 1"
    assert [len(message.get("toolCalls", ())) for message in said["resumed"]["messages"]] == [0, 2, 0, 0, 0, 0, 1, 0, 0]
    assert list_roles(said["own function"])[9:] == ["user", "assistant", "tool", "assistant"]
    assert said["rejoined"]["messages"] == said["own function"]["messages"]
    assert said["rejoined"]["state"] == said["own function"]["state"]
    assert list_roles(said["failed"]) == ["user"]
