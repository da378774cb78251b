"""A session and its runs as callers see them, in words for people."""

from __future__ import annotations

from hashlib import sha256
from typing import Any

import msgspec
import pytest
from hypothesis import given as for_any
from hypothesis import settings
from hypothesis import strategies as st
from msgspec.structs import replace

from swarmkeep.events import facts
from swarmkeep.events.chain import Chain
from swarmkeep.events.fold import fold
from swarmkeep.events.records import RunOptions
from swarmkeep.events.state import State
from swarmkeep.events.views import RunView, collect_runs, find_run, list_latest_runs, view_run, view_session
from swarmkeep.events.wording import pluralize
from swarmkeep.events.words import MAX_TITLE_CHARACTERS, shorten
from tests.events.given import (
    COMPLETED,
    OTHER,
    RUN,
    THIRD,
    given,
    in_run,
    make_run_started,
    model_answer,
    model_calls,
    model_reply,
    run_queued,
    running,
    tool_result,
    user_said,
    when,
)
from tests.support.calls import count_calls
from tests.support.hypothesis_profiles import examples
from tests.support.logs import any_logs

SESSION_KEYS = (
    "id", "status", "agent", "context_variables", "metadata", "seq", "hash", "active_run_id", "message_count", "usage",
    "forked_from", "created_at", "updated_at", "last_run_status", "title",
)  # fmt: skip
RUN_KEYS = (
    "id", "session_id", "status", "stop_reason", "agent", "messages", "output_text", "output", "context_variables",
    "usage", "error", "pending", "first_seq", "last_seq", "created_at", "finished_at",
)  # fmt: skip


@for_any(any_logs(), st.integers(1, 5), st.integers(1, 60) | st.none())
@settings(max_examples=examples(60))
def test_latest_runs_began_last(log: list[facts.RecordedEvent], limit: int, before: int | None) -> None:
    for upto in range(0, len(log) + 1, 7):
        state = fold(log[:upto])
        runs = sorted(collect_runs(state), key=lambda run: -run.first_seq)
        expected = [run for run in runs if before is None or run.first_seq < before][:limit]
        assert list_latest_runs(state, limit, before) == expected


def test_latest_run_lookup_skips_the_others() -> None:
    state = given()
    for number in range(300):
        queued = (
            [facts.RunQueued(options=RunOptions(), messages=()), facts.RunCancelled(stop_reason="cancelled")]
            if number % 50 == 0
            else []
        )
        state = when(state, in_run(f"r{number}", make_run_started()), *(in_run(f"q{number}", fact) for fact in queued))
        state = when(state, in_run(f"r{number}", COMPLETED))
    with count_calls() as counted:
        latest = list_latest_runs(state, 3)
    assert [run.id for run in latest] == ["r299", "r298", "r297"]
    assert counted.total() < 30


def show_run(state: State, run_id: str = RUN) -> RunView:
    run = find_run(state, run_id)
    assert run is not None
    return view_run("session", state, run)


def test_session_and_run_have_public_keys() -> None:
    state = running()
    assert tuple(msgspec.to_builtins(view_session("session", state))) == SESSION_KEYS
    assert tuple(msgspec.to_builtins(show_run(state))) == RUN_KEYS


def test_a_session_names_its_active_run() -> None:
    assert view_session("session", given(make_run_started())).active_run_id == RUN
    idle = view_session("session", given(make_run_started(), COMPLETED))
    assert (idle.active_run_id, idle.status, idle.message_count) == (None, "idle", 0)


def test_a_fork_names_its_origin() -> None:
    state = given(facts.SessionForked(from_session_id="original", from_seq=1, from_hash="h"))
    assert msgspec.to_builtins(view_session("session", state).forked_from) == {
        "session_id": "original",
        "seq": 1,
        "hash": "h",
    }


def test_run_shows_messages_and_input() -> None:
    state = given(
        user_said("imported"),
        make_run_started(),
        user_said(),
        model_calls("c1"),
        tool_result("c1"),
        model_answer("Bye."),
    )
    state = when(state, COMPLETED, in_run(OTHER, make_run_started()), user_said("more"))
    messages = show_run(state).messages
    assert [(message["seq"], message["role"]) for message in messages] == [
        (4, "user"),
        (5, "assistant"),
        (6, "tool"),
        (7, "assistant"),
    ]
    assert [message["run_id"] for message in messages] == [RUN] * 4
    assert show_run(state).output_text == "Bye."
    assert [message["content"] for message in show_run(state, OTHER).messages] == ["more"]


def test_unanswered_run_has_no_output() -> None:
    assert show_run(running()).output_text == ""
    assert show_run(running(model_calls("c1"))).output_text == ""


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "ab"),
        ([{"type": "refusal", "refusal": "no"}, {"type": "text", "text": None}, "text", None], ""),
        ({"type": "text"}, ""),
        (7, ""),
        (None, ""),
    ],
)
def test_output_text_is_last_reply(content: Any, text: str) -> None:
    assert (
        show_run(given(make_run_started(), model_reply({"role": "assistant", "content": content}))).output_text == text
    )


def test_active_runs_show_current_agent_and_context() -> None:
    state = given(
        make_run_started(),
        facts.ContextUpdated(patch={"k": 1}),
        facts.HandoffMade(from_agent="triage", to_agent="refunds"),
    )
    assert (show_run(state).agent, show_run(state).context_variables) == ("refunds", {"k": 1})
    state = when(state, COMPLETED, in_run(OTHER, make_run_started()))
    state = when(state, facts.ContextUpdated(patch={"k": 2}), facts.HandoffMade(from_agent="refunds", to_agent="sales"))
    assert (show_run(state).agent, show_run(state).context_variables) == ("refunds", {"k": 1})


@pytest.mark.parametrize(("reason", "stop_reason"), [("approval", "approval"), ("tool_results", "tool_calls")])
def test_waiting_run_shows_its_needs(reason: Any, stop_reason: str) -> None:
    pending = (facts.PendingCall(tool_call_id="c1", name="f", arguments="{}", reason=reason),)
    view = show_run(given(make_run_started(), model_calls("c1"), facts.RunWaiting(pending=pending)))
    if reason == "approval":
        pending = (replace(pending[0], arguments_digest=sha256(b"{}").hexdigest()),)
    assert (view.status, view.stop_reason, view.pending, view.finished_at) == ("waiting", stop_reason, pending, None)


def test_a_failed_run_shows_its_error() -> None:
    error = facts.RunError(code="provider_error", message="503", retryable=True, provider_status=503)
    view = show_run(running(facts.RunFailed(stop_reason="error", error=error)))
    assert (view.status, view.stop_reason, view.error, view.pending) == ("failed", "error", error, ())
    assert view.last_seq == 4


def test_queued_run_is_shown_unstarted() -> None:
    state = running(run_queued(OTHER, agent="refunds"))
    view = show_run(state, OTHER)
    assert (view.status, view.agent, view.messages, view.stop_reason) == ("queued", "refunds", [], None)
    assert (view.first_seq, view.last_seq) == (4, 4)


def test_runs_list_oldest_first_by_id() -> None:
    queued = facts.RunQueued(options=RunOptions(), messages=())
    state = given(make_run_started(), COMPLETED, in_run(OTHER, make_run_started()), in_run(THIRD, queued))
    assert [(run.id, run.status) for run in collect_runs(state)] == [
        (RUN, "completed"),
        (OTHER, "running"),
        (THIRD, "queued"),
    ]
    assert find_run(state, "nobody") is None
    for run in collect_runs(state):
        assert find_run(state, run.id) == run


def test_a_message_without_sender_shows_none() -> None:
    state = given(make_run_started(), facts.MessageAdded(message={"role": "user", "content": "hello"}))
    assert show_run(state).messages[0]["sender"] is None


def test_run_lookup_skips_the_others() -> None:
    found = (make_run_started(), COMPLETED)
    whole = given(*(in_run(f"run_{number}", fact) for number in range(200) for fact in found))
    assert find_run(whole, "run_199") is not None
    with count_calls() as counted:
        first, none = find_run(whole, "run_0"), find_run(whole, "run_200")
    assert (first is not None and first.id, none) == ("run_0", None)
    assert counted[Chain.__getitem__.__code__] == 1


# Words for people.


@pytest.mark.parametrize(
    ("count", "noun", "plural", "said"),
    [
        (0, "event", None, "0 events"),
        (1, "event", None, "1 event"),
        (2, "event", None, "2 events"),
        (1, "try", None, "1 try"),
        (2, "try", None, "2 tries"),
        (1, "run waits", "runs wait", "1 run waits"),
        (3, "run waits", "runs wait", "3 runs wait"),
    ],
)
def test_a_count_agrees_with_its_noun(count: int, noun: str, plural: str | None, said: str) -> None:
    assert pluralize(count, noun, plural) == said


def test_long_titles_end_at_a_word() -> None:
    assert shorten("  Where is\nmy order? ") == "Where is my order?"
    assert shorten("word " * 100).endswith("word…")
    assert len(shorten("x" * 1_000)) == MAX_TITLE_CHARACTERS
