"""The rows and figures of runs that are over."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from swarmkeep_client.models import Cost

EndedRunStatus: TypeAlias = Literal["completed", "failed", "cancelled", "interrupted"]
RunSort: TypeAlias = Literal["created_at", "latency_ms", "first_token_ms", "total_tokens"]
RunGroup: TypeAlias = Literal["day", "agent", "model"]


class EndedRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run that is over, as the table of runs has it. Times are in milliseconds.

    `latency_ms` is how long it was active, and `waited_ms` how long it waited besides. `first_token_ms` is how long its
    first streamed reply took to begin, or None. `model` gave its last reply. `error` is the code of what it failed
    with. `cost` is there if the server knows a price.
    """

    id: str
    session_id: str
    agent: str
    status: str
    created_at: str
    finished_at: str
    latency_ms: float
    waited_ms: float
    model: str | None = None
    stop_reason: str | None = None
    error: str | None = None
    first_token_ms: float | None = None
    model_calls: int = 0
    tool_calls: int = 0
    tool_errors: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    total_tokens: int = 0
    cost: Cost | None = None


class Percentiles(msgspec.Struct, frozen=True, kw_only=True):
    """Each is the least value that so many of 100 runs do not exceed; None without any run that has one."""

    p50: float | None = None
    p90: float | None = None
    p99: float | None = None


class RunFigures(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of a group of runs that are over: how many there are, how they ended, and how long they took.

    `day` (UTC, of their beginning), `agent` and `model` say which group, as far as it was asked for. Runs without a
    reply belong to no `model`.
    """

    day: str | None = None
    agent: str | None = None
    model: str | msgspec.UnsetType | None = msgspec.UNSET
    runs: int
    completed: int
    failed: int
    cancelled: int
    interrupted: int
    tool_errors: int
    total_tokens: int
    latency_ms: Percentiles
    first_token_ms: Percentiles
