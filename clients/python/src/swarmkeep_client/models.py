"""A server's answers as frozen values. Fields that a newer server adds are ignored."""

from __future__ import annotations

from typing import Any, Generic, Literal, TypeAlias, TypeVar

import msgspec

from swarmkeep_client.prices import Cost

T = TypeVar("T")

Json: TypeAlias = dict[str, Any]
Message: TypeAlias = dict[str, Any]
"""A Chat Completions message, kept as it came; from a server also with `seq` and `sender`."""

SessionStatus: TypeAlias = Literal["idle", "running", "waiting"]


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens as the provider counted them, and how many model calls they are the sum of."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    total_tokens: int = 0
    model_calls: int = 0


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """The origin of a fork: the session, and the last event that both share."""

    session_id: str
    seq: int
    hash: str = ""


class Parent(msgspec.Struct, frozen=True, kw_only=True):
    """The call that a session was made for, by an agent that asks another one. `depth`: how many lie above it."""

    session_id: str
    run_id: str
    tool_call_id: str
    depth: int = 1


class TakenOver(msgspec.Struct, frozen=True, kw_only=True):
    """The person that answers in the agent's place, and since when. `by` is None on a server without keys."""

    by: str | None = None
    at: str = ""
    note: str | None = None


class Match(msgspec.Struct, frozen=True, kw_only=True):
    """A place where a search found something: a message by its `seq`, or with None the session's id and metadata.

    `snippet` is the text around it; `ranges` are where in it the words stand, from and to, in characters.
    """

    seq: int | None
    snippet: str = ""
    ranges: list[tuple[int, int]] = []


class SessionState(msgspec.Struct, frozen=True, kw_only=True):
    """A session as of one `seq`. `hash` is that event's: noted down, it proves the history up to there.

    `context_variables` is empty in a list that was not asked to include them. `last_run_status` is that of the run that
    began last, None before the first. `title` is what it is called, or how it began; `matches` say where a search found
    something. `cost` is there where one session was asked for, and the server knows a price. `queued_runs` wait for
    their turn. `damaged_seq`: from that event on, what is stored is not what was recorded, and nothing is added.
    """

    id: str
    status: str
    agent: str
    context_variables: Json = {}
    metadata: Json
    seq: int
    hash: str
    active_run_id: str | None = None
    message_count: int = 0
    usage: Usage = Usage()
    forked_from: Origin | None = None
    created_at: str = ""
    updated_at: str = ""
    parent: Parent | None = None
    last_run_status: str | None = None
    cost: Cost | None = None
    taken_over: TakenOver | None = None
    title: str | None = None
    matches: list[Match] = []
    queued_runs: int = 0
    damaged_seq: int | None = None


class RunError(msgspec.Struct, frozen=True, kw_only=True):
    """Why a run failed. `retryable`: the same input may well succeed later. `provider_status`: its HTTP status."""

    code: str
    message: str
    retryable: bool = False
    provider_status: int | None = None


class AwaitedApproval(msgspec.Struct, frozen=True, kw_only=True):
    """A call of an agent that is asked, which waits for an approval in its own session."""

    session_id: str
    run_id: str
    tool_call_id: str
    agent: str
    name: str
    arguments: str
    arguments_digest: str | None = None


class PendingCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call that waits for an approval or for a result from outside. `arguments` is the model's JSON text, and
    `arguments_digest` its SHA-256, for a decision that is to count for these only.

    For the reason `session`, a person has to decide in the session `session_id`, in which another agent is asked;
    `approvals` lists the calls. For the reason `person` the run waits for the person that has taken the session over:
    that is no call, and names none.
    """

    tool_call_id: str
    name: str
    arguments: str
    reason: str = ""
    expires_at: str | None = None
    session_id: str | None = None
    approvals: list[AwaitedApproval] = []
    arguments_digest: str | None = None


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One run. `messages` are its own, its input included; `output_text` is what its last assistant message says.

    `output` is the value of that, once the run is completed, where it was asked for in JSON.
    `total_usage` is its usage with that of the agents that it has asked, if it has asked any. `cost` is there where a
    run was asked for by its id, and the server knows a price.
    `status` is `queued`, `running`, `waiting`, `completed`, `failed`, `cancelled` or `interrupted`.
    """

    id: str
    session_id: str
    status: str
    stop_reason: str | None = None
    agent: str = ""
    messages: list[Message] = []
    output_text: str = ""
    output: Any = None
    context_variables: Json = {}
    usage: Usage = Usage()
    error: RunError | None = None
    pending: list[PendingCall] = []
    first_seq: int | None = None
    last_seq: int | None = None
    created_at: str = ""
    finished_at: str | None = None
    total_usage: Usage | None = None
    cost: Cost | None = None


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """One durable fact of a session. `data` is a JSON object whose keys depend on `type`."""

    session_id: str
    seq: int
    type: str
    version: int = 1
    run_id: str | None = None
    agent: str | None = None
    at: str = ""
    data: Any = None
    hash: str = ""


class MessageStarted(msgspec.Struct, frozen=True, kw_only=True):
    """The model begins to answer. What was shown of a message before this is void."""

    type: Literal["message.started"] = "message.started"
    run_id: str
    agent: str


class MessageDelta(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of the message that is being written; the whole of it comes as a `message.added` event."""

    type: Literal["message.delta"] = "message.delta"
    run_id: str
    agent: str
    content: str | None = None
    tool_calls: list[Json] | None = None


class Done(msgspec.Struct, frozen=True, kw_only=True):
    """The last item of a run's stream."""

    type: Literal["done"] = "done"
    run: Run


StreamItem: TypeAlias = Event | MessageStarted | MessageDelta | Done


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """The last event of a session."""

    seq: int
    hash: str


class ChainProblem(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is wrong with what is stored of a session. `seq` is the event where it shows, if it is one's."""

    seq: int | None = None
    code: str = ""
    detail: str = ""


class Verification(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict on whether a session is as it was recorded. `events` counts those that were checked.

    `problems` lists the first of them, the earliest event first; `problem_count` counts all. `redacted` lists the
    events whose payload was removed (with a head, of the events up to it those that were redacted since), the first of
    `redacted_count`.
    """

    valid: bool
    events: int
    head: Head | None = None
    problems: list[ChainProblem] = []
    problem_count: int = 0
    redacted: list[int] = []
    redacted_count: int = 0


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """The server's readiness. `detail` is what it says about itself."""

    ready: bool
    detail: Json = {}


class ImportedSession(msgspec.Struct, frozen=True, kw_only=True):
    """A session of an imported file. `outcome`: `imported`, or `present` if it was on the server before."""

    id: str
    seq: int
    hash: str
    outcome: str


class ImportReport(msgspec.Struct, frozen=True, kw_only=True):
    """The report of an import, or with `dry_run` of what it would do. `sessions` names the first thousand."""

    dry_run: bool
    imported: int
    present: int
    events: int
    sessions: list[ImportedSession] = []


class Page(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """Part of a list. `next_cursor` is None on the last one."""

    data: list[T]
    next_cursor: str | None = None
