"""What a response costs in kind that a session is made for: how often something is committed for it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from openai import AsyncOpenAI

from tests.http.openai_api.test_chat import user
from tests.http.server import RunningServer, scripted, start_server
from tests.runs.test_turn_costs import CountingDatabase
from tests.support.scripted import ScriptedModel


@pytest.fixture
async def service(ready_url: str, model: ScriptedModel) -> AsyncIterator[RunningServer]:
    """A server that writes for nothing but what it is asked."""
    async with start_server(scripted(ready_url, model, search="off")) as running:
        yield running


async def test_own_session_response_is_two_commits(
    openai: AsyncOpenAI, service: RunningServer, model: ScriptedModel
) -> None:
    store: Any = service.engine.store
    store.database = counting = CountingDatabase(store.database)

    async def ask_and_count(ask: Any, **given: Any) -> Any:
        model.say("Hello.")
        before = len(counting.calls)
        answer = await ask(model="Front", **given)
        # Where it begins, and where it ends.
        assert counting.calls[before:].count("write") == 2
        return answer

    first = await ask_and_count(openai.responses.create, input="Hi.")
    await ask_and_count(openai.responses.create, input="Hi.", extra_headers={"Idempotency-Key": "k"})
    await ask_and_count(openai.responses.create, input="And?", previous_response_id=first.id)
    # There it was gone on from already: this one is in a fork.
    await ask_and_count(openai.responses.create, input="Or?", previous_response_id=first.id)
    said: Any = [user("1"), {"role": "assistant", "content": "one"}, user("2")]
    await ask_and_count(openai.chat.completions.create, messages=said)
    await ask_and_count(openai.chat.completions.create, messages=said, extra_headers={"X-Session-Id": "mine"})
    assert len((await service.get("/v1/sessions")).json()["data"]) == 5
