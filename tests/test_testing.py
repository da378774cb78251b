"""The helpers that a team's own tests are given: `swarmkeep.testing`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from swarmkeep import Agent
from swarmkeep.events.codec import digest, encode
from swarmkeep.events.errors import InvalidImport, InvalidRequest
from swarmkeep.events.facts import EventDraft, MessageAdded, RunCompleted, SessionCreated, view_event
from swarmkeep.events.records import CompletionRecord, RequestRecord
from swarmkeep.testing import RecordedConversation, assert_replays, differences, recorded
from tests.events.given import RUN, make_run_started, user_said
from tests.support import logs

TEAM = [Agent(name="triage", instructions="Be kind.")]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two files with a conversation each."""
    params = {"model": "gpt-4o"}
    record = RequestRecord(instructions=digest("Be kind."), params=params)
    reply = MessageAdded(
        message={"role": "assistant", "content": "Hi", "sender": "triage"}, completion=CompletionRecord(request=record)
    )
    facts = [make_run_started(), user_said(), reply, RunCompleted(stop_reason="end_turn")]
    drafts = [
        EventDraft(SessionCreated(agent="triage"), None, "triage"),
        *(EventDraft(fact, RUN, "triage") for fact in facts),
    ]
    lines = b"".join(encode(view_event(event)) + b"\n" for event in logs.record_drafts(drafts))
    for name in ("one", "two"):
        (tmp_path / f"{name}.ndjson").write_bytes(lines)
    return tmp_path


@pytest.fixture
def conversation(folder: Path) -> RecordedConversation:
    return recorded(folder / "one.ndjson")[0]


def test_pattern_files_are_ordered_and_named(folder: Path) -> None:
    found = recorded(folder / "*.ndjson")
    assert [conversation.__name__ for conversation in found] == ["one.ndjson:session", "two.ndjson:session"]


def test_empty_pattern_and_broken_file_are_errors(folder: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nothing"):
        recorded(folder / "nothing-*.ndjson")
    (folder / "broken.ndjson").write_text(json.dumps({"a": 1}))
    with pytest.raises(InvalidImport, match="line 1"):
        recorded(folder / "broken.ndjson")


def test_same_agents_pass_others_show_both_sides(conversation: RecordedConversation) -> None:
    assert_replays(conversation, TEAM)
    other = [Agent(name="triage", instructions="Be brief.", model="another")]
    with pytest.raises(AssertionError) as failed:
        assert_replays(conversation, other)
    # The file does not have the recorded text, only its hash.
    assert "event 4: instructions\n  --- recorded\n  +++ today\n  -sha256:" in str(failed.value)
    assert "\n  +Be brief.\nevent 4: model\n  recorded: gpt-4o\n  today:    another" in str(failed.value)
    assert [found.kind for found in differences(conversation, other)] == ["instructions", "model"]
    assert_replays(conversation, other, ignore=["instructions", "model"])
    assert [found.kind for found in differences(conversation, other, ignore="instructions")] == ["model"]


def test_agents_from_file_model_from_caller(conversation: RecordedConversation, tmp_path: Path) -> None:
    file = tmp_path / "team_of_a_test.py"
    file.write_text("from swarmkeep import Agent\ntriage = Agent(name='triage', instructions='Be kind.')\n")
    assert_replays(conversation, file)
    assert [found.kind for found in differences(conversation, file, model="another")] == ["model"]


def test_unknown_kind_refused(conversation: RecordedConversation) -> None:
    with pytest.raises(InvalidRequest):
        assert_replays(conversation, TEAM, ignore=["colour"])
