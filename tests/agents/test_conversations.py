"""Each team is talked through to its ends: on a real server, with the offline model, and a person who approves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from swarmkeep.runs.agents import load_registry
from swarmkeep_agents import TEAMS, conversations
from swarmkeep_client import Client, Run, Session
from tests.support.processes import ServerProcess

pytestmark = pytest.mark.long


def say(session: Session, text: str) -> Run:
    """The run that a message leads to; whatever it waits for is approved."""
    run = session.run(text, max_turns=8)
    while run.status == "waiting":
        assert {call.reason for call in run.pending} == {"approval"}
        decisions = [call.tool_call_id for call in run.pending]
        run = session.resume(run.id, approvals=[{"tool_call_id": call, "decision": "approve"} for call in decisions])
    return run


@pytest.mark.parametrize("name", TEAMS)
def test_team_conversation_reaches_its_ends(name: str, tmp_path: Path) -> None:
    module = TEAMS[name]
    used: list[dict[str, Any]] = []
    server = ServerProcess(tmp_path, agents=[module], env={"SWARMKEEP_TEAM_DATA": str(tmp_path)})
    with server, Client(server.url) as client:
        for talk in conversations(name):
            session = client.sessions.create(context_variables={"user_name": "Ada"})
            for text in talk:
                run = say(session, text)
                assert (run.status, run.stop_reason) == ("completed", "end_turn")
                assert run.output_text
            assert session.refresh().status == "idle"
            used += [event.data["tool"] for event in session.events(type="message.added") if "tool" in event.data]
    assert [tool for tool in used if tool["status"] != "ok"] == []
    offered = {tool for agent in load_registry([module]) for tool in agent.tools() if not tool.startswith("transfer")}
    if name == "librarian":
        # Its tools are a server's.
        offered = {"read_note", "write_note", "throw_away"}
    if name != "basic":
        # Its conversations are with its first agent, which has no functions.
        assert offered - {tool["name"] for tool in used} == set()
