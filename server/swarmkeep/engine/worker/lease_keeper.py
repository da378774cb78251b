"""Keeps leases while the event loop stands still: a tool or a large value may hold it up for longer than one lasts."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Mapping

from swarmkeep.store.ports import EventStore, Lease, SessionKey

log = logging.getLogger(__name__)

# A loop that has not moved for so long will not: others take over what it held.
PATIENCE_SECONDS = 60.0


class LeaseKeeper:
    """Renews leases from a thread of its own when the loop, which says `beat` now and then, has not done so in time.

    As long as the loop moves, the thread does nothing but look at the clock.
    """

    def __init__(
        self,
        store: EventStore,
        list_leases: Callable[[], Mapping[SessionKey, Lease]],
        lease_seconds: float,
        patience_seconds: float = PATIENCE_SECONDS,
    ) -> None:
        self._store = store
        self._list_leases = list_leases
        self._lease_seconds = lease_seconds
        self._patience_seconds = patience_seconds
        self._moved_at = time.monotonic()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="swarmkeep-leases", daemon=True)

    def start(self) -> None:
        self._thread.start()

    async def beat_regularly(self) -> None:
        """Say that the loop moves."""
        while True:
            self._moved_at = time.monotonic()
            await asyncio.sleep(self._lease_seconds / 6)

    def stop(self) -> None:
        """Renew nothing any more. Returns at once; what is being renewed just now may be."""
        self._stopped.set()

    def _keep(self) -> None:
        while not self._stopped.wait(self._lease_seconds / 6):
            still = time.monotonic() - self._moved_at
            if self._lease_seconds / 2 <= still < self._patience_seconds:
                self._renew(still)

    def _renew(self, still: float) -> None:
        try:
            leases = dict(self._list_leases())
            if leases:
                asyncio.run(self._store.renew_from_anywhere(leases, lease_seconds=self._lease_seconds))
                log.warning("the event loop was blocked for %.1f s; another thread renewed its leases", still)
        except Exception as error:
            log.warning("the event loop is blocked, and its leases could not be renewed: %s", error)
