"""Facts on their way to the log."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import UNSET
from msgspec.structs import fields, replace

from swarmkeep.domain.chain import Chain
from swarmkeep.domain.envelope import EventDraft, RecordedEvent
from swarmkeep.domain.events import HandoffMade, MessageAdded, SessionEvent, SessionUpdated
from swarmkeep.domain.fold import fold
from swarmkeep.domain.state import State

_CHAINS = tuple(field.name for field in fields(State) if field.default_factory is Chain)


def draft_events(agent: str, facts: Iterable[SessionEvent], run_id: str | None) -> list[EventDraft]:
    """Facts with the agent that was active when each happened, beginning with `agent`; a message of a turn has the one
    whose turn it is."""
    drafts = []
    for fact in facts:
        if isinstance(fact, SessionUpdated) and fact.agent is not UNSET:
            agent = fact.agent
        drafts.append(EventDraft(fact, run_id, _find_turn_agent(fact) or agent))
        if isinstance(fact, HandoffMade):
            agent = fact.to_agent
    return drafts


def _find_turn_agent(fact: SessionEvent) -> str:
    if not isinstance(fact, MessageAdded) or (fact.completion is None and fact.tool is None):
        return ""
    sender = fact.message.get("sender")
    return sender if isinstance(sender, str) else ""


def apply_drafts(state: State, drafts: Sequence[EventDraft]) -> State:
    """The state as it will be once `drafts` are recorded, but for their times and hashes.

    It may come to nothing, and leaves it to the events to make the chains of `state` longer.
    """
    if not drafts:
        return state
    state = replace(state, **{name: getattr(state, name).branch() for name in _CHAINS})
    return fold([preview_event(seq, draft, state.updated_at) for seq, draft in enumerate(drafts, state.seq + 1)], state)


def preview_event(seq: int, draft: EventDraft, at: str) -> RecordedEvent:
    """The draft as the event of that seq, without a store: no payload, no hash."""
    return RecordedEvent(
        session_id="",
        seq=seq,
        type=draft.fact.type,
        version=draft.fact.version,
        run_id=draft.run_id,
        agent=draft.agent,
        at=at,
        hash="",
        payload="",
        fact=draft.fact,
    )
