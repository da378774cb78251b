"""What takes its time takes nobody else's: tools that block, and models that are slow."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.http.server import RunningServer
from tests.support.processes import ServerProcess
from tests.support.scripted import ScriptedModel

SLOW_TEAM = '''
import time
from pathlib import Path

from swarmkeep import Agent


def wait_for_file(path: str) -> str:
    """Block the thread until there is such a file, for two minutes at most."""
    for _ in range(1200):
        if Path(path).exists():
            return "it is there"
        time.sleep(0.1)
    return "it never came"


def read_up(context_variables: dict) -> str:
    """Instructions that have to be fetched from somewhere."""
    return wait_for_file(context_variables["path"]) if "path" in context_variables else "You wait."


waiter = Agent(name="Waiter", instructions=read_up, functions=[wait_for_file])
'''


@pytest.mark.long
async def test_blocking_tools_hold_up_no_others(tmp_path: Path) -> None:
    team, signal = tmp_path / "slow_team.py", tmp_path / "signal"
    team.write_text(SLOW_TEAM)
    with ScriptedModel(default=lambda request: "Hello.") as model:
        env = {"OPENAI_BASE_URL": model.url, "OPENAI_API_KEY": "test"}
        server = ServerProcess(tmp_path, agents=[str(team)], offline=False, env=env)
        with server:
            service = RunningServer(None, server.url)  # type: ignore[arg-type]
            slow = []
            for number in range(20):
                reader = await service.session(context_variables={"path": str(signal)})
                slow.append((reader, await service.run(reader, background=True)))
                model.call("wait_for_file", {"path": str(signal)}, id=f"c{number}")
                session = await service.session()
                slow.append((session, await service.run(session, background=True)))
            await model.wait_for_requests_async(20)
            for _ in range(20):
                assert (await service.get("/health/live")).status_code == 200
                assert (await service.run(await service.session()))["output_text"] == "Hello."
            assert (await service.get("/health/ready")).status_code == 200
            for session, run in slow:
                assert (await service.get(f"{session}/runs/{run['id']}")).json()["status"] == "running"
            signal.touch()
            for session, run in slow:
                frames = await service.read_stream(f"{session}/runs/{run['id']}/stream")
                assert frames[-1].data["output_text"] == "Hello."
            await service.client.aclose()


# It is PostgreSQL whose connections could run out.
@pytest.mark.long
@pytest.mark.parametrize("ready_url", ["postgres"], indirect=True)
async def test_two_hundred_waiting_runs_block_none(service: RunningServer, model: ScriptedModel) -> None:
    count = 200
    for _ in range(count):
        model.hang(then="At last.")
    slow = []
    for _ in range(count):
        session = await service.session()
        slow.append((session, await service.run(session, background=True)))
    await model.wait_for_requests_async(count, within=60)
    model.say("At once.")
    assert (await service.run(await service.session()))["output_text"] == "At once."
    for path in ("live", "ready"):
        assert (await service.get(f"/health/{path}")).status_code == 200
    assert len((await service.get("/v1/sessions?status=running&limit=200")).json()["data"]) == count
    model.release()

    async def outcome(session: str, run: str) -> str:
        frames = await service.read_stream(f"{session}/runs/{run}/stream")
        return str(frames[-1].data["output_text"])

    assert await asyncio.gather(*(outcome(session, run["id"]) for session, run in slow)) == ["At last."] * count
