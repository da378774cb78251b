"""Decisions on calls of agents that are asked, given where these were asked from: both sessions go on."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import UNSET, UnsetType

from swarmkeep.domain.decisions.drafts import apply_drafts
from swarmkeep.domain.decisions.resuming import Approval, keep_limits, resume_run
from swarmkeep.domain.decisions.teams import go_on_with_session
from swarmkeep.domain.envelope import EventDraft, RecordedEvent
from swarmkeep.domain.errors import RunNotWaiting
from swarmkeep.domain.run_options import RunOptions
from swarmkeep.domain.state import State
from swarmkeep.engine.idempotency import IdempotentRequest, run_once
from swarmkeep.engine.limits import Limits, check_session_quotas
from swarmkeep.engine.reader import RunPosition, SessionReader
from swarmkeep.engine.runs import Runs
from swarmkeep.engine.worker.worker import Worker
from swarmkeep.store.archive import Archive
from swarmkeep.store.ports import IdempotencyRecord, SessionKey


class ApprovalBelow(msgspec.Struct, frozen=True):
    """A decision on a call of a run in another session."""

    session_id: str
    run_id: str
    approval: Approval


class ApprovalsBelow:
    """Gives decisions to the sessions that a waiting run waits for."""

    def __init__(self, store: Archive, reader: SessionReader, worker: Worker, runs: Runs, limits: Limits) -> None:
        self._store = store
        self._reader = reader
        self._worker = worker
        self._runs = runs
        self._limits = limits

    async def decide(
        self,
        key: SessionKey,
        run_id: str,
        decisions: Sequence[ApprovalBelow],
        *,
        own: Sequence[Approval] = (),
        options: RunOptions | UnsetType = UNSET,
        idempotency: IdempotentRequest | None = None,
    ) -> RunPosition:
        """Have a run go on, by `options`, once what it waits for in sessions below is decided, and `own` calls of it.

        The run goes on first, so that this request is answered by what it does then; should the decisions not be
        recorded after all, it waits again. Raises what `Runs.resume` raises.
        """
        below = _group(key, decisions)
        chosen = UNSET if options is UNSET else self._runs.apply_limits(options)

        async def begin() -> list[RecordedEvent]:
            await self._runs.check_capacity(key)
            await self._check(below)
            return await self._go_on(key, run_id, below, own, chosen, idempotency)

        begun = await run_once(self._store, key, idempotency, begin)
        if isinstance(begun, IdempotencyRecord):
            position = await self._reader.find_position(key, begun.run_id or run_id)
            return msgspec.structs.replace(position, seq=begun.seq, repeated=True)
        return RunPosition(run_id, begun[0].seq - 1, begun[-1].seq)

    async def _check(self, below: dict[tuple[SessionKey, str], list[Approval]]) -> None:
        """Raise what the decisions would be refused with."""
        now = await self._store.read_clock()
        for (child, child_run), approvals in below.items():
            state = await self._store.sound_state(child)
            check_session_quotas(state, resume_run(state, child_run, (), approvals, now=now), self._limits)

    async def _go_on(
        self,
        key: SessionKey,
        run_id: str,
        below: dict[tuple[SessionKey, str], list[Approval]],
        own: Sequence[Approval],
        options: RunOptions | UnsetType,
        idempotency: IdempotentRequest | None,
    ) -> list[RecordedEvent]:
        now = await self._store.read_clock()

        def decide(state: State) -> list[EventDraft]:
            awaited = () if state.run is None else state.run.awaited_calls
            decided = resume_run(state, run_id, (), own, now=now) if own and awaited else []
            after = apply_drafts(state, decided)
            going_on = awaited and go_on_with_session(after, run_id, awaited[0], keep_limits(after, options))
            if not going_on:
                raise RunNotWaiting(run_id, "running")
            drafts = [*decided, *going_on]
            check_session_quotas(state, drafts, self._limits)
            return drafts

        session_log = self._worker.open_session_log(key, await self._store.sound_state(key))
        mark = None if idempotency is None else idempotency.make_record(run_id)
        events = await session_log.commit(decide, mark=mark, within_quota=True)
        try:
            for (child, child_run), approvals in below.items():
                await self._runs.resume(child, child_run, approvals=approvals, is_asked=True)
        finally:
            self._worker.continue_session(session_log, events)
            # It may itself be waited for.
            await self._worker.teams.follow_change(key, session_log.state, events)
        return events


def _group(key: SessionKey, decisions: Sequence[ApprovalBelow]) -> dict[tuple[SessionKey, str], list[Approval]]:
    found: dict[tuple[SessionKey, str], list[Approval]] = {}
    for each in decisions:
        found.setdefault((SessionKey(key.tenant, each.session_id), each.run_id), []).append(each.approval)
    return found
