"""JSON values come back exactly as they were accepted, on both databases alike."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from swarmkeep.events.errors import InvalidRequest
from swarmkeep.events.facts import ContextUpdated, EventDraft, MessageAdded
from swarmkeep.events.state import State
from swarmkeep.store.hashing import MAX_PAYLOAD_DEPTH
from swarmkeep.store.opening import SqlStore
from tests.store.conftest import Opener
from tests.store.sessions import KEY, begin_session, draft_creation, new_key, read_all_rows
from tests.support.hypothesis_profiles import examples

# `characters` without exclusions includes NUL and lone surrogates.
TEXT = st.text(st.characters(exclude_categories=()), max_size=20)
SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT
    | st.sampled_from([2**63, -(2**63) - 1, 2**64, 10**300, -0.0, 1e300, 5e-324, "\0", "\ud800", "e\u0301", "é"])
)  # fmt: skip
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4), max_leaves=20
)

OBJECTS = st.dictionaries(TEXT, VALUES, max_size=5)


def show_exactly(value: Any) -> str:
    """The value as text that tells 1 from 1.0 and true, 0.0 from -0.0, and keeps the order of keys."""
    return repr(value)


@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(context=OBJECTS, metadata=OBJECTS, content=VALUES)
async def test_any_value_comes_back(store: SqlStore, context: Any, metadata: Any, content: Any) -> None:
    session = new_key()
    message = {"role": "user", "content": content}
    drafts = [*draft_creation(metadata, context), EventDraft(MessageAdded(message=message), None, "Triage")]
    appended = await store.append(session, State(), drafts)
    created_event, message_event = await store.read(session)
    assert show_exactly(created_event.fact) == show_exactly(drafts[0].fact)
    assert show_exactly(message_event.fact) == show_exactly(drafts[1].fact)
    assert [created_event, message_event] == appended.events
    assert json.loads(message_event.payload) == {"message": message}
    view = (await store.list_sessions("default", limit=1, include_context=True)).sessions[0]
    assert show_exactly((view.id, view.context_variables, view.metadata)) == show_exactly(
        (session.id, context, metadata)
    )


def nest(depth: int) -> Any:
    value: Any = 1
    for level in range(depth):
        value = [value] if level % 2 else {"a": value}
    return value


async def test_nesting_round_trips_to_limit(store: SqlStore, opener: Opener) -> None:
    state = await begin_session(store)
    # The payload itself is two of the levels.
    value = {"deep": nest(MAX_PAYLOAD_DEPTH - 2)}
    await store.append(KEY, state, [EventDraft(ContextUpdated(patch=value), None, "Triage")])
    assert (await opener().state(KEY)).context_variables == value


@pytest.mark.parametrize("depth", [MAX_PAYLOAD_DEPTH - 1, 20_000])
async def test_nesting_beyond_the_limit_is_refused(store: SqlStore, depth: int) -> None:
    state = await begin_session(store)
    before = await read_all_rows(store)
    fact = ContextUpdated(patch={"deep": nest(depth)})
    with pytest.raises(
        InvalidRequest, match=rf"context\.updated: the value is nested more than {MAX_PAYLOAD_DEPTH} levels deep"
    ):
        await store.append(KEY, state, [EventDraft(fact, None, "Triage")])
    assert await read_all_rows(store) == before


async def test_much_is_not_deep(store: SqlStore) -> None:
    value = {"rows": [[{"a": []}]] * (10 * MAX_PAYLOAD_DEPTH), "text": "[{" * 10 * MAX_PAYLOAD_DEPTH}
    assert (await begin_session(store, context=value)).context_variables == value


async def test_five_megabyte_text_round_trips(store: SqlStore, opener: Opener) -> None:
    text = "é\0\n" + "0123456789" * 500_000
    state = await begin_session(store, context={"text": text})
    assert (await opener().state(KEY)).context_variables["text"] == text
    assert state.size > 5_000_000


async def test_numbers_keep_their_type_and_sign(store: SqlStore, opener: Opener) -> None:
    await begin_session(store, context={"numbers": [1, 1.0, -0.0, 0, True, 1e300, 10**400, 0.1 + 0.2]})
    numbers = (await opener().state(KEY)).context_variables["numbers"]
    assert show_exactly(numbers) == show_exactly([1, 1.0, -0.0, 0, True, 1e300, 10**400, 0.1 + 0.2])
    assert math.copysign(1, numbers[2]) == -1
