"""The session log and the policy that a loop is given: whether to stream, how long things may take."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from swarmkeep.domain.envelope import EventDraft, RecordedEvent
from swarmkeep.domain.state import Run, State

Decide = Callable[[State], Sequence[EventDraft] | None]


def decide_nothing(state: State) -> Sequence[EventDraft]:
    """Nothing to record but what follows by itself."""
    return ()


class SessionLog(Protocol):
    @property
    def state(self) -> State:
        """The session as far as this process knows it."""
        ...

    async def commit(self, decide: Decide, blobs: Mapping[str, str] | None = None) -> list[RecordedEvent]:
        """Record what `decide` makes of the state, and what follows from that by itself; nothing if it says None.

        If the session has moved on meanwhile, `decide` is asked again with the newer state.
        """
        ...

    async def settle(self) -> list[RecordedEvent]:
        """Record what follows from the state by itself; nothing if nothing does."""
        ...


class RunTimedOut(Exception):
    """A run has used up its time."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"the run's time was up, which is {seconds:g} s")


class LoopPolicy(Protocol):
    def should_stream(self, run: Run) -> bool:
        """Whether anybody looks on as the model speaks."""
        ...

    async def approval_expires_at(self) -> str | None: ...

    def time_limit(self, run: Run) -> AbstractAsyncContextManager[None]:
        """Cut off what a run does inside, with RunTimedOut, when the run's time is up."""
        ...

    @property
    def shortens_history(self) -> bool:
        """Whether a model that finds the history too long is asked again with less of it."""
        ...

    @property
    def tool_seconds(self) -> float | None:
        """The time-out of tools that set none."""
        ...
