"""What is asked about sessions that belong together: agents that ask one another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from swarmkeep.domain.envelope import RecordedEvent
from swarmkeep.domain.state import State
from swarmkeep.engine.policy import AskedAgents, Decide
from swarmkeep.store.ports import SessionKey


class Teams(Protocol):
    def open_agents(self, key: SessionKey) -> AskedAgents:
        """The agents that this session's agents ask."""
        ...

    async def find_take_over(self, key: SessionKey, state: State) -> Decide | None:
        """What is to be decided on a session that was found with nobody who advances it, if another one says so."""
        ...

    async def follow_change(self, key: SessionKey, state: State, events: Sequence[RecordedEvent]) -> None:
        """What was recorded of a session's runs may concern those below it and above it."""
        ...

    async def cancel_run(self, key: SessionKey, state: State, run_id: str) -> None:
        """A run has ended: what it asked others for is over, too."""
        ...

    async def end_orphan(self, key: SessionKey, run_id: str) -> None:
        """End a run that nobody waits for any more."""
        ...
