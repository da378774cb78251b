"""A session log that is nowhere but in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from swarmkeep.domain.decisions.drafts import preview_event
from swarmkeep.domain.decisions.settling import NO_APPROVALS, Approvals, settle
from swarmkeep.domain.envelope import EventDraft, RecordedEvent
from swarmkeep.domain.fold import evolve
from swarmkeep.domain.state import State
from swarmkeep.domain.timestamps import make_timestamp
from swarmkeep.engine.policy import Decide, decide_nothing
from swarmkeep.engine.turn import ReadFiles


async def _read_nothing(names: Sequence[str]) -> Mapping[str, bytes]:
    """What is given in memory keeps its content in the messages."""
    return {}


class MemorySessionLog:
    """A session that is nowhere but here, and of which only the state is kept: what `Swarm.run` works on."""

    def __init__(
        self,
        state: State | None = None,
        approvals: Approvals = NO_APPROVALS,
        read_files: ReadFiles | None = None,
        given: dict[str, bytes] | None = None,
    ) -> None:
        self.state = State() if state is None else state
        self._approvals = approvals
        self._read_files = read_files or _read_nothing
        # What functions have given here, and in earlier runs of the session.
        self._given = {} if given is None else given

    async def commit(
        self, decide: Decide, blobs: Mapping[str, str | bytes] | None = None, *, aside: bool = False
    ) -> list[RecordedEvent]:
        drafts = decide(self.state)
        self._given |= {name: content for name, content in (blobs or {}).items() if isinstance(content, bytes)}
        return [] if drafts is None else self.record(settle(self.state, drafts, approvals=self._approvals))

    async def read_files(self, names: Sequence[str]) -> Mapping[str, bytes]:
        given = {name: self._given[name] for name in names if name in self._given}
        others = [name for name in names if name not in given]
        return {**await self._read_files(others), **given} if others else given

    async def settle(self) -> list[RecordedEvent]:
        return await self.commit(decide_nothing)

    def record(self, drafts: Sequence[EventDraft]) -> list[RecordedEvent]:
        """Add to the session: all of it, or nothing if it is interrupted."""
        state, recorded = self.state, []
        for draft in drafts:
            event = preview_event(state, draft, make_timestamp())
            state = evolve(state, event)
            recorded.append(event)
        self.state = state
        return recorded
