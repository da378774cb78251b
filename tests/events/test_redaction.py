"""A stand-in says nothing of the removed payload, and leaves every state and request valid."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given as generated
from hypothesis import strategies as st
from msgspec import convert, inspect
from msgspec.structs import replace

from swarmkeep.decide.drafts import draft_events
from swarmkeep.decide.steps import next_step
from swarmkeep.events import facts
from swarmkeep.events.codec import decode
from swarmkeep.events.fold import evolve, fold
from swarmkeep.events.records import CompletionRecord, RequestRecord, RunOptions, ToolRecord
from swarmkeep.events.redaction import REDACTED, redact_payload
from swarmkeep.events.state import State
from swarmkeep.request.request import build_request
from tests.support.logs import any_logs, profiles, record_drafts
from tests.support.rules import find_body_faults

CANARY = "canary 7f3a9c"


def redact_event(event: facts.RecordedEvent) -> facts.RecordedEvent:
    text = redact_payload(event)
    fact = facts.decode_fact(event.type, text) if event.type in facts.FACTS else facts.UnknownFact(data=decode(text))
    return replace(event, payload=text, fact=fact)


def redact_fact(fact: facts.Fact, agent: str = "Triage") -> dict[str, Any]:
    """What takes the place of a fact."""
    event = facts.RecordedEvent(
        session_id="s",
        seq=1,
        type=fact.type,
        version=1,
        run_id=None,
        agent=agent,
        at="",
        hash="",
        payload="",
        fact=fact,
    )
    found: dict[str, Any] = json.loads(redact_payload(event))
    assert found.pop("redacted") is True
    return found


@generated(any_logs(), st.data(), profiles())
def test_redacted_prefixes_give_valid_requests(
    log: list[facts.RecordedEvent], data: st.DataObject, profile: Any
) -> None:
    chosen = data.draw(st.sets(st.sampled_from(range(len(log))))) if log else set()
    state = State()
    for index, event in enumerate(log):
        state = evolve(state, redact_event(event) if index in chosen else event)
        next_step(state)
        assert find_body_faults(build_request(state, profile).body()) == []


@generated(any_logs())
def test_a_redacted_log_keeps_its_shape(log: list[facts.RecordedEvent]) -> None:
    before, after = fold(log), fold(map(redact_event, log))
    assert (after.agent, after.status, len(after.messages)) == (before.agent, before.status, len(before.messages))
    assert [entry.role for entry in after.messages if entry.role != REDACTED] == [
        entry.role for entry, kept in zip(before.messages, after.messages, strict=True) if kept.role != REDACTED
    ]
    runs, kept = list(before.finished), list(after.finished)
    assert [(run.id, run.status, run.usage) for run in runs] == [(run.id, run.status, run.usage) for run in kept]


@generated(any_logs())
def test_redacting_stand_ins_again_changes_nothing(log: list[facts.RecordedEvent]) -> None:
    for event in log:
        once = redact_event(event)
        assert redact_event(once).payload == once.payload


def test_redacted_message_keeps_conversation_links() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "refund", "arguments": CANARY}}
    message = {"role": "assistant", "content": CANARY, "refusal": CANARY, "sender": "Triage", CANARY: 1, "name": CANARY}
    record = CompletionRecord(
        id=CANARY,
        model="gpt-4o",
        finish_reason="stop",
        usage={"prompt_tokens": 7, "note": CANARY},
        duration_ms=1.5,
        time_to_first_token_ms=0.5,
        request=RequestRecord(instructions=CANARY, params={CANARY: CANARY}),
    )
    found = redact_fact(facts.MessageAdded(message={**message, "tool_calls": [call]}, completion=record))
    assert CANARY not in json.dumps(found)
    assert found["message"] == {
        "role": "assistant",
        "content": REDACTED,
        "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "refund", "arguments": "{}"}}],
        "sender": "Triage",
    }
    assert found["completion"]["usage"] == {"prompt_tokens": 7}
    assert (found["completion"]["model"], found["completion"]["duration_ms"]) == ("gpt-4o", 1.5)
    assert found["completion"]["time_to_first_token_ms"] == 0.5
    assert redact_fact(facts.MessageAdded(message={"role": "user", "sender": "user"}))["message"]["sender"] == "user"


def test_false_name_stand_ins_are_removed() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": CANARY, "arguments": "{}"}}
    made: list[facts.SessionEvent] = [
        facts.MessageAdded(message={"role": CANARY, "content": [{"type": "text", "text": CANARY}], "sender": CANARY}),
        facts.MessageAdded(message={"role": "assistant", "tool_calls": [call]}),
        facts.MessageAdded(
            message={"role": "tool", "tool_call_id": "c1", "tool_name": CANARY, "content": CANARY},
            tool=ToolRecord(name=CANARY, status="ok"),
        ),
        facts.SessionCreated(agent="Triage", context_variables={CANARY: CANARY}, metadata={CANARY: CANARY}),
        facts.SessionUpdated(metadata={CANARY: CANARY}),
        facts.ContextUpdated(patch={CANARY: CANARY}, nulls=(CANARY,)),
        facts.RunStarted(options=RunOptions(model=CANARY), idempotency_key=CANARY),
        facts.RunQueued(
            options=RunOptions(),
            messages=({"role": "user", "content": CANARY},),
            context_variables={CANARY: 1},
            idempotency_key=CANARY,
        ),
        facts.ApprovalDecided(tool_call_id="c1", decision="deny", reason=CANARY, by=CANARY),
        facts.RunCompleted(stop_reason="end_turn", error=facts.RunError(code="x", message=CANARY)),
        facts.SessionRedacted(seqs=(1,), reason=CANARY, by="Lee", kept=("d",)),
        facts.UnknownFact(data={CANARY: CANARY}),
    ]
    for fact in made:
        assert CANARY not in json.dumps(redact_fact(fact)), fact


def test_removed_change_restores_no_old_value() -> None:
    created = facts.SessionCreated(agent="A", context_variables={"name": "old"}, metadata={"team": "old"})
    patched = redact_fact(facts.ContextUpdated(patch={"name": "new", "other": {"a": 1}}, tool_call_id="c1"))
    assert patched == {"patch": {"name": None, "other": None}, "tool_call_id": "c1"}
    assert redact_fact(facts.SessionUpdated(metadata={"team": "new"}, agent="B")) == {
        "metadata": {"team": None},
        "agent": "B",
    }
    assert redact_fact(created) == {"agent": "A", "context_variables": {}, "metadata": {}}


def test_redactor_stays_when_reason_goes() -> None:
    found = redact_fact(facts.SessionRedacted(seqs=(2, 3), reason=CANARY, by="Lee", kept=("x", "y")))
    assert found == {"seqs": [2, 3], "reason": REDACTED, "by": "Lee", "kept": ["x", "y"]}


def test_wait_for_a_person_stays_one() -> None:
    waited = facts.PendingCall(tool_call_id="", name="", arguments=CANARY, reason="person")
    (pending,) = redact_fact(facts.RunWaiting(pending=(waited,)))["pending"]
    assert (pending["reason"], pending["arguments"]) == ("person", "")


MESSAGE = {
    **dict.fromkeys(("role", "content", "name", "sender", "tool_call_id", "tool_name", CANARY), CANARY),
    "tool_calls": [{"id": CANARY, "type": "function", "function": {"name": CANARY, "arguments": CANARY}}],
}
# Where each type of fact may still hold a text: ids, agents' names, and words of ours.
_ENDING = {"stop_reason", "error.code"}
_WAITING = {"tool_call_id", "reason", "expires_at", "session_id"}
KEPT: dict[str, set[str]] = {
    "session.created": {"agent", "parent.run_id", "parent.tool_call_id"},
    "session.forked": {"from_hash"},
    "session.imported": {"source", "by"},
    "session.updated": {"agent"},
    "session.redacted": {"by", "kept", "texts"},
    "session.assigned": {"tool_call_id"},
    "run.queued": {"agent"},
    "message.added": {
        "message.tool_call_id", "message.tool_calls.id", "tool.status", "tool.handoff", "tool.session_id",
    },
    "message.removed": {"tool_call_id"},
    "tool.started": {"tool_call_id", "session_id"},
    "handoff.made": {"from", "to", "tool_call_id"},
    "handoff.ignored": {"from", "to", "tool_call_id"},
    "context.updated": {"tool_call_id"},
    "guardrail.tripped": {"stage", "tool_call_id"},
    "approval.requested": {"tool_call_id", "expires_at"},
    "approval.decided": {"tool_call_id", "decision"},
    "run.waiting": {
        *(f"pending.{name}" for name in _WAITING),
        *(f"pending.approvals.{name}" for name in ("session_id", "run_id", "tool_call_id")),
    },
    "run.resumed": {"reason"},
    **dict.fromkeys(("run.completed", "run.failed", "run.cancelled", "run.interrupted"), _ENDING),
    "compaction.started": {"reason"},
    "compaction.failed": {"code"},
}  # fmt: skip
# Those that say something of what was sent, or of the tools that it was sent with; and what nobody here has named.
LOST_NUMBERS = {"history_from", "history_upto", "version", "strict", "idempotent", "destructive", CANARY}


def fill(shape: inspect.Type, name: str = "") -> Any:
    """A value of a type with the canary in all its texts, and nothing left out."""
    match shape:
        case inspect.StructType():
            return {field.encode_name: fill(field.type, field.encode_name) for field in shape.fields}
        case inspect.UnionType():
            return fill(next(kind for kind in shape.types if not isinstance(kind, inspect.NoneType)), name)
        case inspect.VarTupleType():
            return [fill(shape.item_type, name)]
        case inspect.DictType():
            return MESSAGE if name in ("message", "messages") else {CANARY: 7, "a": {"b": CANARY, CANARY: 7}}
        case inspect.StrType():
            return CANARY
        case inspect.BoolType():
            return True
    assert isinstance(shape, inspect.IntType | inspect.FloatType | inspect.LiteralType), shape
    return shape.values[0] if isinstance(shape, inspect.LiteralType) else 7


def find_numbers(value: Any, path: tuple[str, ...] = ()) -> Iterator[str]:
    """Where there are numbers within a value, yes and no among them."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from find_numbers(item, (*path, key))
    elif isinstance(value, list):
        for item in value:
            yield from find_numbers(item, path)
    elif isinstance(value, int | float):
        yield ".".join(path)


def find_texts(value: Any, path: tuple[str, ...] = ()) -> Iterator[str]:
    """Where there are texts within a value; keys among them."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from find_texts(key if key == CANARY else None, (*path, "key"))
            yield from find_texts(item, (*path, key))
    elif isinstance(value, list):
        for item in value:
            yield from find_texts(item, path)
    elif isinstance(value, str) and value not in (REDACTED, "{}", "", "function"):
        yield ".".join(path)


def test_redacted_facts_keep_ids_names_numbers() -> None:
    for name, kind in facts.FACTS.items():
        filled = fill(inspect.type_info(kind))
        fact = convert(filled, kind)
        redacted = redact_fact(fact)
        assert set(find_texts(redacted)) == KEPT.get(name, set()), name
        lost = set(find_numbers(filled)) - set(find_numbers(redacted))
        assert {path.rpartition(".")[2] for path in lost} <= LOST_NUMBERS, name


@pytest.mark.parametrize("removed", [False, True])
def test_redacted_edited_call_stays_recognisable(removed: bool) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "refund", "arguments": "{}"}}
    reply = facts.MessageAdded(message={"role": "assistant", "tool_calls": [call]}, completion=CompletionRecord())
    decided = facts.ApprovalDecided(tool_call_id="c1", decision="approve", arguments='{"a":1}')
    drafts = draft_events(
        "A", [facts.SessionCreated(agent="A"), facts.RunStarted(options=RunOptions()), reply, decided], "r1"
    )
    *before, last = record_drafts(drafts)
    run = fold([*before, redact_event(last) if removed else last]).run
    assert [call.redacted for call in run.calls] == [removed]
