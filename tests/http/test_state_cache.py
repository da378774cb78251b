"""How much is read of a session that was read before: as much as the memory for states allows."""

from __future__ import annotations

import pytest

from swarmkeep.store.reading import decode_event
from tests.http.server import scripted, start_server
from tests.support.calls import count_calls
from tests.support.scripted import ScriptedModel


@pytest.mark.parametrize("is_kept", [True, False])
async def test_states_kept_within_memory_limit(sqlite_ready: str, model: ScriptedModel, is_kept: bool) -> None:
    bounds = {} if is_kept else {"state_cache_bytes": 1}
    async with start_server(scripted(sqlite_ready, model, **bounds)) as server:
        session = await server.session()
        for number in range(3):
            model.say(f"answer {number}")
            (await server.post(f"{session}/runs", {"input": "hello"})).raise_for_status()
        with count_calls() as counted:
            shown = await server.get(session)
        assert shown.json()["message_count"] == 6
        # One, to see that it is still where it was; or its creation, and four of each run.
        assert counted[decode_event.__code__] == (1 if is_kept else 1 + 3 * 4)
