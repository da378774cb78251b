"""People whose sessions are begun by OpenAI's APIs: encrypted as those of `/v1` are, and erased with them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.history.test_redact import dump_database
from tests.http.openai_api.test_automations import DAILY, NEW, URL, Clock, open_scheduler
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


async def test_automations_are_erased_with_the_person(sealed: RunningServer, model: ScriptedModel) -> None:
    """What they would tell the person, and what they have told, also before they were changed."""
    path = await sealed.session(id="s", metadata=METADATA)
    await sealed.session(id="other", metadata={"customer": "bob"})

    async def make(target: Any) -> str:
        made = await sealed.post(URL, {**DAILY, "target": target})
        assert made.status_code == 200, made.text
        return str(made.json()["id"])

    def tell(session_id: str, text: str) -> Any:
        return {"type": "existing_session", "session_id": session_id, "instructions": text}

    def begin(customer: str, text: str) -> Any:
        return {**NEW, "input": text, "metadata": {"customer": customer}}

    gone = [await make(tell("s", CANARY)), await make(begin("anna", CANARY))]
    kept = [await make(tell("other", "Bob.")), await make(begin("bob", "Bob.")), await make(NEW)]
    changed = await make(tell("s", CANARY))
    await (scheduler := await open_scheduler(sealed, Clock())).stop()
    assert (await sealed.post(f"{URL}/{changed}/invocations", {})).status_code == 200
    model.say("Well.")
    await scheduler.look()
    assert (await sealed.post(f"{URL}/{changed}", {"target": tell("other", "Bob.")})).status_code == 200
    while (await sealed.get(path)).json()["status"] != "idle":
        pass
    erased = await sealed.post("/v1/people/erase", {"person": "anna", "reason": "asked for"})
    assert erased.status_code == 200, erased.text
    assert CANARY not in await dump_database(sealed.engine.store)
    assert [(await sealed.get(f"{URL}/{one}")).status_code for one in gone] == [404, 404]
    assert {one["id"] for one in (await sealed.get(URL)).json()["data"]} == {*kept, changed}
    assert (await sealed.get(f"{URL}/{changed}/invocations")).json()["data"] == []
    late = await sealed.post(URL, {**DAILY, "target": tell("s", "Anna.")})
    assert late.status_code == 409, late.text
    assert "person_erased" in late.text
