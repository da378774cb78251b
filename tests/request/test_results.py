"""Calls and results in a request: paired, in order, and complete, whatever the history holds."""

from __future__ import annotations

from swarmkeep.events.facts import HandoffIgnored, RunCancelled, RunFailed, SessionForked
from swarmkeep.events.messages import INTERRUPTED
from tests.events.given import (
    OTHER,
    calling_message,
    given,
    in_run,
    make_run_started,
    model_reply,
    tool_call,
    tool_result,
    user_said,
    when,
)
from tests.request.profile import build_messages, tool_message


def test_a_result_follows_its_call() -> None:
    assert build_messages(given(user_said(), model_reply(calling_message(tool_call("c1"))), tool_result("c1"))) == [
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": None, "tool_calls": [tool_call("c1")]},
        tool_message("c1", "done"),
    ]


def test_results_follow_call_order() -> None:
    state = given(
        model_reply(calling_message(tool_call("c1"), tool_call("c2"))),
        tool_result("c2", "two"),
        tool_result("c1", "one"),
    )
    assert build_messages(state)[1:] == [tool_message("c1", "one"), tool_message("c2", "two")]


def test_unanswered_call_gets_a_placeholder_result() -> None:
    state = given(model_reply(calling_message(tool_call("c1"), tool_call("c2"))), tool_result("c2"))
    assert build_messages(state)[1:] == [tool_message("c1", INTERRUPTED), tool_message("c2", "done")]
    assert build_messages(when(state, user_said()))[1:] == [
        tool_message("c1", INTERRUPTED),
        tool_message("c2", "done"),
        {"role": "user", "content": "hello"},
    ]


def test_late_result_is_left_out() -> None:
    state = given(model_reply(calling_message(tool_call("c1"))), user_said(), tool_result("c1", "late"))
    assert [message["content"] for message in build_messages(state)] == [None, INTERRUPTED, "hello"]


def test_result_without_call_is_left_out() -> None:
    assert build_messages(given(tool_result("c0"), user_said(), tool_result("c1"))) == [
        {"role": "user", "content": "hello"}
    ]


def test_the_first_of_two_results_counts() -> None:
    state = given(
        model_reply(calling_message(tool_call("c1"))), tool_result("c1", "first"), tool_result("c1", "second")
    )
    assert build_messages(state)[1:] == [tool_message("c1", "first")]


def test_reused_id_in_later_reply_is_separate() -> None:
    state = given(
        model_reply(calling_message(tool_call("c1"))),
        tool_result("c1", "one"),
        model_reply(calling_message(tool_call("c1"))),
        tool_result("c1", "two"),
    )
    assert [message["content"] for message in build_messages(state)] == [None, "one", None, "two"]
    assert build_messages(
        given(
            model_reply(calling_message(tool_call("c1"))),
            tool_result("c1", "one"),
            model_reply(calling_message(tool_call("c1"))),
        )
    )[-1] == tool_message("c1", INTERRUPTED)


def test_duplicate_id_in_reply_is_sent_once() -> None:
    state = given(model_reply(calling_message(tool_call("c1", "first"), tool_call("c1", "second"))), tool_result("c1"))
    assert [asked["function"]["name"] for asked in build_messages(state)[0]["tool_calls"]] == ["first"]


def test_surrogate_ids_stay_answered() -> None:
    state = given(
        model_reply(calling_message(tool_call("\ud800"), tool_call("\ud801"))),
        tool_result("\ud800", "one"),
        tool_result("\ud801", "two"),
    )
    assert build_messages(state)[1:] == [tool_message("\ufffd", "one")]


def test_run_ended_mid_calls_stays_valid() -> None:
    for ending in (RunCancelled(stop_reason="cancelled"), RunFailed(stop_reason="error")):
        state = given(
            make_run_started(),
            user_said(),
            model_reply(calling_message(tool_call("c1"), tool_call("c2"))),
            tool_result("c1"),
            ending,
        )
        state = when(state, in_run(OTHER, make_run_started()), user_said("again"))
        assert [message["content"] for message in build_messages(state)] == [
            "hello",
            None,
            "done",
            INTERRUPTED,
            "again",
        ]


def test_mid_call_fork_has_valid_history() -> None:
    state = given(make_run_started(), user_said(), model_reply(calling_message(tool_call("c1"))))
    state = when(state, SessionForked(from_session_id="s", from_seq=state.seq, from_hash=""), tool_result("c1", "late"))
    assert build_messages(state)[-1] == tool_message("c1", "late")


def test_ignored_handoff_is_told_to_model() -> None:
    ignored = HandoffIgnored(from_agent="triage", to_agent="sales", tool_call_id="c1")
    state = given(
        make_run_started(), model_reply(calling_message(tool_call("c1"))), tool_result("c1", "Transferred."), ignored
    )
    assert "Not handed over to sales" in build_messages(state)[-1]["content"]
