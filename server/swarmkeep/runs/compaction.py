"""Compactions that are asked for, of sessions that are at rest."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

import msgspec

from swarmkeep.decide.commands import refuse_if_busy
from swarmkeep.decide.drafts import apply_drafts, draft_events
from swarmkeep.decide.turns import Trip
from swarmkeep.events.errors import InvalidRequest
from swarmkeep.events.facts import (
    CompactionFailed,
    CompactionStarted,
    CompactionSummarised,
    EventDraft,
    RecordedEvent,
    RunError,
    SessionEvent,
)
from swarmkeep.events.fold import evolve
from swarmkeep.events.records import CompletionRecord
from swarmkeep.events.state import State
from swarmkeep.events.views import SessionView, view_session
from swarmkeep.models.failures import Secrets
from swarmkeep.models.model import Model, TurnFailed
from swarmkeep.request.compaction import plan_compaction
from swarmkeep.runs.agents import Registry
from swarmkeep.runs.limits import Limits, check_session_quotas, check_tokens_left, refuse_uncounted
from swarmkeep.runs.runs import IdempotentRequest, run_once
from swarmkeep.runs.summaries import describe_failure, record_summary, start_compaction, summarise
from swarmkeep.runs.worker import Worker
from swarmkeep.store.opening import SqlStore
from swarmkeep.store.records import IdempotencyRecord, SessionKey
from swarmkeep.store.threads import run_off_loop

DEFAULT_KEEP_TURNS = 4
DEFAULT_RESULT_CHARACTERS = 2_000


# The refusal of what is new to a session's agent outside of runs, with messages that are given besides.
CheckState = Callable[..., Awaitable[Trip | None]]


class CompactionView(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a compaction."""

    session: SessionView
    """The session."""
    summary: str | None
    """What models are sent in place of messages; null if there is none."""
    first_seq: int | None
    """The first message that it replaces."""
    last_seq: int | None
    """The last one."""
    error: RunError | None
    """Null, or why the last summary was not made, as of a run."""


class UnstoredSummary(msgspec.Struct, frozen=True):
    """A summary that is in no log, and the model's answers that it came of."""

    text: str
    completions: list[CompletionRecord]


class Compactions:
    """The maker of shorter histories for the model, on request. What agents ask for, the loop does."""

    def __init__(
        self,
        store: SqlStore,
        registry: Registry,
        worker: Worker,
        model: Model,
        limits: Limits,
        secrets: Secrets,
        check_state: CheckState,
    ) -> None:
        self._store = store
        self._registry = registry
        self._worker = worker
        self._model = model
        self._limits = limits
        self._secrets = secrets
        self._check_state = check_state

    async def compact(
        self,
        key: SessionKey,
        *,
        keep_turns: int | None = None,
        instructions: str | None = None,
        by: str | None = None,
        idempotency: IdempotentRequest | None = None,
    ) -> CompactionView:
        """Shorten long results, and have all but the last turns summed up; as the agent's settings say by default.

        Asked again, it goes on where it was cut off. Raises SessionNotFound, SessionBusy, AgentUnavailable,
        QuotaExceeded, IdempotencyMismatch, and InvalidRequest where a guardrail refuses what no run has looked at.
        """

        def decide(state: State) -> list[EventDraft]:
            refuse_if_busy(state)
            plan = self._make_plan(state, keep_turns, instructions, by)
            started = None if state.compaction is not None else plan_compaction(state, plan)
            facts: list[SessionEvent] = [] if started is None else start_compaction(state, state, started)
            drafts = draft_events(state.agent, facts, None)
            check_session_quotas(state, drafts, self._limits)
            return drafts

        mark = None if idempotency is None else idempotency.make_record()
        session_log = self._worker.open_session_log(key, await self._store.sound_state(key))

        async def start() -> list[RecordedEvent]:
            await self._refuse_unseen(key, session_log.state, instructions)
            await check_tokens_left(self._store, key.tenant, self._limits)
            return await session_log.commit(decide, mark=mark, within_quota=True, aside=True)

        begun = await run_once(self._store, key, idempotency, start)
        if isinstance(begun, IdempotencyRecord):
            await self._finish(key)
            return _view(key, *await self._read_end(key, begun.seq))
        self._worker.continue_session(session_log, begun)
        error = await self._finish(key)
        return _view(key, await self._store.state(key), error)

    async def _refuse_unseen(self, key: SessionKey, state: State, instructions: str | None) -> None:
        """Raise InvalidRequest if the model would be sent what its agent's guardrails refuse."""
        given = [] if instructions is None else [{"role": "developer", "content": instructions}]
        trip = None if state.agent not in self._registry else await self._check_state(key.tenant, state, *given)
        if trip is not None:
            reason = f"the guardrail {trip.name} refuses the instructions, or messages that no run has looked at"
            raise InvalidRequest(f"{reason}: {trip.message} Start a run first, or change the instructions.")

    async def sum_up(self, state: State, *, instructions: str | None = None) -> UnstoredSummary:
        """Sum up all of a history that need not be in any log; nothing is recorded.

        Raises InvalidRequest where tokens are counted, AgentUnavailable, TurnFailed, and TimeoutError.
        """
        refuse_uncounted(self._limits)
        agent = self._registry.get_active(state.agent)
        plan = msgspec.structs.replace(self._make_plan(state, None, instructions, None), keep_turns=0)
        started = await run_off_loop(len(state.messages), partial(plan_compaction, state, plan))
        if started is not None:
            state = apply_drafts(state, draft_events(state.agent, [started], None))
        completions: list[CompletionRecord] = []
        async with asyncio.timeout(self._limits.run_seconds):
            while state.compaction is not None:
                fact, _ = await summarise(self._model, state, self._registry.choose_model(agent), self._secrets)
                state = apply_drafts(state, draft_events(state.agent, [fact], None))
                completions += [fact.completion] if fact.completion is not None else []
        return UnstoredSummary("" if state.summary is None else state.summary.text, completions)

    def _make_plan(
        self, state: State, keep_turns: int | None, instructions: str | None, by: str | None
    ) -> CompactionStarted:
        settings = self._registry.get_active(state.agent).compaction
        return CompactionStarted(
            reason="asked",
            keep_turns=keep_turns or (settings.keep_turns if settings else DEFAULT_KEEP_TURNS),
            result_characters=settings.result_characters if settings else DEFAULT_RESULT_CHARACTERS,
            of_tokens=settings.of_tokens if settings else None,
            instructions=instructions or (settings.instructions if settings else None),
            by=by,
        )

    async def _finish(self, key: SessionKey) -> RunError | None:
        """Have everything summed up that is to be; the error that ends it before."""
        while (state := await self._store.sound_state(key)).compaction is not None:
            await check_tokens_left(self._store, key.tenant, self._limits)
            agent = self._registry.get_active(state.agent)
            try:
                async with asyncio.timeout(self._limits.run_seconds):
                    name = self._registry.choose_model(agent)
                    fact, request = await summarise(self._model, state, name, self._secrets)
            except (TurnFailed, TimeoutError) as failure:
                error = failure.error if isinstance(failure, TurnFailed) else _TIMED_OUT
                await self._record(key, state, describe_failure(error), {})
                return error
            await self._record(key, state, fact, request.blobs)
        return None

    async def _read_end(self, key: SessionKey, begun: int) -> tuple[State, RunError | None]:
        """The session as a compaction left it that was asked for with event `begun`, and the error that ended it."""
        state, error = await self._store.state(key, at=begun), None
        while state.compaction is not None:
            page = await self._store.read(key, after=state.seq, limit=_PAGE_EVENTS, max_bytes=_PAGE_BYTES)
            if not page:
                break
            for event in page:
                state = evolve(state, event)
                if state.compaction is None:
                    error = _read_error(event)
                    break
        return state, error

    async def _record(
        self, key: SessionKey, asked: State, fact: CompactionSummarised | CompactionFailed, blobs: dict[str, str]
    ) -> None:
        def decide(state: State) -> list[EventDraft]:
            return draft_events(state.agent, record_summary(asked, state, fact), None)

        session_log = self._worker.open_session_log(key, asked)
        self._worker.continue_session(session_log, await session_log.commit(decide, blobs))


# While a session is compacted nothing else happens in it: a page has the end.
_PAGE_EVENTS, _PAGE_BYTES = 100, 1024 * 1024
_TIMED_OUT = RunError(code="run_timeout", message="the summary took too long", retryable=True)


def _read_error(event: RecordedEvent) -> RunError | None:
    fact = event.fact
    if not isinstance(fact, CompactionFailed):
        return None
    return RunError(
        code=fact.code, message=fact.message, retryable=fact.retryable, provider_status=fact.provider_status
    )


def _view(key: SessionKey, state: State, error: RunError | None) -> CompactionView:
    summary = state.summary
    return CompactionView(
        session=view_session(key.id, state),
        summary=None if summary is None else summary.text,
        first_seq=None if summary is None else summary.first_seq,
        last_seq=None if summary is None else summary.last_seq,
        error=error,
    )
