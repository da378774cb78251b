"""Differences between a recorded conversation and what today's agents would do."""

from __future__ import annotations

import difflib
import json
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, get_args

import msgspec
from msgspec import UNSET, UnsetType

from swarmkeep.agent.output import OUTPUT_TOOL
from swarmkeep.decide.turns import ToolOutcome
from swarmkeep.events.codec import MalformedJson, decode, encode
from swarmkeep.events.errors import InvalidRequest
from swarmkeep.events.facts import (
    ApprovalRequested,
    ContextUpdated,
    GuardrailTripped,
    HandoffIgnored,
    HandoffMade,
    MessageAdded,
    RecordedEvent,
    RunWaiting,
    SessionCreated,
    SessionEvent,
    ToolStarted,
)
from swarmkeep.events.records import RequestRecord
from swarmkeep.events.state import Run, ToolCall
from swarmkeep.request.request import ModelRequest
from swarmkeep.runs.calls import CarryOut

DivergenceKind = Literal[
    "instructions", "tool_schemas", "model", "parameters", "agent", "missing_tool", "arguments", "approval",
    "guardrail", "context", "order", "unreadable",
]  # fmt: skip
DIVERGENCE_KINDS: tuple[DivergenceKind, ...] = get_args(DivergenceKind)


class Divergence(msgspec.Struct, frozen=True, kw_only=True):
    """One difference. Each turn is compared on its own, from what is recorded before it, so that a difference causes no
    further ones."""

    seq: int
    """The recorded event where it first appears."""
    kind: DivergenceKind
    """`instructions`, `tool_schemas`, `model`, `parameters`: what the model was sent; `agent`: one that spoke or was
    handed over to and no longer exists; `missing_tool`: a function that was called and is gone, or that is new (null
    before); `arguments`: of a call that worked, why today's function would refuse them; `approval`: the need for one;
    `guardrail`: its verdict, with `stage`, `refused`, `name` and `message`; `context`: the change by a call; `order`:
    what comes next, where the replay ends unless only the `stop_reason` differs; `unreadable`: an event that is needed
    and cannot be read, where it ends, too."""
    recorded: Any
    """What was."""
    actual: Any
    """What would be."""


class Replayed(msgspec.Struct, frozen=True, kw_only=True):
    """Today's agents against a recorded conversation."""

    matches: bool
    """There is no difference."""
    turns: int
    """How many model calls were compared."""
    last_seq: int
    """The last event that was."""
    divergences: list[Divergence]
    """The differences."""
    redacted: list[int] = []
    """The redacted events without which something could not be compared; that is no difference."""
    cut_short: bool | UnsetType = UNSET
    """True if the time was up after `last_seq`: a minute. Else absent."""


class ReplayFindings:
    """The differences found so far; those of an ignored kind and those told before are left out."""

    def __init__(self, ignore: Collection[str] = ()) -> None:
        self.divergences: list[Divergence] = []
        self.redacted: list[int] = []
        self.turns = 0
        self._ignore = frozenset(ignore)
        self._told: set[bytes] = set()

    def add(self, seq: int, kind: DivergenceKind, recorded: Any, actual: Any) -> None:
        told = encode((kind, recorded, actual))
        if kind not in self._ignore and told not in self._told:
            self._told.add(told)
            self.divergences.append(Divergence(seq=seq, kind=kind, recorded=recorded, actual=actual))

    def add_redacted(self, seq: int) -> None:
        if seq not in self.redacted:
            self.redacted.append(seq)


def check_kinds(names: Collection[str]) -> frozenset[str]:
    """Check kinds of differences that a caller named. Raises InvalidRequest for one that there is not."""
    for name in names:
        if name not in DIVERGENCE_KINDS:
            raise InvalidRequest(
                f"unknown kind of difference {name!r}; known: {', '.join(DIVERGENCE_KINDS)}", "/ignore"
            )
    return frozenset(names)


def compare_requests(
    recorded: RequestRecord, actual: ModelRequest, texts: Mapping[str, str]
) -> Iterator[tuple[DivergenceKind, Any, Any]]:
    """Compare a request of today with the recorded one, beside its messages, which are the log's own."""
    today = actual.record
    if today.instructions != recorded.instructions:
        yield "instructions", _find_text(recorded.instructions, texts), actual.instructions
    if today.tools != recorded.tools:
        yield "tool_schemas", _read_schemas(recorded.tools, texts), _parse(actual.tools)
    before, after = dict(recorded.params), dict(today.params)
    models = before.pop("model", None), after.pop("model", None)
    if models[0] != models[1]:
        yield "model", *models
    if encode(before) != encode(after):
        yield "parameters", before, after


def _find_text(digest: str, texts: Mapping[str, str]) -> str:
    # An export of the events alone has the texts' names only.
    return texts.get(digest, f"sha256:{digest}")


def _read_schemas(digest: str | None, texts: Mapping[str, str]) -> Any:
    return _parse(None if digest is None else _find_text(digest, texts))


def _parse(text: str | None) -> Any:
    try:
        return [] if text is None else decode(text)
    except MalformedJson:
        return text


_DIFFED_KINDS = ("instructions", "tool_schemas", "parameters", "context")


def format_sides(kind: str, recorded: Any, actual: Any) -> Iterator[str]:
    """The two sides of a difference: longer ones as a diff of their lines."""
    before, after = _format_value(recorded), _format_value(actual)
    if kind not in _DIFFED_KINDS:
        yield f"recorded: {before}"
        yield f"today:    {after}"
        return
    for line in difflib.unified_diff(before.splitlines(), after.splitlines(), "recorded", "today", lineterm="", n=2):
        if not line.startswith("@@"):
            yield line


def _format_value(value: Any) -> str:
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return ", ".join(value)
    return value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False)


# Calls that ran at once in a recorded conversation: they start together, and end one after the other, as they did.

# What comes before a start in one commit.
_BEFORE_STARTS = (MessageAdded, ApprovalRequested, GuardrailTripped, ContextUpdated)


def find_recorded_batch(events: Iterable[RecordedEvent], run: Run) -> Sequence[ToolCall]:
    """The calls that these events start together: several, or one beside another that waits for an approval."""
    started: set[str] = set()
    for event in events:
        if isinstance(event.fact, ToolStarted):
            started.add(event.fact.tool_call_id)
        elif started or not isinstance(event.fact, _BEFORE_STARTS):
            break
    is_beside = run.own_open_calls[0].approval == "requested"
    return [call for call in run.own_open_calls if call.id in started] if is_beside or len(started) > 1 else ()


def count_given_up(events: Iterable[RecordedEvent], run: Run | None) -> int:
    """Count the events, right behind those that had a run go on, about calls whose arguments were redacted: the
    resuming code recorded that they do not run any more."""
    redacted = set() if run is None else {call.id for call in run.open_calls if call.redacted}
    count = 0
    for event in events:
        match event.fact:
            case MessageAdded(tool=tool, message=message) if tool is not None:
                if message.get("tool_call_id") not in redacted:
                    break
            case ContextUpdated() | HandoffMade() | HandoffIgnored() if count:
                pass
            case _:
                break
        count += 1
    return count


async def end_as_recorded(
    read_next: Callable[[], RecordedEvent], calls: Sequence[ToolCall], carry_out: CarryOut
) -> AsyncGenerator[tuple[ToolCall, ToolOutcome]]:
    """Stands in for what runs calls at once: each ends when it ended then, as long as one did."""
    left = {call.id: call for call in calls}
    while ended := [left.pop(call_id) for call_id in _list_answered_calls(read_next()) if call_id in left]:
        for call in ended:
            yield call, await carry_out(call)
        if not left:
            return


def _list_answered_calls(event: RecordedEvent) -> list[str]:
    """The call whose result an event is, or begins with; those for whose sessions the run then waits."""
    fact = event.fact
    if isinstance(fact, RunWaiting):
        return [call.tool_call_id for call in fact.pending if call.reason == "session"]
    if isinstance(fact, MessageAdded) and fact.tool is not None:
        return [str(fact.message.get("tool_call_id"))]
    return [fact.tool_call_id] if isinstance(fact, GuardrailTripped) and fact.tool_call_id else []


def changes_context(fact: SessionEvent) -> bool:
    if isinstance(fact, MessageAdded):
        return fact.tool is not None and fact.tool.context is not UNSET
    return isinstance(fact, ContextUpdated | SessionCreated)


def follows_verdict(fact: MessageAdded, before: SessionEvent) -> bool:
    """Tell if it came in one commit with the final answer that it is about, or with the refusal that it says."""
    if fact.guardrail is not UNSET and fact.completion is None:
        return True
    if fact.correction is not UNSET or (fact.tool is not None and fact.tool.output is True):
        return True
    # Of several calls that give an answer one counts; the others are answered right after it.
    return _answers_output_call(fact) and _answers_output_call(before)


def _answers_output_call(fact: SessionEvent) -> bool:
    return isinstance(fact, MessageAdded) and fact.tool is not None and fact.tool.name == OUTPUT_TOOL
