"""Fold lists of tools: of each agent and server, the last one."""

from __future__ import annotations

from msgspec.structs import replace

from swarmkeep.domain.checking.known_ids import KnownIds, find_ids
from swarmkeep.domain.envelope import RecordedEvent
from swarmkeep.domain.facts.tools import ToolListing, ToolsListed
from swarmkeep.domain.state import State


def apply_tools_listed(state: State, event: RecordedEvent, fact: ToolsListed) -> State:
    listing = ToolListing(agent=event.agent or state.agent, fact=fact)
    texts = state.other_texts if fact.schemas is None else state.other_texts.append(fact.schemas)
    return replace(state, listings=state.listings.append(listing), other_texts=texts)


def find_listing(state: State, agent: str, server: str) -> ToolsListed | None:
    """What an agent is offered of a server, as the session last recorded it."""
    places = find_ids(state.listings, _Listed, lambda listing: [_name(listing.agent, listing.fact.server)])
    found = places.find(_name(agent, server))
    return state.listings[found[-1]].fact if found else None


class _Listed(KnownIds, frozen=True):
    """By agent and server, where their lists are."""


def _name(agent: str, server: str) -> str:
    # With a length in front no two are alike, whatever names a file brings.
    return f"{len(agent)} {agent} {server}"
