"""What may become of a session's context, metadata and messages is bounded; what is too large already may shrink."""

from __future__ import annotations

from typing import Any

import pytest

from swarmkeep.events.errors import TooLarge
from swarmkeep.events.facts import ContextUpdated, MessageAdded, RunQueued, SessionUpdated
from swarmkeep.events.records import RunOptions
from swarmkeep.events.sizes import SizeLimits
from swarmkeep.events.state import State
from tests.events.given import OTHER, THIRD, given, in_run, when

# {"a":"…"} has eight bytes and the text's.
LIMITS = SizeLimits(max_context_bytes=20, max_metadata_bytes=20, max_message_bytes=60)


def put(name: str, size: int) -> dict[str, Any]:
    return {name: "x" * (size - 8)}


def queue(run_id: str, context: dict[str, Any]) -> Any:
    return in_run(run_id, RunQueued(options=RunOptions(), messages=(), context_variables=context))


def test_exact_size_limit_is_accepted() -> None:
    before = given()
    LIMITS.check_change(before, when(before, ContextUpdated(patch=put("a", 20)), SessionUpdated(metadata=put("a", 20))))
    for fact, name in (
        (ContextUpdated(patch=put("a", 21)), "CONTEXT"),
        (SessionUpdated(metadata=put("a", 21)), "META"),
    ):
        with pytest.raises(TooLarge, match=f"SWARMKEEP_MAX_{name}"):
            LIMITS.check_change(before, when(before, fact))


def test_oversized_context_may_only_shrink() -> None:
    before = given(ContextUpdated(patch=put("a", 30)))
    LIMITS.check_change(before, when(before, ContextUpdated(patch=put("a", 29))))
    LIMITS.check_change(before, when(before, SessionUpdated(metadata=put("a", 20))))
    with pytest.raises(TooLarge, match="31 bytes"):
        LIMITS.check_change(before, when(before, ContextUpdated(patch=put("a", 31))))


def test_queued_runs_add_to_context_size() -> None:
    state = given(ContextUpdated(patch=put("a", 10)))
    patch = {"b": "x" * 2}
    LIMITS.check_run_context(state, patch)
    LIMITS.check_run_context(when(state, queue(OTHER, {"a": None})), patch)
    filled = when(state, queue(OTHER, {"c": 1}), queue(THIRD, {"d": 1}))
    LIMITS.check_run_context(filled, {})
    with pytest.raises(TooLarge, match="SWARMKEEP_MAX_CONTEXT_BYTES"):
        LIMITS.check_run_context(filled, patch)


@pytest.mark.parametrize(
    ("message", "fits"),
    [
        ({"role": "user", "content": "x" * 32, "sender": "y" * 100}, True),
        ({"role": "user", "content": "x" * 33, "sender": "y"}, False),
        ({"role": "tool", "tool_call_id": "c" * 100, "content": "x" * 58}, True),
        ({"role": "tool", "tool_call_id": "c", "content": "x" * 59}, False),
        ({"role": "tool", "tool_call_id": "c", "content": None}, True),
        ({"role": "assistant", "content": "x" * 100}, True),
    ],
)
def test_imported_context_is_measured_as_sent(message: dict[str, Any], fits: bool) -> None:
    state: State = given(MessageAdded(message=message))
    if fits:
        LIMITS.check_session(state)
    else:
        with pytest.raises(TooLarge, match=r"at seq 2 .*SWARMKEEP_MAX_MESSAGE_BYTES"):
            LIMITS.check_session(state)
