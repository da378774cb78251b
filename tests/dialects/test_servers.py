"""The same conversation in every dialect, through every door of a server: calls, a handoff, a crash, a fork."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.api.server import server_settings, start_server
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
from tests.dialects.doors import DOORS, Open, make_crash
from tests.support.dialects import DIALECTS, DialectModel
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
async def test_a_conversation_is_the_same_in_every_dialect(
    open_server: Open, door: str, stream: bool, script: Script, effects: Path, fake: DialectModel
) -> None:
    first = await open_server()
    held = await DOORS[door](first, make_crash(script, first, open_server), stream)
    assert fake.refused == []

    async def read(session: str) -> list[object]:
        found = (await first.get(f"/v1/sessions/{session}/messages", params={"limit": 200})).json()["data"]
        return [*read_messages(found)]

    told = [*tell(WEATHER, REFUND, CRASH), *(() if held.rest else tell(THANKS))]
    assert await read(held.session) == told
    assert await read(held.fork) == tell(WEATHER, REFUND, FORK)
    if held.rest:
        assert (await read(held.rest))[-2:] == tell(THANKS)
    assert read_effects(effects) == count_effects(WEATHER, REFUND, CRASH, FORK, THANKS)
    for session in {held.session, held.fork}:
        found = (await first.get(f"/v1/sessions/{session}/verify")).json()
        assert (found["valid"], found["problems"]) == (True, [])
