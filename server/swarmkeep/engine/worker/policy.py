"""The policy that a server gives the loop of each session."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from typing import TypeVar

from swarmkeep.domain.state import Run
from swarmkeep.engine.agents.approvals import ApprovalRules
from swarmkeep.engine.attempts import UNAVAILABLE
from swarmkeep.engine.limits import Limits, check_tokens_left
from swarmkeep.engine.models.secrets import Secrets
from swarmkeep.engine.policy import AskedAgents, RunTimedOut
from swarmkeep.engine.streams.hub import Hub
from swarmkeep.store.ports import SessionKey, TotalsReader

T = TypeVar("T")


class SessionPolicy:
    """The policy for the loop of one session."""

    shortens_history = True
    compacts_history = True

    def __init__(
        self,
        store: TotalsReader,
        limits: Limits,
        hub: Hub,
        key: SessionKey,
        rules: ApprovalRules,
        secrets: Secrets,
        agents: AskedAgents,
    ) -> None:
        self._store = store
        self._limits = limits
        self._hub = hub
        self._key = key
        self._rules = rules
        self.tool_seconds = limits.tool_seconds
        self.secrets = secrets
        self.agents = agents
        self.sizes = limits.sizes
        self.files = limits.files
        self._began: tuple[str, str] | None = None
        self._ends_at = 0.0

    async def run_aside(self, work: Callable[[], T]) -> T:
        return await asyncio.to_thread(work)

    def should_stream(self, run: Run) -> bool:
        return run.options.stream or self._hub.has_readers(self._key)

    async def approval_expires_at(self) -> str | None:
        return await self._rules.expires_at()

    async def check_tokens_left(self) -> None:
        # A run does not fail for a database that is away for a while.
        with suppress(*UNAVAILABLE):
            await check_tokens_left(self._store, self._key.tenant, self._limits)

    @asynccontextmanager
    async def time_limit(self, run: Run) -> AsyncGenerator[None]:
        if self._limits.run_seconds is None:
            yield
            return
        began = (run.id, run.active_since)
        if began != self._began:
            # By this process's own clock. The event's time is that of another host's, if this run was taken over.
            self._began, self._ends_at = began, asyncio.get_running_loop().time() + self._limits.run_seconds
        try:
            async with asyncio.timeout_at(self._ends_at) as limit:
                yield
        except TimeoutError:
            if limit.expired():
                raise RunTimedOut(self._limits.run_seconds) from None
            raise
