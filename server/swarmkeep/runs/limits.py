"""Limit the time that things may take, and their amounts: the limits, and the quotas of tenants and sessions among
them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Literal

import msgspec
from cachetools import LRUCache

from swarmkeep.decide.checks import FileLimits
from swarmkeep.events.errors import InvalidRequest, QuotaExceeded
from swarmkeep.events.facts import EventDraft, RunQueued
from swarmkeep.events.records import RunOptions
from swarmkeep.events.sizes import SizeLimits
from swarmkeep.events.state import State
from swarmkeep.events.wording import pluralize
from swarmkeep.store.records import OutcomeUnknown, StorageQuota
from swarmkeep.store.usage import SqlTotals

# One that is forgotten because so many others came since would be full by then.
_MAX_TENANTS = 10_000


class Limits(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """Times in seconds. `max_recoveries`: take-overs of one turn before a run is given up as interrupted.

    `max_messages`: of a new session's history, and of a run's input. `loop_turns` and `history_turns` are written into
    each run's options. `search`: whether sessions are indexed by their words. The last eight cannot be set:
    `unserved_seconds`, how long a run whose agent is not served here is left to servers that may have it;
    `recovery_seconds`, how often to look for runs that no server advances: a take-over comes that much after the
    lease's end at the latest; `interrupt_seconds`, because a database that cannot be reached does not keep a server
    from stopping; `recovery_sessions`, how many abandoned sessions are looked at in one go; `feed_characters`, how far
    a reader may be behind before it is sent to the log; `page_events`, how many events a reader takes from there at
    once; `page_bytes`, after how many bytes a page of any list ends early; `stream_page_bytes`, one of what a stream
    reads, which is in memory for as long as its reader takes nothing.
    """

    lease_seconds: float = 15.0
    grace_seconds: float = 10.0
    run_seconds: float | None = None
    tool_seconds: float | None = 300.0
    approval_seconds: float | None = None
    poll_seconds: float = 0.5
    max_recoveries: int = 5
    loop_turns: int | None = None
    history_turns: int | None = None
    max_messages: int = 10_000
    max_queued_runs: int = 100
    max_runs_per_tenant: int = 1_000
    max_forks_per_minute: int = 600
    max_session_events: int = 1_000_000
    max_sessions: int = 10_000_000
    max_stored_bytes: int = 100_000_000_000
    max_tokens_per_day: int | None = None
    max_context_bytes: int = SizeLimits().max_context_bytes
    max_metadata_bytes: int = SizeLimits().max_metadata_bytes
    max_message_bytes: int = SizeLimits().max_message_bytes
    max_blob_bytes: int = FileLimits().max_blob_bytes
    max_message_blob_bytes: int = FileLimits().max_message_blob_bytes
    max_message_blobs: int = FileLimits().max_message_blobs
    blob_types: tuple[str, ...] = FileLimits().blob_types
    search: Literal["on", "off"] = "on"
    max_webhooks: int = 20
    max_webhook_bytes: int = 1_000_000
    webhook_seconds: float = 15.0
    webhook_networks: tuple[str, ...] = ()
    unserved_seconds: float = 3.0
    recovery_seconds: float = 1.0
    interrupt_seconds: float = 5.0
    recovery_sessions: int = 100
    feed_characters: int = 1_000_000
    page_events: int = 200
    page_bytes: int = 4_000_000
    stream_page_bytes: int = 250_000

    # Asked for with each turn.
    @cached_property
    def sizes(self) -> SizeLimits:
        return msgspec.convert(self, SizeLimits, from_attributes=True)

    @cached_property
    def files(self) -> FileLimits:
        return msgspec.convert(self, FileLimits, from_attributes=True)

    @cached_property
    def storage_quota(self) -> StorageQuota:
        return StorageQuota(max_sessions=self.max_sessions, max_bytes=self.max_stored_bytes)


class ForkQuota:
    """Up to so many forks at once and as many in each minute, for each tenant, on this server."""

    def __init__(self, per_minute: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_minute = per_minute
        self._clock = clock
        # How many may be made, and when it was that there were so many.
        self._left: LRUCache[str, tuple[float, float]] = LRUCache(_MAX_TENANTS)

    @contextmanager
    def count(self, tenant: str) -> Iterator[None]:
        """Count the fork that is made within; one that is refused, or not made after all, costs nothing.

        Raises QuotaExceeded, before anything is made.
        """
        now = self._clock()
        left, at = self._left.get(tenant, (float(self._per_minute), now))
        left = min(self._per_minute, left + (now - at) * self._per_minute / 60)
        if left < 1:
            seconds = math.ceil((1 - left) * 60 / self._per_minute)
            raise QuotaExceeded(
                f"at most {pluralize(self._per_minute, 'fork')} a minute may be made (SWARMKEEP_MAX_FORKS_PER_MINUTE)",
                max(1, seconds),
            )
        self._left[tenant] = (left - 1, now)
        try:
            yield
        except OutcomeUnknown:
            # A caller who tries it again may find it made.
            raise
        except BaseException:
            left, at = self._left.get(tenant, (float(self._per_minute), now))
            self._left[tenant] = (left + 1, at)
            raise


def limit_options(options: RunOptions, limits: Limits) -> RunOptions:
    """The options of a run with the server's own limits. Raises TooLarge for instructions that are too long."""
    limits.sizes.check_content(options.instructions or "", "/instructions")
    return msgspec.structs.replace(options, loop_turns=limits.loop_turns, history_turns=limits.history_turns)


def check_session_quotas(state: State, drafts: Sequence[EventDraft], limits: Limits) -> None:
    """Refuse what a caller wants to add to a session that has enough. Raises QuotaExceeded.

    A run that goes on may record more: its end must not fail for it.
    """
    if drafts and state.seq >= limits.max_session_events:
        raise QuotaExceeded(
            f"the session has {pluralize(state.seq, 'event')}, of {limits.max_session_events} "
            "(SWARMKEEP_MAX_SESSION_EVENTS); fork it at an earlier one, or begin a new session"
        )
    queues = any(isinstance(draft.fact, RunQueued) for draft in drafts)
    if queues and len(state.queue) >= limits.max_queued_runs:
        raise QuotaExceeded(
            f"{pluralize(len(state.queue), 'run waits', 'runs wait')} in the session's queue, of "
            f"{limits.max_queued_runs} (SWARMKEEP_MAX_QUEUED_RUNS); wait until one begins, or cancel one",
            1,
        )


def check_active_runs(active: int, limits: Limits) -> None:
    """Refuse one more run of a tenant that has enough on this server. Raises QuotaExceeded."""
    if active >= limits.max_runs_per_tenant:
        raise QuotaExceeded(
            f"{pluralize(active, 'run is', 'runs are')} active on this server, of {limits.max_runs_per_tenant} "
            "(SWARMKEEP_MAX_RUNS_PER_TENANT); wait for one of them",
            1,
        )


def refuse_uncounted(limits: Limits) -> None:
    """Refuse model calls of which nothing is recorded, where tokens are counted: by what is recorded. Raises
    InvalidRequest."""
    if limits.max_tokens_per_day is not None:
        raise InvalidRequest(
            "tokens are limited (SWARMKEEP_MAX_TOKENS_PER_DAY), and those of what is not stored could not be counted",
            "/store",
        )


async def check_tokens_left(store: SqlTotals, tenant: str, limits: Limits) -> None:
    """Refuse to ask a model for a tenant that has used up its tokens of the day. Raises QuotaExceeded.

    Calls that are made at once do not see what the others are going to take, so each may go past the limit once.
    """
    if limits.max_tokens_per_day is None:
        return
    used = await store.read_totals(tenant)
    if used.tokens >= limits.max_tokens_per_day:
        raise QuotaExceeded(
            f"{pluralize(used.tokens, 'token was', 'tokens were')} used on {used.day}, of {limits.max_tokens_per_day} "
            "(SWARMKEEP_MAX_TOKENS_PER_DAY); a new day begins at midnight, UTC",
            used.seconds_left,
        )
