"""A session log that is nowhere but in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from swarmkeep.domain.decisions.drafts import preview_event
from swarmkeep.domain.decisions.settling import NO_APPROVALS, Approvals, settle
from swarmkeep.domain.envelope import EventDraft, RecordedEvent
from swarmkeep.domain.files.places import MAX_SENT_BYTES
from swarmkeep.domain.fold import evolve
from swarmkeep.domain.state import State
from swarmkeep.domain.timestamps import make_timestamp
from swarmkeep.engine.policy import Decide, decide_nothing
from swarmkeep.engine.turn import ReadFiles


async def _read_nothing(names: Sequence[str]) -> Mapping[str, bytes]:
    """What is given in memory keeps its content in the messages."""
    return {}


class GivenFiles:
    """What functions have given in a session in memory, by hash: the newest of it, as many bytes as one request to a
    model has at most."""

    def __init__(self, max_bytes: int = MAX_SENT_BYTES) -> None:
        self._max_bytes = max_bytes
        self._content: dict[str, bytes] = {}
        self._size = 0

    def add(self, content: Mapping[str, bytes]) -> None:
        """Keep files, and let go of those that were given longest ago."""
        for name, data in content.items():
            self._size += len(data) - len(self._content.pop(name, b""))
            self._content[name] = data
        while self._size > self._max_bytes:
            self._size -= len(self._content.pop(next(iter(self._content))))

    def find(self, names: Sequence[str]) -> dict[str, bytes]:
        return {name: self._content[name] for name in names if name in self._content}


class MemorySessionLog:
    """A session that is nowhere but here, and of which only the state is kept: what `Swarm.run` works on.

    `given` is what functions have given in earlier runs of the session.
    """

    def __init__(
        self,
        state: State | None = None,
        approvals: Approvals = NO_APPROVALS,
        read_files: ReadFiles | None = None,
        given: GivenFiles | None = None,
    ) -> None:
        self.state = State() if state is None else state
        self._approvals = approvals
        self._read_files = read_files or _read_nothing
        self._given = GivenFiles() if given is None else given

    async def commit(
        self,
        decide: Decide,
        blobs: Mapping[str, str | bytes] | None = None,
        *,
        aside: bool = False,
        within_quota: bool = False,
    ) -> list[RecordedEvent]:
        if aside:
            # No other changes the session meanwhile: it is one run's.
            return await asyncio.to_thread(self._commit, decide, blobs)
        return self._commit(decide, blobs)

    def _commit(self, decide: Decide, blobs: Mapping[str, str | bytes] | None) -> list[RecordedEvent]:
        drafts = decide(self.state)
        self._given.add({name: content for name, content in (blobs or {}).items() if isinstance(content, bytes)})
        return [] if drafts is None else self.record(settle(self.state, drafts, approvals=self._approvals))

    async def read_files(self, names: Sequence[str]) -> Mapping[str, bytes]:
        given = self._given.find(names)
        others = [name for name in names if name not in given]
        return {**await self._read_files(others), **given} if others else given

    async def settle(self) -> list[RecordedEvent]:
        return await self.commit(decide_nothing)

    def record(self, drafts: Sequence[EventDraft]) -> list[RecordedEvent]:
        """Add to the session: all of it, or nothing if it is interrupted."""
        state, recorded = self.state, []
        for draft in drafts:
            event = preview_event(state.seq + 1, draft, make_timestamp())
            state = evolve(state, event)
            recorded.append(event)
        self.state = state
        return recorded
