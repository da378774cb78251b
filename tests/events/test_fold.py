"""The fold, on logs that a server writes and on logs that none ever would, at the same cost for each event."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from itertools import chain

import msgspec
import pytest
from hypothesis import given as for_any
from hypothesis import settings
from hypothesis import strategies as st
from msgspec.structs import replace

from swarmkeep.decide.drafts import apply_drafts, preview_event
from swarmkeep.decide.steps import next_step
from swarmkeep.events import facts
from swarmkeep.events.fold import _STEPS, evolve, find_listing, fold
from swarmkeep.events.records import RunOptions
from swarmkeep.events.state import State
from swarmkeep.events.views import collect_runs, find_run, view_run, view_session
from swarmkeep.request.request import build_request
from tests.support.calls import count_steps
from tests.support.hypothesis_profiles import examples
from tests.support.logs import PROFILES, SeededDice, any_logs, make_hostile_log, make_random_log, random_logs
from tests.support.rules import find_faults


def states(events: list[facts.RecordedEvent]) -> Iterator[State]:
    """The state before the first event, and after each."""
    state = State()
    yield state
    for event in events:
        state = evolve(state, event)
        yield state


@pytest.fixture(scope="module")
def all_types() -> set[str]:
    return {event.type for seed in range(150) for event in make_random_log(SeededDice(seed))}


def test_fold_handles_every_fact() -> None:
    assert set(_STEPS) == {*facts.FACTS.values(), facts.UnknownFact}


def test_tried_logs_hold_every_fact_type(all_types: set[str]) -> None:
    assert all_types == {*facts.FACTS, "agent.dreamed"}


@pytest.mark.parametrize(
    "module",
    [
        "decide.commands",
        "decide.steps",
        "events.facts",
        "events.messages",
        "events.state",
        "events.views",
        "request.request",
    ],
)
def test_domain_values_are_frozen(module: str) -> None:
    named = vars(import_module(f"swarmkeep.{module}")).values()
    structs = [value for value in named if isinstance(value, type) and issubclass(value, msgspec.Struct)]
    assert structs
    assert all(struct.__struct_config__.frozen for struct in structs)


@for_any(events=any_logs(), data=st.data())
@settings(max_examples=examples(120))
def test_split_folds_reach_the_same_state(events: list[facts.RecordedEvent], data: st.DataObject) -> None:
    whole = repr(fold(events))
    cut = data.draw(st.integers(0, len(events)))
    head = fold(events[:cut])
    assert repr(fold(events[cut:], head)) == whole
    # Once more from the same head: what grew from it meanwhile has not touched it.
    assert repr(fold(events[cut:], head)) == whole


@for_any(events=any_logs())
@settings(max_examples=examples(80))
def test_payload_log_folds_the_same(events: list[facts.RecordedEvent]) -> None:
    read = [replace(event, fact=facts.decode_fact(event.type, event.payload)) for event in events]
    assert repr(fold(read)) == repr(fold(events))


@for_any(events=any_logs())
@settings(max_examples=examples(60))
def test_folding_leaves_earlier_values_alone(events: list[facts.RecordedEvent]) -> None:
    made = repr(events)
    seen = [(state, repr(state)) for state in states(events)]
    # Branches off each of them, too: another future must not show in this one.
    for state, _ in seen:
        fold(events[:3], state)
    assert all(repr(state) == before for state, before in seen)
    assert repr(events) == made


@for_any(events=any_logs())
@settings(max_examples=examples(60))
def test_any_state_can_be_asked_anything(events: list[facts.RecordedEvent]) -> None:
    for state in states(events):
        next_step(state)
        view_session("session", state)
        for run in collect_runs(state):
            assert find_run(state, run.id) is not None
            view_run("session", state, run)


@for_any(events=random_logs(moves=30))
@settings(max_examples=examples(60))
def test_runs_keep_their_own_messages(events: list[facts.RecordedEvent]) -> None:
    state = fold(events)
    of_runs = 0
    for run in collect_runs(state):
        entries = state.messages[run.first_message : run.last_message]
        # What handing back notes while a run is interrupted belongs to no run.
        assert {entry.run_id for entry in entries} <= {run.id, None}
        assert {message["run_id"] for message in view_run("s", state, run).messages} <= {run.id}
        of_runs += sum(1 for entry in entries if entry.run_id is not None)
    assert of_runs == sum(1 for entry in state.messages if entry.run_id is not None)


def test_seeded_logs_never_fail() -> None:
    for seed in range(examples(300)):
        state = fold(make_hostile_log(SeededDice(seed), moves=6))
        assert find_faults(build_request(state, PROFILES[seed % len(PROFILES)]).messages) == []


# What an event costs to fold does not depend on how many came before it, in logs of attackers neither.

AT = "2026-01-01T00:00:00.000000Z"
STARTED = (facts.SessionCreated(agent="a"), facts.RunStarted(options=RunOptions()))
Facts = Iterable[facts.SessionEvent | facts.EventDraft]


def list_tools_of_many_agents(count: int) -> Facts:
    return (facts.EventDraft(facts.ToolsListed(server="s"), None, f"agent {number}") for number in range(count))


def change_a_list_of_tools(count: int) -> Facts:
    return (facts.ToolsListed(server="s", schemas=f"{number:064}") for number in range(count))


def ignore_handoffs_of_no_call(count: int) -> Facts:
    said = (facts.MessageAdded(message={"role": "user", "content": "x"}) for _ in range(count))
    return chain(
        said, (facts.HandoffIgnored(from_agent="a", to_agent="b", tool_call_id=f"c{at}") for at in range(count))
    )


def count_fold(made: Facts) -> int:
    drafts = [
        fact if isinstance(fact, facts.EventDraft) else facts.EventDraft(fact, "r", "a")
        for fact in chain(STARTED, made)
    ]
    events = [preview_event(seq, draft, AT) for seq, draft in enumerate(drafts, 1)]
    with count_steps() as counted:
        fold(events)
    return counted.total()


@pytest.mark.parametrize("make_facts", [list_tools_of_many_agents, ignore_handoffs_of_no_call])
def test_fold_steps_grow_linearly(make_facts: Callable[[int], Facts]) -> None:
    assert count_fold(make_facts(400)) < 5 * count_fold(make_facts(100))


def test_trial_folds_find_latest_tool_list() -> None:
    drafts = [facts.EventDraft(fact, None, "a") for fact in (*STARTED, *change_a_list_of_tools(3))]
    drafts.append(facts.EventDraft(facts.ToolsListed(server="s", schemas="of b"), None, "b"))
    state = apply_drafts(State(), drafts)
    tried = apply_drafts(state, [facts.EventDraft(facts.ToolsListed(server="s", schemas="tried"), None, "a")])
    for found, schemas in ((state, f"{2:064}"), (tried, "tried")):
        listing = find_listing(found, "a", "s")
        assert listing.schemas == schemas
    assert find_listing(state, "a", "other") is None


def test_repeated_or_dangling_imports_are_not_kept() -> None:
    message = {"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": "{}"}}]}
    removed = facts.MessageRemoved(message_seq=3, tool_call_id="c")
    made = (
        *STARTED,
        facts.MessageAdded(message=message),
        removed,
        removed,
        facts.RunHidden(part=0),
        facts.RunHidden(part=0),
        facts.RunHidden(part=1),
    )
    state = apply_drafts(State(), [facts.EventDraft(fact, "r", "a") for fact in made])
    assert state.messages[0].removed_calls == ("c",)
    assert state.run.hidden_parts == (0,)
