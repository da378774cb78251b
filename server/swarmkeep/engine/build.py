"""Builds the engine that the settings describe: for the server, for commands, and for evals."""

from __future__ import annotations

from typing import Any, Protocol

import msgspec

from swarmkeep.engine.agents.registry import Registry
from swarmkeep.engine.engine import Engine
from swarmkeep.engine.limits import Limits
from swarmkeep.engine.models.model import ChatModel
from swarmkeep.engine.models.pauses import Pauses
from swarmkeep.engine.models.provider import ModelSettings, make_model_client
from swarmkeep.engine.models.retries import Retries
from swarmkeep.store.archive import Archive


class EngineSettings(ModelSettings, Protocol):
    """What settings say about the model, and how often it is asked again. They also have the fields of Limits."""

    model_retries: int


def build_engine(settings: EngineSettings, registry: Registry, store: Archive, **limits: Any) -> Engine:
    """An engine on the configured model; `limits` go before those of the settings. Whoever gets it stops it."""
    client, pauses = make_model_client(settings), Pauses()
    model = ChatModel(client, Retries(count=settings.model_retries), pauses.wait)
    return Engine(store, registry, model, read_limits(settings, **limits), pauses, client.close)


def read_limits(settings: EngineSettings, **changes: Any) -> Limits:
    return msgspec.structs.replace(msgspec.convert(settings, Limits, from_attributes=True), **changes)
