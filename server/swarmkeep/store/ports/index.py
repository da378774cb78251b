"""Indexes of the log: the session list, and the usage of model and tool calls."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import msgspec

from swarmkeep.domain.state import SessionStatus
from swarmkeep.domain.usage import UsagePage, UsageQuery
from swarmkeep.domain.views import ListedSession


class SessionPage(msgspec.Struct, frozen=True):
    sessions: list[ListedSession]
    next_cursor: str | None


class SessionIndex(Protocol):
    """The list of a tenant's sessions."""

    async def list_sessions(
        self,
        tenant: str,
        *,
        agent: str | None = None,
        status: SessionStatus | None = None,
        metadata: Mapping[str, str] | None = None,
        limit: int = 50,
        cursor: str | None = None,
        include_context: bool = False,
        max_bytes: int | None = None,
    ) -> SessionPage:
        """Sessions newest first. `metadata` compares top-level values: text as it is, others as their JSON.

        Their context variables are read only with `include_context`. A page ends early once it has
        `max_bytes` of JSON.

        Raises InvalidRequest for a cursor that this store did not make.
        """
        ...


class UsageIndex(Protocol):
    """Sums over a tenant's model and tool calls."""

    async def sum_usage(self, tenant: str, query: UsageQuery) -> UsagePage:
        """Sums of what calls took. Raises InvalidRequest for a cursor that this store did not make."""
        ...
