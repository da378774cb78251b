"""A typed client for Swarmkeep servers. Brings no server.

with Client("http://127.0.0.1:8000") as client:
    session = client.sessions.create(agent="Triage Agent")
    print(session.run("I want a refund.").output_text)
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from swarmkeep_client.active_runs import ActiveRun
    from swarmkeep_client.agents import AgentInfo, MCPServerInfo
    from swarmkeep_client.async_client import AsyncAgents, AsyncAudit, AsyncClient, AsyncSessions
    from swarmkeep_client.async_session import AsyncSession
    from swarmkeep_client.auditing import AuditEntry, RedactedCopy, Redaction
    from swarmkeep_client.changes import ChangedSession, SessionChanges
    from swarmkeep_client.client import Agents, Audit, Client, Sessions
    from swarmkeep_client.comparisons import (
        Change,
        Compaction,
        Comparison,
        Divergence,
        Replay,
        RunStatusChange,
        Side,
        StateDiff,
        ToolCall,
    )
    from swarmkeep_client.errors import (
        AgentNotFound,
        AgentUnavailable,
        AlreadyDecided,
        ApiError,
        ApiKeyNotFound,
        ArgumentsChanged,
        BlobNotFound,
        ConnectionFailed,
        Draining,
        EventNotFound,
        FieldError,
        Forbidden,
        HistoryDamaged,
        IdempotencyMismatch,
        InternalError,
        InvalidImport,
        InvalidRequest,
        MethodNotAllowed,
        NotTakenOver,
        Overloaded,
        QuotaExceeded,
        RateLimited,
        RequestNotKept,
        RequestTimeout,
        RouteNotFound,
        RunCancelled,
        RunFailed,
        RunNotCompleted,
        RunNotFound,
        RunNotWaiting,
        SchemaBehind,
        SearchOff,
        SeqMismatch,
        SessionBusy,
        SessionDamaged,
        SessionExists,
        SessionNotFound,
        StoreUnavailable,
        SwarmkeepError,
        TakenOverByOther,
        TooLarge,
        Unauthenticated,
        UnsupportedMediaType,
    )
    from swarmkeep_client.inputs import Approval, ResumeInput, RunOptions, ToolResult
    from swarmkeep_client.key_lists import AsyncKeys, Keys
    from swarmkeep_client.keys import ApiKey, Caller, CallerKey, CreatedKey
    from swarmkeep_client.models import (
        AwaitedApproval,
        ChainProblem,
        Done,
        Event,
        Head,
        Health,
        ImportedSession,
        ImportReport,
        Match,
        Message,
        MessageDelta,
        MessageStarted,
        Origin,
        Parent,
        PendingCall,
        Run,
        RunError,
        SessionState,
        StreamItem,
        TakenOver,
        Usage,
        Verification,
    )
    from swarmkeep_client.prices import Cost, ModelPrice, Prices
    from swarmkeep_client.session import Session
    from swarmkeep_client.usage import Quota, Quotas, SessionCount, SessionCounts, UsageRow

__all__ = [
    "ActiveRun",
    "AgentInfo",
    "AgentNotFound",
    "AgentUnavailable",
    "Agents",
    "AlreadyDecided",
    "ApiError",
    "ApiKey",
    "ApiKeyNotFound",
    "Approval",
    "ArgumentsChanged",
    "AsyncAgents",
    "AsyncAudit",
    "AsyncClient",
    "AsyncKeys",
    "AsyncSession",
    "AsyncSessions",
    "Audit",
    "AuditEntry",
    "AwaitedApproval",
    "BlobNotFound",
    "Caller",
    "CallerKey",
    "ChainProblem",
    "Change",
    "ChangedSession",
    "Client",
    "Compaction",
    "Comparison",
    "ConnectionFailed",
    "Cost",
    "CreatedKey",
    "Divergence",
    "Done",
    "Draining",
    "Event",
    "EventNotFound",
    "FieldError",
    "Forbidden",
    "Head",
    "Health",
    "HistoryDamaged",
    "IdempotencyMismatch",
    "ImportReport",
    "ImportedSession",
    "InternalError",
    "InvalidImport",
    "InvalidRequest",
    "Keys",
    "MCPServerInfo",
    "Match",
    "Message",
    "MessageDelta",
    "MessageStarted",
    "MethodNotAllowed",
    "ModelPrice",
    "NotTakenOver",
    "Origin",
    "Overloaded",
    "Parent",
    "PendingCall",
    "Prices",
    "Quota",
    "QuotaExceeded",
    "Quotas",
    "RateLimited",
    "RedactedCopy",
    "Redaction",
    "Replay",
    "RequestNotKept",
    "RequestTimeout",
    "ResumeInput",
    "RouteNotFound",
    "Run",
    "RunCancelled",
    "RunError",
    "RunFailed",
    "RunNotCompleted",
    "RunNotFound",
    "RunNotWaiting",
    "RunOptions",
    "RunStatusChange",
    "SchemaBehind",
    "SearchOff",
    "SeqMismatch",
    "Session",
    "SessionBusy",
    "SessionChanges",
    "SessionCount",
    "SessionCounts",
    "SessionDamaged",
    "SessionExists",
    "SessionNotFound",
    "SessionState",
    "Sessions",
    "Side",
    "StateDiff",
    "StoreUnavailable",
    "StreamItem",
    "SwarmkeepError",
    "TakenOver",
    "TakenOverByOther",
    "TooLarge",
    "ToolCall",
    "ToolResult",
    "Unauthenticated",
    "UnsupportedMediaType",
    "Usage",
    "UsageRow",
    "Verification",
]

# Types, errors and the two clients are loaded when they are first used: most of the time that it takes is HTTP's.
_MODULES = (
    "inputs",
    "agents",
    "models",
    "usage",
    "errors",
    "changes",
    "comparisons",
    "auditing",
    "keys",
    "prices",
    "active_runs",
    "session",
    "key_lists",
    "client",
    "async_session",
    "async_client",
)


if not TYPE_CHECKING:  # A type checker that saw it would take any name for one of this module.

    def __getattr__(name: str) -> Any:
        if name in _MODULES:
            return import_module(f"{__name__}.{name}")
        if name in __all__:
            for home in _MODULES:
                module = import_module(f"{__name__}.{home}")
                if name in vars(module):
                    return globals().setdefault(name, vars(module)[name])
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
