"""The librarian's notes are kept by a program of their own, on the offline model."""

from __future__ import annotations

import pytest

from swarmkeep import AsyncSwarm
from swarmkeep.models.offline.server import make_offline_client
from swarmkeep_agents.librarian import librarian


@pytest.mark.long
async def test_librarian_writes_and_reads_notes() -> None:
    agent = librarian.model_copy(update={"mcp_servers": [_patient(server) for server in librarian.mcp_servers]})
    swarm = AsyncSwarm(make_offline_client())
    said = [{"role": "user", "content": 'Please read the note with the title "milk".'}]
    response = await swarm.run(agent, said)
    (result,) = [message["content"] for message in response.messages if message["role"] == "tool"]
    assert result == "There is no note 'milk'. Titles: none."


def _patient(server: object) -> object:
    # On a machine that has other things to do it takes a while to start.
    return server.model_copy(update={"connect_timeout": 120.0})  # type: ignore[attr-defined]
