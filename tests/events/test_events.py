"""The facts: their names, their JSON, and reading it back."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given as for_any
from hypothesis import settings
from msgspec import UNSET

from swarmkeep.events import facts
from swarmkeep.events.records import CompletionRecord, RequestRecord, RunOptions, ToolRecord, Usage
from tests.support.hypothesis_profiles import examples
from tests.support.logs import any_logs, record_draft

USER = {"role": "user", "content": "hello", "sender": "user"}
ENDING: dict[str, Any] = {"stop_reason": "end_turn", "usage": Usage(), "error": facts.RunError(code="x", message="y")}
OPTIONS = {"max_turns", "model", "execute_tools", "stream", "loop_turns", "history_turns"}

# Each fact with every field, and the keys that its `data` then has: the table of the public contract.
EXAMPLES: list[tuple[str, facts.Fact, set[str]]] = [
    ("session.created", facts.SessionCreated(agent="a"), {"agent", "context_variables", "metadata"}),
    (
        "session.forked",
        facts.SessionForked(from_session_id="s", from_seq=1, from_hash="h"),
        {"from_session_id", "from_seq", "from_hash"},
    ),
    (
        "session.imported",
        facts.SessionImported(source="export", digest="d", last_seq=3, by="Lee"),
        {"source", "digest", "last_seq", "by"},
    ),
    ("session.updated", facts.SessionUpdated(metadata={"k": None}, agent="b"), {"metadata", "agent"}),
    ("session.taken_over", facts.SessionTakenOver(by="Lee", note="angry"), {"by", "note"}),
    ("session.handed_back", facts.SessionHandedBack(by="Lee", note="be kind"), {"by", "note"}),
    ("session.held", facts.SessionHeld(reason="a lawsuit", by="Lee"), {"reason", "by"}),
    ("session.released", facts.SessionReleased(by="Lee"), {"by"}),
    (
        "session.assigned",
        facts.SessionAssigned(to="billing", by="Lee", reason="an invoice", tool_call_id="c"),
        {"to", "by", "reason", "tool_call_id"},
    ),
    (
        "feedback.added",
        facts.FeedbackAdded(seq=4, value="down", comment="wrong", by="Lee"),
        {"seq", "value", "comment", "by"},
    ),
    ("note.added", facts.NoteAdded(text="twice before", by="Lee"), {"text", "by"}),
    ("session.redacted", facts.SessionRedacted(seqs=(2, 3), reason="asked to"), {"seqs", "reason", "by", "kept"}),
    (
        "run.queued",
        facts.RunQueued(options=RunOptions(), messages=(USER,)),
        {"options", "messages", "agent", "context_variables", "idempotency_key"},
    ),
    ("run.started", facts.RunStarted(options=RunOptions(max_turns=3)), {"options", "idempotency_key"}),
    (
        "message.added",
        facts.MessageAdded(message=USER, completion=CompletionRecord(), tool=ToolRecord(name="f", status="ok")),
        {"message", "completion", "tool"},
    ),
    (
        "message.removed",
        facts.MessageRemoved(message_seq=3, tool_call_id="c", seqs=(3, 4), by="Lee", content=True),
        {"message_seq", "tool_call_id", "seqs", "by", "content"},
    ),
    (
        "tool.started",
        facts.ToolStarted(tool_call_id="c", name="f", arguments="{}"),
        {"tool_call_id", "name", "arguments", "attempt"},
    ),
    ("handoff.made", facts.HandoffMade(from_agent="a", to_agent="b", tool_call_id="c"), {"from", "to", "tool_call_id"}),
    ("handoff.ignored", facts.HandoffIgnored(from_agent="a", to_agent="b"), {"from", "to", "tool_call_id"}),
    ("context.updated", facts.ContextUpdated(patch={"k": None}, nulls=("/n",)), {"patch", "tool_call_id", "nulls"}),
    (
        "approval.requested",
        facts.ApprovalRequested(tool_call_id="c", name="f", arguments="{}"),
        {"tool_call_id", "name", "arguments", "expires_at"},
    ),
    (
        "approval.decided",
        facts.ApprovalDecided(tool_call_id="c", decision="approve", reason="no", by="me", arguments="{}"),
        {"tool_call_id", "decision", "reason", "by", "arguments"},
    ),
    (
        "run.waiting",
        facts.RunWaiting(pending=(facts.PendingCall(tool_call_id="c", name="f", arguments="{}", reason="approval"),)),
        {"pending"},
    ),
    (
        "guardrail.tripped",
        facts.GuardrailTripped(
            stage="input", name="f", message="no", error="x", messages=(3,), tool_call_id="c", digest="d"
        ),
        {"stage", "name", "message", "error", "messages", "tool_call_id", "digest"},
    ),
    ("run.resumed", facts.RunResumed(reason="recovery"), {"reason"}),
    ("run.completed", facts.RunCompleted(**ENDING), {"stop_reason", "usage", "error"}),
    ("run.failed", facts.RunFailed(**ENDING), {"stop_reason", "usage", "error"}),
    ("run.cancelled", facts.RunCancelled(**ENDING), {"stop_reason", "usage", "error"}),
    ("run.interrupted", facts.RunInterrupted(**ENDING), {"stop_reason", "usage", "error"}),
    ("run.hidden", facts.RunHidden(by="Lee", part=1), {"by", "part"}),
    (
        "tools.listed",
        facts.ToolsListed(server="files", tools=(facts.ListedTool(name="read"),), schemas="ab"),
        {"server", "tools", "schemas"},
    ),
    (
        "compaction.started",
        facts.CompactionStarted(reason="tokens", keep_turns=2, last_seq=7, shortened=(3,), by="Lee"),
        {
            "reason",
            "keep_turns",
            "of_tokens",
            "prompt_tokens",
            "estimated",
            "last_seq",
            "shortened",
            "result_characters",
            "piece_characters",
            "instructions",
            "by",
        },
    ),
    (
        "compaction.summarised",
        facts.CompactionSummarised(first_seq=2, last_seq=7, summary="s", characters=100, completion=CompletionRecord()),
        {"first_seq", "last_seq", "summary", "characters", "completion"},
    ),
    ("compaction.failed", facts.CompactionFailed(code="x", message="y"), {"code", "message"}),
]
each_fact = pytest.mark.parametrize(("type_", "fact", "keys"), EXAMPLES, ids=[type_ for type_, _, _ in EXAMPLES])


def test_the_examples_cover_every_fact_type() -> None:
    assert {type_: type(fact) for type_, fact, _ in EXAMPLES} == facts.FACTS


def test_facts_are_listed_by_type() -> None:
    assert all(type_ == fact.type for type_, fact in facts.FACTS.items())
    concrete = {cls for cls in _subclasses(facts.Fact) if isinstance(cls.__dict__.get("type"), str)}
    assert concrete == {*facts.FACTS.values(), facts.UnknownFact}


def _subclasses(cls: type[facts.Fact]) -> set[type[facts.Fact]]:
    return {deeper for sub in cls.__subclasses__() for deeper in {sub, *_subclasses(sub)}}


@each_fact
def test_fact_json_has_only_public_keys(type_: str, fact: facts.Fact, keys: set[str]) -> None:
    assert json.loads(facts.encode_payload(fact)).keys() == keys


@each_fact
def test_facts_round_trip_through_payloads(type_: str, fact: facts.Fact, keys: set[str]) -> None:
    assert facts.decode_fact(type_, facts.encode_payload(fact)) == fact


@each_fact
def test_later_release_fields_are_ignored(type_: str, fact: facts.Fact, keys: set[str]) -> None:
    data = json.loads(facts.encode_payload(fact))
    assert facts.decode_fact(type_, json.dumps({**data, "from the future": {"a": [None]}})) == fact


@each_fact
def test_a_fact_cannot_be_changed(type_: str, fact: facts.Fact, keys: set[str]) -> None:
    with pytest.raises(AttributeError):
        setattr(fact, fact.__struct_fields__[0], None)


@pytest.mark.parametrize(
    ("struct", "keys"),
    [
        (RunOptions(), OPTIONS),
        (CompletionRecord(), {"id", "model", "finish_reason", "usage", "duration_ms", "request"}),
        (RequestRecord(instructions="h"), {"instructions", "tools", "params"}),
        (ToolRecord(name="f", status="ok"), {"name", "status", "duration_ms"}),
        (
            facts.PendingCall(tool_call_id="c", name="f", arguments="{}", reason="approval"),
            {"tool_call_id", "name", "arguments", "reason", "expires_at"},
        ),
        (Usage(), {"prompt_tokens", "completion_tokens", "total_tokens", "model_calls"}),
        (facts.RunError(code="x", message="y"), {"code", "message", "retryable", "provider_status"}),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, msgspec.Struct) else "",
)
def test_fact_parts_have_public_keys(struct: msgspec.Struct, keys: set[str]) -> None:
    assert msgspec.to_builtins(struct).keys() == keys


def test_message_payload_omits_absent_fields() -> None:
    assert json.loads(facts.encode_payload(facts.MessageAdded(message=USER))) == {"message": USER}


def test_update_distinguishes_unchanged_from_removed() -> None:
    assert json.loads(facts.encode_payload(facts.SessionUpdated(metadata={"k": None}))) == {"metadata": {"k": None}}
    fact = facts.decode_fact("session.updated", '{"agent": "b"}')
    assert isinstance(fact, facts.SessionUpdated)
    assert (fact.metadata, fact.agent) == (UNSET, "b")


def test_missing_older_fields_have_defaults() -> None:
    assert facts.decode_fact("run.completed", '{"stop_reason": "end_turn"}') == facts.RunCompleted(
        stop_reason="end_turn"
    )
    assert facts.decode_fact("run.started", '{"options": {}}') == facts.RunStarted(options=RunOptions())
    assert facts.decode_fact("handoff.made", '{"from": "a", "to": "b"}') == facts.HandoffMade(
        from_agent="a", to_agent="b"
    )


@pytest.mark.parametrize("payload", ["{}", "[]", "null", "7", '"text"', '{"a": {"b": [1.0, null]}}', '"\\ud800"'])
def test_unknown_event_types_are_kept(payload: str) -> None:
    assert facts.decode_fact("agent.dreamed", payload) == facts.UnknownFact(data=json.loads(payload))


@pytest.mark.parametrize(("type_", "payload"), [("handoff.made", "{}"), ("run.started", "[]"), ("tool.started", "7")])
def test_wrong_payload_shape_is_refused(type_: str, payload: str) -> None:
    with pytest.raises(msgspec.ValidationError):
        facts.decode_fact(type_, payload)


def test_public_event_shows_stored_text() -> None:
    event = record_draft(facts.EventDraft(facts.MessageAdded(message=USER), "run_1", "a"), 4, "")
    event = msgspec.structs.replace(event, payload='{"message":{"role":"user", "n":1.0E+2}}')
    shown = msgspec.json.encode(facts.view_event(event)).decode()
    assert '"data":{"message":{"role":"user", "n":1.0E+2}}' in shown
    assert list(json.loads(shown)) == [
        "session_id", "seq", "type", "version", "run_id", "agent", "at", "data", "hash",
    ]  # fmt: skip


@for_any(events=any_logs())
@settings(max_examples=examples(60))
def test_any_log_round_trips_through_payloads(events: list[facts.RecordedEvent]) -> None:
    for event in events:
        assert repr(facts.decode_fact(event.type, event.payload)) == repr(event.fact)
