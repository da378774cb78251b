"""A choice that forces a call forces one."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import UNSET

from swarmkeep.events.facts import MessageAdded
from swarmkeep.events.state import State
from swarmkeep.request.request import find_tool_choice
from tests.events.given import (
    answer_message,
    calling_message,
    given,
    make_run_started,
    model_reply,
    tool_call,
    tool_result,
    user_said,
    when,
)

NAMED = {"type": "function", "function": {"name": "look_up"}}
SOME = [{"type": "function", "function": {"name": "look_up"}}]


def make_allowed(mode: str) -> dict[str, Any]:
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": SOME}}


def choose(state: State, own: Any = None, asked: Any = UNSET, *, by_call: bool = False) -> Any:
    return find_tool_choice(state, "triage", own, asked, answers_by_call=by_call)


BEGUN = given(make_run_started(), user_said())
CALLED = when(BEGUN, model_reply(calling_message(tool_call("c1"))), tool_result("c1"))


@pytest.mark.parametrize(
    ("choice", "relaxed"),
    [
        ("required", "auto"),
        ("none", "none"),
        ("auto", "auto"),
        (None, None),
        (NAMED, "auto"),
        (make_allowed("required"), make_allowed("auto")),
        ({"type": "allowed_tools"}, {"type": "allowed_tools"}),
    ],
)
def test_forced_call_freed_after_first_reply(choice: Any, relaxed: Any) -> None:
    assert choose(BEGUN, own=choice) == choose(BEGUN, asked=choice) == choice
    assert choose(CALLED, own=choice) == choose(CALLED, asked=choice) == relaxed


def test_answer_call_may_be_required_each_reply() -> None:
    assert choose(CALLED, own="required", by_call=True) == "required"
    assert choose(CALLED, own=NAMED, by_call=True) == "auto"


def test_only_own_replies_this_run_count() -> None:
    # What a caller puts into its mouth is no reply, nor is what another agent said.
    put = MessageAdded(message=answer_message())
    assert choose(when(BEGUN, put), own="required") == "required"
    other = model_reply({"role": "assistant", "content": "hi", "sender": "refunds"})
    assert choose(when(BEGUN, other), own="required") == "required"
    earlier = given(model_reply(answer_message()), make_run_started())
    assert choose(earlier, own="required") == "required"
