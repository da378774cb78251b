"""What an event costs to fold does not depend on how many came before it, in logs of attackers neither."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import chain

import pytest

from swarmkeep.decide.drafts import apply_drafts, preview_event
from swarmkeep.events.facts import (
    EventDraft,
    HandoffIgnored,
    MessageAdded,
    MessageRemoved,
    RunHidden,
    RunStarted,
    SessionCreated,
    SessionEvent,
    ToolsListed,
)
from swarmkeep.events.fold import find_listing, fold
from swarmkeep.events.records import RunOptions
from swarmkeep.events.state import State
from tests.support.calls import count_steps

AT = "2026-01-01T00:00:00.000000Z"
STARTED = (SessionCreated(agent="a"), RunStarted(options=RunOptions()))
Facts = Iterable[SessionEvent | EventDraft]


def list_tools_of_many_agents(count: int) -> Facts:
    return (EventDraft(ToolsListed(server="s"), None, f"agent {number}") for number in range(count))


def change_a_list_of_tools(count: int) -> Facts:
    return (ToolsListed(server="s", schemas=f"{number:064}") for number in range(count))


def ignore_handoffs_of_no_call(count: int) -> Facts:
    said = (MessageAdded(message={"role": "user", "content": "x"}) for _ in range(count))
    return chain(said, (HandoffIgnored(from_agent="a", to_agent="b", tool_call_id=f"c{at}") for at in range(count)))


def count_fold(facts: Facts) -> int:
    drafts = [fact if isinstance(fact, EventDraft) else EventDraft(fact, "r", "a") for fact in chain(STARTED, facts)]
    events = [preview_event(seq, draft, AT) for seq, draft in enumerate(drafts, 1)]
    with count_steps() as counted:
        fold(events)
    return counted.total()


@pytest.mark.parametrize("make_facts", [list_tools_of_many_agents, ignore_handoffs_of_no_call])
def test_fold_steps_grow_linearly(make_facts: Callable[[int], Facts]) -> None:
    assert count_fold(make_facts(400)) < 5 * count_fold(make_facts(100))


def test_trial_folds_find_latest_tool_list() -> None:
    drafts = [EventDraft(fact, None, "a") for fact in (*STARTED, *change_a_list_of_tools(3))]
    drafts.append(EventDraft(ToolsListed(server="s", schemas="of b"), None, "b"))
    state = apply_drafts(State(), drafts)
    tried = apply_drafts(state, [EventDraft(ToolsListed(server="s", schemas="tried"), None, "a")])
    for found, schemas in ((state, f"{2:064}"), (tried, "tried")):
        listing = find_listing(found, "a", "s")
        assert listing is not None
        assert listing.schemas == schemas
    assert find_listing(state, "a", "other") is None


def test_repeated_or_dangling_imports_are_not_kept() -> None:
    message = {"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": "{}"}}]}
    removed = MessageRemoved(message_seq=3, tool_call_id="c")
    facts = (
        *STARTED,
        MessageAdded(message=message),
        removed,
        removed,
        RunHidden(part=0),
        RunHidden(part=0),
        RunHidden(part=1),
    )
    state = apply_drafts(State(), [EventDraft(fact, "r", "a") for fact in facts])
    assert state.messages[0].removed_calls == ("c",)
    assert state.run is not None
    assert state.run.hidden_parts == (0,)
