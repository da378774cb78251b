"""Builds the engine that the settings describe: for the server, for commands, and for evals."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from swarmkeep.agent import Agent
from swarmkeep.domain.request import ModelRequest
from swarmkeep.engine.agents.registry import Registry
from swarmkeep.engine.engine import Engine
from swarmkeep.engine.limits import Limits
from swarmkeep.engine.mcp.servers import check_client
from swarmkeep.engine.models.model import ChatModel, Deltas, Reply
from swarmkeep.engine.models.pauses import Pauses
from swarmkeep.engine.models.provider import ModelSettings, make_model_client
from swarmkeep.engine.models.retries import Retries
from swarmkeep.engine.models.secrets import Secrets, find_secrets
from swarmkeep.store.archive import Archive

if TYPE_CHECKING:
    from openai import AsyncOpenAI

    from swarmkeep.engine.tracing.tracing import Tracing


class EngineSettings(ModelSettings, Protocol):
    """What settings say about the model, and how often it is asked again. They also have the fields of Limits."""

    model_retries: int
    database_url: str


def build_engine(
    settings: EngineSettings, registry: Registry, store: Archive, tracing: Tracing | None = None, **limits: Any
) -> Engine:
    """An engine on the configured model; `limits` go before those of the settings. Whoever gets it stops it.

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
