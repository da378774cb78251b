"""Change notifications between the processes that share a database."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from swarmkeep.store.ports.keys import SessionKey


class ChangeFeed(Protocol):
    """The changes of sessions by other processes."""

    async def listen(self, on_change: Callable[[SessionKey], None]) -> None:
        """Call `on_change` with each session that another process has just changed, until cancelled.

        These are hints: they may be late, doubled or lost, and where the database cannot give any, none come.
        """
