"""The facts of a session.

Each is a frozen struct; its `type` is the public name and decides how its payload is read. `FACTS` lists them all: the
fold's table of steps, the docs and the tests go by it.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal, get_args

import msgspec
from msgspec import UNSET, UnsetType, field

from swarmkeep.events.codec import Json, MalformedJson, decode, encode, encode_text
from swarmkeep.events.records import (
    CompletionRecord,
    RunOptions,
    ToolRecord,
    Usage,
)


# Not tracked by the garbage collector, here and in `RecordedEvent`: JSON has no cycles, and going through those of a
# long log again and again took a third of the time to read it.
class Fact(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Something that happened. New fields get defaults; a changed meaning gets a new type or version."""

    type: ClassVar[str]
    version: ClassVar[int] = 1


# A history made shorter for the model. The log keeps all of it.

CompactionReason = Literal["tokens", "too_long", "asked"]


class CompactionStarted(Fact, frozen=True, kw_only=True):
    """The results with the seqs in `shortened` are sent with `result_characters` characters from here on, their
    beginning and end; and what was said up to `last_seq` (0: nothing) is to be summed up, in pieces of about
    `piece_characters`.

    `prompt_tokens`: what the last request took by its provider's count, or, `estimated`, by its size.
    """

    type: ClassVar[str] = "compaction.started"
    reason: str
    keep_turns: int
    of_tokens: int | None = None
    prompt_tokens: int | None = None
    estimated: bool = False
    last_seq: int = 0
    shortened: tuple[int, ...] = ()
    result_characters: int = 0
    piece_characters: int = 0
    instructions: str | None = None
    by: str | None = None


class CompactionSummarised(Fact, frozen=True, kw_only=True):
    """A model has summed up the messages from `first_seq` to `last_seq`: it is sent `summary` in their place.

    It was sent the summary before this one, and about `characters` characters of what followed that.
    """

    type: ClassVar[str] = "compaction.summarised"
    first_seq: int
    last_seq: int
    summary: str
    characters: int
    completion: CompletionRecord | None = None


class CompactionFailed(Fact, frozen=True, kw_only=True, omit_defaults=True):
    """No summary was made of what was left to sum up; the session goes on with what there is."""

    type: ClassVar[str] = "compaction.failed"
    code: str
    message: str
    retryable: bool = False
    provider_status: int | None = None


# What models are sent of a history, and lists show of it. None of these changes what the log holds.


class MessageRemoved(Fact, frozen=True, kw_only=True):
    """From here on a message, or one call of it with its result, is not sent to models and not listed.

    `tool_call_id`: only this call of `message_seq`. `content`: only what it says, and none of its calls. `seqs`: all
    messages that are gone as a whole.
    """

    type: ClassVar[str] = "message.removed"
    message_seq: int
    tool_call_id: str | None = None
    seqs: tuple[int, ...] = ()
    by: str | None = None
    content: bool | UnsetType = UNSET


# A person who speaks in the agent's place.


class SessionTakenOver(Fact, frozen=True, kw_only=True):
    """From here on no model is asked, and no call begins. `note` is for those who look on, not for any model."""

    type: ClassVar[str] = "session.taken_over"
    by: str | None = None
    note: str | UnsetType = UNSET


class SessionHandedBack(Fact, frozen=True, kw_only=True):
    """The agent answers again. Its model reads `note` as a message, which is recorded as soon as no call is open."""

    type: ClassVar[str] = "session.handed_back"
    by: str | None = None
    note: str | UnsetType = UNSET


# What must not be removed, until it is said otherwise.


class SessionHeld(Fact, frozen=True, kw_only=True):
    """A legal hold: from here on nothing of the session is redacted or deleted."""

    type: ClassVar[str] = "session.held"
    reason: str
    by: str | None = None


class SessionReleased(Fact, frozen=True, kw_only=True):
    type: ClassVar[str] = "session.released"
    by: str | None = None


class Hold(msgspec.Struct, frozen=True, kw_only=True):
    """Who holds a session, since when and why."""

    reason: str
    by: str | None
    at: str


class TakenOver(msgspec.Struct, frozen=True, kw_only=True):
    """The person who answers in the agent's place, and since when."""

    by: str | None
    at: str
    note: str | None = None


class HandbackNote(msgspec.Struct, frozen=True, kw_only=True):
    """A note to the agent from the person who handed back, told before its model is asked again."""

    text: str
    by: str | None


# The origin of a session that was made for a call of one agent to another.


class Parent(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The call that a session was made for. `depth`: how many sessions lie above it, one asked by the other."""

    session_id: str
    run_id: str
    tool_call_id: str
    depth: int = 1


# Tools that are not an agent's own functions.


class ListedTool(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A tool under the name that the model is given; `tool` is its server's own name for it, where that is another.

    `idempotent` and `destructive`: so its server says.
    """

    name: str
    tool: str | UnsetType = UNSET
    idempotent: bool | UnsetType = UNSET
    destructive: bool | UnsetType = UNSET

    @property
    def own_name(self) -> str:
        return self.name if self.tool is UNSET else self.tool


class ToolsListed(Fact, frozen=True, kw_only=True):
    """From here on the event's agent is offered these tools of an MCP server, and no others of it.

    `schemas`: the SHA-256 (hex) of the text that describes them in requests, a JSON array without what is around it.
    `error`: why there is no list.
    """

    type: ClassVar[str] = "tools.listed"
    server: str
    tools: tuple[ListedTool, ...] = ()
    schemas: str | None = None
    error: str | UnsetType = UNSET

    @property
    def is_without_schemas(self) -> bool:
        """Tell if there are tools whose descriptions were redacted."""
        return bool(self.tools) and self.schemas is None


class ToolListing(msgspec.Struct, frozen=True, kw_only=True):
    """The tools of an MCP server that an agent is offered."""

    agent: str
    fact: ToolsListed


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
    is shown to no one. `error`: what the guardrail failed with, if that is why.
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
    """`arguments`: the JSON text that the call is carried out with, if the approver has changed it."""

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

    With the reason `session`, a decision is needed in the session `session_id`, in which another agent is asked;
    `approvals` lists the calls. With the reason `person`, the person who has taken the session over has to answer, or
    to hand it back: this is not a call, and names none.
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
    """`options`: how the run goes on from here, if the resuming caller said so."""

    type: ClassVar[str] = "run.resumed"
    reason: str
    options: RunOptions | UnsetType = UNSET


class RunError(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The reason why a run failed. `retryable`: the same input may well succeed later. `provider_status`: its HTTP
    status."""

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
    """The fields that the four terminal events share."""

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
    | SessionHeld | SessionReleased | UnknownFact
)  # fmt: skip

FACTS: dict[str, type[Fact]] = {fact.type: fact for fact in get_args(SessionEvent) if fact is not UnknownFact}


# The envelope around a fact, on its way to the log and back.


class EventDraft(msgspec.Struct, frozen=True):
    """A fact on its way to the log. `agent` is the one active when it happened."""

    fact: SessionEvent
    run_id: str | None
    agent: str


class RecordedEvent(msgspec.Struct, frozen=True, gc=False):
    """A fact in the log. `payload` is its exact stored text, which the hash covers; `at` is information, not order."""

    session_id: str
    seq: int
    type: str
    version: int
    run_id: str | None
    agent: str
    at: str
    hash: str
    payload: str
    fact: SessionEvent


class EventView(msgspec.Struct, frozen=True, kw_only=True):
    """An event as the API shows it."""

    session_id: str
    seq: int
    type: str
    version: int
    run_id: str | None
    agent: str
    at: str
    data: msgspec.Raw
    hash: str


def view_event(event: RecordedEvent) -> EventView:
    """The public form; `data` is the stored text itself."""
    return EventView(
        session_id=event.session_id,
        seq=event.seq,
        type=event.type,
        version=event.version,
        run_id=event.run_id,
        agent=event.agent,
        at=event.at,
        data=msgspec.Raw(read_data(event)),
        hash=event.hash,
    )


def read_data(event: RecordedEvent) -> bytes:
    """The stored text as JSON in one line: itself; or, if it is damaged and not JSON, as a JSON string."""
    if isinstance(event.fact, UnknownFact) and event.fact.data is None:
        try:
            decode(event.payload)
        except MalformedJson:
            return encode(event.payload)
    if "\r" in event.payload or "\n" in event.payload:
        # No server writes any; what came out of a file may have them between its values, where they say nothing.
        return event.payload.encode().translate(None, b"\r\n")
    return event.payload.encode()


def encode_payload(fact: Fact) -> str:
    """The text that is stored and hashed."""
    return encode_text(fact)


def decode_fact(type_: str, payload: str) -> SessionEvent:
    """Read a stored payload of the current version. Unknown types pass through; unknown fields are ignored."""
    cls = FACTS.get(type_)
    if cls is None:
        return UnknownFact(data=decode(payload))
    return decode(payload, cls)  # type: ignore[return-value]


def is_redacted(event: RecordedEvent) -> bool:
    """Tell if a stand-in took the place of the recorded content; it says so beside its fields."""
    if '"redacted"' not in event.payload:
        return False
    try:
        value = decode(event.payload)
    except MalformedJson:
        return False
    return isinstance(value, dict) and value.get("redacted") is True
