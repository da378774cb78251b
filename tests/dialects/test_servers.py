"""The same conversation in every dialect, through every door of a server: calls, a handoff, a crash, a fork."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, cast

import pytest

from tests.dialects.conversation import (
    CRASH,
    FORK,
    READY,
    REFUND,
    THANKS,
    WEATHER,
    Script,
    count_effects,
    read_effects,
    read_messages,
    tell,
)
from tests.dialects.doors import DOORS, Conversation, Open, make_crash
from tests.http.server import RunningServer, scripted, server_settings, start_server
from tests.runs.cluster import kill_engine
from tests.support.dialects import DIALECTS, DialectModel, refuse
from tests.support.processes import ServerProcess
from tests.support.scripted import ScriptedModel

pytestmark = pytest.mark.one_database

WAYS = [(door, stream) for door in DOORS for stream in (True, False)]


def list_cases() -> list[tuple[str, str, bool]]:
    """Every dialect by every way; the first few, which are the short run, take each way in turn."""
    names = READY
    return [
        (name, *WAYS[(number + shift) % len(WAYS)]) for shift in range(len(WAYS)) for number, name in enumerate(names)
    ]


@pytest.fixture
async def open_server(request: pytest.FixtureRequest, ready_url: str, model: ScriptedModel) -> AsyncIterator[Open]:
    """Servers on one database, whose agents have the model of a dialect."""
    given = server_settings(
        database_url=ready_url,
        offline=False,
        agents=["tests.dialects.team"],
        model=DIALECTS[request.param].model,
        openai_api_key="test",
        openai_base_url=model.url,
        model_retries=0,
    )
    async with AsyncExitStack() as stack:
        yield lambda: stack.enter_async_context(start_server(given))


@pytest.mark.parametrize(("open_server", "door", "stream"), list_cases(), indirect=["open_server"])
async def test_conversation_same_in_every_dialect(
    open_server: Open,
    door: str,
    stream: bool,
    script: Script,
    effects: Path,
    fake: DialectModel,
    model: ScriptedModel,
) -> None:
    first = await open_server()
    crash = make_crash(script, lambda: kill_engine(first.engine), open_server)
    held = await DOORS[door](first, crash, stream)
    assert fake.refused == []
    await check_held(first, held, effects)
    for session in {held.session, held.fork, held.rest or held.session}:
        await check_rebuilt(first, session, model)


@pytest.mark.parametrize(("name", "door", "stream"), [("gemini", "v1", True), ("kimi", "responses", False)])
async def test_a_killed_process_loses_nothing_of_it(
    ready_url: str,
    tmp_path: Path,
    name: str,
    door: str,
    stream: bool,
    model: ScriptedModel,
    script: Script,
    effects: Path,
) -> None:
    settings = {"MODEL": DIALECTS[name].model, "MODEL_RETRIES": "0", "LEASE_SECONDS": "1"}
    env = {f"SWARMKEEP_{key}": value for key, value in settings.items()}
    env |= {"OPENAI_BASE_URL": model.url, "OPENAI_API_KEY": "test", "DIALECT_EFFECTS": str(effects)}
    agents = [str(Path(__file__).with_name("team.py"))]
    with ServerProcess(tmp_path, database_url=ready_url, agents=agents, offline=False, env=env) as process:
        server = RunningServer(cast(Any, None), process.url)

        async def kill() -> None:
            await asyncio.to_thread(process.kill)

        async def start() -> RunningServer:
            await asyncio.to_thread(process.start)
            return server

        async with server.client:
            held = await DOORS[door](server, make_crash(script, kill, start), stream)
            await check_held(server, held, effects)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("open_server", READY, indirect=True)
async def test_a_conversation_may_change_its_model(
    open_server: Open, stream: bool, effects: Path, fake: DialectModel, script: Script, request: pytest.FixtureRequest
) -> None:
    """Each message goes to the next server, and the last one to the first, which must know its own again."""
    script.crashing.set()
    server = await open_server()
    session = await server.session(id="main", agent="Triage")
    first = READY.index(request.node.callspec.params["open_server"])
    names = [READY[(first + number) % len(READY)] for number in range(3)]
    texts = [WEATHER, REFUND, CRASH, FORK, THANKS]
    for name, text in zip([*names, names[0], names[1]], texts, strict=True):
        body = {"input": text, "model": DIALECTS[name].model}
        if stream:
            run = (await server.read_stream(f"{session}/runs", {**body, "stream": True}, method="POST"))[-1].data
        else:
            run = (await server.post(f"{session}/runs", body)).json()
        assert (run["status"], run["error"], fake.refused) == ("completed", None, [])
    found = (await server.get(f"{session}/messages", params={"limit": 200})).json()["data"]
    assert read_messages(found) == tell(*texts)
    assert read_effects(effects) == count_effects(*texts)


@pytest.mark.parametrize("name", DIALECTS)
async def test_refusal_is_told_in_its_servers_words(sqlite_ready: str, name: str) -> None:
    """Each server has a form of its own for errors; `temperature` is a parameter that some do not take."""
    dialect, text = DIALECTS[name], "Unsupported value: 'temperature' does not support 0.5 with this model."
    with ScriptedModel(default=lambda request: refuse(dialect, text, "temperature"), strict=False) as model:
        given = scripted(sqlite_ready, model, agents=["tests.dialects.team"])
        async with start_server(given) as server:
            run = await server.run(await server.session(agent="Triage"), "Hi.")
    assert run["status"] == "failed"
    assert (run["error"]["code"], run["error"]["provider_status"]) == ("provider_bad_request", 400)
    assert text in run["error"]["message"]


async def check_held(server: RunningServer, held: Conversation, effects: Path) -> None:
    """All that was said is in the logs, and every function ran once."""

    async def read(session: str) -> list[object]:
        found = (await server.get(f"/v1/sessions/{session}/messages", params={"limit": 200})).json()["data"]
        return [*read_messages(found)]

    told = [*tell(WEATHER, REFUND, CRASH), *(() if held.rest else tell(THANKS))]
    assert await read(held.session) == told
    assert await read(held.fork) == tell(WEATHER, REFUND, FORK)
    if held.rest:
        assert (await read(held.rest))[-2:] == tell(THANKS)
    assert read_effects(effects) == count_effects(WEATHER, REFUND, CRASH, FORK, THANKS)
    for session in {held.session, held.fork}:
        found = (await server.get(f"/v1/sessions/{session}/verify")).json()
        assert (found["valid"], found["problems"]) == (True, [])


async def check_rebuilt(server: RunningServer, session: str, model: ScriptedModel) -> None:
    """Each request is rebuilt to the byte, with what its model had attached."""
    events = (await server.get(f"/v1/sessions/{session}/events", params={"limit": 200})).json()["data"]
    answers = [event["seq"] for event in events if event["data"].get("completion")]
    rebuilt = [(await server.get(f"/v1/sessions/{session}/events/{seq}/request")).content for seq in answers]
    assert rebuilt
    assert set(rebuilt) <= set(model.raw_requests)
