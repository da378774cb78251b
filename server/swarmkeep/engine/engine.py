"""The engine as one thing: what the API and the command line are given."""

from __future__ import annotations

from swarmkeep.engine.conductor import Conductor
from swarmkeep.engine.limits import Limits
from swarmkeep.engine.live import Hub
from swarmkeep.engine.model import Model
from swarmkeep.engine.pauses import Pauses
from swarmkeep.engine.registry import Registry
from swarmkeep.engine.runs import Runs
from swarmkeep.engine.sessions import Sessions
from swarmkeep.store.archive import Archive


class Engine:
    """Sessions and runs over one store, one registry and one model. Start it in the loop that it is to live in.

    `pauses` are those of the model: they end when the engine is drained.
    """

    def __init__(
        self,
        store: Archive,
        registry: Registry,
        model: Model,
        limits: Limits | None = None,
        pauses: Pauses | None = None,
    ) -> None:
        self.limits = limits or Limits()
        self.store = store
        self.registry = registry
        self.hub = Hub()
        self._conductor = Conductor(store, registry, model, self.hub, self.limits, pauses or Pauses())
        self.sessions = Sessions(store, registry, self._conductor)
        self.runs = Runs(store, registry, self._conductor, self.hub, self.limits)

    def driven_count(self) -> int:
        """How many sessions are advanced here at the moment."""
        return self._conductor.driven_count

    async def start(self) -> None:
        """Check the database, take over what was abandoned, and keep doing so."""
        await self.store.ping()
        await self._conductor.start()

    async def drain(self) -> None:
        """Take no more runs, let the running ones end in their grace time, interrupt the rest."""
        self.runs.draining = True
        await self._conductor.stop()

    async def stop(self) -> None:
        """Drain, unless that was done, and close the store."""
        await self.drain()
        await self.store.close()
