"""Usage, quotas, and counts of sessions."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from swarmkeep_client.prices import Cost

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
