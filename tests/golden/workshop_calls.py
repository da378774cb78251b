"""More sessions of a golden database: all that calls of functions can be, and an agent that asks another one."""

from __future__ import annotations

from swarmkeep.decide.drafts import draft_events
from swarmkeep.events.codec import digest
from swarmkeep.events.facts import (
    ApprovalDecided,
    ApprovalRequested,
    AwaitedApproval,
    ContextUpdated,
    EventDraft,
    GuardrailTripped,
    ListedTool,
    MessageAdded,
    Parent,
    PendingCall,
    RunResumed,
    RunStarted,
    RunWaiting,
    SessionCreated,
    SessionEvent,
    ToolsListed,
    ToolStarted,
)
from swarmkeep.events.records import CallerFunction, CallerTool, ContextChange, RunOptions
from tests.golden.telling import (
    LISTED,
    TOTAL,
    TRACE,
    Session,
    complete,
    count_usage,
    draft_outside,
    draft_run,
    make_picture,
    make_result,
    reply,
    say,
    start,
)


def make_calls(child: str) -> Session:
    """Calls at once, an MCP server, another agent that is asked, and edited arguments; an answer of a type."""
    pay = PendingCall(tool_call_id="w5", name="pay", arguments='{"sum": 99}', reason="approval", expires_at=_LATER)
    asked = AwaitedApproval(
        session_id=child, run_id="run_c", tool_call_id="b1", agent="Binder", name="bind", arguments="{}"
    )
    waits = PendingCall(
        tool_call_id="w4", name="ask_binder", arguments='{"input": "Bind it."}', reason="session",
        session_id=child, approvals=(asked,),
    )  # fmt: skip
    names = ("weigh", "price", "atlas_find", "ask_binder", "pay", "shout")
    arguments = ("{}", "{}", '{"town": "Ghent"}', '{"input": "Bind it."}', '{"sum": 99}', '{"text": "!"}')
    calls = [(f"w{number}", *call) for number, call in enumerate(zip(names, arguments, strict=True), 1)]
    options = RunOptions(
        max_turns=8,
        model_settings={"temperature": 0},
        instructions="Be brief.",
        response_format=TOTAL,
        tools=(CallerTool(function=CallerFunction(name="show_map", parameters={"type": "object"})),),
        tool_choice="auto",
        parallel_tool_calls=True,
        request={"truncation": "auto"},
    )
    return [
        draft_outside(SessionCreated(agent="Clerk", context_variables={"a": 1}, metadata={"title": "An atlas"})),
        draft_run(
            "run_w",
            RunStarted(options=options, by="key_shop", traceparent=TRACE),
            say("What does this cost, bound?", make_picture()),
        ),
        draft_run(
            "run_w",
            ToolsListed(
                server="atlas",
                tools=(
                    ListedTool(name="atlas_find", tool="find", idempotent=True),
                    ListedTool(name="atlas_burn", destructive=True),
                ),
                schemas=digest(LISTED),
            ),
            ToolsListed(server="globe", error="it does not answer"),
            reply(None, *calls, time_to_first_token_ms=3.5),
            ToolStarted(tool_call_id="w1", name="weigh", arguments="{}"),
            ToolStarted(tool_call_id="w2", name="price", arguments="{}"),
        ),
        draft_run(
            "run_w",
            make_result("w2", "price", "12", context=ContextChange(patch={"price": 12}, nulls=("/rebate",))),
        ),
        draft_run(
            "run_w",
            make_result("w1", "weigh", "300 g"),
            ContextUpdated(patch={"grams": 300}, tool_call_id="w1"),
            ContextUpdated(patch={"price": 12}, tool_call_id="w2", nulls=("/rebate",)),
            ToolStarted(tool_call_id="w3", name="atlas_find", arguments='{"town": "Ghent"}'),
        ),
        draft_run(
            "run_w",
            make_result("w3", "atlas_find", "51.05, 3.72"),
            ToolStarted(tool_call_id="w4", name="ask_binder", arguments='{"input": "Bind it."}', session_id=child),
            RunWaiting(pending=(waits,)),
        ),
        draft_run(
            "run_w",
            RunResumed(reason="session"),
            make_result("w4", "ask_binder", "It is bound.", session_id=child, usage=count_usage(2)),
            ApprovalRequested(tool_call_id="w5", name="pay", arguments='{"sum": 99}', expires_at=_LATER),
            RunWaiting(pending=(pay,)),
        ),
        draft_run(
            "run_w",
            ApprovalDecided(tool_call_id="w5", decision="approve", by="Lee", arguments='{"sum": 12}'),
            RunResumed(reason="approval", options=RunOptions(max_turns=9, response_format=TOTAL)),
            ToolStarted(tool_call_id="w5", name="pay", arguments='{"sum": 12}'),
        ),
        draft_run(
            "run_w",
            make_result("w5", "pay", "Paid."),
            GuardrailTripped(stage="tool", name="be_quiet", message="Not so loud.", tool_call_id="w6"),
            make_result("w6", "shout", "Refused: Not so loud.", status="refused"),
        ),
        draft_run(
            "run_w",
            reply("Twelve."),
            MessageAdded(message={"role": "user", "content": "Give JSON.", "sender": "swarmkeep"}, correction=1),
        ),
        draft_run("run_w", reply('{"total": 12}'), complete(3)),
        draft_run("run_x", *start("And two?", response_format=TOTAL)),
        draft_run(
            "run_x",
            reply(None, ("x1", "final_output", '{"total": 24}')),
            make_result("x1", "final_output", "The answer is taken.", output=True),
            complete(1),
        ),
    ]  # fmt: skip


_LATER = "2026-01-02T00:00:00.000000Z"


def make_child(parent: Parent) -> Session:
    """The session in which the other agent is asked, and asks back."""
    bind = PendingCall(tool_call_id="b1", name="bind", arguments="{}", reason="approval")

    def run(*facts: SessionEvent) -> list[EventDraft]:
        return draft_events("Binder", facts, "run_c")

    return [
        draft_events("Binder", [SessionCreated(agent="Binder", parent=parent)], None),
        run(*start("Bind it.")),
        run(
            reply(None, ("b1", "bind", "{}"), sender="Binder"),
            ApprovalRequested(tool_call_id="b1", name="bind", arguments="{}"),
            RunWaiting(pending=(bind,)),
        ),
        run(
            ApprovalDecided(tool_call_id="b1", decision="approve", by="Lee"),
            RunResumed(reason="approval"),
            ToolStarted(tool_call_id="b1", name="bind", arguments="{}"),
        ),
        run(make_result("b1", "bind", "Bound.", sender="Binder"), reply("It is bound.", sender="Binder"), complete(2)),
    ]
