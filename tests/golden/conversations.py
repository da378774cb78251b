"""The sessions that a golden database holds: every type of event, told as conversations."""

from __future__ import annotations

from swarmkeep.decide.drafts import draft_events
from swarmkeep.events import facts
from swarmkeep.events.codec import digest
from swarmkeep.events.records import RequestRecord, RunOptions, Usage
from tests.golden.telling import INSTRUCTIONS, TOOLS, make_result, reply, say

BLOBS = {digest(text): text for text in (INSTRUCTIONS, TOOLS)}
ODD_VALUES = {"customer": "Ana 🌊", "note": None, "odd": "\x00 \ud800", "big": 2**70, "zero": -0.0}
REFUND = facts.PendingCall(tool_call_id="c3", name="refund", arguments='{"order": "B-1"}', reason="approval")
USAGE = Usage(prompt_tokens=10, completion_tokens=5, total_tokens=15, model_calls=1)


def _reply(agent: str, text: str | None, *calls: tuple[str, str, str]) -> facts.MessageAdded:
    params = {"model": "gpt-4o", "parallel_tool_calls": True}
    request = RequestRecord(instructions=digest(INSTRUCTIONS), tools=digest(TOOLS), params=params)
    made = reply(text, *calls, sender=agent, id="chatcmpl-1", duration_ms=12.5, request=request)
    # Here the sender comes last: the golden database has these bytes.
    made.message["sender"] = made.message.pop("sender")
    return made


def _draft_run(run_id: str, agent: str, *found: facts.SessionEvent) -> list[facts.EventDraft]:
    return draft_events(agent, found, run_id)


def make_shop() -> list[list[facts.EventDraft]]:
    """A session with handoffs, context changes, an approval, a queue, and runs that end in every way."""
    return [
        draft_events(
            "Triage",
            [
                facts.SessionCreated(
                    agent="Triage",
                    context_variables={
                        "customer": "Ana 🌊",
                        "note": None,
                        "odd": "\x00 \ud800",
                        "big": 2**70,
                        "zero": -0.0,
                    },
                    metadata={"channel": "web", "priority": 2},
                ),
                say("An older message, imported."),
            ],
            None,
        ),
        _draft_run(
            "run_1",
            "Triage",
            facts.RunStarted(options=RunOptions(max_turns=5), idempotency_key="key-1"),
            say("Refund?"),
        ),
        _draft_run(
            "run_1",
            "Triage",
            _reply("Triage", None, ("c1", "to_sales", "{}"), ("c2", "to_refunds", "{}")),
            facts.ToolStarted(tool_call_id="c1", name="to_sales", arguments="{}"),
        ),
        _draft_run(
            "run_1",
            "Triage",
            make_result("c1", "to_sales", '{"assistant": "Sales"}', sender="Triage", handoff="Sales"),
            facts.ToolStarted(tool_call_id="c2", name="to_refunds", arguments="{}"),
        ),
        _draft_run(
            "run_1",
            "Triage",
            make_result("c2", "to_refunds", '{"assistant": "Refunds"}', sender="Triage", handoff="Refunds"),
            facts.ContextUpdated(patch={"reason": "damp", "note": {"a": 1}}, tool_call_id="c2", nulls=("/note/b",)),
            facts.HandoffIgnored(from_agent="Triage", to_agent="Sales", tool_call_id="c1"),
            facts.HandoffMade(from_agent="Triage", to_agent="Refunds", tool_call_id="c2"),
        ),
        _draft_run(
            "run_1",
            "Refunds",
            _reply("Refunds", "One moment.", ("c3", "refund", '{"order": "B-1"}')),
            facts.ApprovalRequested(tool_call_id="c3", name="refund", arguments='{"order": "B-1"}'),
            facts.RunWaiting(
                pending=(
                    facts.PendingCall(
                        tool_call_id="c3", name="refund", arguments='{"order": "B-1"}', reason="approval"
                    ),
                )
            ),
        ),
        _draft_run(
            "run_2", "Refunds", facts.RunQueued(options=RunOptions(), messages=({"role": "user", "content": "Hello?"},))
        ),
        _draft_run(
            "run_1",
            "Refunds",
            facts.ApprovalDecided(tool_call_id="c3", decision="approve", by="Lee"),
            facts.RunResumed(reason="approval"),
            facts.ToolStarted(tool_call_id="c3", name="refund", arguments='{"order": "B-1"}'),
        ),
        _draft_run(
            "run_1",
            "Refunds",
            make_result("c3", "refund", "Interrupted.", sender="Refunds", status="unknown_outcome"),
            _reply("Refunds", "I could not see whether it went through."),
            facts.RunCompleted(
                stop_reason="end_turn",
                usage=Usage(prompt_tokens=30, completion_tokens=15, total_tokens=45, model_calls=3),
            ),
        ),
        _draft_run("run_2", "Refunds", facts.RunStarted(options=RunOptions()), say("Hello?")),
        _draft_run(
            "run_2",
            "Refunds",
            facts.RunFailed(
                stop_reason="error",
                error=facts.RunError(
                    code="provider_rate_limited", message="slow down", retryable=True, provider_status=429
                ),
            ),
        ),
        _draft_run("run_3", "Refunds", facts.RunStarted(options=RunOptions(execute_tools=False)), say("Still there?")),
        _draft_run("run_3", "Refunds", facts.RunCancelled(stop_reason="cancelled")),
        draft_events("Refunds", [facts.SessionUpdated(metadata={"priority": None, "vip": True}, agent="Triage")], None),
        draft_events("Triage", [facts.SessionRedacted(seqs=(2,), reason="asked to be forgotten", by="Lee")], None),
        _draft_run("run_4", "Triage", facts.RunStarted(options=RunOptions()), say("日本語で?")),
        _draft_run("run_4", "Triage", facts.RunInterrupted(stop_reason="interrupted", usage=USAGE)),
    ]
