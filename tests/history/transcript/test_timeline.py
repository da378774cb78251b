"""Logs retold: nothing is left out, nothing stops it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given as for_any
from hypothesis import settings
from msgspec import UNSET
from msgspec.structs import replace

from swarmkeep.describe import Change, TimelineEntry, build_timeline, find_changes
from swarmkeep.events.codec import encode
from swarmkeep.events.facts import (
    FACTS,
    ApprovalDecided,
    ApprovalRequested,
    ContextUpdated,
    EventDraft,
    MessageAdded,
    RecordedEvent,
    RunCancelled,
    RunCompleted,
    RunError,
    RunFailed,
    RunQueued,
    RunStarted,
    SessionCreated,
    SessionEvent,
    ToolStarted,
    UnknownFact,
    view_event,
)
from swarmkeep.events.fold import fold
from swarmkeep.events.records import CompletionRecord, RunOptions, ToolRecord, Usage
from swarmkeep.history.export import parse_event_line
from tests.events.given import RUN, calling_message, make_run_started, model_reply, user_said
from tests.support.calls import count_calls
from tests.support.hypothesis_profiles import examples
from tests.support.logs import any_logs, record_drafts

KEY = "key_0123456789abcdef (Ann)"
CALL = {"id": "c1", "type": "function", "function": {"name": "refund", "arguments": '{"order": "A-17"}'}}


def build_entries(*facts: SessionEvent) -> list[TimelineEntry]:
    """The entries of a session that begins with the agent "triage"; a run's facts belong to RUN."""
    drafts = [EventDraft(fact, None if isinstance(fact, SessionCreated) else RUN, "triage") for fact in facts]
    return list(build_timeline(record_drafts([EventDraft(SessionCreated(agent="triage"), None, "triage"), *drafts])))


def build_last_entry(*facts: SessionEvent) -> TimelineEntry:
    return build_entries(*facts)[-1]


@for_any(any_logs())
@settings(max_examples=examples(150))
def test_every_event_has_a_scene(events: list[RecordedEvent]) -> None:
    entries = list(build_timeline(events))
    assert [(entry.seq, entry.type, entry.at) for entry in entries] == [
        (event.seq, event.type, event.at) for event in events
    ]
    assert all(entry.headline or entry.text or entry.speaker or entry.warning for entry in entries)
    encode(entries)


@for_any(any_logs())
@settings(max_examples=examples(60))
def test_timeline_in_two_parts_is_same(events: list[RecordedEvent]) -> None:
    half = len(events) // 2
    parts = [*build_timeline(events[:half]), *build_timeline(events[half:], fold(events[:half]))]
    assert encode(parts) == encode(list(build_timeline(events)))


@for_any(any_logs())
@settings(max_examples=examples(100))
def test_event_recovered_exactly_from_line(events: list[RecordedEvent]) -> None:
    for event in events:
        read = parse_event_line(encode(view_event(event)))
        assert read.payload == event.payload
        assert encode(view_event(read)) == encode(view_event(event))


def test_message_has_speaker_text_and_cost() -> None:
    completion = CompletionRecord(
        model="gpt-x", usage={"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}, duration_ms=12.5
    )
    user, answer = build_entries(
        make_run_started(), user_said("Hi"), MessageAdded(message=calling_message(CALL), completion=completion)
    )[-2:]
    assert (user.speaker, user.text) == ("user", "Hi")
    assert (answer.speaker, answer.calls) == ("triage", ('refund(order="A-17")',))
    assert (answer.model, answer.duration_ms) == ("gpt-x", 12.5)
    assert answer.usage == Usage(prompt_tokens=3, completion_tokens=2, total_tokens=5, model_calls=1)


@pytest.mark.parametrize(
    ("status", "tone", "headline"),
    [
        ("ok", "plain", "answers"),
        ("error", "bad", "fails"),
        ("timeout", "bad", "did not answer in time"),
        ("unknown_outcome", "bad", "was cut off: its outcome is unknown"),
        ("denied", "bad", "was denied, and did not run"),
        ("external", "plain", "is answered from outside"),
    ],
)
def test_a_tool_says_how_it_ended(status: Any, tone: str, headline: str) -> None:
    message = {"role": "tool", "tool_call_id": "c1", "content": "so it is"}
    ended = MessageAdded(message=message, tool=ToolRecord(name="refund", status=status, duration_ms=3.0))
    entry = build_last_entry(make_run_started(), model_reply(calling_message(CALL)), ended)
    assert (entry.speaker, entry.headline, entry.tone, entry.text) == ("refund", headline, tone, "so it is")


def test_context_change_shows_previous_value() -> None:
    first = ContextUpdated(patch={"user": {"name": "Robin"}, "old": 1})
    second = ContextUpdated(patch={"user": {"name": "Kim"}, "old": None, "new": True}, tool_call_id="c1")
    entry = build_last_entry(make_run_started(), model_reply(calling_message(CALL)), first, second)
    assert entry.speaker == "refund"
    assert entry.changes == (
        Change(path="/context_variables/user/name", before="Robin", after="Kim"),
        Change(path="/context_variables/old", before=1),
        Change(path="/context_variables/new", after=True),
    )


def test_approval_names_decider_and_reason() -> None:
    asked = ApprovalRequested(tool_call_id="c1", name="refund", arguments="{}")
    decided = ApprovalDecided(tool_call_id="c1", decision="deny", reason="too much", by="ann")
    entry = build_last_entry(make_run_started(), model_reply(calling_message(CALL)), asked, decided)
    assert (entry.speaker, entry.headline, entry.text, entry.tone) == ("ann", "denies refund", "too much", "bad")


def test_run_starter_named_before_key() -> None:
    options = RunOptions(model="m")
    for by, speaker in (
        (KEY, "Ann (key_0123456789abcdef)"),
        ("cli:root", "cli:root"),
        (KEY.split()[0], KEY.split()[0]),
    ):
        started = build_last_entry(RunStarted(options=options, by=by))
        assert (started.speaker, started.headline) == (speaker, "starts a run with the model m")
        queued = build_last_entry(RunQueued(options=options, messages=({"role": "user", "content": "hi"},), by=by))
        assert (queued.speaker, queued.headline, queued.text) == (speaker, "queues a run with the model m", "hi")
    nobody = build_last_entry(RunStarted(options=options))
    assert (nobody.speaker, nobody.headline) == ("", "a run starts with the model m")


def test_run_end_has_usage_length_error() -> None:
    error = RunError(code="provider_error", message="no answer")
    entry = build_last_entry(
        make_run_started(), user_said(), RunFailed(stop_reason="error", usage=Usage(model_calls=2), error=error)
    )
    assert (entry.headline, entry.text, entry.tone) == ("the run failed", "provider_error: no answer", "bad")
    assert entry.usage == Usage(model_calls=2)
    assert entry.duration_ms == 2000.0


def test_turn_limit_and_cancellation_are_told() -> None:
    assert "max_turns" in build_last_entry(make_run_started(), RunCompleted(stop_reason="max_turns")).headline
    assert build_last_entry(make_run_started(), RunCancelled(stop_reason="cancelled")).tone == "bad"


def test_rejected_or_accepted_answer_says_so() -> None:
    told = {"role": "user", "content": "It is not JSON.", "sender": "swarmkeep"}
    entry = build_last_entry(make_run_started(), MessageAdded(message=told, correction=2))
    assert (entry.speaker, entry.headline, entry.tone) == ("swarmkeep", "sends the answer back (2)", "notice")
    assert entry.text == "It is not JSON."
    result = {"role": "tool", "tool_call_id": "c1", "content": "The answer is taken."}
    tool = ToolRecord(name="final_output", status="ok", output=True)
    taken = build_last_entry(make_run_started(), MessageAdded(message=result, tool=tool))
    assert taken.headline == "takes the answer"
    wrong = MessageAdded(message=result, tool=replace(tool, status="error", output=UNSET), correction=1)
    assert build_last_entry(make_run_started(), wrong).headline == "sends the answer back (1)"
    options = RunOptions(model_settings={"seed": 1}, instructions="Hm.", response_format={"type": "json_object"})
    begun = build_last_entry(RunStarted(options=options)).headline
    assert begun == 'a run starts with {"seed":1} for an answer of the form json_object with instructions of its own'


@pytest.mark.parametrize(
    ("type", "data", "warning"),
    [
        ("agent.dreamed", {"of": "sheep"}, "does not know"),
        ("message.added", None, "is gone"),
        ("message.added", ["odd"], "does not know the form"),
    ],
)
def test_unreadable_event_is_told(type: str, data: Any, warning: str) -> None:
    assert type == "agent.dreamed" or type in FACTS
    event = record_drafts([EventDraft(UnknownFact(data=data), None, "triage")])[0]
    (entry,) = build_timeline([parse_event_line(encode(view_event(event)).replace(b"agent.dreamed", type.encode()))])
    assert warning in entry.warning


def test_redacted_event_told_from_stand_in() -> None:
    event = record_drafts([EventDraft(user_said("[redacted]"), None, "triage")])[0]
    line = encode(view_event(event)).replace(b'"sender":"user"}', b'"sender":"user"},"redacted":true')
    (entry,) = build_timeline([parse_event_line(line)])
    assert (entry.speaker, entry.warning) == ("user", "its content was redacted")


def test_log_gap_told_and_rest_continues() -> None:
    drafts = [
        EventDraft(SessionCreated(agent="triage"), None, "triage"),
        *(EventDraft(user_said(), None, "triage") for _ in range(4)),
    ]
    events = record_drafts(drafts)
    entries = list(build_timeline([*events[:2], *events[3:]]))
    assert [bool(entry.warning) for entry in entries] == [False, False, True, False]
    assert "event 2 to event 4" in entries[2].warning


def test_changes_distinguish_types_keep_lists_whole() -> None:
    assert find_changes({"a": 1, "l": [1]}, {"a": True, "l": [1, 2]}) == (
        Change(path="/a", before=1, after=True),
        Change(path="/l", before=[1], after=[1, 2]),
    )
    assert find_changes({"a": None}, {}) == (Change(path="/a", before=None),)
    assert find_changes({"a/b~": 1}, {"a/b~": 2})[0].path == "/a~1b~0"
    assert find_changes({"a": {}}, {"a": {}}) == ()


def test_concurrent_results_name_their_call() -> None:
    calls = [
        {**CALL, "id": call_id, "function": {"name": "look", "arguments": f'{{"at": "{call_id}"}}'}} for call_id in "ab"
    ]
    started = [ToolStarted(tool_call_id=call_id, name="look", arguments=f'{{"at": "{call_id}"}}') for call_id in "ab"]
    results = {
        call_id: MessageAdded(
            message={"role": "tool", "tool_call_id": call_id, "content": call_id, "sender": "triage"},
            tool=ToolRecord(name="look", status="ok"),
        )
        for call_id in "ab"
    }
    asked = (make_run_started(), user_said(), model_reply(calling_message(*calls)))
    told = build_entries(*asked, *started, results["b"], results["a"])
    assert [entry.calls for entry in told[-2:]] == [('look(at="b")',), ('look(at="a")',)]
    in_turn = build_entries(*asked, started[0], results["a"], started[1], results["b"])
    assert [entry.calls for entry in in_turn if entry.speaker == "look"] == [(), ()]


def test_event_cost_independent_of_context_size() -> None:
    large = {f"key {number}": {"a": number} for number in range(1000)}
    patched = [ContextUpdated(patch={"key 7": {"a": number}}) for number in range(20)]
    facts = (SessionCreated(agent="triage", context_variables=large), *[user_said()] * 20, *patched)
    events = record_drafts([EventDraft(fact, None, "triage") for fact in facts])
    created = fold(events[:1])
    with count_calls() as counted:
        entries = list(build_timeline(events[1:], created))
    assert [len(entry.changes) for entry in entries] == [0] * 20 + [1] * 20
    assert counted[encode.__code__] < 60
