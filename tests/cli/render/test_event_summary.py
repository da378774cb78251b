"""Every event has a line that tells a person what happened; none is too odd for one."""

from __future__ import annotations

from typing import Any

import pytest

from swarmkeep.cli import render
from swarmkeep.cli.conversion import from_client_event
from swarmkeep.cli.render import MAX_LENGTH, format_event_line, summarize_event
from swarmkeep.events.facts import FACTS, RecordedEvent
from swarmkeep_client import Event

CALL = {"tool_call_id": "call_1", "name": "refund", "arguments": '{"item": "LAMP-1"}'}
ASKED = {"id": "call_1", "type": "function", "function": {"name": "refund", "arguments": '{"item": "LAMP-1"}'}}

KEY = "key_0123456789abcdef (Eve)"

SAID: dict[str, tuple[dict[str, Any], str]] = {
    "session.created": ({"agent": "Ann", "context_variables": {"a": 1}, "metadata": {}}, 'with Ann {"a": 1}'),
    "session.forked": ({"from_session_id": "one", "from_seq": 3, "from_hash": "…"}, "from one at 3"),
    "session.updated": ({"metadata": {"a": None}, "agent": "Bob"}, 'agent Bob, metadata {"a": null}'),
    "session.imported": (
        {"last_seq": 3, "source": "export", "digest": "d", "by": None},
        "events 1 to 3 from export, by somebody",
    ),
    "session.taken_over": ({"by": KEY, "note": "angry"}, "by Eve (key_0123456789abcdef): angry"),
    "session.handed_back": ({"by": "cli", "note": None}, "by cli"),
    "session.held": ({"by": KEY, "reason": "a case"}, "by Eve (key_0123456789abcdef): a case"),
    "session.released": ({"by": None}, ""),
    "session.redacted": ({"seqs": [2, 4], "reason": "asked for"}, "2, 4: asked for"),
    "run.queued": ({"options": {"max_turns": 3}, "messages": []}, '{"max_turns": 3}'),
    "run.started": (
        {"options": {"max_turns": None, "execute_tools": True, "stream": True}, "by": KEY},
        "by Eve (key_0123456789abcdef)",
    ),
    "message.added": ({"message": {"role": "user", "content": "Hello\n\nthere"}}, "user: Hello there"),
    "message.removed": (
        {"message_seq": 7, "tool_call_id": "call_1", "seqs": [8], "by": KEY},
        "message 7, call call_1, by Eve (key_0123456789abcdef)",
    ),
    "tools.listed": (
        {"server": "files", "tools": [{"name": "read"}, {"name": "files_list"}], "schemas": "ab"},
        "files: read, files_list",
    ),
    "compaction.started": (
        {"reason": "tokens", "shortened": [3, 5], "last_seq": 7},
        "tokens: shortens 2 results, sums up to 7",
    ),
    "compaction.summarised": ({"first_seq": 2, "last_seq": 7, "summary": "Lamps."}, "2 to 7: Lamps."),
    "compaction.failed": ({"code": "provider_error", "message": "no"}, "provider_error: no"),
    "run.hidden": ({"by": KEY}, "by Eve (key_0123456789abcdef)"),
    "tool.started": ({**CALL, "attempt": 2}, 'refund(item="LAMP-1"), attempt 2'),
    "guardrail.tripped": (
        {"stage": "input", "name": "polite", "message": "Not here.", "error": "KeyError: 'x'"},
        "input refused by polite: Not here. (KeyError: 'x')",
    ),
    "handoff.made": ({"from": "Ann", "to": "Bob", "tool_call_id": "call_1"}, "Ann → Bob"),
    "handoff.ignored": ({"from": "Ann", "to": "Bob", "tool_call_id": "call_1"}, "Ann → Bob"),
    "context.updated": ({"patch": {"cart": ["LAMP-1"]}, "tool_call_id": "call_1"}, '{"cart": ["LAMP-1"]}'),
    "approval.requested": ({**CALL, "expires_at": None}, 'refund(item="LAMP-1")'),
    "approval.decided": (
        {"tool_call_id": "call_1", "decision": "approve", "by": KEY, "reason": "no", "arguments": '{"n": 1}'},
        'approve Eve (key_0123456789abcdef) no, with other arguments: {"n": 1}',
    ),
    "run.waiting": (
        {"pending": [{"reason": "person", "name": "", "arguments": ""}, {**CALL, "reason": "approval"}]},
        'for the person who has taken over, refund(item="LAMP-1")',
    ),
    "run.resumed": ({"reason": "recovery"}, "after recovery"),
    "run.completed": ({"stop_reason": "end_turn", "usage": {}, "error": None}, "end_turn"),
    "run.failed": (
        {"stop_reason": "error", "error": {"code": "rate_limited", "message": "slow down"}},
        "error: rate_limited: slow down",
    ),
    "run.cancelled": ({"stop_reason": "cancelled", "error": None}, "cancelled"),
    "run.interrupted": ({"stop_reason": "interrupted", "error": None}, "interrupted"),
}

MESSAGES: list[tuple[dict[str, Any], str]] = [
    ({"message": {"role": "assistant", "content": None, "tool_calls": [ASKED]}}, 'assistant: refund(item="LAMP-1")'),
    ({"message": {"role": "assistant", "content": "Well:", "tool_calls": [ASKED]}}, 'assistant: Well: refund(item="L'),
    ({"message": {"role": "tool", "content": "ok"}, "tool": {"name": "refund", "status": "ok"}}, "refund → ok"),
    ({"message": {"role": "tool", "content": "no"}, "tool": {"name": "f", "status": "error"}}, "f (error) → no"),
    ({"message": {"role": "tool", "content": "imported"}}, "tool → imported"),
    ({"message": {"role": "user", "content": [{"type": "text", "text": "Hi"}, {"type": "image_url"}]}}, "user: Hi[im"),
]


def event(type: str, data: Any) -> RecordedEvent:
    told = Event(session_id="one", seq=7, type=type, agent="Ann", at="2026-01-02T03:04:05.678901Z", data=data)
    return from_client_event(told)


def test_every_type_is_described() -> None:
    assert set(SAID) == set(FACTS)
    assert set(render._SUMMARIZERS) == set(FACTS)


@pytest.mark.parametrize("type", SAID)
def test_an_event_is_summed_up(type: str) -> None:
    data, said = SAID[type]
    assert summarize_event(event(type, data)) == said


@pytest.mark.parametrize(("data", "said"), MESSAGES)
def test_message_summarised_by_speaker(data: dict[str, Any], said: str) -> None:
    assert summarize_event(event("message.added", data)).startswith(said)


@pytest.mark.parametrize("type", [*SAID, "weather.changed"])
@pytest.mark.parametrize("data", [None, {}, {"redacted": True}, ["odd"], "odd", {"message": "odd"}], ids=repr)
def test_odd_events_fit_a_line(type: str, data: Any) -> None:
    assert "\n" not in summarize_event(event(type, data))


def test_line_has_seq_time_agent_summary() -> None:
    shown = format_event_line(event("run.resumed", {"reason": "recovery"}))
    assert shown.split() == ["7", "2026-01-02T03:04:05.678Z", "Ann", "run.resumed", "after", "recovery"]
    clock = format_event_line(event("run.resumed", {"reason": "recovery"}), clock_only=True)
    assert clock.split()[1] == "03:04:05.678"


def test_a_long_summary_is_cut() -> None:
    shown = summarize_event(event("message.added", {"message": {"role": "user", "content": "long " * 1000}}))
    assert len(shown) == MAX_LENGTH
    assert shown.endswith("…")


def test_asked_agent_told_with_session() -> None:
    parent = {"session_id": "s", "run_id": "r", "tool_call_id": "c", "depth": 1}
    created = {"agent": "Ann", "context_variables": {}, "parent": parent}
    assert summarize_event(event("session.created", created)) == "with Ann asked by s"
    started = {**CALL, "session_id": "below"}
    assert summarize_event(event("tool.started", started)) == 'refund(item="LAMP-1"), in session below'
    waiting = {"pending": [{**CALL, "reason": "session", "session_id": "below"}]}
    assert summarize_event(event("run.waiting", waiting)) == 'for refund(item="LAMP-1") in session below'
