"""The facts of a session.

Each is a frozen struct; its `type` is the public name and decides how its payload is read. `FACTS` lists them all: the
fold's table of steps, the docs and the tests go by it.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal, get_args

import msgspec
from msgspec import UNSET, UnsetType, field

from swarmkeep.domain.codec import Json
from swarmkeep.domain.facts.compaction import CompactionFailed, CompactionStarted, CompactionSummarised
from swarmkeep.domain.facts.fact import Fact
from swarmkeep.domain.facts.history import MessageRemoved
from swarmkeep.domain.facts.records import CompletionRecord as CompletionRecord
from swarmkeep.domain.facts.records import ContextChange as ContextChange
from swarmkeep.domain.facts.records import MessageRules as MessageRules
from swarmkeep.domain.facts.records import RequestRecord as RequestRecord
from swarmkeep.domain.facts.records import ToolRecord as ToolRecord
from swarmkeep.domain.facts.records import Usage as Usage
from swarmkeep.domain.facts.takeovers import SessionHandedBack, SessionTakenOver
from swarmkeep.domain.facts.teams import Parent as Parent
from swarmkeep.domain.facts.tools import ToolsListed
from swarmkeep.domain.run_options import RunOptions

# What this release writes. Facts take any text in their place, because a later release may write more.
ToolStatus = Literal["ok", "error", "timeout", "unknown_outcome", "denied", "refused", "superseded", "external"]
StopReason = Literal[
    "end_turn", "max_turns", "loop_detected", "guardrail", "tool_calls", "approval", "person", "error", "cancelled",
    "interrupted",
]  # fmt: skip
Decision = Literal["approve", "deny"]
# The code of the error that a run ends with because the session was imported in the middle of it.
IMPORTED = "imported"
ResumeReason = Literal["approval", "tool_results", "recovery", "session", "person"]


class SessionCreated(Fact, frozen=True, kw_only=True):
    """`parent`: the call that the session was made for, where an agent asks another one."""

    type: ClassVar[str] = "session.created"
    agent: str
    context_variables: Json = field(default_factory=dict)
    metadata: Json = field(default_factory=dict)
    parent: Parent | UnsetType = UNSET


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
    """`kept` is, for each of `seqs`, the SHA-256 (hex) of the text that stands there now in the payload's place.

    `texts`: those, by their hashes, that events name still and that were removed all the same.
    """

    type: ClassVar[str] = "session.redacted"
    seqs: tuple[int, ...]
    reason: str
    by: str | None = None
    kept: tuple[str, ...] = ()
    texts: tuple[str, ...] | UnsetType = UNSET


class RunQueued(Fact, frozen=True, kw_only=True):
    """A run that waits for the session's active one; its input is kept here until it starts. `by`: who asked for it."""

    type: ClassVar[str] = "run.queued"
    options: RunOptions
    messages: tuple[Json, ...]
    agent: str | None = None
    context_variables: Json = field(default_factory=dict)
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


class MessageAdded(Fact, frozen=True, kw_only=True, omit_defaults=True):
    """`correction`: it tells the model what is wrong with its final answer, which is the run's n-th wrong one.

    `guardrail`: it says what that one said in its refusal, in the place of an answer.
    `person`: who wrote it, having taken over from the agent: an answer, or a note for the agent.
    """

    type: ClassVar[str] = "message.added"
    message: Json
    completion: CompletionRecord | None = None
    tool: ToolRecord | None = None
    correction: int | UnsetType = UNSET
    guardrail: str | UnsetType = UNSET
    person: str | UnsetType = UNSET


class GuardrailTripped(Fact, frozen=True, kw_only=True):
    """A guardrail refused what was about to pass, at `stage`: `input`, `history` (what was brought along, without which
    the run goes on), `output` or `tool`.

    `messages`: the seqs of the input that no model is sent from here on. `digest`: the SHA-256 (hex) of the text that
    nobody is shown. `error`: what the guardrail failed with, if that is why.
    """

    type: ClassVar[str] = "guardrail.tripped"
    stage: str
    name: str
    message: str
    error: str | UnsetType = UNSET
    messages: tuple[int, ...] | UnsetType = UNSET
    tool_call_id: str | UnsetType = UNSET
    digest: str | UnsetType = UNSET


class ToolStarted(Fact, frozen=True, kw_only=True):
    """`session_id`: the session in which another agent is asked."""

    type: ClassVar[str] = "tool.started"
    tool_call_id: str
    name: str
    arguments: str
    attempt: int = 1
    session_id: str | UnsetType = UNSET


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
    """`arguments`: the JSON text that the call is carried out with, where whoever approved it has changed it."""

    type: ClassVar[str] = "approval.decided"
    tool_call_id: str
    decision: str
    reason: str | None = None
    by: str | None = None
    arguments: str | UnsetType = UNSET


class AwaitedApproval(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A call of an asked agent that waits for an approval, in that agent's session or in one below it.

    `arguments_digest` is never recorded: see PendingCall.
    """

    session_id: str
    run_id: str
    tool_call_id: str
    agent: str
    name: str
    arguments: str
    arguments_digest: str | UnsetType = UNSET


class PendingCall(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A call that waits for an approval or for a result from outside. `arguments` is the model's JSON text.

    With the reason `session`, somebody has to decide in the session `session_id`, in which another agent is asked;
    `approvals` lists the calls. With the reason `person`, whoever has taken the session over has to answer, or to hand
    it back: this is not a call, and names none.
    `arguments_digest`, of a call that waits for an approval, is the SHA-256 of its arguments, to be given back with a
    decision. It is made where the call is shown: a recorded one would tell of arguments that were redacted.
    """

    tool_call_id: str
    name: str
    arguments: str
    reason: str
    expires_at: str | None = None
    session_id: str | UnsetType = UNSET
    approvals: tuple[AwaitedApproval, ...] | UnsetType = UNSET
    arguments_digest: str | UnsetType = UNSET


class RunWaiting(Fact, frozen=True, kw_only=True):
    type: ClassVar[str] = "run.waiting"
    pending: tuple[PendingCall, ...]


class RunResumed(Fact, frozen=True, kw_only=True):
    """`options`: how the run goes on from here, where whoever resumed it said so."""

    type: ClassVar[str] = "run.resumed"
    reason: str
    options: RunOptions | UnsetType = UNSET


class RunError(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Why a run failed. `retryable`: the same input may well succeed later. `provider_status`: its HTTP status."""

    code: str
    message: str
    retryable: bool = False
    provider_status: int | None = None


class RunHidden(Fact, frozen=True, kw_only=True):
    """The run is not found any more by its id where another API shows it as a response. Here nothing is hidden.

    `part`: only what it did between two of its waits, counted from 0, is not.
    """

    type: ClassVar[str] = "run.hidden"
    by: str | None = None
    part: int | UnsetType = UNSET


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
    | RunQueued | RunStarted | MessageAdded | MessageRemoved | ToolStarted | HandoffMade | HandoffIgnored
    | ContextUpdated | GuardrailTripped | ApprovalRequested | ApprovalDecided | RunWaiting | RunResumed
    | RunCompleted | RunFailed | RunCancelled | RunInterrupted | RunHidden
    | CompactionStarted | CompactionSummarised | CompactionFailed | ToolsListed | SessionTakenOver | SessionHandedBack
    | UnknownFact
)  # fmt: skip

FACTS: dict[str, type[Fact]] = {fact.type: fact for fact in get_args(SessionEvent) if fact is not UnknownFact}
