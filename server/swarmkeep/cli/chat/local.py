"""A conversation in this process, on a database: no server is needed, and another process may go on with it."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence

import msgspec

from swarmkeep.cli.background import Background
from swarmkeep.cli.chat.conversion import to_client_item, to_client_run, to_start_run
from swarmkeep.domain.decisions import resuming
from swarmkeep.engine.agents.loading import find_model_server, load_registry
from swarmkeep.engine.build import build_engine
from swarmkeep.engine.ids import make_id
from swarmkeep.engine.reader import RunPosition
from swarmkeep.engine.streams.items import Item
from swarmkeep.settings import Settings
from swarmkeep.store.opening import open_store
from swarmkeep.store.ports import DEFAULT_TENANT, SessionKey
from swarmkeep.store.schema import upgrade
from swarmkeep.store.urls import SqliteFile, locate
from swarmkeep_client import Approval, Done, Message, Run, RunOptions, StreamItem


class LocalChatSession:
    """One session, with an engine of its own.

    Raises AgentsError, SessionNotFound, AgentNotFound, StoreUnavailable, SchemaBehind.
    """

    def __init__(self, settings: Settings, tenant: str | None, session_id: str | None, agent: str | None) -> None:
        registry = load_registry(settings.agents, model=settings.model, server=find_model_server(settings))
        if session_id is None and agent is not None:
            registry.get(agent)
        if settings.migrate or isinstance(locate(settings.database_url), SqliteFile):
            upgrade(settings.database_url)
        self.place = "in this process"
        self.session_id = session_id
        self._agent = agent
        self._key = SessionKey(tenant or DEFAULT_TENANT, session_id or make_id("sess"))
        # Runs that others have left are theirs to take up again.
        store = open_store(settings.database_url, only=self._key, integrity_key=settings.integrity_keys)
        # Whoever leaves in the middle of an answer does not wait for it; it can be resumed.
        self._engine = build_engine(settings, registry, store, grace_seconds=0.0)
        self._background = Background()
        try:
            self._background.run(self._open())
        except BaseException:
            self.close()
            raise

    async def _open(self) -> None:
        await self._engine.start()
        if self.session_id is None:
            return
        if self._agent is not None:
            await self._engine.sessions.update(self._key, agent=self._agent)
        else:
            await self._engine.reader.view(self._key)

    def begin(self) -> str:
        if self.session_id is None:
            key = self._key
            self._background.run(self._engine.sessions.create(key.tenant, session_id=key.id, agent=self._agent))
            self.session_id = key.id
        return self.session_id

    def say(self, said: str | Sequence[Message], options: RunOptions | None = None) -> Iterator[StreamItem]:
        command = to_start_run(said, options, stream=True)
        return self._follow(self._background.run(self._engine.runs.start(self._key, command)))

    def join(self, run_id: str) -> Iterator[StreamItem]:
        return self._follow(self._background.run(self._engine.reader.find_position(self._key, run_id)))

    def decide(self, run_id: str, approvals: Sequence[Approval]) -> Iterator[StreamItem]:
        decided = msgspec.convert(approvals, list[resuming.Approval])
        return self._follow(self._background.run(self._engine.runs.resume(self._key, run_id, approvals=decided)))

    def active(self) -> Run | None:
        if self.session_id is None:
            return None
        state = self._background.run(self._engine.reader.state(self._key))
        return None if state.run is None else self._run(state.run.id)

    def find_latest_run(self) -> Run | None:
        if self.session_id is None:
            return None
        views = self._background.run(self._engine.reader.list_runs(self._key, limit=1))
        return to_client_run(views[0]) if views else None

    def open_below(self, session_id: str) -> LocalChatSession:
        below = copy.copy(self)
        below.session_id, below._key = session_id, SessionKey(self._key.tenant, session_id)
        return below

    def cancel(self) -> None:
        active = self.active()
        if active is not None:
            self._background.run(self._engine.runs.cancel(self._key, active.id))

    def close(self) -> None:
        try:
            self._background.run(self._engine.stop())
        finally:
            self._background.close()

    def _follow(self, feed: RunPosition) -> Iterator[StreamItem]:
        items: Iterator[Item] = self._background.iterate(self._engine.reader.follow_run(self._key, feed))
        yield from map(to_client_item, items)
        yield Done(run=self._run(feed.run_id))

    def _run(self, run_id: str) -> Run:
        return to_client_run(self._background.run(self._engine.reader.get_run(self._key, run_id)))
