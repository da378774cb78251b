"""Today's agents against a recorded conversation: the engine's own loop, with the log in the place of the world.

Recorded completions stand in for the model and recorded results for the tools. Instructions that are functions are
called, for they are what is compared; nothing else of a team's code is, and nothing is written.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any

from swarmkeep.agent import Agent
from swarmkeep.audit.conversations import Conversation
from swarmkeep.audit.divergences import Findings, Kind, Replayed, request_differences
from swarmkeep.audit.recorded_calls import RecordedCalls
from swarmkeep.audit.recording import EndOfRecording, Recording, request_record
from swarmkeep.domain.envelope import Recorded
from swarmkeep.domain.errors import SessionNotFound
from swarmkeep.domain.events import MessageAdded, RequestRecord, RunError
from swarmkeep.domain.request import ModelRequest, Profile, request
from swarmkeep.domain.state import Run, State
from swarmkeep.engine.loop import Loop
from swarmkeep.engine.model import Delta, Reply, TurnFailed
from swarmkeep.engine.registry import Registry
from swarmkeep.store.port import EventStore, SessionKey


async def replay_session(
    store: EventStore, registry: Registry, key: SessionKey, *, ignore: Collection[str] = ()
) -> Replayed:
    """Compare a stored session. Reads only. Raises SessionNotFound."""
    recorded = await stored_conversation(store, key)
    # A team's instructions may take their time, or the session be long: nobody else is to wait for it.
    return await asyncio.to_thread(replay, recorded.events, registry, recorded.texts, ignore=ignore)


async def stored_conversation(store: EventStore, key: SessionKey) -> Conversation:
    """A session with the texts that its requests name, as far as it can be read. Raises SessionNotFound."""
    events = await store.read(key)
    if not events:
        raise SessionNotFound(key.id)
    texts = await store.blobs(key, sorted(_named(events)))
    return Conversation(session_id=key.id, events=events, texts=dict(texts))


def _named(events: Iterable[Recorded]) -> set[str]:
    records = [request_record(event) for event in events]
    return {name for record in records if record for name in (record.instructions, record.tools) if name}


def replay(
    events: Sequence[Recorded], registry: Registry, texts: Mapping[str, str], *, ignore: Collection[str] = ()
) -> Replayed:
    """Compare a log, from its first event on. `texts` are instructions and tool schemas by their content hash."""
    findings = Findings(ignore)
    recording = Recording(events, findings)
    asyncio.run(_advance(recording, registry, texts))
    return Replayed(
        matches=not findings.divergences,
        turns=findings.turns,
        last_seq=recording.last_seq,
        divergences=findings.divergences,
        redacted=findings.redacted,
    )


async def _advance(recording: Recording, registry: Registry, texts: Mapping[str, str]) -> None:
    try:
        async for _ in _Rerun(recording, registry, texts).advance():
            pass
        raise recording.come_apart("nothing")
    except EndOfRecording:
        pass


class _Rerun(Loop):
    """The loop, whose requests and calls are compared with the recorded ones instead of being made."""

    def __init__(self, recording: Recording, registry: Registry, texts: Mapping[str, str]) -> None:
        policy = _AsRecorded(recording)
        super().__init__(recording, registry, _RecordedModel(recording), _in_place, policy)
        self._calls = RecordedCalls(recording, registry, _never, policy)
        self._recording = recording
        self._texts = texts

    async def _prepare(self, state: State) -> tuple[Agent, Profile]:
        """The agent as it is today, once the request that it would send has been compared."""
        if self._recording.is_forgotten_reply:
            raise self._without_this_turn()
        recorded = self._recording.request_record
        if recorded is None:
            raise self._recording.come_apart(MessageAdded.type)
        self._recording.findings.turns += 1
        try:
            prepared = [await self._would_ask(candidate, recorded) for candidate in self._recording.candidates]
        except TurnFailed as failed:
            self._note_failure(state, recorded, failed.error)
            raise
        for agent, profile, asked in prepared:
            if not list(self._differences(recorded, agent, asked)):
                return agent, profile
        agent, profile, asked = prepared[0]
        for kind, before, after in self._differences(recorded, agent, asked):
            self._recording.note(kind, before, after)
        return agent, profile

    def _differences(
        self, recorded: RequestRecord, agent: Agent, asked: ModelRequest
    ) -> Iterator[tuple[Kind, Any, Any]]:
        # What was redacted may be what instructions are made of; that it is missing is told already.
        unknown = callable(agent.instructions) and not self._recording.knows_context
        for difference in request_differences(recorded, asked, self._texts):
            if not (unknown and difference[0] == "instructions"):
                yield difference

    def _without_this_turn(self) -> TurnFailed:
        """What was asked is redacted; what is recorded goes on after it."""
        self._recording.note_redacted()
        self._recording.skips = True
        return TurnFailed(RunError(code="redacted", message="what was asked is redacted"))

    async def _would_ask(self, state: State, recorded: RequestRecord) -> tuple[Agent, Profile, ModelRequest]:
        agent, profile = await super()._prepare(state)
        return agent, profile, request(state, profile, stream=recorded.params.get("stream") is True)

    def _note_failure(self, state: State, recorded: RequestRecord, error: RunError) -> None:
        if error.code == "agent_unavailable":
            self._recording.note("agent", state.agent, self._registry.names)
        elif self._recording.knows_context:
            known = self._texts.get(recorded.instructions, f"sha256:{recorded.instructions}")
            self._recording.note("instructions", known, f"{error.code}: {error.message}")
        # What is recorded goes on without this turn.
        self._recording.skips = True


class _RecordedModel:
    """Says what was said then."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording

    async def ask(self, request: ModelRequest, *, stream: bool) -> AsyncGenerator[Delta | Reply]:
        fact = self._recording.upcoming.fact
        assert isinstance(fact, MessageAdded)
        assert fact.completion is not None
        yield Reply(fact.message, fact.completion)


class _AsRecorded:
    """A Policy without limits, which streams if it streamed then."""

    tool_seconds: float | None = None
    shortens_history = False

    def __init__(self, recording: Recording) -> None:
        self._recording = recording

    def streams(self, run: Run) -> bool:
        record = self._recording.request_record
        return record is not None and record.params.get("stream") is True

    def approval_expires_at(self) -> str | None:
        return None

    def time_limit(self, run: Run) -> AbstractAsyncContextManager[None]:
        return nullcontext()


async def _in_place(function: Callable[[], Any], *, is_async: bool, seconds: float | None) -> Any:
    """Where instructions are made. A replay has a thread of its own."""
    value = function()
    return await value if inspect.isawaitable(value) else value


async def _never(function: Callable[[], Any], *, is_async: bool, seconds: float | None) -> Any:
    raise AssertionError("a replay calls no tool")
