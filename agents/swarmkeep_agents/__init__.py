"""Teams of agents to read, to run and to start from. Each is a module that `swarmkeep serve --agents` takes.

They use only what `swarmkeep` exports. What the functions of acme, basic, triage and weather do, they do to context
variables alone; those of airline, personal_shopper and support_bot write rows into a SQLite file, see `records`. The
librarian's tools are an MCP server's, a program that keeps notes in its memory. Nothing is bought, repaired or sent
beyond that. Names are unique within a team, not between teams: acme and triage both have a "Triage Agent", so a
server takes one of the two.
"""

import json
from collections.abc import Mapping
from importlib.resources import files
from types import MappingProxyType

__all__ = ["TEAMS", "conversations"]

TEAMS: Mapping[str, str] = MappingProxyType(
    {
        "acme": "swarmkeep_agents.acme",
        "airline": "swarmkeep_agents.airline",
        "basic": "swarmkeep_agents.basic",
        "librarian": "swarmkeep_agents.librarian",
        "personal_shopper": "swarmkeep_agents.personal_shopper",
        "support_bot": "swarmkeep_agents.support_bot",
        "triage": "swarmkeep_agents.triage",
        "weather": "swarmkeep_agents.weather",
    }
)


def conversations(team: str) -> list[list[str]]:
    """What users might say to a team's first agent: a few conversations, each a list of messages in order.

    Raises ValueError if there is no such team.
    """
    if team not in TEAMS:
        raise ValueError(f"there is no team {team!r}; the teams are {', '.join(TEAMS)}")
    text = files(TEAMS[team]).joinpath("conversations.json").read_text(encoding="utf-8")
    talks: list[list[str]] = json.loads(text)
    return talks
