"""What a loop is told from outside: whether anybody looks on, and how long things may take."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Protocol

from swarmkeep.domain.state import Run


class RunTimedOut(Exception):
    """A run has used up its time."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"the run's time was up, which is {seconds:g} s")


class LoopPolicy(Protocol):
    def streams(self, run: Run) -> bool:
        """Whether anybody looks on as the model speaks."""
        ...

    def approval_expires_at(self) -> str | None: ...

    def time_limit(self, run: Run) -> AbstractAsyncContextManager[None]:
        """What a run does inside is cut off with RunTimedOut when the run's time is up."""
        ...

    @property
    def shortens_history(self) -> bool:
        """Whether a model that finds the history too long is asked again with less of it."""
        ...

    @property
    def tool_seconds(self) -> float | None:
        """The time-out of tools that set none."""
        ...
