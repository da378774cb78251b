"""What a client gives and gets: the input of runs, and a server's answers as frozen values.

Fields that a newer server adds are ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, Literal, NotRequired, TypeAlias, TypedDict, TypeVar

import msgspec


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """The cost of model calls by the server's current prices. `unpriced_calls` are left out."""

    amount: float
    currency: str
    unpriced_calls: int = 0


class ModelPrice(msgspec.Struct, frozen=True, kw_only=True):
    """The price of a million tokens. `model` is a name, or a pattern (`gpt-4o*`)."""

    model: str
    input: float
    cached_input: float
    output: float


class Prices(msgspec.Struct, frozen=True, kw_only=True):
    """A model's own name comes before patterns, of these the longest that fits. Without a table, `data` is empty."""

    currency: str | None = None
    data: list[ModelPrice] = []


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


class Hold(msgspec.Struct, frozen=True, kw_only=True):
    """Why nothing of a session may be redacted or deleted, since when, and who said so."""

    reason: str
    by: str | None = None
    at: str


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


class Feedback(msgspec.Struct, frozen=True, kw_only=True):
    """How many answers of a session people found good, and how many not, each by what was said of it last."""

    up: int = 0
    down: int = 0


class SessionState(msgspec.Struct, frozen=True, kw_only=True):
    """A session as of one `seq`. `hash` is that event's: noted down, it proves the history up to there.

    `context_variables` is empty in a list that was not asked to include them. `last_run_status` is that of the run that
    began last, None before the first. `title` is what it is called, or how it began; `matches` say where a search found
    something. `cost` is there where one session was asked for, and the server knows a price. `queued_runs` wait for
    their turn. `damaged_seq`: from that event on, what is stored is not what was recorded, and nothing is added.
    `assignee` is the person or queue that looks after it; `feedback` is None without any.
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
    hold: Hold | None = None
    title: str | None = None
    matches: list[Match] = []
    queued_runs: int = 0
    damaged_seq: int | None = None
    assignee: str | None = None
    feedback: Feedback | None = None


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


class FeedEvent(Event, frozen=True, kw_only=True):
    """An event of the feed of all sessions, and the `cursor` behind it: readers go on from there."""

    cursor: str


class FeedPage(msgspec.Struct, frozen=True, kw_only=True):
    """Events of the feed. There may be none though more follow: go on behind `next_cursor` until that stays."""

    data: list[FeedEvent]
    next_cursor: str


class Consumer(msgspec.Struct, frozen=True, kw_only=True):
    """A reader's place in the feed, kept by its name. `lag`: how many rows of the feed are left, each of which has one
    event or several of one session."""

    name: str
    cursor: str
    lag: int = 0
    updated_at: str = ""


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
    """A session of an imported file. `outcome`: `imported`; `present` if it was on the server before; `extended` if it
    was, and got what is new of it."""

    id: str
    seq: int
    hash: str
    outcome: str


class ImportReport(msgspec.Struct, frozen=True, kw_only=True):
    """The report of an import, or with `dry_run` of what it would do; `sessions` names the first thousand. `forks` were
    made of other branches of the file, and `left_out` counts what no session gets. `missing` are the sessions that an
    export says are missing in it, and why."""

    dry_run: bool
    imported: int
    present: int
    extended: int = 0
    events: int
    sessions: list[ImportedSession] = []
    format: str = "export"
    forks: int = 0
    left_out: dict[str, int] = {}
    missing: dict[str, str] = {}


class Page(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """Part of a list. `next_cursor` is None on the last one."""

    data: list[T]
    next_cursor: str | None = None


OnBusy: TypeAlias = Literal["reject", "queue", "interrupt"]


class ToolResult(TypedDict):
    """The outside result of a tool call that a run waits for."""

    tool_call_id: str
    content: str
    is_error: NotRequired[bool]


class Approval(TypedDict):
    """A decision about a tool call that waits for one. `arguments` take the place of those that the model gave.

    `arguments_digest`: that of the pending call which was looked at; for another one ArgumentsChanged is raised.
    """

    tool_call_id: str
    decision: Literal["approve", "deny"]
    reason: NotRequired[str]
    arguments: NotRequired[Json]
    arguments_digest: NotRequired[str | None]


CallerTool: TypeAlias = Callable[..., Any] | Json
"""A function that is called here, or the Chat Completions schema of one that another program calls."""


class RunOptions(TypedDict, total=False):
    """Options of a run. The server decides those that are left out, or None.

    `context_variables` is a JSON merge patch applied first; `max_turns` counts model calls; without `execute_tools`
    the run waits for the results of its tool calls. `tools` are functions of yours, offered beside the agent's:
    `run` calls them here, in their turn, and answers by itself until the run ends; `tool_choice` is `auto`, `none`,
    `required`, or names a function. `model_settings` go over the agents' own (None takes one out), `model_profile`
    over what the server knows of its models; `instructions` follow the agents', `response_format` replaces their
    `output_type`. `on_busy` says what happens while another run is active: `reject` (SessionBusy), `queue`, or
    `interrupt` (that run is cancelled, what it produced stays). `relayed`: you pass on what the user said, as a key
    with the role `support` has to say.
    """

    agent: str | None
    context_variables: Json | None
    model: str | None
    max_turns: int | None
    execute_tools: bool | None
    tools: Sequence[CallerTool] | None
    tool_choice: str | Json | None
    parallel_tool_calls: bool | None
    model_settings: Json | None
    model_profile: Json | None
    instructions: str | None
    response_format: Json | None
    on_busy: OnBusy | None
    relayed: bool | None
    idempotency_key: str | None


class ResumeInput(TypedDict, total=False):
    """The input of a waiting run: results from outside, decisions, or both. With neither, it is tried again."""

    tool_results: Sequence[ToolResult] | None
    approvals: Sequence[Approval] | None
    idempotency_key: str | None


ActiveStatus = Literal["running", "waiting"]


class ActiveRun(msgspec.Struct, frozen=True, kw_only=True):
    """An active or waiting run, and the session that it is in.

    `since`: when it began, or went on after a wait; of one that waits, when something was recorded last. `server` is
    the process that has the session's lease, by an id of its own; `lease_seconds` is how long that lasts if it is not
    renewed, below 0 once it has expired. `lease_epoch` counts how often the lease went to another process. Calls and
    tokens are the run's own. `queued_runs` wait in the session for their turn.
    """

    id: str
    session_id: str
    status: str
    agent: str
    since: str
    title: str | None = None
    seq: int = 0
    server: str | None = None
    lease_epoch: int = 0
    lease_seconds: float | None = None
    queued_runs: int = 0
    model_calls: int = 0
    tool_calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    total_tokens: int = 0
    parent: Parent | None = None


class MCPServerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """An MCP server of an agent's: a program (`stdio`) or an address (`http`). `tools`: only these of its tools; None
    for all."""

    name: str
    transport: str = ""
    address: str = ""
    tools: list[str] | None = None
    prefix: str | None = None
    trust_hints: bool = False
    requires_approval: bool | list[str] = False
    scope: str = "server"


class AgentInfo(msgspec.Struct, frozen=True, kw_only=True):
    """An agent that the server has. `tools` are Chat Completions schemas; `approvals` names those that run only
    once a person has approved; `summaries` say what calls do, by function, with parameters in braces; `asks` are the
    agents that it can ask, by the names of the functions that do so; `concurrent_tools` names those whose calls run at
    once. Tools of `mcp_servers` are not among `tools`. One that is
    `offline` is answered by the server's built-in offline model in the place of `model`. `instructions` is None where
    they are made for each turn. Guardrails are told by name, those of functions by the function's."""

    name: str
    model: str | None = None
    offline: bool = False
    tools: list[Json] = []
    handoffs: list[Any] = []
    approvals: list[str] = []
    summaries: dict[str, str] = {}
    asks: dict[str, str] = {}
    concurrent_tools: list[str] = []
    mcp_servers: list[MCPServerInfo] = []
    model_settings: Json = {}
    model_profile: Json = {}
    instructions: str | None = None
    tool_choice: str | Json | None = None
    parallel_tool_calls: bool | None = True
    output_schema: Json | None = None
    output_mode: str = "response_format"
    input_guardrails: list[str] = []
    output_guardrails: list[str] = []
    tool_guardrails: dict[str, list[str]] = {}


class ChangedSession(msgspec.Struct, frozen=True, kw_only=True):
    """A session that is new or other than it was. `last_run_status` is that of the run that began last, if any."""

    id: str
    status: SessionStatus
    last_run_status: str | None = None


class SessionChanges(msgspec.Struct, frozen=True, kw_only=True):
    """The sessions that have changed since the item before, and the ids of deleted ones. With `more`, others may have
    changed, too: read the list."""

    sessions: tuple[ChangedSession, ...] = ()
    deleted: tuple[str, ...] = ()
    more: bool = False


class Divergence(msgspec.Struct, frozen=True, kw_only=True):
    """A place where today's agents would have acted differently from what is recorded."""

    seq: int | None = None
    kind: str = ""
    recorded: Any = None
    actual: Any = None


class Replay(msgspec.Struct, frozen=True, kw_only=True):
    """Today's agents run against the recorded completions and tool results. `turns` counts those compared, `last_seq`
    is the last event that was. What hangs on the `redacted` events could not be compared. `cut_short`: the time for it
    was over."""

    matches: bool
    turns: int = 0
    last_seq: int = 0
    divergences: list[Divergence] = []
    redacted: list[int] = []
    cut_short: bool = False


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """One place (an RFC 6901 pointer) with what stood there and what stands there; UNSET is nothing, None is null."""

    path: str
    before: Any = msgspec.UNSET
    after: Any = msgspec.UNSET


class RunStatusChange(msgspec.Struct, frozen=True, kw_only=True):
    """A run whose status is another one; `before` is None for one that was not there."""

    id: str
    before: str | None = None
    after: str = ""


class StateDiff(msgspec.Struct, frozen=True, kw_only=True):
    """The changes of a session's state by its events from `before` to `after`. `messages` are new ones, or different;
    `removed` are the seqs of those that were taken out."""

    before: int
    after: int
    changes: list[Change] = []
    messages: list[Message] = []
    removed: list[int] = []
    runs: list[RunStatusChange] = []


class Compaction(msgspec.Struct, frozen=True, kw_only=True):
    """The text that models are sent in the place of messages: `summary` for those from `first_seq` to `last_seq`; None
    if there is none. `error`: why the last summary that was asked for was not made."""

    session: SessionState
    summary: str | None = None
    first_seq: int | None = None
    last_seq: int | None = None
    error: RunError | None = None


class ToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """A tool call and how it ended. `arguments` is the model's JSON text."""

    seq: int
    name: str
    arguments: str
    status: str


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """A session since it parted from another: its own messages, calls and usage, and what it is now."""

    id: str
    seq: int
    hash: str
    agent: str
    messages: list[Message] = []
    calls: list[ToolCall] = []
    usage: Usage = Usage()


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """Two sessions, which share their events up to `shared_seq` (0: none). `changes` lead from `a` to `b` as they are
    now."""

    shared_seq: int
    shared_hash: str | None
    identical: bool
    a: Side
    b: Side
    changes: list[Change] = []


class RedactedCopy(msgspec.Struct, frozen=True, kw_only=True):
    """Another session that holds the same events. `redacted`: there they are gone, too."""

    session_id: str
    seqs: list[int]
    redacted: bool = False


class RedactedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a model request that is left after redactions. `exact`: nothing is `missing`."""

    exact: bool
    request: Json
    missing: list[str] = []
    note: str = ""


class Redaction(msgspec.Struct, frozen=True, kw_only=True):
    """The removed events: `seqs`, recorded in event `seq` (None: there was nothing left to remove).

    `forks` are the other sessions that hold the same events: forks, and those that this one was forked from.
    """

    session: SessionState
    seqs: list[int]
    seq: int | None = None
    forks: list[RedactedCopy] = []


class Erasure(msgspec.Struct, frozen=True, kw_only=True):
    """The sessions that belong to a person, and whether the key that encrypts them was `erased`."""

    sessions: list[str]
    erased: bool


class AuditEntry(msgspec.Struct, frozen=True, kw_only=True):
    """An entry of the audit log: what was done to a session that is gone, by whom (None: unknown), and why."""

    seq: int
    type: str
    by: str | None = None
    at: str = ""
    data: Json = {}
    hash: str = ""


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A signed statement of all sessions at one time: the `root` of a Merkle tree over `size` leaves (hexadecimal).

    `note` is what is signed, with all signatures: keep it elsewhere. `public_key`: None if it is not. `consistency`
    proves that it goes on from the first `since` leaves, if that was asked for."""

    number: int
    origin: str
    size: int
    root: str
    at: str
    note: str
    public_key: str | None = None
    consistency: list[str] = []


class DueSession(msgspec.Struct, frozen=True, kw_only=True):
    """A session that goes by the server's retention, and when; on hold (`held`) it stays until that is lifted."""

    session_id: str
    seq: int
    updated_at: str
    goes_at: str
    keep: str
    held: bool = False


class Leaf(msgspec.Struct, frozen=True, kw_only=True):
    """A leaf of the log that checkpoints are of: where a session ended; with `session_id` None, the audit log."""

    index: int
    session_id: str | None
    seq: int
    hash: str
    leaf: str


class Proof(msgspec.Struct, frozen=True, kw_only=True):
    """That a session's event `seq` is in `checkpoint`, and that `newest` goes on from that; hashes are hexadecimal.

    `leaf` is the `index`-th leaf's text; `inclusion` and `consistency` are as in RFC 6962, sections 2.1.1 and 2.1.2.
    """

    session_id: str
    seq: int
    hash: str
    index: int
    leaf: str
    checkpoint: Checkpoint
    inclusion: list[str]
    newest: Checkpoint
    consistency: list[str]


Role = Literal["read", "run", "approve", "support", "audit", "write", "admin"]


UsageGroup: TypeAlias = Literal["day", "agent", "model", "session", "run"]


class UsageRow(msgspec.Struct, frozen=True, kw_only=True):
    """Sums over the calls of one group. Tokens are as providers counted them; times are in milliseconds.

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
    cost: Cost | None = None


class SessionCount(msgspec.Struct, frozen=True, kw_only=True):
    """`more`: there are more, which were not counted."""

    count: int
    more: bool = False


class SessionCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of sessions: `running` and `waiting` by `status`, `failed` and `interrupted` by their `last_run`, and the
    `damaged` ones, to which nothing is added."""

    status: dict[str, SessionCount]
    last_run: dict[str, SessionCount]
    damaged: SessionCount = SessionCount(count=0)


class Quota(msgspec.Struct, frozen=True, kw_only=True):
    """`limit` is None where there is none."""

    used: int
    limit: int | None = None


class Quotas(msgspec.Struct, frozen=True, kw_only=True):
    """The quotas of a tenant, and how much of them is used. `tokens_today` starts at 0 in `day_ends_in_seconds`."""

    sessions: Quota
    stored_bytes: Quota
    tokens_today: Quota
    day_ends_in_seconds: int
