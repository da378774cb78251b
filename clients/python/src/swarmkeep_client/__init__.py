"""A typed client for Swarmkeep servers. Brings no server.

with Client("http://127.0.0.1:8000") as client:
    session = client.sessions.create(agent="Triage Agent")
    print(session.run("I want a refund.").output_text)
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from swarmkeep_client.async_client import AsyncAgents, AsyncAudit, AsyncClient, AsyncKeys, AsyncSessions
    from swarmkeep_client.async_session import AsyncSession
    from swarmkeep_client.auditing import AuditEntry, RedactedCopy, Redaction
    from swarmkeep_client.client import Agents, Audit, Client, Keys, Sessions
    from swarmkeep_client.comparisons import (
        Change,
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
        ConnectionFailed,
        Draining,
        FieldError,
        Forbidden,
        IdempotencyMismatch,
        InvalidImport,
        InvalidRequest,
        QuotaExceeded,
        RateLimited,
        RunCancelled,
        RunFailed,
        RunNotCompleted,
        RunNotFound,
        RunNotWaiting,
        SeqMismatch,
        SessionBusy,
        SessionExists,
        SessionNotFound,
        SwarmkeepError,
        TooLarge,
        Unauthenticated,
    )
    from swarmkeep_client.keys import ApiKey, CreatedKey
    from swarmkeep_client.models import (
        AgentInfo,
        Approval,
        ChainProblem,
        Done,
        Event,
        Head,
        Health,
        ImportedSession,
        ImportReport,
        Message,
        MessageDelta,
        MessageStarted,
        Origin,
        PendingCall,
        Quota,
        Quotas,
        ResumeInput,
        Run,
        RunError,
        RunOptions,
        SessionState,
        StreamItem,
        ToolResult,
        Usage,
        UsageRow,
        Verification,
    )
    from swarmkeep_client.session import Session

__all__ = [
    "AgentInfo",
    "AgentNotFound",
    "AgentUnavailable",
    "Agents",
    "AlreadyDecided",
    "ApiError",
    "ApiKey",
    "ApiKeyNotFound",
    "Approval",
    "AsyncAgents",
    "AsyncAudit",
    "AsyncClient",
    "AsyncKeys",
    "AsyncSession",
    "AsyncSessions",
    "Audit",
    "AuditEntry",
    "ChainProblem",
    "Change",
    "Client",
    "Comparison",
    "ConnectionFailed",
    "CreatedKey",
    "Divergence",
    "Done",
    "Draining",
    "Event",
    "FieldError",
    "Forbidden",
    "Head",
    "Health",
    "IdempotencyMismatch",
    "ImportReport",
    "ImportedSession",
    "InvalidImport",
    "InvalidRequest",
    "Keys",
    "Message",
    "MessageDelta",
    "MessageStarted",
    "Origin",
    "PendingCall",
    "Quota",
    "QuotaExceeded",
    "Quotas",
    "RateLimited",
    "RedactedCopy",
    "Redaction",
    "Replay",
    "ResumeInput",
    "Run",
    "RunCancelled",
    "RunError",
    "RunFailed",
    "RunNotCompleted",
    "RunNotFound",
    "RunNotWaiting",
    "RunOptions",
    "RunStatusChange",
    "SeqMismatch",
    "Session",
    "SessionBusy",
    "SessionExists",
    "SessionNotFound",
    "SessionState",
    "Sessions",
    "Side",
    "StateDiff",
    "StreamItem",
    "SwarmkeepError",
    "TooLarge",
    "ToolCall",
    "ToolResult",
    "Unauthenticated",
    "Usage",
    "UsageRow",
    "Verification",
]

# Types, errors and the two clients are loaded when they are first used: most of the time that it takes is HTTP's.
_MODULES = (
    "models",
    "errors",
    "comparisons",
    "auditing",
    "keys",
    "session",
    "client",
    "async_session",
    "async_client",
)


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
