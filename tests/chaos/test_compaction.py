"""A server is killed while a summary is asked for; another one asks again, and the run goes on."""

from __future__ import annotations

import pytest

from swarmkeep.events.codec import Json
from swarmkeep.events.messages import SHORTENED_HEADING as HEADING
from tests.chaos.cluster import ServerCluster, Succession, ignore_lost_connection, wait_until_quiet
from tests.chaos.parallel import run_in_parallel
from tests.chaos.plans import PATIENCE_SECONDS
from tests.support.scripted import ScriptedModel

TEAM = """
from swarmkeep import Agent, Compaction

agent = Agent(name="A", compaction=Compaction(of_tokens=1000, keep_turns=2))
"""


def answer(request: Json) -> str:
    return "They spoke." if str(request["messages"][0]["content"]).startswith("You sum up") else "Done."


@pytest.mark.chaos
@run_in_parallel
@pytest.mark.parametrize("point", ["compaction.started", "model.sent", "compaction.summarised"])
def test_kill_during_compaction_loses_nothing(cluster: ServerCluster, point: str) -> None:
    team = cluster.folder / "compacting.py"
    team.write_text(TEAM)
    with ScriptedModel(default=answer) as model:
        messages = [
            message
            for number in range(8)
            for message in (
                {"role": "user", "content": f"{number} " + "y" * 600},
                {"role": "assistant", "content": "I see."},
            )
        ]
        servers = Succession(cluster, point, agents=team, model=model)
        session = cluster.client(servers.armed).sessions.create(id="s", messages=messages)
        with ignore_lost_connection():
            session.run("And now?", background=True)
        session = wait_until_quiet(cluster.client(servers.outlive(PATIENCE_SECONDS)).sessions.get("s"))
        (run,) = session.runs()
        types = [event.type for event in session.events()]
        assert (run.status, run.output_text) == ("completed", "Done.")
        assert types.count("compaction.started") == 1
        assert model.requests[-1]["messages"][1]["content"] == f"{HEADING}\n\nThey spoke."
        assert session.verify().valid
        assert len(session.messages()) == 18
