"""A server is killed between an MCP server's effect and its result: the call is made again only if a server that is
trusted said that it may be."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.chaos.cluster import ServerCluster, Succession, ignore_lost_connection, wait_until_quiet
from tests.chaos.parallel import run_in_parallel
from tests.chaos.plans import PATIENCE_SECONDS
from tests.support.scripted import ScriptedModel

PROGRAM = Path(__file__).parents[1] / "support" / "mcp" / "server.py"
TEAM = """
from swarmkeep import Agent, MCPServer

command = [{python!r}, {program!r}]
env = {{"MCP_TEST_FOLDER": {folder!r}}}
server = MCPServer(command=command, env=env, name="post", trust_hints={trusted}, connect_timeout=120)
agent = Agent(name="A", mcp_servers=[server])
"""


@pytest.mark.chaos
@run_in_parallel
@pytest.mark.parametrize("trusted", [False, True])
def test_untrusted_server_call_not_repeated(cluster: ServerCluster, trusted: bool) -> None:
    team = cluster.folder / "posting.py"
    (cluster.folder / "answer").touch()
    team.write_text(
        TEAM.format(python=sys.executable, program=str(PROGRAM), folder=str(cluster.folder), trusted=trusted)
    )
    with ScriptedModel() as model:
        model.call("send", {"text": "hi"})
        model.say("Sent.")
        servers = Succession(cluster, "tool.done", agents=team, model=model)
        session = cluster.client(servers.armed).sessions.create(id="s")
        with ignore_lost_connection():
            session.run("Send it.", background=True)
        session = wait_until_quiet(cluster.client(servers.outlive(PATIENCE_SECONDS)).sessions.get("s"))
        events = list(session.events())
    statuses = [event.data["tool"]["status"] for event in events if event.data.get("tool")]
    sent = (cluster.folder / "sent").read_text().split()
    assert (statuses, sent) == ((["ok"], ["hi", "hi"]) if trusted else (["unknown_outcome"], ["hi"]))
    assert [event.type for event in events].count("tools.listed") == 1
