"""The loop without a server: a log in memory, a model that has a script, a policy with fixed answers."""

from __future__ import annotations

from asyncio import timeout
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from swarmkeep import Agent
from swarmkeep.decide.checks import FileLimits
from swarmkeep.decide.commands import StartRun, create_session, start_run
from swarmkeep.decide.drafts import draft_events
from swarmkeep.events.codec import Json
from swarmkeep.events.facts import RecordedEvent
from swarmkeep.events.fold import fold
from swarmkeep.events.records import CompletionRecord, RunOptions
from swarmkeep.events.sizes import UNBOUNDED
from swarmkeep.events.state import Run
from swarmkeep.models.failures import NO_SECRETS
from swarmkeep.models.model import Deltas, Reply, TurnFailed
from swarmkeep.request.request import ModelRequest
from swarmkeep.runs.agents import Registry
from swarmkeep.runs.hub import Item
from swarmkeep.runs.loop import make_loop
from swarmkeep.runs.policy import AskedAgents, Decide, NobodyAsked, RunTimedOut
from swarmkeep.runs.swarm import MemorySessionLog
from swarmkeep.runs.tool_runners import InlineRunner

RUN = "r1"
PLAIN = RunOptions()


class RememberingLog(MemorySessionLog):
    """Remembers its commits."""

    def __init__(self, events: Sequence[RecordedEvent] = ()) -> None:
        super().__init__()
        self.state = fold(events)
        self.commits: list[list[RecordedEvent]] = []

    @property
    def events(self) -> list[RecordedEvent]:
        return [event for commit in self.commits for event in commit]

    async def commit(self, decide: Decide, blobs: Mapping[str, str] | None = None, **how: Any) -> list[RecordedEvent]:
        events = await super().commit(decide, blobs, **how)
        if events:
            self.commits.append(events)
        return events


class ScriptedReplies:
    """A model that says what its script says next, and remembers what it was asked."""

    def __init__(self, *replies: Json | str | TurnFailed) -> None:
        self.left = list(replies)
        self.asked: list[ModelRequest] = []

    async def ask(self, request: ModelRequest, *, stream: bool) -> AsyncGenerator[Deltas | Reply]:
        self.asked.append(request)
        reply = self.left.pop(0)
        if isinstance(reply, TurnFailed):
            raise reply
        message = {"role": "assistant", "content": reply} if isinstance(reply, str) else reply
        if stream:
            yield Deltas([{"content": message["content"], "tool_calls": message.get("tool_calls")}])
        yield Reply(message, CompletionRecord(request=request.record))


class FixedPolicy:
    """A policy with fixed answers."""

    tool_seconds = None
    compacts_history = True

    def __init__(self, *, streams: bool = False, seconds: float | None = None, shortens: bool = True) -> None:
        self._streams = streams
        self._seconds = seconds
        self.shortens_history = shortens
        self.agents: AskedAgents = NobodyAsked()

    @asynccontextmanager
    async def time_limit(self, run: Run) -> AsyncGenerator[None]:
        try:
            async with timeout(self._seconds) as limit:
                yield
        except TimeoutError:
            assert limit.expired()
            assert self._seconds is not None
            raise RunTimedOut(self._seconds) from None

    secrets = NO_SECRETS
    sizes = UNBOUNDED
    files = FileLimits()

    def should_stream(self, run: Run) -> bool:
        return self._streams

    async def run_aside(self, work: Callable[[], Any]) -> Any:
        return work()

    async def check_tokens_left(self) -> None:
        """As many as it takes."""

    async def approval_expires_at(self) -> str | None:
        return None


def make_calls(*asked: tuple[str, str] | tuple[str, str, str], text: str | None = None) -> Json:
    """A reply that calls: `(id, name)` or `(id, name, arguments)`."""
    made = [
        {"id": call[0], "type": "function", "function": {"name": call[1], "arguments": call[2] if call[2:] else "{}"}}
        for call in asked
    ]
    return {"role": "assistant", "content": text, "tool_calls": made}


async def open_run(agent: Agent, *, options: RunOptions = PLAIN, context: Json | None = None) -> RememberingLog:
    """A session of which the first run has just been started."""
    log = RememberingLog()
    await log.commit(lambda state: draft_events(agent.name, create_session(agent.name, context or {}, {}, []), None))
    command = StartRun(run_id=RUN, messages=({"role": "user", "content": "Go"},), options=options)
    await log.commit(lambda state: start_run(state, command))
    return log


async def advance(
    log: RememberingLog,
    model: ScriptedReplies,
    *agents: Agent,
    policy: FixedPolicy | None = None,
    begun: Sequence[RecordedEvent] = (),
) -> list[Item]:
    loop = make_loop(log, Registry(agents), model, InlineRunner(), policy or FixedPolicy(), begun)
    return [item async for items in loop.advance() for item in items]


def list_types(events: Sequence[Any]) -> list[str]:
    return [event.type for event in events]


def group_commits(log: RememberingLog) -> list[list[str]]:
    """The types of each commit after the session's own."""
    return [list_types(commit) for commit in log.commits[1:]]
