"""Every copy that the server makes of a text goes with it, from whichever copy is redacted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from swarmkeep.decide.drafts import draft_events
from swarmkeep.events.codec import digest
from swarmkeep.events.facts import (
    ApprovalDecided,
    ApprovalRequested,
    CompactionFailed,
    CompactionStarted,
    CompactionSummarised,
    ContextUpdated,
    GuardrailTripped,
    ListedTool,
    MessageAdded,
    PendingCall,
    RunCompleted,
    RunError,
    RunFailed,
    RunQueued,
    RunResumed,
    RunStarted,
    RunWaiting,
    SessionCreated,
    SessionEvent,
    SessionHandedBack,
    ToolsListed,
    ToolStarted,
)
from swarmkeep.events.records import CompletionRecord, ContextChange, RequestRecord, RunOptions, ToolRecord
from swarmkeep.events.state import State
from swarmkeep.history.redact import COPIES, redact
from swarmkeep.history.verify import verify
from swarmkeep.store.opening import SqlStore, open_store
from tests.history.test_redact import CANARY, WORD, dump_database
from tests.store.sessions import KEY

OPTIONS = RunOptions(instructions=CANARY)
INSTRUCTIONS, PLAIN = f"You are A. {CANARY}", "You are A."
TOOLS = f'[{{"description":"{CANARY}"}}]'
END = RunCompleted(stop_reason="end_turn")


def ask(text: str = CANARY) -> MessageAdded:
    return MessageAdded(message={"role": "user", "content": text})


def reply(text: str | None = None, *, arguments: str = "", request: RequestRecord | None = None) -> MessageAdded:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    message: dict[str, Any] = {"role": "assistant", "content": text, **({"tool_calls": [call]} if arguments else {})}
    return MessageAdded(message=message, completion=CompletionRecord(request=request))


def result(text: str, status: str = "ok", **more: Any) -> MessageAdded:
    message = {"role": "tool", "tool_call_id": "c1", "content": text}
    return MessageAdded(message=message, tool=ToolRecord(name="f", status=status, **more))


def start(arguments: str = CANARY) -> ToolStarted:
    return ToolStarted(tool_call_id="c1", name="f", arguments=arguments)


def make_request(tools: str | None = None) -> RequestRecord:
    return RequestRecord(
        instructions=digest(PLAIN if tools else INSTRUCTIONS), params={"model": "m"}, tools=tools and digest(tools)
    )


STARTED = RunStarted(options=RunOptions())
PENDING = PendingCall(tool_call_id="c1", name="f", arguments=CANARY, reason="approval")
QUEUED = RunQueued(options=RunOptions(), messages=({"role": "user", "content": "hi"},))
SUMMARY = CompactionSummarised(first_seq=2, last_seq=3, summary="short", characters=9)

# What is recorded, and the places of what is redacted; by default each that has the canary, one after the other.
STORIES: dict[str, tuple[list[SessionEvent], list[int] | None]] = {
    "messages in a summary": (
        [ask(), reply("Yes."), CompactionStarted(reason="asked", keep_turns=1, last_seq=3),
         msgspec.structs.replace(SUMMARY, summary=CANARY)],
        [0],
    ),
    "a compaction's instructions in its requests": (
        [ask("hi"), reply("Yes."), CompactionStarted(reason="asked", keep_turns=1, last_seq=3, instructions=CANARY),
         msgspec.structs.replace(SUMMARY, completion=CompletionRecord(request=make_request()))],
        [2],
    ),
    "a change of the context in the result that held it": (
        [STARTED, reply(arguments="{}"), result("ok", context=ContextChange(patch={"a": CANARY})),
         ContextUpdated(patch={"a": CANARY}, tool_call_id="c1")],
        None,
    ),
    "a run's options in each event that it begins or goes on with, and in its answers' requests": (
        [RunQueued(options=OPTIONS, messages=()), RunStarted(options=OPTIONS), ask("hi"),
         ask("ho"), RunResumed(reason="approval", options=OPTIONS),
         reply("Yes.", request=make_request())],
        None,
    ),
    "a queued run's input": (
        [msgspec.structs.replace(QUEUED, messages=({"role": "user", "content": CANARY},)), STARTED, ask()], None,
    ),
    "a queued run's context variables": (
        [msgspec.structs.replace(QUEUED, context_variables={"a": CANARY}), STARTED,
         ContextUpdated(patch={"a": CANARY}), ask("hi")],
        None,
    ),
    "a call's arguments in its approval, its waits, its start, and in what is wrong with them": (
        [STARTED, reply(arguments=CANARY), ApprovalRequested(tool_call_id="c1", name="f", arguments=CANARY),
         RunWaiting(pending=(PENDING,)), ApprovalDecided(tool_call_id="c1", decision="approve"),
         RunResumed(reason="approval"), start(), result(f"Error: {CANARY} is no number", "error")],
        [1, 2, 3, 6],
    ),
    "arguments that a person has changed": (
        [STARTED, reply(arguments="{}"), ApprovalRequested(tool_call_id="c1", name="f", arguments="{}"),
         ApprovalDecided(tool_call_id="c1", decision="approve", arguments=CANARY), start(), result(f"with {CANARY}")],
        None,
    ),
    "the reason of a denial in the result": (
        [STARTED, reply(arguments="{}"), ApprovalRequested(tool_call_id="c1", name="f", arguments="{}"),
         ApprovalDecided(tool_call_id="c1", decision="deny", reason=CANARY),
         result(f"Denied. Reason: {CANARY}", "denied")],
        None,
    ),
    "a note for the agent": (
        [SessionHandedBack(by="Lee", note=CANARY), 
         MessageAdded(message={"role": "user", "content": CANARY}, person="L")],
        None,
    ),
    "a guardrail's refusal": (
        [STARTED, ask("hi"), GuardrailTripped(stage="input", name="g", message=CANARY, messages=(3,)),
         MessageAdded(message={"role": "assistant", "content": CANARY}, guardrail="g"), END],
        None,
    ),
    "an answer in what is wrong with it": (
        [STARTED, reply(CANARY), MessageAdded(message={"role": "user", "content": f"not {CANARY}"}, correction=1),
         reply(CANARY),
         RunFailed(stop_reason="error", error=RunError(code="output_invalid", message=f"not {CANARY}"))],
        [[1, 3]],
    ),
    "all that was said before in an error": (
        [ask(), reply("Yes."), CompactionStarted(reason="asked", keep_turns=1, last_seq=3),
         CompactionFailed(code="provider_rejected", message=f"the server said {CANARY}"), STARTED, ask("hi"),
         GuardrailTripped(stage="output", name="g", message="No.", error=f"ValueError: {CANARY}"),
         RunFailed(stop_reason="error", error=RunError(code="x", message=f"the server said {CANARY}"))],
        [0],
    ),
    "a server's tools in each of its lists": (
        [ToolsListed(server="s", tools=(ListedTool(name="t"),), schemas=digest(TOOLS)), STARTED, ask("hi"),
         reply("Yes.", request=make_request(TOOLS)),
         ToolsListed(server="s", tools=(ListedTool(name="t"),), schemas=digest(f"{TOOLS} "))],
        [0, 4],
    ),
}  # fmt: skip


def list_named(name: str) -> list[list[int]]:
    """The places that are redacted, in one session each."""
    story, places = STORIES[name]
    if places is None:
        places = [place for place, fact in enumerate(story) if CANARY in str(fact)]
    return [place if isinstance(place, list) else [place] for place in places]


CASES = [(name, named) for name in COPIES for named in list_named(name)]


async def tell(store: SqlStore, name: str) -> None:
    """Record a story: from seq 2 on, in one run where it begins one."""
    await store.append(KEY, State(), draft_events("A", [SessionCreated(agent="A")], None))
    story, _ = STORIES[name]
    in_run = any(isinstance(fact, RunStarted) for fact in story)
    drafts = draft_events("A", story, "r1" if in_run else None)
    if in_run and not any(isinstance(fact, RunCompleted | RunFailed) for fact in story):
        drafts += draft_events("A", [END], "r1")
    blobs = {digest(text): text for text in (INSTRUCTIONS, PLAIN, TOOLS, f"{TOOLS} ")}
    named = {fact.schemas for fact in story if isinstance(fact, ToolsListed)} | {
        hash_
        for fact in story
        if isinstance(fact, MessageAdded | CompactionSummarised) and fact.completion and fact.completion.request
        for hash_ in (fact.completion.request.instructions, fact.completion.request.tools)
    }
    kept = {hash_: text for hash_, text in blobs.items() if hash_ in named}
    await store.append(KEY, await store.state(KEY), drafts, blobs=kept)
    await store.index_some()


def test_every_kind_of_copy_is_told() -> None:
    assert list(STORIES) == list(COPIES)


@pytest.mark.parametrize(("name", "named"), CASES)
async def test_copies_go_with_any_of_them(store: SqlStore, name: str, named: list[int]) -> None:
    await tell(store, name)
    assert WORD in await dump_database(store)
    tried = await redact(store, KEY, [place + 2 for place in named], "private", dry_run=True)
    done = await redact(store, KEY, [place + 2 for place in named], "private")
    assert tried.seqs == done.seqs
    assert WORD not in await dump_database(store)
    assert (await verify(store, KEY)).problems == []


async def test_file_keeps_no_redacted_copy(sqlite_ready: str) -> None:
    path = Path(sqlite_ready.removeprefix("sqlite:///"))
    for name, named in CASES:
        store = open_store(sqlite_ready)
        await tell(store, name)
        await redact(store, KEY, [place + 2 for place in named], "private")
        await store.index_some()
        holding = [file.name for file in path.parent.iterdir() if WORD.encode() in file.read_bytes()]
        assert holding == [], name
        await store.delete(KEY)
        await store.close()
