"""Cases that are proposed from recorded runs: they can be read as they were written, and today's agents meet them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given as drawn

from swarmkeep.evals.cases import Case, load_cases
from swarmkeep.evals.proposing import MAX_CASE_BYTES, NoCase, propose_case, write_case
from swarmkeep.events.codec import Json
from swarmkeep.events.errors import RunNotFound
from swarmkeep.events.facts import (
    ApprovalDecided,
    ContextUpdated,
    EventDraft,
    GuardrailTripped,
    HandoffMade,
    MessageAdded,
    RecordedEvent,
    RunCompleted,
    SessionCreated,
    SessionEvent,
)
from tests.events.given import (
    answer_message,
    calling_message,
    in_run,
    make_run_started,
    model_reply,
    tool_call,
    tool_result,
    user_said,
)
from tests.support.logs import json_objects, record_drafts

COMPLETED = RunCompleted(stop_reason="end_turn")
PART = {"type": "text", "text": "x"}
CREATED = SessionCreated(agent="Triage", context_variables={"user": "Lee"}, metadata={})


def record(*facts: SessionEvent | EventDraft, run: str = "r1") -> list[RecordedEvent]:
    begun = EventDraft(CREATED, None, "Triage")
    return record_drafts([begun, *(fact if isinstance(fact, EventDraft) else in_run(run, fact) for fact in facts)])


def test_case_says_what_was_said_and_done() -> None:
    earlier = [make_run_started(), user_said("Hello"), model_reply(answer_message("Good day.")), COMPLETED]
    log = record(
        *(in_run("r0", fact) for fact in earlier),
        make_run_started(model_settings={"temperature": 0}),
        user_said("I want a refund for order A-17."),
        model_reply(calling_message(tool_call("c1", "transfer_to_refunds"))),
        tool_result("c1", "transfer_to_refunds"),
        HandoffMade(from_agent="Triage", to_agent="Refunds", tool_call_id="c1"),
        model_reply(calling_message(tool_call("c2", "refund_order", '{"order_id": "A-17"}'))),
        tool_result("c2", "refund_order"),
        ContextUpdated(patch={"refunded": "A-17"}, tool_call_id="c2"),
        model_reply(answer_message("It is refunded.")),
        COMPLETED,
    )
    case = propose_case(log)
    assert case == {
        "name": "I want a refund for order A-17.",
        "agent": "Triage",
        "context_variables": {"user": "Lee"},
        "history": [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Good day."}],
        "conversation": ["I want a refund for order A-17."],
        "model_settings": {"temperature": 0},
        "expect": {
            "function": ["transfer_to_refunds", "refund_order"],
            "arguments": {"order_id": "A-17"},
            "agent": "Refunds",
            "context": {"refunded": "A-17"},
        },
    }
    assert propose_case(log, "r0", "a greeting") == {
        "name": "a greeting",
        "agent": "Triage",
        "context_variables": {"user": "Lee"},
        "conversation": ["Hello"],
        "expect": {"agent": "Triage"},
    }
    with pytest.raises(RunNotFound):
        propose_case(log, "none")


def test_decisions_and_guardrails_are_in_the_case() -> None:
    asked = [make_run_started(), user_said("Lock it."), model_reply(calling_message(tool_call("c1", "lock")))]
    denied = ApprovalDecided(tool_call_id="c1", decision="deny")
    assert propose_case(record(*asked, denied, COMPLETED))["approve"] is False
    tripped = GuardrailTripped(stage="input", name="polite", message="no")
    found = propose_case(record(*asked[:2], tripped, COMPLETED))
    assert found["expect"] == {"agent": "Triage", "guardrail": ["polite"]}
    approved = ApprovalDecided(tool_call_id="c1", decision="approve")
    with pytest.raises(NoCase, match="alike"):
        propose_case(record(*asked, approved, denied, COMPLETED))


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        ([], "no run"),
        ([make_run_started(), model_reply(answer_message()), COMPLETED], "does not begin"),
        (
            [make_run_started(), MessageAdded(message={"role": "user", "content": [{"type": "text", "text": "x"}]})],
            "text",
        ),
        ([make_run_started(), user_said(""), COMPLETED], "text"),
    ],
)
def test_runs_without_a_text_of_a_user_make_no_case(facts: list[Any], why: str) -> None:
    with pytest.raises(NoCase, match=why):
        propose_case(record(*facts))


def test_case_is_bounded() -> None:
    said = [make_run_started(), user_said("Hello"), model_reply(answer_message("x" * MAX_CASE_BYTES)), COMPLETED]
    log = record(
        *said, *(EventDraft(fact, "r2", "Triage") for fact in (make_run_started(), user_said("Go on"), COMPLETED))
    )
    with pytest.raises(NoCase, match="choose an earlier run"):
        propose_case(log)
    assert propose_case(log, "r1")["conversation"] == ["Hello"]


def test_redacted_message_makes_no_case() -> None:
    log = record(make_run_started(), user_said("secret"), model_reply(answer_message()), COMPLETED)
    gone = msgspec.structs.replace(log[2], payload='{"message":{"role":"user","content":"[redacted]"},"redacted":true}')
    with pytest.raises(NoCase, match="redacted"):
        propose_case([*log[:2], gone, *log[3:]])


def read_case(tmp_path: Path, case: Json) -> Case:
    file = tmp_path / "case.yaml"
    file.write_bytes(write_case(case))
    return load_cases([file])[0].cases[0]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cases")


@drawn(json_objects())
def test_cases_are_read_as_they_were_written(folder: Path, context: Json) -> None:
    said = MessageAdded(message={"role": "user", "content": 'yes: 1\n- no 🙂\t"x" #\0'})
    log = record(make_run_started(), said, ContextUpdated(patch={}), model_reply(answer_message()), COMPLETED)
    begun = msgspec.structs.replace(log[0], fact=SessionCreated(agent="on", context_variables=context, metadata={}))
    case = propose_case([begun, *log[1:]])
    found = read_case(folder, case)
    assert (found.messages[0].say, found.agent) == (case["conversation"][0], "on")
    assert found.context_variables == case.get("context_variables", {})
