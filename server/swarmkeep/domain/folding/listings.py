"""Fold lists of tools: of each agent and server, the last one."""

from __future__ import annotations

from msgspec.structs import replace

from swarmkeep.domain.envelope import RecordedEvent
from swarmkeep.domain.facts.tools import ToolListing, ToolsListed
from swarmkeep.domain.state import State


def apply_tools_listed(state: State, event: RecordedEvent, fact: ToolsListed) -> State:
    listing = ToolListing(agent=event.agent or state.agent, fact=fact)
    others = [other for other in state.listings if (other.agent, other.fact.server) != (listing.agent, fact.server)]
    texts = state.other_texts
    if fact.schemas is not None and fact.schemas not in texts:
        texts = (*texts, fact.schemas)
    return replace(state, listings=(*others, listing), other_texts=texts)


def find_listing(state: State, agent: str, server: str) -> ToolsListed | None:
    """What an agent is offered of a server, as the session last recorded it."""
    for listing in state.listings:
        if listing.agent == agent and listing.fact.server == server:
            return listing.fact
    return None
