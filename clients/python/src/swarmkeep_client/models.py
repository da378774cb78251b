"""A server's answers as frozen values. Fields that a newer server adds are ignored."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, Literal, NotRequired, TypeAlias, TypedDict, TypeVar

import msgspec

T = TypeVar("T")

Json: TypeAlias = dict[str, Any]
Message: TypeAlias = dict[str, Any]
"""A Chat Completions message, kept as it came; from a server also with `seq` and `sender`."""

SessionStatus: TypeAlias = Literal["idle", "running", "waiting"]
OnBusy: TypeAlias = Literal["reject", "queue", "interrupt"]


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens as the provider counted them, and how many model calls they are the sum of."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    total_tokens: int = 0
    model_calls: int = 0


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """Where a fork came from: the session, and the event that both share last."""

    session_id: str
    seq: int
    hash: str = ""


class SessionState(msgspec.Struct, frozen=True, kw_only=True):
    """A session as of one `seq`. `hash` is that event's: noted down, it proves the history up to there.

    `context_variables` is empty in a list that was not asked to include them.
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


class RunError(msgspec.Struct, frozen=True, kw_only=True):
    """Why a run failed. `retryable`: the same input may well succeed later. `provider_status`: its HTTP status."""

    code: str
    message: str
    retryable: bool = False
    provider_status: int | None = None


class PendingCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call that waits for an approval or for a result from outside. `arguments` is the model's JSON text."""

    tool_call_id: str
    name: str
    arguments: str
    reason: str = ""
    expires_at: str | None = None


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One run. `messages` are its own, its input included; `output_text` is what its last assistant message says.

    `status` is `queued`, `running`, `waiting`, `completed`, `failed`, `cancelled` or `interrupted`.
    """

    id: str
    session_id: str
    status: str
    stop_reason: str | None = None
    agent: str = ""
    messages: list[Message] = []
    output_text: str = ""
    context_variables: Json = {}
    usage: Usage = Usage()
    error: RunError | None = None
    pending: list[PendingCall] = []
    first_seq: int | None = None
    last_seq: int | None = None
    created_at: str = ""
    finished_at: str | None = None


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
    """Whether a session is what it was when it was recorded. `events` counts those that were checked.

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


class AgentInfo(msgspec.Struct, frozen=True, kw_only=True):
    """An agent that the server has. `tools` are Chat Completions schemas."""

    name: str
    model: str | None = None
    tools: list[Json] = []
    handoffs: list[Any] = []


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the server takes requests. `detail` is what it says about itself."""

    ready: bool
    detail: Json = {}


class UsageRow(msgspec.Struct, frozen=True, kw_only=True):
    """What the calls of one group took. Tokens are as providers counted them; times are in milliseconds.

    `day` (UTC), `agent`, `model`, `session_id` and `run_id` say which group, as far as it was asked for. Tool calls
    belong to no `model`, and what happens outside a run to no `run_id`.
    """

    day: str | None = None
    agent: str | None = None
    model: str | msgspec.UnsetType | None = msgspec.UNSET
    session_id: str | None = None
    run_id: str | msgspec.UnsetType | None = msgspec.UNSET
    model_calls: int = 0
    tool_calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    total_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    model_ms: float = 0.0
    tool_ms: float = 0.0


class Quota(msgspec.Struct, frozen=True, kw_only=True):
    """`limit` is None where there is none."""

    used: int
    limit: int | None = None


class Quotas(msgspec.Struct, frozen=True, kw_only=True):
    """What a tenant has, of what it may have. `tokens_today` begin anew in `day_ends_in_seconds`."""

    sessions: Quota
    stored_bytes: Quota
    tokens_today: Quota
    day_ends_in_seconds: int


class ImportedSession(msgspec.Struct, frozen=True, kw_only=True):
    """A session of an imported file. `outcome`: `imported`, or `present` if it was on the server before."""

    id: str
    seq: int
    hash: str
    outcome: str


class ImportReport(msgspec.Struct, frozen=True, kw_only=True):
    """What an import did, or with `dry_run` would do. `sessions` names the first thousand."""

    dry_run: bool
    imported: int
    present: int
    events: int
    sessions: list[ImportedSession] = []


class Page(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """Part of a list. `next_cursor` is None on the last one."""

    data: list[T]
    next_cursor: str | None = None


class ToolResult(TypedDict):
    """The outside result of a tool call that a run waits for."""

    tool_call_id: str
    content: str
    is_error: NotRequired[bool]


class Approval(TypedDict):
    """A decision about a tool call that waits for one."""

    tool_call_id: str
    decision: Literal["approve", "deny"]
    reason: NotRequired[str]


class RunOptions(TypedDict, total=False):
    """How to run. What is left out, or None, is decided by the server.

    `context_variables` is a JSON merge patch applied first; `max_turns` counts model calls; without `execute_tools`
    the run waits for the results of its tool calls; `on_busy` says what happens while another run is active: `reject`
    (SessionBusy), `queue`, or `interrupt` (that run is cancelled, what it produced stays).
    """

    agent: str | None
    context_variables: Json | None
    model: str | None
    max_turns: int | None
    execute_tools: bool | None
    on_busy: OnBusy | None
    idempotency_key: str | None


class ResumeInput(TypedDict, total=False):
    """What a run that waits is given: results from outside, decisions, or both. With nothing, it is tried again."""

    tool_results: Sequence[ToolResult] | None
    approvals: Sequence[Approval] | None
    idempotency_key: str | None
