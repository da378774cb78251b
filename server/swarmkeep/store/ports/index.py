"""Indexes of the log: the session list, and the usage of model and tool calls."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Literal, Protocol

import msgspec

from swarmkeep.domain.finding.words import Term
from swarmkeep.domain.state import SessionStatus
from swarmkeep.domain.usage import UsagePage, UsageQuery
from swarmkeep.domain.views import ListedSession
from swarmkeep.store.ports.keys import SessionKey

SessionOrder = Literal["created", "activity"]
EndedRunStatus = Literal["completed", "failed", "cancelled", "interrupted"]


CountedStatus = Literal["running", "waiting"]
CountedEnd = Literal["failed", "interrupted"]
# Who only looks on wants no more counted.
MANY_BEHIND = 1000


class SessionCount(msgspec.Struct, frozen=True, kw_only=True):
    """`more`: there are more, which are not counted."""

    count: int
    more: bool


class SessionCounts(msgspec.Struct, frozen=True, kw_only=True):
    """How many sessions are busy, by their status, in how many the last run failed or was interrupted, and how many
    were set aside because they are damaged."""

    status: dict[CountedStatus, SessionCount]
    last_run: dict[CountedEnd, SessionCount]
    damaged: SessionCount


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
        last_run: EndedRunStatus | None = None,
        order: SessionOrder = "created",
        metadata: Mapping[str, str] | None = None,
        limit: int = 50,
        cursor: str | None = None,
        include_context: bool = False,
        max_bytes: int = sys.maxsize,
        children: bool = True,
        active_after: str | None = None,
        active_before: str | None = None,
        damaged: bool | None = None,
        terms: tuple[Term, ...] | None = None,
    ) -> SessionPage:
        """Sessions, the latest first by the time of their creation or of what happened last in them: while a run is
        running that is its beginning. A session in which something happens moves, so that pages by activity may show it
        twice or not at all. `last_run` is how the last run ended, of sessions in which none is active. `metadata`
        compares top-level values: text as it is, others as their JSON.

        Their context variables are read only with `include_context`. A page ends early once it has
        `max_bytes` of JSON. Without `children`, those that agents began to ask others are left out. The times are of
        what happened last, `active_before` not included. With `terms`, only those in which one message, or id and
        metadata, have all of them, as far as they are indexed; each says where.

        Raises InvalidRequest for a cursor that this store did not make.
        """
        ...

    async def count_sessions(self, tenant: str, *, children: bool = False, most: int = 1_000) -> SessionCounts:
        """How many are busy or in trouble. Of each kind `most` are looked at, and without `children` those of them left
        out that agents began to ask others."""
        ...

    async def list_forks(
        self, key: SessionKey, *, limit: int = 50, cursor: str | None = None, max_bytes: int = sys.maxsize
    ) -> SessionPage:
        """The sessions that were forked from this one itself, the latest first; none if there is no such session.

        A page may have fewer than `limit`, or none, and yet a cursor: forks of forks are passed over.
        Raises InvalidRequest for a cursor that this store did not make.
        """
        ...


class SearchIndexer(Protocol):
    """The index of words, which follows behind what is recorded."""

    async def index_some(self) -> int:
        """Index the next few sessions; returns how many there were."""
        ...

    async def count_sessions_behind(self, most: int | None = MANY_BEHIND) -> int:
        """How many sessions are not found yet by all that is in them; no more than `most` are counted."""
        ...

    async def void_search_index(self) -> None:
        """Empty the index, so that all of it is made anew."""
        ...


class UsageIndex(Protocol):
    """Sums over a tenant's model and tool calls."""

    async def sum_usage(self, tenant: str, query: UsageQuery) -> UsagePage:
        """Sums of what calls took. Raises InvalidRequest for a cursor that this store did not make."""
        ...
