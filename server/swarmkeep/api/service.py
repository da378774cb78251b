"""The one object that requests share: a server process's engine, keys, metrics and limits."""

from __future__ import annotations

import asyncio
from weakref import WeakValueDictionary

from swarmkeep.api.auth.keyring import Keyring
from swarmkeep.api.auth.rate_limits import RateLimiter
from swarmkeep.api.auth.refusal_log import RefusalLog
from swarmkeep.api.limits import ServerLimits
from swarmkeep.api.metrics import Metrics
from swarmkeep.api.sse import FrameWriter
from swarmkeep.audit.replay.queue import ReplayQueue
from swarmkeep.domain.costs.prices import PriceTable
from swarmkeep.engine.engine import Engine
from swarmkeep.store.ports import SessionKey
from swarmkeep.store.ports.api_keys import ApiKey

_REBUILDS_AT_ONCE = 2


class Service:
    """One process's engine, who may use it, and whether it is being stopped.

    `hosts` are the names by which a server without keys may be addressed, `origins` the other sites whose pages may
    call it then. Without `rate_limiter` keys may ask as often as they like, and without `address_limiter` others: there
    are two, so that made-up addresses displace no key. With `separate_approvers` nobody decides on approvals of a run
    of their own. One that `is_offline` asks the built-in offline model, whatever models agents name. `session_headers`
    name the session of a chat completion, beside the usual ones. With `prices` usage has a cost. `stopping` is set when
    the server is told to stop, `drained` when the last of its runs has ended.
    """

    def __init__(
        self,
        engine: Engine,
        keyring: Keyring,
        metrics: Metrics,
        *,
        hosts: frozenset[str] = frozenset(),
        origins: frozenset[str] = frozenset(),
        rate_limiter: RateLimiter | None = None,
        address_limiter: RateLimiter | None = None,
        limits: ServerLimits | None = None,
        separate_approvers: bool = False,
        is_offline: bool = False,
        session_headers: tuple[str, ...] = (),
        prices: PriceTable | None = None,
        refusals: RefusalLog | None = None,
    ) -> None:
        self.engine = engine
        self.keyring = keyring
        self.metrics = metrics
        self.hosts = hosts
        self.origins = origins
        self.rate_limiter = rate_limiter
        self.address_limiter = address_limiter
        self.separate_approvers = separate_approvers
        self.is_offline = is_offline
        self.session_headers = session_headers
        self.prices = prices
        self.limits = limits or ServerLimits()
        self.refusals = refusals or RefusalLog()
        self.stopping = asyncio.Event()
        self.drained = asyncio.Event()
        self.replays = ReplayQueue(self.limits.waiting_replays)
        # Each may put 50 MB of files back, several times over: others wait, whoever asks.
        self.rebuilds = asyncio.Semaphore(_REBUILDS_AT_ONCE)
        self._frames: WeakValueDictionary[SessionKey, FrameWriter] = WeakValueDictionary()

    def share_frames(self, key: SessionKey) -> FrameWriter:
        """The writer of a session's frames, for all who read them now."""
        frames = self._frames.get(key)
        if frames is None:
            frames = self._frames[key] = FrameWriter()
        return frames

    def count_request(self, key: ApiKey | None, address: str) -> None:
        """Count a request for whoever sent it: a key, or else an address. Raises RateLimited."""
        limiter = self.address_limiter if key is None else self.rate_limiter
        if limiter is not None:
            limiter.count(address if key is None else key.id)

    def refuse_exhausted(self, address: str) -> None:
        """Refuse an address that has made as many requests as it may; counts nothing. Raises RateLimited."""
        if self.address_limiter is not None:
            self.address_limiter.refuse_exhausted(address)

    async def drain(self) -> None:
        """Take no more runs, let streams end, and return once the running runs have ended or were interrupted."""
        self.stopping.set()
        self.engine.hub.wake_readers()
        try:
            await self.engine.drain()
        finally:
            self.drained.set()
            self.engine.hub.wake_readers()
