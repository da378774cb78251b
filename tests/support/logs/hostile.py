"""Logs that no server ever wrote."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import UNSET
from msgspec.structs import replace

from swarmkeep.decide.steps import PERSON
from swarmkeep.events import facts
from swarmkeep.events.codec import Json
from swarmkeep.events.records import CompletionRecord, RunOptions, ToolRecord, Usage
from tests.support.logs.dice import Dice
from tests.support.logs.random_session import make_random_session
from tests.support.logs.recording import record_drafts
from tests.support.logs.words import AGENTS, ARGUMENTS, KEYS, TEXTS, TOOLS, USAGES, VALUES

_STRANGE_CALLS: tuple[Any, ...] = (
    None, "calls", {}, [], [None], [{}], [{"id": "x1"}], [{"id": None, "function": {"name": "f", "arguments": "{}"}}],
    [{"id": "x1", "function": None}], [{"id": "x1", "type": "custom", "custom": {"name": "f", "input": "text"}}],
    [{"id": "x1", "function": {"name": None, "arguments": None}}], [{"id": ["x1"], "function": {"name": "f"}}],
    [{"id": "x1", "function": {"name": "a b" * 50, "arguments": {"already": "an object"}}}] * 2,
    [{"id": "", "function": {"name": "f"}}, {"id": "\ud800", "function": {}}, {"id": "\ud801", "function": {}}],
)  # fmt: skip
_STRANGE_IDS: tuple[Any, ...] = ("x1", "h1", "call_1", "call_0", "\ud800", "\ufffd", "", None, 7, ["x1"], {"id": "x1"})
# Older releases recorded parts as they came.
FOREIGN_PARTS: tuple[Json, ...] = (
    {"type": "tool_result", "tool_use_id": "x1", "content": "x"},
    {"type": "tool_use", "id": "x1", "name": "f", "input": {}},
    {"type": "thinking", "thinking": [{"type": "text", "text": "hmm"}]},
    {"type": "input_text", "text": "x"},
    {"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}},
    {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}},
    {"type": "image_url", "image_url": "https://example.com/a.png"},
    {"type": "image_url", "image_url": {"url": "https://example.com/a.png", "detail": "much", "size": 1}},
    {"type": "image_url", "image_url": {}, "blob": {"sha256": "no"}},
    {"type": "input_audio", "input_audio": {"data": "AAAA"}},
    {"type": "file", "file": {"filename": 7}},
    {"type": "refusal", "refusal": "No."},
    {"type": "video_url", "video_url": {"url": "\ud800"}, "text": 7},
    {"type": "\ud800" * 100},
)
_STRANGE_CONTENT: tuple[Any, ...] = (
    "text", None, [], [None], ["text"], [{}], [{"type": 1}], [{"type": "text", "text": "\ud800"}], {"type": "text"}, 7,
    False, [{"type": "text", "text": None}, {"type": "image_url", "image_url": {"url": "data:,"}}],
    *([part] for part in FOREIGN_PARTS),
    [{"type": "text", "text": "words"}, *FOREIGN_PARTS[:3]],
)  # fmt: skip


def _make_strange_message(dice: Dice) -> Json:
    """Anything that is an object."""
    message: Json = {
        "role": dice.pick(("tool", "assistant", "user", "assistant", "tool", "function", "", None, 1, ["user"])),
        "content": dice.pick(_STRANGE_CONTENT),
        "tool_call_id": dice.pick(_STRANGE_IDS),
        "tool_calls": dice.pick(_STRANGE_CALLS),
        "name": dice.pick((None, "John Smith", 7, {"first": "John"}, "\ud800")),
        "refusal": dice.pick((None, "No.", 7)),
        "function_call": {"name": "f", "arguments": "{}"},
    }
    return {key: value for key, value in message.items() if dice.chance(70)}


def make_strange_fact(dice: Dice) -> facts.SessionEvent:
    """A fact that has the shape of one and makes no sense where it stands."""
    call_id = dice.pick([item for item in _STRANGE_IDS if isinstance(item, str)])
    name, agent, text = dice.pick(TOOLS), dice.pick(AGENTS), dice.pick(TEXTS)
    arguments = dice.pick(ARGUMENTS)
    values = {dice.pick(KEYS): dice.pick(VALUES)}
    pending = facts.PendingCall(tool_call_id=call_id, name=name, arguments=arguments, reason="approval")
    usage = Usage(prompt_tokens=-1, total_tokens=2**70)
    ending: Json = {"stop_reason": dice.pick(("end_turn", "error", "approval")), "usage": usage}
    makers: list[Callable[[], facts.SessionEvent]] = [
        lambda: facts.MessageAdded(message=_make_strange_message(dice)),
        lambda: facts.MessageAdded(
            message=_make_strange_message(dice), completion=CompletionRecord(usage=dice.pick(USAGES))
        ),
        lambda: facts.MessageAdded(
            message=_make_strange_message(dice), tool=ToolRecord(name=name, status="ok", handoff=agent)
        ),
        lambda: facts.MessageAdded(
            message=_make_strange_message(dice),
            tool=dice.pick((None, ToolRecord(name=name, status="ok", output=True))),
            correction=dice.pick((UNSET, 0, -1, 2**40)),
        ),
        lambda: facts.SessionCreated(agent=agent, context_variables=values, metadata=values),
        lambda: facts.SessionForked(from_session_id=text, from_seq=-1, from_hash=""),
        lambda: facts.SessionImported(source=text, digest=text, last_seq=-1, by=text),
        lambda: facts.SessionUpdated(metadata=values) if dice.chance(50) else facts.SessionUpdated(agent=agent),
        lambda: facts.SessionRedacted(seqs=(1, 1, 10**6), reason=text),
        lambda: facts.MessageRemoved(
            message_seq=dice.pick((-1, 0, 2, 3, 4, 5, 2**70)),
            tool_call_id=dice.pick((None, call_id)),
            seqs=dice.pick(((), (2,), (3, 4), (4, 4, 4), (-1, 9, 2**70), (5, 3, 2))),
            by=text,
            content=dice.pick((UNSET, True, False)),
        ),
        lambda: facts.RunHidden(by=text, part=dice.pick((UNSET, 0, 1, -1, 2**70))),
        lambda: facts.CompactionStarted(
            reason=text,
            keep_turns=-1,
            last_seq=dice.pick((0, 3, -1, 2**70)),
            shortened=(3, 3, -1, 2**70),
            result_characters=dice.pick((0, 1, -5, 100)),
            piece_characters=dice.pick((0, -1, 50)),
        ),
        lambda: facts.CompactionSummarised(
            first_seq=dice.pick((0, 2, -1)), last_seq=dice.pick((1, 4, 9, -1, 2**70)), summary=text, characters=-1
        ),
        lambda: facts.CompactionFailed(code=text, message=text),
        lambda: facts.ToolsListed(
            server=text, tools=(facts.ListedTool(name=text, tool=text, idempotent=True),), schemas=None
        ),
        lambda: facts.ToolsListed(server=text, error=text),
        lambda: facts.RunQueued(options=RunOptions(), messages=(_make_strange_message(dice),), agent=agent),
        lambda: facts.RunStarted(options=RunOptions(max_turns=dice.pick((None, 0, -1, 2**63)), model=text)),
        lambda: facts.RunStarted(
            options=RunOptions(
                model_settings={"messages": [], "tools": values, "seed": 1, "extra_body": dice.pick((1, {"n": 2}))},
                instructions=text,
                response_format=dice.pick((UNSET, {}, {"type": ["text"]})),
            )
        ),
        lambda: facts.ToolStarted(
            tool_call_id=call_id, name=name, arguments=arguments, attempt=dice.pick((1, 0, -1, 9))
        ),
        lambda: facts.GuardrailTripped(
            stage=dice.pick(("input", "output", "tool", text)),
            name=name,
            message=text,
            messages=dice.pick((UNSET, (), (1, 2, 3), (5, 5, -1, 2**40), tuple(range(40)))),
            tool_call_id=dice.pick((UNSET, call_id)),
        ),
        lambda: facts.MessageAdded(message=_make_strange_message(dice), guardrail=name),
        lambda: facts.HandoffMade(from_agent=agent, to_agent=text, tool_call_id=call_id),
        lambda: facts.HandoffIgnored(from_agent=agent, to_agent=text, tool_call_id=dice.pick((None, call_id))),
        lambda: facts.ContextUpdated(
            patch=values, nulls=dice.pick(((), ("",), ("/",), ("/~/a",), ("/city/x/y", "/city")))
        ),
        lambda: facts.ApprovalRequested(tool_call_id=call_id, name=name, arguments=arguments),
        lambda: facts.ApprovalDecided(
            tool_call_id=call_id, decision=dice.pick(("approve", "deny")), arguments=dice.pick((UNSET, arguments))
        ),
        lambda: (
            facts.SessionTakenOver(by=text, note=text)
            if dice.chance(50)
            else facts.SessionHandedBack(by=text, note=text)
        ),
        lambda: facts.SessionAssigned(to=dice.pick((None, text)), by=text, reason=text, tool_call_id=call_id),
        lambda: facts.NoteAdded(text=text, by=text),
        lambda: facts.FeedbackAdded(
            seq=dice.pick((0, 2, 3, 2**62)), value=dice.pick(("up", "down", text)), comment=text
        ),
        lambda: facts.SessionHeld(reason=text, by=text) if dice.chance(50) else facts.SessionReleased(by=text),
        lambda: facts.MessageAdded(message=_make_strange_message(dice), person=text),
        lambda: facts.RunWaiting(pending=dice.pick(((), (pending, pending), (PERSON,)))),
        lambda: facts.RunResumed(reason=dice.pick(("approval", "tool_results", "recovery", "person"))),
        lambda: facts.RunCompleted(**ending),
        lambda: facts.RunFailed(**ending, error=facts.RunError(code="x", message=text)),
        lambda: facts.RunCancelled(**ending),
        lambda: facts.RunInterrupted(**ending),
        lambda: facts.UnknownFact(data=dice.pick(VALUES)),
    ]
    return dice.pick(makers)()


def make_hostile_log(dice: Dice, *, moves: int = 8) -> list[facts.RecordedEvent]:
    """Two sessions' facts in each other's way, some lost, some twice, some exchanged, with nonsense in between."""
    drafts = [
        facts.EventDraft(event.fact, event.run_id, event.agent)
        for session in (make_random_session(dice, moves=moves), make_random_session(dice, moves=moves // 2))
        for event in session.events
    ]
    for _ in range(dice.pick(range(12))):
        place = dice.pick(range(len(drafts) + 1))
        other = dice.pick(range(len(drafts) + 1))
        match dice.pick(("insert", "insert", "insert", "lose", "repeat", "exchange", "another run")):
            case "insert":
                run_id = dice.pick((None, "run_1", "run_2", ""))
                drafts.insert(place, facts.EventDraft(make_strange_fact(dice), run_id, dice.pick(AGENTS)))
            case "lose":
                del drafts[place : place + dice.pick((1, 3, 8))]
            case "repeat":
                drafts[other:other] = drafts[place : place + dice.pick((1, 3))]
            case "exchange" if max(place, other) < len(drafts):
                drafts[place], drafts[other] = drafts[other], drafts[place]
            case "another run" if place < len(drafts):
                drafts[place] = replace(drafts[place], run_id=dice.pick((None, "run_1", "run_99")))
    return record_drafts(drafts[dice.pick((0, 0, 1, 3)) :])
