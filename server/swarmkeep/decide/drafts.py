"""Facts on their way to the log."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import UNSET, UnsetType
from msgspec.structs import fields, replace

from swarmkeep.events.chain import Chain
from swarmkeep.events.facts import (
    AwaitedApproval,
    EventDraft,
    HandoffMade,
    MessageAdded,
    PendingCall,
    RecordedEvent,
    RunResumed,
    SessionEvent,
    SessionUpdated,
)
from swarmkeep.events.fold import fold
from swarmkeep.events.records import RunOptions
from swarmkeep.events.state import State, ToolCall

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
    # A state that drafts were applied to before has branches already.
    own = {name: chain.branch() for name in _CHAINS if type(chain := getattr(state, name)) is Chain}
    state = replace(state, **own) if own else state
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


# Calls of an agent to another one: a run that waits for what is asked to be decided elsewhere, and goes on.


def await_session(call: ToolCall, session_id: str | None, approvals: tuple[AwaitedApproval, ...] = ()) -> PendingCall:
    """Return the call, whose own session waits for an answer. `approvals`: what has to be decided there."""
    return PendingCall(
        tool_call_id=call.id,
        name=call.name,
        arguments=call.arguments,
        reason="session",
        session_id=session_id or UNSET,
        approvals=approvals or UNSET,
    )


def list_awaited(pending: Sequence[PendingCall], session_id: str, run_id: str, agent: str) -> list[AwaitedApproval]:
    """List the decisions that these pending calls need before the run goes on, in its session and those below it."""
    found: list[AwaitedApproval] = []
    for call in pending:
        if call.approvals is not UNSET:
            found += call.approvals
        elif call.reason == "approval":
            found.append(
                AwaitedApproval(
                    session_id=session_id,
                    run_id=run_id,
                    tool_call_id=call.tool_call_id,
                    agent=agent,
                    name=call.name,
                    arguments=call.arguments,
                )
            )
    return found


def go_on_with_session(
    state: State, run_id: str, call_id: str, options: RunOptions | UnsetType = UNSET
) -> list[EventDraft] | None:
    """Go on with a run that waits for this call's session, alone or among others; nothing if it does not."""
    run = state.run
    if run is None or run.id != run_id or run.status != "waiting" or call_id not in run.awaited_calls:
        return None
    return draft_events(state.agent, [RunResumed(reason="session", options=options)], run_id)
