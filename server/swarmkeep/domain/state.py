"""The state of a session: what its events add up to."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from swarmkeep.domain.chain import Chain
from swarmkeep.domain.codec import Json
from swarmkeep.domain.events import (
    PendingCall,
    RunError,
    RunOptions,
    RunQueued,
    Usage,
)
from swarmkeep.domain.messages import Entry, read_tool_calls
from swarmkeep.domain.timestamps import parse_timestamp

SessionStatus = Literal["idle", "running", "waiting"]
RunStatus = Literal["queued", "running", "waiting", "completed", "failed", "cancelled", "interrupted"]


class ToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """A tool call of the current turn. `attempts` counts its starts; `handoff` is the agent that it returned.

    `agent` is the one that asked for it: the call is to its function, whoever is active by now. It is empty where the
    log does not say.
    `imported`: it came out of a file. Whatever that says, nobody has approved it here before `approval` says so.
    """

    id: str
    name: str
    arguments: str
    agent: str = ""
    attempts: int = 0
    done: bool = False
    approval: Literal["requested", "approve", "deny"] | None = None
    approval_reason: str | None = None
    expires_at: str | None = None
    handoff: str | None = None
    imported: bool = False

    @property
    def decide_until(self) -> datetime | None:
        """When the request for its approval expires, if one is open and does."""
        return None if self.approval != "requested" or self.expires_at is None else parse_timestamp(self.expires_at)


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """A run. While it is active, `agent` and `context_variables` are those it began with; then those it ended with.

    `answered`: the last model reply asked for no tools. `recoveries`: take-overs since the last model reply.
    `active_since`: when it began, or last went on.
    Its messages are `state.messages[first_message:last_message]`.
    """

    id: str
    status: RunStatus
    options: RunOptions
    first_seq: int
    last_seq: int
    created_at: str
    active_since: str
    agent: str
    first_message: int
    last_message: int
    context_variables: Json = {}
    idempotency_key: str | None = None
    by: str | UnsetType = UNSET
    traceparent: str | UnsetType = UNSET
    turns: int = 0
    answered: bool = False
    calls: tuple[ToolCall, ...] = ()
    pending: tuple[PendingCall, ...] = ()
    recoveries: int = 0
    usage: Usage = Usage()
    stop_reason: str | None = None
    error: RunError | None = None
    finished_at: str | None = None

    @property
    def open_calls(self) -> tuple[ToolCall, ...]:
        return tuple(call for call in self.calls if not call.done)


class QueuedRun(msgspec.Struct, frozen=True, kw_only=True):
    run_id: str
    seq: int
    at: str
    fact: RunQueued


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """Where a fork came from."""

    session_id: str
    seq: int
    hash: str


class State(msgspec.Struct, frozen=True, kw_only=True):
    """A session after its first `seq` events; seq 0 is a session that does not exist yet."""

    seq: int = 0
    hash: str = ""
    agent: str = ""
    context_variables: Json = {}
    metadata: Json = {}
    messages: Chain[Entry] = msgspec.field(default_factory=Chain)
    run: Run | None = None
    queue: tuple[QueuedRun, ...] = ()
    finished: Chain[Run] = msgspec.field(default_factory=Chain)
    usage: Usage = Usage()
    forked_from: Origin | None = None
    created_at: str = ""
    updated_at: str = ""
    size: int = 0
    """Bytes of payload folded so far."""

    @property
    def status(self) -> SessionStatus:
        if self.run is None:
            return "idle"
        return "waiting" if self.run.status == "waiting" else "running"

    @property
    def due_at(self) -> float | None:
        """When somebody has to go on with a session that is not running, in seconds since 1970.

        One whose runs wait in the queue is due at once (0), one that waits for approvals when the first expires.
        """
        if self.run is None:
            return 0.0 if self.queue else None
        if self.run.status != "waiting":
            return None
        ends = [call.decide_until for call in self.run.open_calls]
        return min((end.timestamp() for end in ends if end is not None), default=None)


def make_calls(message: Json) -> tuple[ToolCall, ...]:
    """The tool calls an assistant message asks for, each id once."""
    if not message.get("tool_calls"):
        return ()
    sender = message.get("sender")
    agent = sender if isinstance(sender, str) else ""
    return tuple(
        ToolCall(id=call_id, name=name, arguments=arguments, agent=agent)
        for call_id, name, arguments in read_tool_calls(message)
    )


def make_queued_run(state: State, queued: QueuedRun) -> Run:
    """A run that has not begun, in the form of one."""
    return Run(
        id=queued.run_id,
        status="queued",
        options=queued.fact.options,
        first_seq=queued.seq,
        last_seq=queued.seq,
        created_at=queued.at,
        active_since=queued.at,
        agent=queued.fact.agent or state.agent,
        first_message=len(state.messages),
        last_message=len(state.messages),
        context_variables=state.context_variables,
        idempotency_key=queued.fact.idempotency_key,
        by=queued.fact.by,
    )


_MAX_COUNT = 2**63 - 1


def add_usage(usage: Usage, reported: Json | None) -> Usage:
    """Add what a provider reported; missing or odd figures count as nothing."""
    counts = reported or {}
    return Usage(
        prompt_tokens=_add_count(usage.prompt_tokens, counts.get("prompt_tokens")),
        completion_tokens=_add_count(usage.completion_tokens, counts.get("completion_tokens")),
        total_tokens=_add_count(usage.total_tokens, counts.get("total_tokens")),
        model_calls=usage.model_calls + 1,
    )


def _add_count(total: int, count: object) -> int:
    if not isinstance(count, int):
        return total
    total += count
    # A sum that JSON cannot hold could not be recorded, and its run would never end.
    return total if -_MAX_COUNT <= total <= _MAX_COUNT else max(-_MAX_COUNT, min(total, _MAX_COUNT))
