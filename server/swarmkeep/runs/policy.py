"""The session log and the policy that a loop is given: whether to stream, how long things may take."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, nullcontext
from functools import partial
from typing import Protocol, TypeVar

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from swarmkeep.agent import Tool
from swarmkeep.decide.checks import FileLimits, check_object
from swarmkeep.decide.commands import update_session
from swarmkeep.decide.drafts import apply_drafts, draft_events
from swarmkeep.decide.turns import OUTPUT_INVALID, Ending, ToolOutcome, end_run
from swarmkeep.events.codec import Json, digest
from swarmkeep.events.facts import (
    EventDraft,
    RecordedEvent,
    RunError,
    RunFailed,
    RunInterrupted,
    RunStarted,
    SessionEvent,
    SessionForked,
    SessionImported,
    SessionRedacted,
    StopReason,
)
from swarmkeep.events.sizes import UNBOUNDED, SizeLimits, is_heavy
from swarmkeep.events.state import NOTHING_SAID, PartialReply, Run, State, ToolCall
from swarmkeep.logs import bind_fields, current_fields
from swarmkeep.models.failures import Secrets
from swarmkeep.store.opening import SqlStore
from swarmkeep.store.records import AppendResult, Claim, IdempotencyRecord, SessionKey, StorageQuota

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
        super().__init__(f"the run exceeded its time limit of {seconds:g} s")


class AskedAgents(Protocol):
    """The agents that a session's agents ask."""

    async def ask(self, state: State, tool: Tool, call: ToolCall, text: str) -> ToolOutcome:
        """Have the call's agent answer. Asked again after a crash, it goes on where it was."""
        ...

    async def cancel(self, state: State, call: ToolCall) -> None:
        """The call's answer is not waited for any more."""
        ...


class NobodyAsked:
    """For a loop whose calls are not carried out."""

    async def ask(self, state: State, tool: Tool, call: ToolCall, text: str) -> ToolOutcome:
        return ToolOutcome(status="error", content=f"Error: {call.name} asks another agent, which is not done here.")

    async def cancel(self, state: State, call: ToolCall) -> None:
        """Nothing was begun."""


class LoopPolicy(Protocol):
    async def run_aside(self, work: Callable[[], T]) -> T:
        """Do long work where no one else waits for it."""
        ...

    def should_stream(self, run: Run) -> bool:
        """Tell if any reader looks on as the model speaks."""
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
        """The secrets that are taken out of all that models and tools send back, before it is recorded."""
        ...

    @property
    def agents(self) -> AskedAgents:
        """The agents that are asked by calls."""
        ...

    @property
    def sizes(self) -> SizeLimits:
        """The limits on the size of tools' results and changes."""
        ...

    @property
    def files(self) -> FileLimits:
        """The limits on the files that tools may give."""
        ...

    @property
    def shortens_history(self) -> bool:
        """True if a model that finds the history too long is asked again with less of it."""
        ...

    @property
    def compacts_history(self) -> bool:
        """True if histories are made shorter for agents that ask for it."""
        ...

    @property
    def tool_seconds(self) -> float | None:
        """The time-out of tools that set none."""
        ...


# Sessions that are to be made: planned first, and then recorded by themselves or with their first run.

Count = Callable[[], AbstractContextManager[None]]


class SessionPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A session that is to be made, by itself or in the commit of its first run: what it begins with, and the files of
    that. A fork goes on from the `base` in its `source`, where so many payloads were `redacted`. `state` is the
    session as it will be, but for times and hashes. It is recorded within `count`, which may refuse that.
    """

    drafts: Sequence[EventDraft]
    state: State
    files: Mapping[str, bytes] = {}
    base: State = State()
    source: SessionKey | None = None
    redacted: int = 0
    count: Count = nullcontext

    @property
    def is_heavy(self) -> bool:
        return is_heavy(*(draft.fact for draft in self.drafts))

    def begin_with(self, decide: Decide) -> Decide:
        """Return a decision that makes the session, and then decides on the one that is made."""
        return lambda state: [*self.drafts, *(decide(self.state) or ())]

    async def record(
        self,
        store: SqlStore,
        key: SessionKey,
        drafts: Sequence[EventDraft],
        *,
        lease: Claim | None = None,
        blobs: Mapping[str, str | bytes] | None = None,
        idempotency: IdempotencyRecord | None = None,
        quota: StorageQuota | None = None,
    ) -> AppendResult:
        """Make the session with these events, its own drafts among them. As `append` and `fork` of the store."""
        with self.count():
            if self.source is None:
                return await store.append(
                    key, self.base, drafts, lease=lease, blobs=blobs, idempotency=idempotency, quota=quota
                )
            return await store.fork(
                self.source,
                self.base,
                key,
                drafts,
                redacted=self.redacted,
                lease=lease,
                blobs=blobs,
                idempotency=idempotency,
                quota=quota,
            )


async def make_plan(
    drafts: Sequence[EventDraft],
    *,
    files: Mapping[str, bytes] | None = None,
    base: State | None = None,
    source: SessionKey | None = None,
    redacted: int = 0,
    count: Count = nullcontext,
) -> SessionPlan:
    """A plan with what it comes to, which is worked out once: of a large history in a thread."""
    base = State() if base is None else base
    fold = partial(apply_drafts, base, drafts)
    state = await asyncio.to_thread(fold) if is_heavy(*(draft.fact for draft in drafts)) else fold()
    return SessionPlan(
        drafts=drafts, state=state, files=files or {}, base=base, source=source, redacted=redacted, count=count
    )


async def plan_fork(
    store: SqlStore,
    key: SessionKey,
    *,
    at: int | None = None,
    metadata: Json | None = None,
    agent: str | None = None,
    sizes: SizeLimits = UNBOUNDED,
    count: Count = nullcontext,
) -> SessionPlan:
    """See `fork_session`."""
    labels = check_object(metadata or {}, "/metadata")
    # Read first: of what is removed after that, the state may still know, and then the copy is refused.
    removed = await store.read_redacted_payloads(key)
    base = await store.sound_state(key, at=at)
    redacted_payloads = {seq: payload for seq, payload in removed.items() if seq <= base.seq}
    facts = [
        SessionForked(from_session_id=key.id, from_seq=base.seq, from_hash=base.hash),
        *await _describe_copied_redactions(store, key, base, redacted_payloads),
        *await _describe_copied_imports(store, key, base),
        *update_session(base, agent=agent, metadata=labels),
    ]
    drafts = draft_events(base.agent, facts, None)
    plan = await make_plan(drafts, base=base, source=key, redacted=len(redacted_payloads), count=count)
    sizes.check_change(base, plan.state)
    return plan


async def _describe_copied_redactions(
    store: SqlStore, key: SessionKey, base: State, redacted_payloads: Mapping[int, str]
) -> list[SessionEvent]:
    """Describe removed payloads in a fork's copy, if the event that tells of them is not copied."""
    if not redacted_payloads:
        return []
    notices = await store.read(key, upto=base.seq, types=["session.redacted"])
    known = {seq for event in notices if isinstance(event.fact, SessionRedacted) for seq in event.fact.seqs}
    unannounced = [seq for seq in redacted_payloads if seq not in known]
    if not unannounced:
        return []
    digests = tuple(digest(redacted_payloads[seq]) for seq in unannounced)
    reason = f"removed in {key.id} before it was forked"
    forgotten = tuple(sorted((await store.state(key)).forgotten_texts - base.forgotten_texts))
    return [
        SessionRedacted(seqs=tuple(unannounced), reason=reason, kept=digests, texts=forgotten if forgotten else UNSET)
    ]


async def _describe_copied_imports(store: SqlStore, key: SessionKey, base: State) -> list[SessionEvent]:
    """Describe an import in a fork, if only a part of what was imported is copied."""
    later = await store.read(key, after=base.seq, types=[SessionImported.type], limit=1)
    facts = [event.fact for event in later if isinstance(event.fact, SessionImported)]
    return [replace(fact, last_seq=min(fact.last_seq, base.seq)) for fact in facts]


# Add the session and run of a task to its log lines, and log a run that did not come to its end.

log = logging.getLogger(__name__)


def describe_session(key: SessionKey, state: State | None = None) -> None:
    """Say in log lines of this task what they are about. What its request said of itself stays."""
    run = None if state is None else state.run
    bind_fields(tenant=key.tenant, session_id=key.id, run_id=None if run is None else run.id)


def follow_run(event: RecordedEvent) -> None:
    """Say which run they are about, when another begins: it waited in the queue, and is of another request."""
    if isinstance(event.fact, RunStarted) and event.run_id != current_fields().get("run_id"):
        bind_fields(run_id=event.run_id, request_id=None, key=None)


def log_trouble(key: SessionKey, event: RecordedEvent) -> None:
    """Log a run that has failed or was interrupted, for the operator: its caller is answered with 200."""
    fact = event.fact
    if isinstance(fact, RunFailed | RunInterrupted) and fact.error is not None:
        how = "failed" if isinstance(fact, RunFailed) else "was interrupted"
        # The errors of a form are told in the words of the answer, which are not for readers of logs.
        why = "" if fact.error.code == OUTPUT_INVALID else f": {fact.error.message}"
        described = {"tenant": key.tenant, "session_id": key.id, "run_id": event.run_id}
        log.warning("session %s: the run %s (%s)%s", key.id, how, fact.error.code, why, extra=described)


# Connect sessions that belong together: agents that ask one another.


class Teams(Protocol):
    def open_agents(self, key: SessionKey) -> AskedAgents:
        """The agents that this session's agents ask."""
        ...

    async def find_take_over(self, key: SessionKey, state: State) -> Decide | None:
        """Find the decision on a session that no process advances, if another one says so."""
        ...

    async def follow_change(self, key: SessionKey, state: State, events: Sequence[RecordedEvent]) -> None:
        """Follow changes recorded of a session's runs, which may concern those below it and above it."""
        ...

    async def cancel_run(self, key: SessionKey, state: State, run_id: str) -> None:
        """A run has ended: what it asked others for is over, too."""
        ...

    async def end_orphan(self, key: SessionKey, run_id: str) -> None:
        """End a run without a waiting caller."""
        ...
