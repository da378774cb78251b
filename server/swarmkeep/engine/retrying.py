"""Trying again while the database cannot be used."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

from swarmkeep.domain.errors import Overloaded
from swarmkeep.store.ports import SchemaBehind, StoreUnavailable

T = TypeVar("T")

log = logging.getLogger(__name__)

_MIN_PAUSE_SECONDS = 0.05
_MAX_PAUSE_SECONDS = 1.0


_UNAVAILABLE = (StoreUnavailable, SchemaBehind, Overloaded)


def log_failure(log: logging.Logger, error: Exception, what: str) -> None:
    """Note down that something was in vain: in a line where the database is the reason, else with all that is known."""
    if isinstance(error, _UNAVAILABLE):
        log.warning("%s: %s", what, error)
    else:
        log.error(what, exc_info=error)


async def retry_while_unavailable(
    attempt: Callable[[], Awaitable[T]], worthwhile: Callable[[Exception], bool], what: str
) -> T:
    """What `attempt` gives, tried again and again while the database cannot be used and it is `worthwhile`.

    The pauses grow to a second, and differ, so that not everybody comes back at the same moment.
    """
    pause = _MIN_PAUSE_SECONDS
    while True:
        try:
            return await attempt()
        except _UNAVAILABLE as error:
            if not worthwhile(error):
                raise
            log.log(logging.WARNING if pause == _MIN_PAUSE_SECONDS else logging.DEBUG, "%s waits: %s", what, error)
        await asyncio.sleep(pause * random.uniform(0.5, 1.0))
        pause = min(2 * pause, _MAX_PAUSE_SECONDS)
