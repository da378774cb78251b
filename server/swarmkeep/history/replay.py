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
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Container,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from functools import partial
from typing import Any, TypeVar

from msgspec import UNSET
from msgspec.structs import replace

from swarmkeep.agent import Agent
from swarmkeep.decide.checks import FileLimits
from swarmkeep.events.codec import encode, encode_text
from swarmkeep.events.errors import EventNotFound, Overloaded, RequestNotKept, SessionNotFound
from swarmkeep.events.facts import (
    CompactionStarted,
    CompactionSummarised,
    GuardrailTripped,
    HandoffIgnored,
    MessageAdded,
    MessageRemoved,
    RecordedEvent,
    RunError,
)
from swarmkeep.events.messages import list_text_hashes
from swarmkeep.events.records import RequestRecord
from swarmkeep.events.redaction import REDACTED
from swarmkeep.events.sizes import UNBOUNDED
from swarmkeep.events.state import Run, State
from swarmkeep.history.divergences import DivergenceKind, Replayed, ReplayFindings, compare_requests, end_as_recorded
from swarmkeep.history.recordings import (
    EndOfRecordedLog,
    RecordedCalls,
    RecordedGuards,
    RecordedLog,
    RecordedSession,
    describe_refusal,
)
from swarmkeep.history.redact import is_lost
from swarmkeep.models.failures import NO_SECRETS
from swarmkeep.models.model import Deltas, Reply, TurnFailed
from swarmkeep.request.compaction import build_summary_request
from swarmkeep.request.request import ModelRequest, Profile, assemble_request, build_request
from swarmkeep.runs.agents import Registry
from swarmkeep.runs.approvals import make_approvals
from swarmkeep.runs.loop import Loop, prepare_turn
from swarmkeep.runs.policy import NobodyAsked
from swarmkeep.runs.toolbox import RecordedToolbox, Toolbox
from swarmkeep.store.opening import SqlStore
from swarmkeep.store.records import SessionKey


async def replay_session(
    store: SqlStore,
    registry: Registry,
    key: SessionKey,
    *,
    ignore: Collection[str] = (),
    seconds: float | None = None,
) -> Replayed:
    """Compare a stored session, for no longer than `seconds` if it is given. Reads only. Raises SessionNotFound."""
    recorded = await load_recorded_session(store, key)
    # A team's instructions may take their time, or the session be long: no other task is to wait for it.
    return await asyncio.to_thread(replay, recorded.events, registry, recorded.texts, ignore=ignore, seconds=seconds)


async def load_recorded_session(store: SqlStore, key: SessionKey) -> RecordedSession:
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
    """Run the function that makes instructions, in place. A replay has a thread of its own."""
    value = function()
    return await value if inspect.isawaitable(value) else value


# The request behind an assistant message, put together again from the log.

# What the messages of a state are made of.
_MESSAGE_TYPES = (
    MessageAdded.type, HandoffIgnored.type, GuardrailTripped.type, MessageRemoved.type,
    CompactionStarted.type, CompactionSummarised.type,
)  # fmt: skip


class _Losses:
    """What was sent with a request and is not there any more: refused, unless there is a list for it."""

    def __init__(self, seq: int, missing: list[str] | None) -> None:
        self._seq = seq
        self._missing = missing

    def note(self, what: str) -> None:
        if self._missing is None:
            raise RequestNotKept(self._seq, what)
        self._missing.append(what)


async def rebuild_request(
    store: SqlStore,
    key: SessionKey,
    seq: int,
    admit: Callable[[int], Awaitable[None]] | None = None,
    *,
    missing: list[str] | None = None,
) -> bytes:
    """The exact bytes of the Chat Completions request that event `seq` was the answer to.

    `admit` is awaited before files are read, with about as many bytes as they will take in memory. With a list for what
    is `missing`, what is not there any more is named in it, and `[redacted]` stands in its place: the request is then
    not exact.

    Raises SessionNotFound, EventNotFound if that event is no recorded answer of a model, and, without `missing`,
    RequestNotKept if something that was sent is not there any more.
    """
    losses = _Losses(seq, missing)
    await store.state(key, at=seq)
    event = (await store.read(key, after=seq - 1, upto=seq))[-1]
    if event.type in _MESSAGE_TYPES and is_lost(event):
        losses.note(f"event {seq} was redacted, or cannot be read")
    answer = event.fact
    completion = answer.completion if isinstance(answer, MessageAdded | CompactionSummarised) else None
    record = None if completion is None else completion.request
    if record is None and completion is not None and missing:
        model = {} if completion.model is None else {"model": completion.model}
        record = RequestRecord(instructions="", tools=None, params=model)
    if record is None:
        raise EventNotFound(seq, f"event {seq} is not a model's answer; name one of an assistant's message")
    upto = seq - 1 if record.history_upto is UNSET else record.history_upto
    before = await store.state(key, at=upto)
    said = await store.read(key, upto=upto, types=_MESSAGE_TYPES)
    if isinstance(answer, CompactionSummarised):
        request = _rebuild_summary_request(losses, answer, before, record, said)
    else:
        history_from = None if record.history_from is UNSET else record.history_from
        # Of what is kept with a state, nothing is used: this is put together from the log alone.
        rules = None if record.rules is UNSET else replace(record.rules, model=str(record.params.get("model", "")))
        request = assemble_request(list(before.messages), "", None, record.params, history_from, before.summary, rules)
        sent = {entry.seq for entry in (*request.history.leading, *request.entries)}
        _note_gaps(losses, said, before, sent)
    texts = await store.read_blobs(key, [name for name in (record.instructions, record.tools) if name])
    instructions, tools = texts.get(record.instructions), texts.get(record.tools or "")
    if instructions is None:
        losses.note("the instructions that were sent are not stored any more")
        instructions = _stand_in(record.instructions)
    if record.tools is not None and tools is None:
        losses.note("the tool schemas that were sent are not stored any more")
        tools = encode_text([_stand_in(record.tools)])
    if admit is not None:
        # As it is stored, as text in its place, and in the whole.
        await admit(int(request.measure_files() * 11 / 3) + len(request.history.json))
    files = await store.read_files(key, request.file_names)
    for name in request.file_names:
        if name not in files:
            losses.note(f"the file {name} that was sent is not stored any more")
    whole = replace(request, instructions=instructions, tools=tools, files=files)
    return await asyncio.to_thread(whole.body) if files else whole.body()


async def rebuild_what_is_left(
    store: SqlStore, key: SessionKey, seq: int, admit: Callable[[int], Awaitable[None]] | None = None
) -> bytes:
    """The request with `[redacted]` in the place of what is not there any more, and what that is, as a JSON object:
    `exact`, `missing` (in words) and `request`."""
    missing: list[str] = []
    body = await rebuild_request(store, key, seq, admit, missing=missing)
    head = {"exact": not missing, "note": _INEXACT if missing else _EXACT, "missing": missing}
    return b"".join((encode(head)[:-1], b',"request":', body, b"}"))


_EXACT = "nothing is missing: these are the bytes that were sent"
_INEXACT = "inexact: not what was sent, but what is left of it"


def _stand_in(digest: str) -> str:
    return f"{REDACTED} (SHA-256 {digest})" if digest else REDACTED


def _rebuild_summary_request(
    losses: _Losses, answer: CompactionSummarised, before: State, record: RequestRecord, said: Iterable[RecordedEvent]
) -> ModelRequest:
    if before.compaction is None:
        losses.note("the log does not say what was summed up")
        return assemble_request(list(before.messages), "", None, record.params, None, before.summary)
    request, piece = build_summary_request(before, str(record.params.get("model", "")), answer.characters)
    covered = 0 if before.summary is None else before.summary.last_seq
    _note_gaps(losses, said, before, set(range(covered + 1, piece.last_seq + 1)))
    return request


def _note_gaps(losses: _Losses, said: Iterable[RecordedEvent], before: State, sent: Container[int]) -> None:
    """Note what is lost of the messages that were sent, or may have been."""
    last_summary = 0 if before.summary is None else before.summary.seq
    for event in said:
        if not is_lost(event):
            continue
        match event.fact:
            case MessageAdded():
                is_missed = event.seq in sent
            case CompactionSummarised():
                is_missed = event.seq > last_summary
            case MessageRemoved() | CompactionStarted():
                # What is left of one says as much of messages as before.
                is_missed = False
            case _:
                is_missed = True
        if is_missed:
            losses.note(f"event {event.seq} was redacted, or cannot be read")


# Replays one after the other, for each has a whole log in memory.


class TurnQueue:
    """Lets costly requests of one kind run one at a time for each tenant, and no more than so many wait for that."""

    def __init__(self, kind: str, most_waiting: int) -> None:
        self._kind = kind
        self._most = most_waiting
        self._turns: dict[str, asyncio.Lock] = {}
        self._counts: dict[str, int] = {}

    @asynccontextmanager
    async def enter(self, tenant: str) -> AsyncIterator[None]:
        """Raises Overloaded."""
        count = self._counts.get(tenant, 0)
        if count > self._most:
            raise Overloaded(detail=f"too many {self._kind} are waiting; try again")
        self._counts[tenant] = count + 1
        try:
            async with self._turns.setdefault(tenant, asyncio.Lock()):
                yield
        finally:
            self._counts[tenant] -= 1
            if not self._counts[tenant]:
                del self._counts[tenant], self._turns[tenant]
