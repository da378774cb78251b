"""An agent that got another name: its sessions go on."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from swarmkeep import Agent, tool
from swarmkeep.decide.commands import Approval
from swarmkeep.events.errors import AgentNotFound, AgentUnavailable
from swarmkeep.events.views import RunView
from swarmkeep.runs.agents import AgentsError, Registry, load_registry
from tests.runs.cluster import KEY, EngineCluster
from tests.support.scripted import ScriptedModel

pytestmark = pytest.mark.one_database


@tool(requires_approval=True)
def refund(order: str) -> str:
    """Pay an order back."""
    return f"refunded {order}"


OLD = Agent(name="Refunds", instructions="old", functions=[refund])
NEW = Agent(name="Returns", instructions="new", functions=[refund])
ALIASES = {"Refunds": "Returns"}


async def hold_conversation(cluster: EngineCluster) -> RunView:
    """A run with the agent as it was called before."""
    engine = await cluster.begin(OLD)
    return await engine.run(run_id="r0")


async def test_renamed_agent_continues_its_sessions(cluster: EngineCluster, model: ScriptedModel) -> None:
    model.say("hello")
    await hold_conversation(cluster)
    renamed = await cluster.open_engine(NEW, aliases=ALIASES)
    model.say("hello again")
    view = await renamed.run()
    assert (view.status, view.agent) == ("completed", "Returns")
    events = await renamed.read_log()
    assert [event.agent for event in events][-1] == "Returns"
    assert sum(event.type == "session.updated" for event in events) == 1
    assert (await renamed.read_state()).agent == "Returns"


async def test_unaliased_unknown_agent_lists_known_ones(cluster: EngineCluster, model: ScriptedModel) -> None:
    model.say("hello")
    await hold_conversation(cluster)
    renamed = await cluster.open_engine(NEW)
    with pytest.raises(AgentUnavailable) as refused:
        await renamed.run()
    assert refused.value.known_agents == ["Returns"]
    # And the session can be read.
    assert (await renamed.read_state()).agent == "Refunds"


async def test_waiting_run_survives_a_renaming(cluster: EngineCluster, model: ScriptedModel) -> None:
    model.call("refund", {"order": "A-17"}, id="c1")
    view = await hold_conversation(cluster)
    assert view.status == "waiting"
    renamed = await cluster.open_engine(NEW, aliases=ALIASES)
    model.say("done")
    await renamed.runs.resume(KEY, view.id, approvals=[Approval(tool_call_id="c1", decision="approve")])
    assert (await renamed.wait(view.id)).status == "completed"


async def test_old_agent_name_is_accepted(cluster: EngineCluster, model: ScriptedModel) -> None:
    engine = await cluster.open_engine(Agent(name="Front"), NEW, aliases=ALIASES)
    session, _ = await engine.sessions.create("default", session_id=KEY.id, agent="Refunds")
    assert session.agent == "Returns"
    assert (await engine.sessions.update(KEY, agent="Front")).agent == "Front"
    assert (await engine.sessions.update(KEY, agent="Refunds")).agent == "Returns"


def test_a_registry_knows_both_names() -> None:
    registry = Registry([NEW], aliases=ALIASES)
    assert registry.get("Refunds") is registry.get_active("Refunds") is NEW
    assert ("Refunds" in registry, registry.names) == (True, ["Returns"])
    with pytest.raises(AgentNotFound):
        registry.get("refunds")


def load_aliased(folder: Path, aliases: str) -> Registry:
    (folder / "renamed_team.py").write_text(
        dedent(f"""
        from swarmkeep import Agent
        returns = Agent(name="Returns")
        ALIASES = {aliases}
        """)
    )
    return load_registry([str(folder / "renamed_team.py")])


@pytest.fixture(autouse=True)
def clean_imports(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "renamed_team", raising=False)


def test_aliases_stand_beside_the_agents(tmp_path: Path) -> None:
    assert load_aliased(tmp_path, "{'Refunds': 'Returns', 'Money back': 'Returns'}").get("Money back").name == "Returns"


@pytest.mark.parametrize(
    ("aliases", "said"),
    [
        ("{'Refunds': 'Nobody'}", "there is no agent of that name"),
        ("{'Returns': 'Returns'}", "is the name of an agent"),
        ("['Refunds']", "a dict of names"),
        ("{'Refunds': returns}", "a dict of names"),
    ],
)
def test_aliases_that_lead_nowhere_are_refused(tmp_path: Path, aliases: str, said: str) -> None:
    with pytest.raises(AgentsError, match=said):
        load_aliased(tmp_path, aliases)
