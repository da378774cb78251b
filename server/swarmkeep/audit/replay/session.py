"""Today's agents against a recorded conversation: the engine's own loop, with the log in the place of the world.

Recorded completions stand in for the model and recorded results for the tools. Instructions that are functions are
called, for they are what is compared, and so are validators of output types and guardrails; nothing else of a team's
code is, and nothing is written.
"""

from __future__ import annotations

import asyncio
import inspect
import math
import time
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from functools import partial
from typing import Any, TypeVar

from msgspec import UNSET

from swarmkeep.agent import Agent
from swarmkeep.audit.replay.batches import end_as_recorded
from swarmkeep.audit.replay.divergences import DivergenceKind, Replayed, ReplayFindings, compare_requests
from swarmkeep.audit.replay.recorded_calls import RecordedCalls
from swarmkeep.audit.replay.recorded_facts import describe_refusal
from swarmkeep.audit.replay.recorded_guards import RecordedGuards
from swarmkeep.audit.replay.recorded_log import EndOfRecordedLog, RecordedLog
from swarmkeep.audit.replay.recorded_sessions import RecordedSession
from swarmkeep.domain.checking.files import FileLimits
from swarmkeep.domain.decisions.sizes import UNBOUNDED
from swarmkeep.domain.envelope import RecordedEvent
from swarmkeep.domain.errors import SessionNotFound
from swarmkeep.domain.events import GuardrailTripped, MessageAdded, RequestRecord, RunError
from swarmkeep.domain.request import ModelRequest, Profile, build_request, list_text_hashes
from swarmkeep.domain.state import Run, State
from swarmkeep.engine.agents.approvals import make_approvals
from swarmkeep.engine.agents.registry import Registry
from swarmkeep.engine.loop import Loop
from swarmkeep.engine.models.model import Deltas, Reply, TurnFailed
from swarmkeep.engine.models.secrets import NO_SECRETS
from swarmkeep.engine.policy import NobodyAsked
from swarmkeep.engine.toolbox.toolbox import RecordedToolbox, Toolbox
from swarmkeep.engine.turn import prepare_turn
from swarmkeep.store.ports import EventStore, SessionKey


async def replay_session(
    store: EventStore,
    registry: Registry,
    key: SessionKey,
    *,
    ignore: Collection[str] = (),
    seconds: float | None = None,
) -> Replayed:
    """Compare a stored session, for no longer than `seconds` if it is given. Reads only. Raises SessionNotFound."""
    recorded = await load_recorded_session(store, key)
    # A team's instructions may take their time, or the session be long: nobody else is to wait for it.
    return await asyncio.to_thread(replay, recorded.events, registry, recorded.texts, ignore=ignore, seconds=seconds)


async def load_recorded_session(store: EventStore, key: SessionKey) -> RecordedSession:
    """A session with the texts that its requests name, as far as it can be read. Raises SessionNotFound."""
    events = await store.read(key)
    if not events:
        raise SessionNotFound(key.id)
    names = await asyncio.to_thread(_collect_text_names, events)
    texts = await store.read_blobs(key, sorted(names))
    return RecordedSession(session_id=key.id, events=events, texts=dict(texts))


def _collect_text_names(events: Iterable[RecordedEvent]) -> set[str]:
    return {name for event in events for name in list_text_hashes(event.fact)}


def replay(
    events: Sequence[RecordedEvent],
    registry: Registry,
    texts: Mapping[str, str],
    *,
    ignore: Collection[str] = (),
    seconds: float | None = None,
) -> Replayed:
    """Compare a log, from its first event on. `texts` are instructions and tool schemas by their content hash.

    After so many `seconds` no further turn is begun; the time that a team's own code takes is part of them.
    """
    findings = ReplayFindings(ignore)
    recording = RecordedLog(events, findings, make_approvals(registry))
    time_left = _TimeLeft(seconds)
    asyncio.run(_advance(recording, registry, texts, time_left))
    return Replayed(
        matches=not findings.divergences and not time_left.was_missed,
        turns=findings.turns,
        last_seq=recording.state.seq,
        divergences=findings.divergences,
        redacted=findings.redacted,
        cut_short=True if time_left.was_missed else UNSET,
    )


class _TimeLeft:
    def __init__(self, seconds: float | None) -> None:
        self._ends_at = math.inf if seconds is None else time.monotonic() + seconds
        self.was_missed = False

    def check(self) -> None:
        """Raises EndOfRecordedLog once it is over."""
        if time.monotonic() > self._ends_at:
            self.was_missed = True
            raise EndOfRecordedLog


async def _advance(recording: RecordedLog, registry: Registry, texts: Mapping[str, str], time_left: _TimeLeft) -> None:
    try:
        async for _ in _make_replay_loop(recording, registry, texts, time_left).advance():
            pass
        raise recording.note_mismatch("nothing")
    except EndOfRecordedLog:
        pass


def _make_replay_loop(
    recording: RecordedLog, registry: Registry, texts: Mapping[str, str], time_left: _TimeLeft
) -> Loop:
    """The loop, whose requests and calls are compared with the recorded ones instead of being made."""
    toolbox = RecordedToolbox(texts)
    requests = _CurrentRequests(recording, registry, toolbox, texts, time_left)
    policy = _RecordedPolicy(recording)
    guards = RecordedGuards(recording, _run_in_place, policy)
    calls = RecordedCalls(recording, registry, guards, toolbox)
    return Loop(
        recording,
        registry,
        _RecordedModel(recording),
        policy,
        prepare=requests.prepare,
        perform=calls.perform,
        guards=guards,
        together=partial(end_as_recorded, lambda: recording.next_event),
        toolbox=toolbox,
    )


T = TypeVar("T")


class _CurrentRequests:
    """Builds the requests of today's agents, and compares them with the recorded ones."""

    def __init__(
        self,
        recording: RecordedLog,
        registry: Registry,
        toolbox: Toolbox,
        texts: Mapping[str, str],
        time_left: _TimeLeft,
    ) -> None:
        self._recording = recording
        self._registry = registry
        self._toolbox = toolbox
        self._texts = texts
        self._time_left = time_left

    async def prepare(self, state: State) -> tuple[Agent, Profile]:
        """The agent as it is today, once the request that it would send has been compared."""
        self._time_left.check()
        if self._recording.is_redacted_reply:
            raise self._skip_redacted_turn()
        refused = self._recording.next_event.fact
        if isinstance(refused, GuardrailTripped):
            # Today's agent has no guardrails that look at what comes in.
            self._recording.note("guardrail", describe_refusal(refused), None)
            self._recording.is_turn_skipped = True
            raise TurnFailed(RunError(code="guardrail", message="what was to be asked was refused"))
        recorded = self._recording.request_record
        if recorded is None:
            raise self._recording.note_mismatch(MessageAdded.type)
        self._recording.findings.turns += 1
        try:
            prepared = [await self._build(candidate, recorded) for candidate in self._recording.candidates]
        except TurnFailed as failed:
            self._note_failure(state, recorded, failed.error)
            raise
        for agent, profile, asked in prepared:
            if not list(self._find_differences(recorded, agent, asked)):
                return agent, profile
        agent, profile, asked = prepared[0]
        for kind, before, after in self._find_differences(recorded, agent, asked):
            self._recording.note(kind, before, after)
        return agent, profile

    def _find_differences(
        self, recorded: RequestRecord, agent: Agent, asked: ModelRequest
    ) -> Iterator[tuple[DivergenceKind, Any, Any]]:
        # What was redacted may be what instructions are made of; that it is missing is told already.
        unknown = callable(agent.instructions) and not self._recording.knows_context
        run = self._recording.state.run
        begun = 0 if run is None else run.first_seq
        listing = self._recording.find_redacted_listing(agent.name, [server.name for server in agent.mcp_servers])
        for difference in compare_requests(recorded, asked, self._texts):
            if listing is not None and difference[0] in ("tool_schemas", "parameters"):
                # What the model was offered is not known any more, and goes with some parameters.
                self._recording.findings.add_redacted(listing)
            elif begun and difference[0] != "model" and self._recording.is_redacted_at(begun):
                # It may be what the run's caller asked for, which is not known any more.
                self._recording.findings.add_redacted(begun)
            elif not (unknown and difference[0] == "instructions"):
                yield difference

    def _skip_redacted_turn(self) -> TurnFailed:
        """The failure of a turn whose request is redacted; the recorded log goes on after it."""
        self._recording.note_redacted()
        self._recording.is_turn_skipped = True
        return TurnFailed(RunError(code="redacted", message="what was asked is redacted"))

    async def _build(self, state: State, recorded: RequestRecord) -> tuple[Agent, Profile, ModelRequest]:
        agent, profile = await prepare_turn(self._registry, _run_in_place, state, toolbox=self._toolbox)
        return agent, profile, build_request(state, profile, stream=recorded.params.get("stream") is True)

    def _note_failure(self, state: State, recorded: RequestRecord, error: RunError) -> None:
        if error.code == "agent_unavailable":
            self._recording.note("agent", state.agent, self._registry.names)
        elif self._recording.knows_context:
            known = self._texts.get(recorded.instructions, f"sha256:{recorded.instructions}")
            self._recording.note("instructions", known, f"{error.code}: {error.message}")
        # What is recorded goes on without this turn.
        self._recording.is_turn_skipped = True


class _RecordedModel:
    """Says what was said then."""

    def __init__(self, recording: RecordedLog) -> None:
        self._recording = recording

    async def ask(self, request: ModelRequest, *, stream: bool) -> AsyncGenerator[Deltas | Reply]:
        fact = self._recording.next_event.fact
        assert isinstance(fact, MessageAdded)
        assert fact.completion is not None
        yield Reply(fact.message, fact.completion)


class _RecordedPolicy:
    """A Policy without limits, which streams if it streamed then."""

    tool_seconds: float | None = None
    shortens_history = False
    compacts_history = False
    secrets = NO_SECRETS
    sizes = UNBOUNDED
    files = FileLimits()
    agents = NobodyAsked()

    def __init__(self, recording: RecordedLog) -> None:
        self._recording = recording

    def should_stream(self, run: Run) -> bool:
        record = self._recording.request_record
        return record is not None and record.params.get("stream") is True

    async def approval_expires_at(self) -> str | None:
        return None

    async def check_tokens_left(self) -> None:
        """As many as it takes."""

    async def run_aside(self, work: Callable[[], T]) -> T:
        return work()

    def time_limit(self, run: Run) -> AbstractAsyncContextManager[None]:
        return nullcontext()


async def _run_in_place(function: Callable[[], Any], *, is_async: bool, seconds: float | None) -> Any:
    """Where instructions are made. A replay has a thread of its own."""
    value = function()
    return await value if inspect.isawaitable(value) else value
