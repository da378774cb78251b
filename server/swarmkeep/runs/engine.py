"""The engine as one thing: what the API and the command line are given."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from swarmkeep.agent import Agent
from swarmkeep.events.facts import RecordedEvent
from swarmkeep.models.clients import ModelSettings, make_model_client
from swarmkeep.models.failures import NO_SECRETS, Secrets, find_secrets
from swarmkeep.models.model import ChatModel, Deltas, Model, Pauses, Reply, Retries
from swarmkeep.request.request import ModelRequest
from swarmkeep.runs.agents import Registry
from swarmkeep.runs.automations import Automations
from swarmkeep.runs.compaction import Compactions
from swarmkeep.runs.feed import EventFeed, SessionChanges
from swarmkeep.runs.hub import Hub
from swarmkeep.runs.limits import Limits
from swarmkeep.runs.reader import SessionReader
from swarmkeep.runs.runs import Runs
from swarmkeep.runs.sessions import Sessions, Takeovers
from swarmkeep.runs.teams import ApprovalsBelow, ChildSessions, Parents
from swarmkeep.runs.tool_servers import ToolServers, check_client
from swarmkeep.runs.unstored import UnstoredRuns
from swarmkeep.runs.watcher import ClockWatch, SearchIndexing
from swarmkeep.runs.webhooks import Webhooks
from swarmkeep.runs.worker import Worker
from swarmkeep.store.opening import SqlStore
from swarmkeep.store.records import SessionKey

if TYPE_CHECKING:
    from openai import AsyncOpenAI

    from swarmkeep.runs.tracing import Tracing


_POLLS_PER_LIST = 4


class Engine:
    """Commands on sessions and runs, over one store, one registry and one model; `reader` shows what came of them.

    Start it in the loop that it is to live in. `pauses` are those of the model: they end when the engine is drained.
    `close_model` is called once it has stopped. `secrets` are taken out of what models and tools send back. `tracing`
    makes spans of its runs.
    """

    def __init__(
        self,
        store: SqlStore,
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
        self.feed = EventFeed(
            store, poll_seconds=_POLLS_PER_LIST * self.limits.poll_seconds, page_bytes=self.limits.page_bytes
        )
        self.hub.add_change_listener(self.feed.note)
        self.webhooks = Webhooks(store, self.feed, self.limits)
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
        self.automations = Automations(store, self.reader, self.sessions, self.runs, self.limits)
        parents = Parents(store, registry, self._worker)
        children = ChildSessions(store, registry, self._worker, self.runs, parents, self.limits)
        self._worker.teams = children
        self.takeovers = Takeovers(store, registry, self.runs, children, self.limits)
        self.approvals_below = ApprovalsBelow(store, self.reader, self._worker, self.runs, self.limits)

    def active_session_count(self) -> int:
        """The number of sessions that are advanced here at the moment."""
        return len(self._worker.tasks)

    def was_seen(self, key: SessionKey) -> bool:
        """Tell if a session that is followed here was there a moment ago, without a look into the database. False if
        that is unknown."""
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
        await self.automations.stop()
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


# Builds the engine that the settings describe: for the server, for commands, and for evals.


class EngineSettings(ModelSettings, Protocol):
    """The settings of the model, and how often it is asked again. They also have the fields of Limits."""

    model_retries: int
    database_url: str


def build_engine(
    settings: EngineSettings, registry: Registry, store: SqlStore, tracing: Tracing | None = None, **limits: Any
) -> Engine:
    """An engine on the configured model; `limits` go before those of the settings. The caller stops it.

    Raises AgentsError where something is missing that an agent needs.
    """
    check_client(registry)
    pauses = Pauses()
    model = _ConfiguredModel(settings, pauses)
    chosen = msgspec.structs.replace(msgspec.convert(settings, Limits, from_attributes=True), **limits)
    return Engine(store, registry, model, chosen, pauses, model.close, list_secrets(settings, registry), tracing)


def list_secrets(settings: EngineSettings, agents: Iterable[Agent] = ()) -> Secrets:
    """The secrets of the settings, of the environment, and of agents' MCP servers."""
    key = settings.openai_api_key
    of_servers = [text for agent in agents for server in agent.mcp_servers for text in server.list_secrets()]
    return find_secrets(os.environ, None if key is None else key.get_secret_value(), settings.database_url, *of_servers)


class _ConfiguredModel:
    """The configured model. Its client is made at the first request: openai takes seconds to load, which a command that
    asks no model can do without. A server loads it in the background once it is ready."""

    def __init__(self, settings: EngineSettings, pauses: Pauses) -> None:
        self._settings = settings
        self._pauses = pauses
        self._opening = asyncio.Lock()
        self._client: AsyncOpenAI | None = None
        self._model: ChatModel | None = None

    def ask(self, request: ModelRequest, *, stream: bool) -> AsyncGenerator[Deltas | Reply]:
        if self._model is None:
            return self._open_and_ask(request, stream)
        return self._model.ask(request, stream=stream)

    async def _open_and_ask(self, request: ModelRequest, stream: bool) -> AsyncGenerator[Deltas | Reply]:
        model = await self._open()
        async with aclosing(model.ask(request, stream=stream)) as pieces:
            async for piece in pieces:
                yield piece

    async def _open(self) -> ChatModel:
        async with self._opening:
            if self._model is None:
                # In a thread, because loading it would hold up everything else.
                self._client = await asyncio.to_thread(make_model_client, self._settings)
                self._model = ChatModel(self._client, Retries(count=self._settings.model_retries), self._pauses.wait)
            return self._model

    async def close(self) -> None:
        if self._client is not None:
            await self._client.close()
