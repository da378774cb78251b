"""The session log and the policy that a loop is given: whether to stream, how long things may take."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol, TypeVar

from swarmkeep.agent import Tool
from swarmkeep.domain.checking.files import FileLimits
from swarmkeep.domain.decisions.drafts import draft_events
from swarmkeep.domain.decisions.partial import NOTHING_SAID, PartialReply
from swarmkeep.domain.decisions.sizes import SizeLimits
from swarmkeep.domain.decisions.turns import Ending, ToolOutcome, end_run
from swarmkeep.domain.envelope import EventDraft, RecordedEvent
from swarmkeep.domain.events import RunError, SessionEvent, StopReason
from swarmkeep.domain.state import Run, State, ToolCall
from swarmkeep.engine.models.secrets import Secrets

T = TypeVar("T")

Decide = Callable[[State], Sequence[EventDraft] | None]
DecideOnRun = Callable[[State, Run], list[SessionEvent]]


def decide_nothing(state: State) -> Sequence[EventDraft]:
    """Nothing to record but what follows by itself."""
    return ()


def decide_end(
    ending: Ending, stop_reason: StopReason, error: RunError, partial: PartialReply = NOTHING_SAID
) -> Decide:
    """Decide to end the run that is running, if one is."""

    def decide(state: State) -> list[EventDraft] | None:
        run = state.run
        if run is None or run.status != "running":
            return None
        return draft_events(state.agent, end_run(state, run, ending, stop_reason, error, partial=partial), run.id)

    return decide


def restrict_to_run(run: Run, decide: DecideOnRun, agent: str = "") -> Decide:
    """Decide for this run only: once it was cancelled or replaced, there is nothing more to say.

    `agent` is the one whose doing it is, if not the active one's.
    """

    def decide_for_run(state: State) -> list[EventDraft] | None:
        if state.run is None or state.run.id != run.id or state.run.status != "running":
            return None
        return draft_events(agent or state.agent, decide(state, state.run), run.id)

    return decide_for_run


class SessionLog(Protocol):
    @property
    def state(self) -> State:
        """The session as far as this process knows it."""
        ...

    async def commit(
        self,
        decide: Decide,
        blobs: Mapping[str, str | bytes] | None = None,
        *,
        aside: bool = False,
        within_quota: bool = False,
    ) -> list[RecordedEvent]:
        """Record what `decide` makes of the state, and what follows from that by itself; nothing if it says None.

        If the session has moved on meanwhile, `decide` is asked again with the newer state. One that takes long is
        asked `aside`: in a thread, where an event loop would wait for it. What is only to be recorded `within_quota`
        is refused, with QuotaExceeded, where there is one, and more would be stored than it allows.
        """
        ...

    async def read_files(self, names: Sequence[str]) -> Mapping[str, bytes]:
        """The content of files that the state's messages refer to, by hash."""
        ...

    async def settle(self) -> list[RecordedEvent]:
        """Record what follows from the state by itself; nothing if nothing does."""
        ...


class RunTimedOut(Exception):
    """A run has used up its time."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"the run's time was up, which is {seconds:g} s")


class AskedAgents(Protocol):
    """The agents that a session's agents ask."""

    async def ask(self, state: State, tool: Tool, call: ToolCall, text: str) -> ToolOutcome:
        """Have the call's agent answer. Asked again after a crash, it goes on where it was."""
        ...

    async def cancel(self, state: State, call: ToolCall) -> None:
        """The call's answer is not waited for any more."""
        ...


class NobodyAsked:
    """For a loop whose calls are carried out by nobody."""

    async def ask(self, state: State, tool: Tool, call: ToolCall, text: str) -> ToolOutcome:
        return ToolOutcome(status="error", content=f"Error: {call.name} asks another agent, which is not done here.")

    async def cancel(self, state: State, call: ToolCall) -> None:
        """Nothing was begun."""


class LoopPolicy(Protocol):
    async def run_aside(self, work: Callable[[], T]) -> T:
        """Do what takes long where nobody else waits for it."""
        ...

    def should_stream(self, run: Run) -> bool:
        """Whether anybody looks on as the model speaks."""
        ...

    async def approval_expires_at(self) -> str | None: ...

    async def check_tokens_left(self) -> None:
        """Raises QuotaExceeded where no model may be asked any more today."""
        ...

    def time_limit(self, run: Run) -> AbstractAsyncContextManager[None]:
        """Cut off what a run does inside, with RunTimedOut, when the run's time is up."""
        ...

    @property
    def secrets(self) -> Secrets:
        """What is taken out of all that models and tools send back, before it is recorded."""
        ...

    @property
    def agents(self) -> AskedAgents:
        """The agents that are asked by calls."""
        ...

    @property
    def sizes(self) -> SizeLimits:
        """How large what tools give and change may be."""
        ...

    @property
    def files(self) -> FileLimits:
        """Which files tools may give."""
        ...

    @property
    def shortens_history(self) -> bool:
        """Whether a model that finds the history too long is asked again with less of it."""
        ...

    @property
    def compacts_history(self) -> bool:
        """Whether histories are made shorter where agents ask for it."""
        ...

    @property
    def tool_seconds(self) -> float | None:
        """The time-out of tools that set none."""
        ...
