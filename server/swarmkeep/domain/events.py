"""The facts of a session.

Each is a frozen struct; its `type` is the public name and decides how its payload is read. `FACTS` lists them all: the
fold's exhaustive match, the docs and the tests go by it.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal, get_args

import msgspec
from msgspec import UNSET, UnsetType, field

from swarmkeep.domain.codec import Json

# What this release writes. Facts take any text in their place, because a later release may write more.
ToolStatus = Literal["ok", "error", "timeout", "unknown_outcome", "denied", "superseded", "external"]
StopReason = Literal[
    "end_turn", "max_turns", "loop_detected", "tool_calls", "approval", "error", "cancelled", "interrupted"
]
Decision = Literal["approve", "deny"]
# The code of the error that a run ends with because the session was imported in the middle of it.
IMPORTED = "imported"
ResumeReason = Literal["approval", "tool_results", "recovery"]


# Not tracked by the garbage collector, here and in `RecordedEvent`: JSON has no cycles, and going through those of a
# long log again and again took a third of the time to read it.
class Fact(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Something that happened. New fields get defaults; a changed meaning gets a new type or version."""

    type: ClassVar[str]
    version: ClassVar[int] = 1


class SessionCreated(Fact, frozen=True, kw_only=True):
    type: ClassVar[str] = "session.created"
    agent: str
    context_variables: Json = {}
    metadata: Json = {}


class SessionForked(Fact, frozen=True, kw_only=True):
    type: ClassVar[str] = "session.forked"
    from_session_id: str
    from_seq: int
    from_hash: str


class SessionImported(Fact, frozen=True, kw_only=True):
    """Ends what came out of a file: the events up to `last_seq`, of which only the file says who decided what.

    `source` is the kind of file, `digest` the SHA-256 (hex) of its bytes.
    """

    type: ClassVar[str] = "session.imported"
    source: str
    digest: str
    last_seq: int
    by: str | None = None


class SessionUpdated(Fact, frozen=True, kw_only=True):
    type: ClassVar[str] = "session.updated"
    metadata: Json | UnsetType = UNSET
    agent: str | UnsetType = UNSET


class SessionRedacted(Fact, frozen=True, kw_only=True):
    """`kept` is, for each of `seqs`, the SHA-256 (hex) of the text that stands there now in the payload's place."""

    type: ClassVar[str] = "session.redacted"
    seqs: tuple[int, ...]
    reason: str
    by: str | None = None
    kept: tuple[str, ...] = ()


class RunOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a run was asked for, and the limits that hold for it; None is without limit.

    `max_turns` counts model calls. After `loop_turns` turns in a circle the run ends. A model is sent the last
    `history_turns` turns.
    """

    max_turns: int | None = None
    model: str | None = None
    execute_tools: bool = True
    stream: bool = False
    loop_turns: int | None = None
    history_turns: int | None = None


class RunQueued(Fact, frozen=True, kw_only=True):
    """A run that waits for the session's active one; its input is kept here until it starts. `by`: who asked for it."""

    type: ClassVar[str] = "run.queued"
    options: RunOptions
    messages: tuple[Json, ...]
    agent: str | None = None
    context_variables: Json = {}
    idempotency_key: str | None = None
    by: str | UnsetType = UNSET
    traceparent: str | UnsetType = UNSET


class RunStarted(Fact, frozen=True, kw_only=True):
    """`traceparent`: where the request that asked for it stands in its trace (W3C), on a server that makes traces."""

    type: ClassVar[str] = "run.started"
    options: RunOptions
    idempotency_key: str | None = None
    by: str | UnsetType = UNSET
    traceparent: str | UnsetType = UNSET


class RequestRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What a model was sent, beside the messages: two content hashes (SHA-256, hex) and the other parameters.

    `history_from`: the seq that the messages begin with, when earlier ones were left out.
    """

    instructions: str
    tools: str | None = None
    params: Json = {}
    history_from: int | UnsetType = UNSET


class CompletionRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Where an assistant message came from, as the provider reported it. `partial`: cut off before its end."""

    id: str | None = None
    model: str | None = None
    finish_reason: str | None = None
    usage: Json | None = None
    duration_ms: float = 0.0
    request: RequestRecord | None = None
    partial: bool | UnsetType = UNSET


class ToolRecord(msgspec.Struct, frozen=True, kw_only=True):
    """How a tool call ended. `handoff` names the agent it returned, whether or not that handoff was made."""

    name: str
    status: str
    duration_ms: float = 0.0
    handoff: str | UnsetType = UNSET


class MessageAdded(Fact, frozen=True, kw_only=True, omit_defaults=True):
    type: ClassVar[str] = "message.added"
    message: Json
    completion: CompletionRecord | None = None
    tool: ToolRecord | None = None


class ToolStarted(Fact, frozen=True, kw_only=True):
    type: ClassVar[str] = "tool.started"
    tool_call_id: str
    name: str
    arguments: str
    attempt: int = 1


class HandoffMade(Fact, frozen=True, kw_only=True):
    type: ClassVar[str] = "handoff.made"
    from_agent: str = field(name="from")
    to_agent: str = field(name="to")
    tool_call_id: str | None = None


class HandoffIgnored(Fact, frozen=True, kw_only=True):
    """A later call of the same completion handed over too, and the last one wins."""

    type: ClassVar[str] = "handoff.ignored"
    from_agent: str = field(name="from")
    to_agent: str = field(name="to")
    tool_call_id: str | None = None


class ContextUpdated(Fact, frozen=True, kw_only=True):
    """`patch` is an RFC 7396 merge patch; `nulls` (RFC 6901 pointers) hold null after it, which a patch cannot say."""

    type: ClassVar[str] = "context.updated"
    patch: Json
    tool_call_id: str | None = None
    nulls: tuple[str, ...] | UnsetType = UNSET


class ApprovalRequested(Fact, frozen=True, kw_only=True):
    type: ClassVar[str] = "approval.requested"
    tool_call_id: str
    name: str
    arguments: str
    expires_at: str | None = None


class ApprovalDecided(Fact, frozen=True, kw_only=True):
    type: ClassVar[str] = "approval.decided"
    tool_call_id: str
    decision: str
    reason: str | None = None
    by: str | None = None


class PendingCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call that waits for an approval or for a result from outside. `arguments` is the model's JSON text."""

    tool_call_id: str
    name: str
    arguments: str
    reason: str
    expires_at: str | None = None


class RunWaiting(Fact, frozen=True, kw_only=True):
    type: ClassVar[str] = "run.waiting"
    pending: tuple[PendingCall, ...]


class RunResumed(Fact, frozen=True, kw_only=True):
    type: ClassVar[str] = "run.resumed"
    reason: str


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens as the provider counted them, and how many model calls they are the sum of."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    total_tokens: int = 0
    model_calls: int = 0


class RunError(msgspec.Struct, frozen=True, kw_only=True):
    """Why a run failed. `retryable`: the same input may well succeed later. `provider_status`: its HTTP status."""

    code: str
    message: str
    retryable: bool = False
    provider_status: int | None = None


class RunEnded(Fact, frozen=True, kw_only=True):
    """What the four terminal events share."""

    stop_reason: str
    usage: Usage = Usage()
    error: RunError | None = None


class RunCompleted(RunEnded, frozen=True, kw_only=True):
    type: ClassVar[str] = "run.completed"


class RunFailed(RunEnded, frozen=True, kw_only=True):
    type: ClassVar[str] = "run.failed"


class RunCancelled(RunEnded, frozen=True, kw_only=True):
    type: ClassVar[str] = "run.cancelled"


class RunInterrupted(RunEnded, frozen=True, kw_only=True):
    type: ClassVar[str] = "run.interrupted"


class UnknownFact(Fact, frozen=True, kw_only=True):
    """An event of a type that this release does not know: kept, shown, and without effect on the state."""

    type: ClassVar[str] = ""
    data: Any = None


SessionEvent = (
    SessionCreated | SessionForked | SessionImported | SessionUpdated | SessionRedacted
    | RunQueued | RunStarted | MessageAdded | ToolStarted | HandoffMade | HandoffIgnored | ContextUpdated
    | ApprovalRequested | ApprovalDecided | RunWaiting | RunResumed
    | RunCompleted | RunFailed | RunCancelled | RunInterrupted | UnknownFact
)  # fmt: skip

FACTS: dict[str, type[Fact]] = {fact.type: fact for fact in get_args(SessionEvent) if fact is not UnknownFact}
