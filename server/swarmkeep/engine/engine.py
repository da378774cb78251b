"""The engine as one thing: what the API and the command line are given."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from swarmkeep.domain.envelope import RecordedEvent
from swarmkeep.engine.agents.registry import Registry
from swarmkeep.engine.compaction.compactions import Compactions
from swarmkeep.engine.limits import Limits
from swarmkeep.engine.mcp.servers import ToolServers
from swarmkeep.engine.models.model import Model
from swarmkeep.engine.models.pauses import Pauses
from swarmkeep.engine.models.secrets import NO_SECRETS, Secrets
from swarmkeep.engine.people.takeovers import Takeovers
from swarmkeep.engine.reader import SessionReader
from swarmkeep.engine.runs import Runs
from swarmkeep.engine.sessions import Sessions
from swarmkeep.engine.streams.changes import SessionChanges
from swarmkeep.engine.streams.hub import Hub
from swarmkeep.engine.swarm.unstored import UnstoredRuns
from swarmkeep.engine.teams.approving import ApprovalsBelow
from swarmkeep.engine.teams.children import ChildSessions
from swarmkeep.engine.teams.parents import Parents
from swarmkeep.engine.worker.clock_watch import ClockWatch
from swarmkeep.engine.worker.indexing import SearchIndexing
from swarmkeep.engine.worker.worker import Worker
from swarmkeep.store.archive import Archive
from swarmkeep.store.ports import SessionKey

if TYPE_CHECKING:
    from swarmkeep.engine.tracing.tracing import Tracing

_POLLS_PER_LIST = 4


class Engine:
    """Commands on sessions and runs, over one store, one registry and one model; `reader` shows what came of them.

    Start it in the loop that it is to live in. `pauses` are those of the model: they end when the engine is drained.
    `close_model` is called once it has stopped. `secrets` are taken out of what models and tools send back. `tracing`
    makes spans of its runs.
    """

    def __init__(
        self,
        store: Archive,
        registry: Registry,
        model: Model,
        limits: Limits | None = None,
        pauses: Pauses | None = None,
        close_model: Callable[[], Awaitable[None]] | None = None,
        secrets: Secrets = NO_SECRETS,
        tracing: Tracing | None = None,
    ) -> None:
        self.limits = limits or Limits()
        self.store = store
        self.registry = registry
        self.hub = Hub(feed_characters=self.limits.feed_characters, secrets=secrets)
        # A list is read, and not only where a log ends: where no database gives hints, less often.
        self.changes = SessionChanges(
            store, poll_seconds=_POLLS_PER_LIST * self.limits.poll_seconds, page_bytes=self.limits.page_bytes
        )
        self.hub.add_change_listener(self.changes.note)
        self.reader = SessionReader(
            store,
            hub=self.hub,
            poll_seconds=self.limits.poll_seconds,
            page_events=self.limits.page_events,
            page_bytes=self.limits.page_bytes,
            stream_page_bytes=self.limits.stream_page_bytes,
            has_search=self.limits.search == "on",
        )
        self.indexing = SearchIndexing(store)
        self.clocks = ClockWatch(store)
        if tracing is not None:
            model = tracing.trace_model(model)
            self.hub.add_observer(tracing.observe_event)
        self.servers = ToolServers(self.limits.files)
        self._worker = Worker(
            store, registry, model, self.hub, self.limits, pauses or Pauses(), secrets, tracing, self.servers
        )
        self._close_model = close_model
        self.unstored = UnstoredRuns(store, registry, model, self.limits, secrets, self.servers)
        self.sessions = Sessions(store, registry, self._worker, self.limits, self.servers)
        check_state = self.unstored.check_state
        self.compactions = Compactions(store, registry, self._worker, model, self.limits, secrets, check_state)
        self.runs = Runs(store, self.reader, registry, self._worker, self.limits, tracing)
        parents = Parents(store, registry, self._worker)
        children = ChildSessions(store, registry, self._worker, self.runs, parents, self.limits)
        self._worker.teams = children
        self.takeovers = Takeovers(store, registry, self.runs, children, self.limits)
        self.approvals_below = ApprovalsBelow(store, self.reader, self._worker, self.runs, self.limits)

    def active_session_count(self) -> int:
        """How many sessions are advanced here at the moment."""
        return len(self._worker.tasks)

    def was_seen(self, key: SessionKey) -> bool:
        """Whether a session that somebody follows here was there a moment ago, without a look into the database. False
        if nobody knows."""
        return self._worker.watcher.was_seen(key)

    def publish(self, key: SessionKey, events: list[RecordedEvent]) -> None:
        """Show recorded events to those who follow the session here."""
        self._worker.publish(key, events)

    async def start(self) -> None:
        """Check the database, take over what was abandoned, and keep doing so."""
        await self.store.ping()
        await self.store.remove_abandoned_copies()
        self.servers.start(self.registry)
        await self._worker.start()
        self.clocks.start()
        if self.limits.search == "on":
            self.hub.add_observer(self.indexing.observe_event)
            self.indexing.start()

    async def drain(self) -> None:
        """Take no more runs, let the running ones end in their grace time, interrupt the rest."""
        self.runs.is_draining = True
        await asyncio.gather(self._worker.stop(), self.unstored.drain())

    async def stop(self) -> None:
        """Drain, unless that was done, and close the store and the model's client."""
        await self.drain()
        await self.indexing.stop()
        await self.clocks.stop()
        await self.servers.close()
        await self.store.close()
        if self._close_model is not None:
            await self._close_model()
