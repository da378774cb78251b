"""More sessions of a golden database: what refuses, takes over, shortens and takes out; a conversation for each."""

from __future__ import annotations

from swarmkeep.decide.steps import PERSON
from swarmkeep.events.codec import digest
from swarmkeep.events.facts import (
    CompactionFailed,
    CompactionStarted,
    CompactionSummarised,
    GuardrailTripped,
    MessageAdded,
    MessageRemoved,
    RunCancelled,
    RunHidden,
    RunInterrupted,
    RunQueued,
    RunResumed,
    RunWaiting,
    SessionCreated,
    SessionHandedBack,
    SessionImported,
    SessionTakenOver,
    ToolStarted,
)
from swarmkeep.events.records import CompletionRecord, RequestRecord, RunOptions
from tests.golden.telling import (
    SUMMARISE,
    TRACE,
    Session,
    complete,
    count_usage,
    draft_outside,
    draft_run,
    make_completion,
    make_picture,
    make_result,
    reply,
    say,
    start,
)


def make_guarded() -> Session:
    """What guardrails refuse: of people and of models; a reply that was cut off, and queued runs with files."""
    return [
        draft_outside(SessionCreated(agent="Clerk")),
        draft_run("run_g", *start("Sell me a forgery.")),
        draft_run(
            "run_g",
            GuardrailTripped(stage="input", name="be_lawful", message="No.", messages=(3,)),
            MessageAdded(message={"role": "assistant", "content": "No.", "sender": "Clerk"}, guardrail="be_lawful"),
            complete(0, "guardrail"),
        ),
        draft_run("run_h", *start("Who else bought one?")),
        draft_run(
            "run_h",
            MessageAdded(
                message={"role": "assistant", "content": "I may not say.", "sender": "Clerk"},
                completion=make_completion(),
                guardrail="no_names",
            ),
            GuardrailTripped(
                stage="output", name="no_names", message="I may not say.", digest=digest("Ana"), error="KeyError: 'Ana'"
            ),
            complete(1, "guardrail"),
        ),
        draft_run("run_i", *start("Tell me all.")),
        draft_run(
            "run_j",
            RunQueued(
                options=RunOptions(),
                messages=({"role": "user", "content": [{"type": "text", "text": "This?"}, make_picture()]},),
                by="key_shop",
                traceparent=TRACE,
            ),
        ),
        draft_run(
            "run_i",
            reply("It began", partial=True),
            RunInterrupted(stop_reason="interrupted", usage=count_usage(1)),
        ),
        draft_run("run_j", RunCancelled(stop_reason="cancelled")),
    ]  # fmt: skip


def make_taken_over() -> Session:
    """A person takes over, answers in the agent's place, and hands back."""
    return [
        draft_outside(SessionCreated(agent="Clerk")),
        draft_run("run_t", *start("May I speak to somebody?")),
        draft_run("run_t", SessionTakenOver(by="Lee", note="A regular."), RunWaiting(pending=(PERSON,))),
        draft_run(
            "run_t",
            MessageAdded(message={"role": "assistant", "content": "Lee here.", "sender": "Lee"}, person="Lee"),
            complete(0),
        ),
        draft_run("run_u", *start("A rebate?")),
        draft_run("run_u", RunWaiting(pending=(PERSON,))),
        draft_run("run_u", SessionHandedBack(by="Lee", note="Ten per cent."), RunResumed(reason="person")),
        draft_run(
            "run_u",
            MessageAdded(message={"role": "user", "content": "[A note] Ten per cent.", "sender": "Lee"}, person="Lee"),
            reply("Ten per cent."),
            complete(1),
        ),
    ]  # fmt: skip


def make_shortened() -> Session:
    """A history that is summed up, shortened, and has messages, calls and texts taken out; runs that are hidden."""
    summed = CompactionSummarised(
        first_seq=3,
        last_seq=7,
        summary="Somebody asked for prices.",
        characters=400,
        completion=CompletionRecord(
            model="gpt-4o",
            usage={"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15},
            request=RequestRecord(instructions=digest(SUMMARISE), params={"model": "gpt-4o"}, history_upto=7),
        ),
    )
    return [
        draft_outside(SessionCreated(agent="Clerk")),
        draft_run("run_k", *start("A price?")),
        draft_run("run_k", reply("Of what?"), complete(1)),
        draft_run("run_l", *start("Of both.")),
        draft_run(
            "run_l",
            reply("I look.", ("l1", "price", "{}"), ("l2", "price", "{}")),
            ToolStarted(tool_call_id="l1", name="price", arguments="{}"),
            make_result("l1", "price", "twelve " * 20),
            ToolStarted(tool_call_id="l2", name="price", arguments="{}"),
            make_result("l2", "price", "thirteen"),
        ),
        draft_run("run_l", reply("Twelve, thirteen."), complete(2)),
        draft_outside(
            CompactionStarted(
                reason="asked", keep_turns=1, of_tokens=100, prompt_tokens=80, estimated=True, last_seq=7,
                shortened=(10,), result_characters=20, piece_characters=400, instructions="Keep prices.", by="Lee",
            )
        ),
        draft_outside(summed),
        draft_outside(CompactionStarted(reason="tokens", keep_turns=1, last_seq=13, piece_characters=400)),
        draft_outside(CompactionFailed(code="provider_error", message="no answer")),
        draft_outside(MessageRemoved(message_seq=8, content=True, by="Lee")),
        draft_outside(MessageRemoved(message_seq=8, tool_call_id="l2", seqs=(12,), by="Lee")),
        draft_outside(MessageRemoved(message_seq=4, seqs=(4,))),
        draft_run("run_k", RunHidden(by="Lee")),
        draft_run("run_l", RunHidden(part=0)),
    ]  # fmt: skip


def make_letters() -> Session:
    """Messages that came out of a file."""
    return [
        draft_outside(SessionCreated(agent="Clerk"), say("An old letter.")),
        draft_outside(SessionImported(source="messages", digest=digest("letters"), last_seq=2, by="Lee")),
    ]
