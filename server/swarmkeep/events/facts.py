"""The facts of a session.

Each is a frozen struct; its `type` is the public name and decides how its payload is read. `FACTS` lists them all: the
fold's table of steps, the docs and the tests go by it.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal, get_args

import msgspec
from msgspec import UNSET, UnsetType, field

from swarmkeep.events.codec import Json, MalformedJson, decode, encode
from swarmkeep.events.records import CompletionRecord, RunOptions, ToolRecord, Usage


# Not tracked by the garbage collector, here and in `RecordedEvent`: JSON has no cycles, and going through those of a
# long log again and again took a third of the time to read it.
class Fact(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Something that happened. New fields get defaults; a changed meaning gets a new type or version."""

    type: ClassVar[str]
    version: ClassVar[int] = 1


# A history made shorter for the model. The log keeps all of it.

CompactionReason = Literal["tokens", "too_long", "asked"]


class CompactionStarted(Fact, frozen=True, kw_only=True):
    """From here on the listed results are sent shortened, and the earlier messages are to be summarised."""

    type: ClassVar[str] = "compaction.started"
    reason: str
    """`tokens`: the last request took too much; `too_long`: the provider refused one; `asked`: a caller did."""
    keep_turns: int
    """How many turns are left unchanged."""
    of_tokens: int | None = None
    """How many tokens the model can take, by the agent's settings; or null."""
    prompt_tokens: int | None = None
    """How many tokens the last request took, by its provider's count; null if this was not checked."""
    estimated: bool = False
    """True if this number is an estimate by size, because the provider did not count."""
    last_seq: int = 0
    """The last message that is to be summarised; 0 for none."""
    shortened: tuple[int, ...] = ()
    """The results that are sent shortened."""
    result_characters: int = 0
    """To how many characters: their beginning and end."""
    piece_characters: int = 0
    """About how much is summarised at once."""
    instructions: str | None = None
    """Additional instructions to the model for the summary, or null."""
    by: str | None = None
    """Who did it: the API key's id and name, as in `key_0f1e2d3c4b5a6978 (Maria)`; null without keys."""


class CompactionSummarised(Fact, frozen=True, kw_only=True):
    """A model has made a summary: it is sent in place of the messages that it covers. Another replaces it."""

    type: ClassVar[str] = "compaction.summarised"
    first_seq: int
    """The first message that it replaces."""
    last_seq: int
    """The last one."""
    summary: str
    """Its text."""
    characters: int
    """About how many characters were summarised at once, besides the summary before."""
    completion: CompletionRecord | None = None
    """As in `message.added`."""


class CompactionFailed(Fact, frozen=True, kw_only=True, omit_defaults=True):
    """The rest could not be summarised. The session continues with what there is."""

    type: ClassVar[str] = "compaction.failed"
    code: str
    """Why, as of a run that fails."""
    message: str
    """The same in words."""
    retryable: bool = False
    """As of a run that fails; absent if false."""
    provider_status: int | None = None
    """As of a run that fails; absent if null."""


# What models are sent of a history, and lists show of it. None of these changes what the log holds.


class MessageRemoved(Fact, frozen=True, kw_only=True):
    """A message, its content, or one of its calls with the result was taken out: from here on it is not sent to models,
    and not listed.

    The log, earlier forks, past states and past requests keep it. The event belongs to no run.
    """

    type: ClassVar[str] = "message.removed"
    message_seq: int
    """The message that was taken out, or that the call was taken out of."""
    tool_call_id: str | None = None
    """The call, if only that was taken out of the message; or null."""
    seqs: tuple[int, ...] = ()
    """All messages that are gone as a whole."""
    by: str | None = None
    """Who did it: the API key's id and name, as in `key_0f1e2d3c4b5a6978 (Maria)`; null without keys."""
    content: bool | UnsetType = UNSET
    """True if only the message's content was taken out, and its calls stay; else absent."""


# A person who speaks in the agent's place.


class SessionTakenOver(Fact, frozen=True, kw_only=True):
    """From here on a person answers in the agent's place: no model is called, and no tool call begins. Forks and
    imported sessions are not taken over, also if their history says so."""

    type: ClassVar[str] = "session.taken_over"
    by: str | None = None
    """Who did it: the API key's id and name, as in `key_0f1e2d3c4b5a6978 (Maria)`; null without keys."""
    note: str | UnsetType = UNSET
    """A note for other people who look at the session; no model reads it. Absent if there is none."""


class SessionHandedBack(Fact, frozen=True, kw_only=True):
    """The agent answers again."""

    type: ClassVar[str] = "session.handed_back"
    by: str | None = None
    """Who did it: the API key's id and name, as in `key_0f1e2d3c4b5a6978 (Maria)`; null without keys."""
    note: str | UnsetType = UNSET
    """What the agent's model should know. It reads the note as a message (`message.added` with `person`), recorded as
    soon as no call is open. Absent if there is none."""


# The desk: who looks after a conversation, and what colleagues tell each other about it.


class SessionAssigned(Fact, frozen=True, kw_only=True):
    """A person or a queue looks after the session from here on. Forks and imported sessions are assigned to no one,
    also if their history says so. An event that a person caused belongs to no run."""

    type: ClassVar[str] = "session.assigned"
    to: str | None = None
    """The name of the person or the queue; null: no one in particular."""
    by: str | None = None
    """Who assigned it; null without keys, and if a function did."""
    reason: str | UnsetType = UNSET
    """Why, for other people. Absent if there is none."""
    tool_call_id: str | UnsetType = UNSET
    """The call whose function returned `Result(assign=…)`. Absent otherwise."""


class NoteAdded(Fact, frozen=True, kw_only=True):
    """A note for colleagues. It belongs to no run: no model reads it, and no answer or stream of a run shows it."""

    type: ClassVar[str] = "note.added"
    text: str
    """The note."""
    by: str | None = None
    """Who did it: the API key's id and name, as in `key_0f1e2d3c4b5a6978 (Maria)`; null without keys."""


class FeedbackAdded(Fact, frozen=True, kw_only=True):
    """What a person thinks of an answer. Of several about one answer the last one counts. It belongs to no run: no
    model reads it, and no answer or stream of a run shows it. Forks begin without any."""

    type: ClassVar[str] = "feedback.added"
    seq: int
    """The answer: an assistant message."""
    value: str
    """`up` or `down`."""
    comment: str | UnsetType = UNSET
    """What the person says about it. Absent if that is nothing."""
    by: str | None = None
    """Who did it: the API key's id and name, as in `key_0f1e2d3c4b5a6978 (Maria)`; null without keys."""


# What must not be removed, until it is said otherwise.


class SessionHeld(Fact, frozen=True, kw_only=True):
    """From here on nothing of the session is redacted or deleted. Imported sessions are on hold, forks are not."""

    type: ClassVar[str] = "session.held"
    reason: str
    """Why."""
    by: str | None = None
    """Who did it: the API key's id and name, as in `key_0f1e2d3c4b5a6978 (Maria)`; null without keys."""


class SessionReleased(Fact, frozen=True, kw_only=True):
    """The hold is lifted."""

    type: ClassVar[str] = "session.released"
    by: str | None = None
    """Who did it: the API key's id and name, as in `key_0f1e2d3c4b5a6978 (Maria)`; null without keys."""


class Hold(msgspec.Struct, frozen=True, kw_only=True):
    """Who holds a session, since when and why."""

    reason: str
    """Why."""
    by: str | None
    """Who did it: the API key's id and name, as in `key_0f1e2d3c4b5a6978 (Maria)`; null without keys."""
    at: str
    """Since when."""


class TakenOver(msgspec.Struct, frozen=True, kw_only=True):
    """The person who answers in the agent's place."""

    by: str | None
    """Who did it: the API key's id and name, as in `key_0f1e2d3c4b5a6978 (Maria)`; null without keys."""
    at: str
    """Since when."""
    note: str | None = None
    """A note for other people, or null."""


class HandbackNote(msgspec.Struct, frozen=True, kw_only=True):
    """A note to the agent from the person who handed back, told before its model is asked again."""

    text: str
    by: str | None


# The origin of a session that was made for a call of one agent to another.


class Parent(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The call of one agent that asks another, for which a session was made."""

    session_id: str
    """The session of the agent that asks."""
    run_id: str
    """Its run."""
    tool_call_id: str
    """Its call."""
    depth: int = 1
    """How many sessions lie above this one, one asked by the other."""


# Tools that are not an agent's own functions.


class ListedTool(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A tool of an MCP server."""

    name: str
    """Its name for the model."""
    tool: str | UnsetType = UNSET
    """The server's own name for it, where that differs."""
    idempotent: bool | UnsetType = UNSET
    """True if its server says so."""
    destructive: bool | UnsetType = UNSET
    """True if its server says so."""

    @property
    def own_name(self) -> str:
        return self.name if self.tool is UNSET else self.tool


class ToolsListed(Fact, frozen=True, kw_only=True):
    """From here on the event's agent is offered these tools of an MCP server, and no others of it.

    Recorded before the first request that has them, and again only when the list changes. Each request still keeps what
    the model was sent.
    """

    type: ClassVar[str] = "tools.listed"
    server: str
    """The server's name in the agent's settings."""
    tools: tuple[ListedTool, ...] = ()
    """The tools."""
    schemas: str | None = None
    """The SHA-256 (hex) of the text that describes them in requests, a JSON array without its ends; or null."""
    error: str | UnsetType = UNSET
    """Why there is no list. Absent if there is one."""

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
    """The first event of a session. A history that it was made with (`messages`) follows as `message.added`."""

    type: ClassVar[str] = "session.created"
    agent: str
    """The agent that begins."""
    context_variables: Json = field(default_factory=dict)
    """Those that the session was made with."""
    metadata: Json = field(default_factory=dict)
    """Those that the session was made with."""
    parent: Parent | UnsetType = UNSET
    """If an agent made the session to ask another one: the `session_id`, `run_id` and `tool_call_id` of the call, and
    the `depth`, 1 if the asking session has no parent itself. Else absent."""


class SessionForked(Fact, frozen=True, kw_only=True):
    """Ends the copied part of a fork. The events before it are the other session's, with their hashes.

    What was approved in them and not yet carried out is asked for again, with the arguments that the model gave.
    """

    type: ClassVar[str] = "session.forked"
    from_session_id: str
    """The session that was forked."""
    from_seq: int
    """The last event that both share."""
    from_hash: str
    """The hash of that event."""


class SessionImported(Fact, frozen=True, kw_only=True):
    """The events before this one were imported from a file. The approvals and times in them decide nothing here."""

    type: ClassVar[str] = "session.imported"
    source: str
    """The format of the file: `export`, or that of conversations from elsewhere, as `chatgpt`."""
    digest: str
    """The SHA-256 (hex) of the file."""
    last_seq: int
    """The last event that came from it."""
    by: str | None = None
    """Who did it: the API key's id and name, as in `key_0f1e2d3c4b5a6978 (Maria)`; null without keys."""


class SessionUpdated(Fact, frozen=True, kw_only=True):
    """The metadata was changed, or another agent was made the active one. Fields that did not change are absent."""

    type: ClassVar[str] = "session.updated"
    metadata: Json | UnsetType = UNSET
    """A merge patch (RFC 7396): null removes a key."""
    agent: str | UnsetType = UNSET
    """The agent that is active from here on."""


class SessionRedacted(Fact, frozen=True, kw_only=True):
    """Payloads of earlier events were removed, in a fork also those of the copied part."""

    type: ClassVar[str] = "session.redacted"
    seqs: tuple[int, ...]
    """The events whose payloads were removed."""
    reason: str
    """Why."""
    by: str | None = None
    """Who did it: the API key's id and name, as in `key_0f1e2d3c4b5a6978 (Maria)`; null without keys."""
    kept: tuple[str, ...] = ()
    """For each of `seqs`, the SHA-256 (hex) of the text that stands there now."""
    texts: tuple[str, ...] | UnsetType = UNSET
    """The SHA-256 of tool schemas of requests that were removed, although answers name them. Absent if none."""


class RunQueued(Fact, frozen=True, kw_only=True):
    """A run waits for the session's active one. When its turn comes, `run.started` follows with the same `run_id`."""

    type: ClassVar[str] = "run.queued"
    options: RunOptions
    """As in `run.started`."""
    messages: tuple[Json, ...]
    """Its input, kept here until it starts."""
    agent: str | None = None
    """The agent that was requested, or null."""
    context_variables: Json = field(default_factory=dict)
    """A merge patch that is applied when it starts."""
    idempotency_key: str | None = None
    """As in `run.started`."""
    by: str | UnsetType = UNSET
    """As in `run.started`."""
    traceparent: str | UnsetType = UNSET
    """As in `run.started`."""


class RunStarted(Fact, frozen=True, kw_only=True):
    """A run began. Its input follows as `message.added`, in the same commit; between them are the changes that the
    caller made with it (`session.updated`, `context.updated`)."""

    type: ClassVar[str] = "run.started"
    options: RunOptions
    """What the run was asked for with, and the limits that hold for it."""
    idempotency_key: str | None = None
    """The `Idempotency-Key` of the request that started the run, or null."""
    by: str | UnsetType = UNSET
    """Who asked for the run: the API key's id and name. Absent without a key."""
    traceparent: str | UnsetType = UNSET
    """The position of the request in its trace (W3C). Absent on a server that makes no traces."""


class MessageAdded(Fact, frozen=True, kw_only=True, omit_defaults=True):
    """A message was added to the conversation. Fields that do not apply are absent."""

    type: ClassVar[str] = "message.added"
    message: Json
    """A Chat Completions message, with `sender`: the agent's name, or the role of the sender. Tool messages have
    `tool_name` as well. `provider` is what a model attached to its message. A part for a file or picture has a `blob`,
    which names it."""
    completion: CompletionRecord | None = None
    """For a model's answer: where it came from."""
    tool: ToolRecord | None = None
    """For the result of a call: how the call ended."""
    correction: int | UnsetType = UNSET
    """A final answer did not have the required form, and this message, in the same commit, says what is wrong with it:
    the run's n-th wrong answer. If the answer was given by a call, it is in the result of the call."""
    guardrail: str | UnsetType = UNSET
    """The name of the guardrail that ended the run with this answer. If it replaces a reply, it has that reply's
    `completion`; if it answers refused input, it has none, and is never sent to a model."""
    person: str | UnsetType = UNSET
    """The name of the person who has taken over: an answer in the agent's place, which models read like any other, or,
    with the role `user`, the note at the handback."""


class GuardrailTripped(Fact, frozen=True, kw_only=True):
    """A guardrail refused input, history, a reply or a call. Fields that do not apply are absent."""

    type: ClassVar[str] = "guardrail.tripped"
    stage: str
    """`input`: new messages; `history`: what was brought along before them, without which the run goes on; `output`: a
    model's reply; `tool`: a call."""
    name: str
    """The guardrail."""
    message: str
    """The text that is shown instead."""
    error: str | UnsetType = UNSET
    """The error of the guardrail, if it failed and refused for that reason."""
    messages: tuple[int, ...] | UnsetType = UNSET
    """For input and history: the `seq` of each message that is not sent to a model from here on."""
    tool_call_id: str | UnsetType = UNSET
    """For a call: its id."""
    digest: str | UnsetType = UNSET
    """For a reply: the SHA-256 (hex) of the text that is not shown."""


class ToolStarted(Fact, frozen=True, kw_only=True):
    """A function is about to run."""

    type: ClassVar[str] = "tool.started"
    tool_call_id: str
    """The call."""
    name: str
    """The function."""
    arguments: str
    """The model's JSON text."""
    attempt: int = 1
    """1, or more when an idempotent function is run again after a crash."""
    session_id: str | UnsetType = UNSET
    """The session in which another agent is asked; else absent."""


class Handoff(Fact, frozen=True, kw_only=True):
    """The fields that both kinds share."""

    from_agent: str = field(name="from")
    """The agent that hands over."""
    to_agent: str = field(name="to")
    """The agent that continues."""
    tool_call_id: str | None = None
    """The call that returned the agent."""


class HandoffMade(Handoff, frozen=True, kw_only=True):
    """From here on another agent is active."""

    type: ClassVar[str] = "handoff.made"


class HandoffIgnored(Handoff, frozen=True, kw_only=True):
    """A call returned an agent, but a later call of the same reply did so as well, and the last one wins. The result of
    this call tells the model so."""

    type: ClassVar[str] = "handoff.ignored"


class ContextUpdated(Fact, frozen=True, kw_only=True):
    """The context variables were changed: by a function, with a run, or by a `PATCH`."""

    type: ClassVar[str] = "context.updated"
    patch: Json
    """A merge patch (RFC 7396): null removes a key."""
    tool_call_id: str | None = None
    """The call whose function made the change; null if a caller did."""
    nulls: tuple[str, ...] | UnsetType = UNSET
    """JSON pointers (RFC 6901) to places that hold null after the patch, which it cannot express. Mostly absent."""


class ApprovalRequested(Fact, frozen=True, kw_only=True):
    """A call that the model asked for needs an approval. This comes right after the model's reply; or, if the function
    requires approvals only since then, before the call would start."""

    type: ClassVar[str] = "approval.requested"
    tool_call_id: str
    """The call."""
    name: str
    """The function."""
    arguments: str
    """The model's JSON text."""
    expires_at: str | None = None
    """The time by which it must be decided, from `SWARMKEEP_APPROVAL_SECONDS`, or null; then it is denied."""


class ApprovalDecided(Fact, frozen=True, kw_only=True):
    """A person decided on a call. If no decision came in time, it is `deny`, and the reason says so."""

    type: ClassVar[str] = "approval.decided"
    tool_call_id: str
    """The call."""
    decision: str
    """`approve` or `deny`."""
    reason: str | None = None
    """In their words, or null; the model reads the reason of a denied call."""
    by: str | None = None
    """Who did it: the API key's id and name, as in `key_0f1e2d3c4b5a6978 (Maria)`; null without keys."""
    arguments: str | UnsetType = UNSET
    """The JSON text that the call is carried out with, if the approver changed it; else absent."""


class AwaitedApproval(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A call of an asked agent that waits for an approval, in that agent's session or in one below it."""

    session_id: str
    """The session to decide in."""
    run_id: str
    """The run to resume there."""
    tool_call_id: str
    """The call."""
    agent: str
    """The agent whose call it is."""
    name: str
    """The function."""
    arguments: str
    """The model's JSON text."""
    arguments_digest: str | UnsetType = UNSET
    """The SHA-256 (hex) of the arguments; never recorded."""


class PendingCall(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A call that waits."""

    tool_call_id: str
    """The call."""
    name: str
    """The function."""
    arguments: str
    """The model's JSON text."""
    reason: str
    """`approval`: a decision on the call; `tool_results`: a result from the caller; `session`: decisions in the session
    `session_id`, in which another agent is asked; `person`: the person who has taken the session over. The last is not
    a call, and its other fields are empty."""
    expires_at: str | None = None
    """When an approval expires, or null."""
    session_id: str | UnsetType = UNSET
    """The session in which another agent is asked; else absent."""
    approvals: tuple[AwaitedApproval, ...] | UnsetType = UNSET
    """The calls to decide on there; else absent."""
    arguments_digest: str | UnsetType = UNSET
    """Of a call that waits for an approval, the SHA-256 (hex) of its arguments, to be given back with a decision. Made
    where the call is shown, and never recorded: a recorded one would tell of arguments that were redacted."""


class RunWaiting(Fact, frozen=True, kw_only=True):
    """The run cannot continue by itself."""

    type: ClassVar[str] = "run.waiting"
    pending: tuple[PendingCall, ...]
    """The calls that wait."""


class RunResumed(Fact, frozen=True, kw_only=True):
    """The run continues."""

    type: ClassVar[str] = "run.resumed"
    reason: str
    """`approval`: the last decision is there; `tool_results`: the last result is there; `session`: the run in the other
    session continues; `person`: the session was handed back to its agent; `recovery`: a server took the run over, or an
    interrupted run is tried again."""
    options: RunOptions | UnsetType = UNSET
    """The options from here on, if the request that resumed the run brought some; else absent."""


class RunError(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The reason why a run failed."""

    code: str
    """A stable word, one of the reasons why a run fails."""
    message: str
    """The same in words, for people."""
    retryable: bool = False
    """True if the same input may well succeed later."""
    provider_status: int | None = None
    """The HTTP status of the provider's answer, or null."""


class RunHidden(Fact, frozen=True, kw_only=True):
    """A run that has ended can no longer be found by its id where OpenAI's API shows it as a response. This server's
    own API shows it as before."""

    type: ClassVar[str] = "run.hidden"
    by: str | None = None
    """Who did it: the API key's id and name, as in `key_0f1e2d3c4b5a6978 (Maria)`; null without keys."""
    part: int | UnsetType = UNSET
    """Only the part after this number of the run's waits is not found, as a response of its own; else absent."""


class RunEnded(Fact, frozen=True, kw_only=True):
    """An end of a run. Exactly one of the four is a run's last event, unless an interrupted run is resumed."""

    stop_reason: str
    """Completed: `end_turn`, `max_turns`, `loop_detected`, `guardrail`; failed: `error`; cancelled: `cancelled`;
    interrupted: `interrupted`."""
    usage: Usage = Usage()
    """The run's tokens as the provider counted them, and its model calls."""
    error: RunError | None = None
    """Null, or why it failed."""


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
    | SessionHeld | SessionReleased | SessionAssigned | NoteAdded | FeedbackAdded
    | UnknownFact
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
    """The session that the event is in; a fork's copies carry the fork's id."""
    seq: int
    """Its number in the session: 1, 2, 3, …"""
    type: str
    """What happened."""
    version: int
    """The version of the shape of `data`; 1 for all types of this release."""
    run_id: str | None
    """The run that it belongs to; null for an event outside of any run."""
    agent: str
    """The active agent when it happened; for a reply and its calls, the agent whose model was called."""
    at: str
    """When it was recorded: UTC, with microseconds and `Z`. Events of one commit share it."""
    data: msgspec.Raw
    """What happened, by type."""
    hash: str
    """The hash of this event and, through it, of all before it."""


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
    return encode(fact).decode()


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
