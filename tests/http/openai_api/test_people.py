"""People whose sessions are begun by OpenAI's APIs: encrypted as those of `/v1` are, and erased with them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.history.test_redact import dump_database
from tests.http.openai_api.test_automations import DAILY, Clock, open_scheduler
from tests.http.server import RunningServer, scripted, start_server
from tests.support.scripted import ScriptedModel

pytestmark = pytest.mark.one_database

CANARY = "canary-7f3a9c"
METADATA = {"customer": "anna"}


@pytest.fixture
async def sealed(ready_url: str, model: ScriptedModel, tmp_path: Path) -> AsyncIterator[RunningServer]:
    given = scripted(ready_url, model, person="customer", person_keys=str(tmp_path / "keys"))
    async with start_server(given) as running:
        yield running


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("responses", {"input": CANARY}),
        ("chat/completions", {"messages": [{"role": "user", "content": CANARY}], "store": True}),
        ("agents/sessions", {"agent_id": "Front", "environment": {"type": "none"}, "input": CANARY}),
    ],
)
async def test_what_a_person_says_is_encrypted_and_erased(
    sealed: RunningServer, model: ScriptedModel, path: str, body: Any
) -> None:
    model.say(CANARY)
    named = {} if path.startswith("agents") else {"model": "Front"}
    answer = await sealed.post(f"/openai/v1/{path}", {**named, **body, "metadata": {**METADATA, "note": CANARY}})
    assert answer.status_code == 200, answer.text
    await model.wait_for_requests_async(1)
    [session] = (await sealed.get("/v1/sessions")).json()["data"]
    assert session["metadata"]["customer"] == "anna"
    assert CANARY not in await dump_database(sealed.engine.store)
    while (await sealed.get(f"/v1/sessions/{session['id']}")).json()["status"] != "idle":
        pass
    erased = await sealed.post("/v1/people/erase", {"person": "anna", "reason": "asked for"})
    assert erased.json() == {"sessions": [session["id"]], "erased": True}
    assert CANARY not in (await sealed.get("/v1/events?limit=200")).text


async def test_automation_of_an_erased_person_is_paused(sealed: RunningServer) -> None:
    path = await sealed.session(id="s", metadata=METADATA)
    target = {"type": "existing_session", "session_id": "s", "instructions": "Look again."}
    made = (await sealed.post("/openai/v1/agents/automations", {**DAILY, "target": target})).json()
    assert (await sealed.post("/v1/people/erase", {"person": "anna", "reason": "asked for"})).status_code == 200
    clock = Clock()
    scheduler = await open_scheduler(sealed, clock)
    clock.now += timedelta(days=2)
    await scheduler.look()
    paused = (await sealed.get(f"/openai/v1/agents/automations/{made['id']}")).json()
    assert (paused["status"], paused["pause_reason"]) == ("paused", "target_session_failed")
    assert (await sealed.get(f"{path}/messages")).json()["data"] == []
