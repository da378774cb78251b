"""Logs retold: nothing is left out, nothing stops it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given as for_any
from hypothesis import settings

from swarmkeep.audit.changes import Change, changes
from swarmkeep.audit.lines import event_of_line
from swarmkeep.audit.narrate import Scene, narrate, scenes_as_json
from swarmkeep.domain.codec import encode
from swarmkeep.domain.envelope import Draft, Recorded, view
from swarmkeep.domain.events import (
    FACTS,
    ApprovalDecided,
    ApprovalRequested,
    CompletionRecord,
    ContextUpdated,
    HandoffMade,
    MessageAdded,
    RunCancelled,
    RunCompleted,
    RunError,
    RunFailed,
    RunResumed,
    SessionCreated,
    SessionEvent,
    SessionRedacted,
    ToolRecord,
    ToolStarted,
    UnknownFact,
    Usage,
)
from swarmkeep.domain.fold import fold
from tests.domain.given import RUN, asks, reply, said, started
from tests.support.logs import any_logs, recorded

CALL = {"id": "c1", "type": "function", "function": {"name": "refund", "arguments": '{"order": "A-17"}'}}


def told(*facts: SessionEvent) -> list[Scene]:
    """The scenes of a session that begins with the agent "triage"; a run's facts belong to RUN."""
    drafts = [Draft(fact, None if isinstance(fact, SessionCreated) else RUN, "triage") for fact in facts]
    return list(narrate(recorded([Draft(SessionCreated(agent="triage"), None, "triage"), *drafts])))


def last(*facts: SessionEvent) -> Scene:
    return told(*facts)[-1]


@for_any(any_logs())
@settings(max_examples=150)
def test_every_event_of_any_log_has_a_scene_in_its_place(events: list[Recorded]) -> None:
    scenes = list(narrate(events))
    assert [(scene.seq, scene.type, scene.at) for scene in scenes] == [
        (event.seq, event.type, event.at) for event in events
    ]
    assert all(scene.headline or scene.text or scene.speaker or scene.warning for scene in scenes)
    encode(scenes_as_json(scenes))


@for_any(any_logs())
@settings(max_examples=60)
def test_told_in_two_parts_it_is_the_same(events: list[Recorded]) -> None:
    half = len(events) // 2
    parts = [*narrate(events[:half]), *narrate(events[half:], fold(events[:half]))]
    assert encode(parts) == encode(list(narrate(events)))


@for_any(any_logs())
@settings(max_examples=100)
def test_an_event_comes_back_from_its_line_to_the_byte(events: list[Recorded]) -> None:
    for event in events:
        read = event_of_line(encode(view(event)))
        assert read.payload == event.payload
        assert encode(view(read)) == encode(view(event))


def test_a_message_has_its_speaker_its_text_and_what_it_cost() -> None:
    completion = CompletionRecord(
        model="gpt-x", usage={"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}, duration_ms=12.5
    )
    user, answer = told(started(), said("Hi"), MessageAdded(message=asks(CALL), completion=completion))[-2:]
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
    scene = last(started(), reply(asks(CALL)), ended)
    assert (scene.speaker, scene.headline, scene.tone, scene.text) == ("refund", headline, tone, "so it is")


def test_a_call_that_is_started_again_says_so() -> None:
    again = ToolStarted(tool_call_id="c1", name="refund", arguments="{}", attempt=2)
    assert "attempt 2" in last(started(), reply(asks(CALL)), again).headline


def test_a_handoff_names_both() -> None:
    scene = last(started(), HandoffMade(from_agent="triage", to_agent="sales"))
    assert (scene.speaker, scene.headline) == ("triage", "hands over to sales")


def test_a_change_of_the_context_shows_what_stood_there_before() -> None:
    first = ContextUpdated(patch={"user": {"name": "Robin"}, "old": 1})
    second = ContextUpdated(patch={"user": {"name": "Kim"}, "old": None, "new": True}, tool_call_id="c1")
    scene = last(started(), reply(asks(CALL)), first, second)
    assert scene.speaker == "refund"
    assert scene.changes == (
        Change(path="/context_variables/user/name", before="Robin", after="Kim"),
        Change(path="/context_variables/old", before=1),
        Change(path="/context_variables/new", after=True),
    )


def test_an_approval_names_who_decided_and_why() -> None:
    asked = ApprovalRequested(tool_call_id="c1", name="refund", arguments="{}")
    decided = ApprovalDecided(tool_call_id="c1", decision="deny", reason="too much", by="ann")
    scene = last(started(), reply(asks(CALL)), asked, decided)
    assert (scene.speaker, scene.headline, scene.text, scene.tone) == ("ann", "denies refund", "too much", "bad")


def test_the_end_of_a_run_has_its_usage_its_length_and_its_error() -> None:
    error = RunError(code="provider_error", message="no answer")
    scene = last(started(), said(), RunFailed(stop_reason="error", usage=Usage(model_calls=2), error=error))
    assert (scene.headline, scene.text, scene.tone) == ("the run failed", "provider_error: no answer", "bad")
    assert scene.usage == Usage(model_calls=2)
    assert scene.duration_ms == 2000.0


def test_a_take_over_and_a_limit_are_told() -> None:
    assert "taken over" in last(started(), RunResumed(reason="recovery")).headline
    assert "max_turns" in last(started(), RunCompleted(stop_reason="max_turns")).headline
    assert last(started(), RunCancelled(stop_reason="cancelled")).tone == "bad"


def test_a_redaction_says_which_and_why() -> None:
    scene = last(SessionRedacted(seqs=(2, 3), reason="asked for"))
    assert (scene.headline, scene.text) == ("redacted: 2, 3", "asked for")


@pytest.mark.parametrize(
    ("type", "data", "warning"),
    [
        ("agent.dreamed", {"of": "sheep"}, "does not know"),
        ("message.added", None, "not there any more"),
        ("message.added", ["odd"], "not in a form"),
    ],
)
def test_what_cannot_be_read_is_said_so(type: str, data: Any, warning: str) -> None:
    assert type == "agent.dreamed" or type in FACTS
    event = recorded([Draft(UnknownFact(data=data), None, "triage")])[0]
    (scene,) = narrate([event_of_line(encode(view(event)).replace(b"agent.dreamed", type.encode()))])
    assert warning in scene.warning


def test_a_redacted_event_is_told_as_far_as_its_stand_in_goes() -> None:
    event = recorded([Draft(said("[redacted]"), None, "triage")])[0]
    line = encode(view(event)).replace(b'"sender":"user"}', b'"sender":"user"},"redacted":true')
    (scene,) = narrate([event_of_line(line)])
    assert (scene.speaker, scene.warning) == ("user", "what it said was redacted")


def test_a_gap_in_the_log_is_said_and_the_rest_is_told() -> None:
    drafts = [Draft(SessionCreated(agent="triage"), None, "triage"), *(Draft(said(), None, "triage") for _ in range(4))]
    events = recorded(drafts)
    scenes = list(narrate([*events[:2], *events[3:]]))
    assert [bool(scene.warning) for scene in scenes] == [False, False, True, False]
    assert "event 2 to event 4" in scenes[2].warning


def test_changes_tell_types_apart_and_take_lists_whole() -> None:
    assert changes({"a": 1, "l": [1]}, {"a": True, "l": [1, 2]}) == (
        Change(path="/a", before=1, after=True),
        Change(path="/l", before=[1], after=[1, 2]),
    )
    assert changes({"a": None}, {}) == (Change(path="/a", before=None),)
    assert changes({"a/b~": 1}, {"a/b~": 2})[0].path == "/a~1b~0"
    assert changes({"a": {}}, {"a": {}}) == ()
