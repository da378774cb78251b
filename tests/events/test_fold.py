"""The fold, on logs that a server writes and on logs that none ever would."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module

import msgspec
import pytest
from hypothesis import given as for_any
from hypothesis import settings
from hypothesis import strategies as st
from msgspec.structs import replace

from swarmkeep.decide.steps import next_step
from swarmkeep.events.facts import FACTS, RecordedEvent, UnknownFact, decode_fact
from swarmkeep.events.fold import _STEPS, evolve, fold
from swarmkeep.events.state import State
from swarmkeep.events.views import collect_runs, find_run, view_run, view_session
from swarmkeep.request.request import build_request
from tests.support.hypothesis_profiles import examples
from tests.support.logs import (
    PROFILES,
    RandomSession,
    SeededDice,
    any_logs,
    make_hostile_log,
    make_random_log,
    random_logs,
    random_sessions,
)
from tests.support.rules import find_faults


def states(events: list[RecordedEvent]) -> Iterator[State]:
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
    assert set(_STEPS) == {*FACTS.values(), UnknownFact}


def test_tried_logs_hold_every_fact_type(all_types: set[str]) -> None:
    assert all_types == {*FACTS, "agent.dreamed"}


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


def test_seed_reproduces_its_log() -> None:
    assert repr(make_random_log(SeededDice(7))) == repr(make_random_log(SeededDice(7)))
    assert repr(make_hostile_log(SeededDice(7))) == repr(make_hostile_log(SeededDice(7)))


@for_any(events=any_logs(), data=st.data())
@settings(max_examples=examples(120))
def test_split_folds_reach_the_same_state(events: list[RecordedEvent], data: st.DataObject) -> None:
    whole = repr(fold(events))
    cut = data.draw(st.integers(0, len(events)))
    head = fold(events[:cut])
    assert repr(fold(events[cut:], head)) == whole
    # Once more from the same head: what grew from it meanwhile has not touched it.
    assert repr(fold(events[cut:], head)) == whole


@for_any(events=any_logs())
@settings(max_examples=examples(80))
def test_payload_log_folds_the_same(events: list[RecordedEvent]) -> None:
    read = [replace(event, fact=decode_fact(event.type, event.payload)) for event in events]
    assert repr(fold(read)) == repr(fold(events))


@for_any(events=any_logs())
@settings(max_examples=examples(60))
def test_folding_leaves_earlier_values_alone(events: list[RecordedEvent]) -> None:
    facts = repr(events)
    seen = [(state, repr(state)) for state in states(events)]
    # Branches off each of them, too: another future must not show in this one.
    for state, _ in seen:
        fold(events[:3], state)
    assert all(repr(state) == before for state, before in seen)
    assert repr(events) == facts


@for_any(events=any_logs())
@settings(max_examples=examples(60))
def test_any_state_can_be_asked_anything(events: list[RecordedEvent]) -> None:
    for state in states(events):
        next_step(state)
        view_session("session", state)
        for run in collect_runs(state):
            assert find_run(state, run.id) is not None
            view_run("session", state, run)


@for_any(events=random_logs(moves=30))
@settings(max_examples=examples(60))
def test_runs_keep_their_own_messages(events: list[RecordedEvent]) -> None:
    state = fold(events)
    of_runs = 0
    for run in collect_runs(state):
        entries = state.messages[run.first_message : run.last_message]
        # What handing back notes while a run is interrupted belongs to no run.
        assert {entry.run_id for entry in entries} <= {run.id, None}
        assert {message["run_id"] for message in view_run("s", state, run).messages} <= {run.id}
        of_runs += sum(1 for entry in entries if entry.run_id is not None)
    assert of_runs == sum(1 for entry in state.messages if entry.run_id is not None)


@for_any(talk=random_sessions(moves=30))
@settings(max_examples=examples(40))
def test_the_parts_of_a_log_agree(talk: RandomSession) -> None:
    assert repr(fold(talk.events)) == repr(talk.state)
    assert [draft.fact for commit in talk.commits for draft in commit] == [event.fact for event in talk.events]
    assert [event.seq for event in talk.events] == list(range(1, len(talk.events) + 1))
    assert talk.state.size == sum(len(event.payload) for event in talk.events)


def test_seeded_logs_never_fail() -> None:
    for seed in range(examples(300)):
        state = fold(make_hostile_log(SeededDice(seed), moves=6))
        assert find_faults(build_request(state, PROFILES[seed % len(PROFILES)]).messages) == []
