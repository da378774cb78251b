"""Tool messages that answer no open call: exactly those that a model would never be sent."""

from __future__ import annotations

from hypothesis import given as for_any
from hypothesis import strategies as st

from swarmkeep.events.codec import Json
from swarmkeep.events.messages import Entry, find_stray_result, pair_results
from tests.support.logs import DrawnDice, make_messy_history


@st.composite
def messy_histories(draw: st.DrawFn) -> list[Json]:
    return make_messy_history(DrawnDice(draw))


def as_entries(messages: list[Json]) -> list[Entry]:
    return [Entry(seq=place, at="", run_id=None, message=message) for place, message in enumerate(messages)]


@for_any(messy_histories(), messy_histories())
def test_first_stray_result_is_first_unsent(history: list[Json], messages: list[Json]) -> None:
    entries = as_entries(history + messages)
    sent = {id(entry) for entry in pair_results(entries)}
    left_out = [
        place for place, entry in enumerate(entries[len(history) :]) if entry.role == "tool" and id(entry) not in sent
    ]
    assert find_stray_result(messages, entries[: len(history)]) == (left_out[0] if left_out else None)
