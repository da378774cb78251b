"""Commands on runs: start, cancel, resume; and waiting for one to end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar
from uuid import NAMESPACE_URL, uuid5

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from swarmkeep.decide.checks import TakenMessages, take_out_files
from swarmkeep.decide.commands import Approval, StartRun, ToolAnswer, cancel_run, keep_limits, resume_run, start_run
from swarmkeep.decide.people import hide_run
from swarmkeep.events.codec import Json
from swarmkeep.events.errors import DomainError, Draining, IdempotencyMismatch, RunNotFound
from swarmkeep.events.facts import EventDraft, RecordedEvent
from swarmkeep.events.records import RunOptions
from swarmkeep.events.sizes import is_heavy
from swarmkeep.events.state import NOTHING_SAID, PartialReply, State, refuse_damaged
from swarmkeep.events.views import RunView, find_run, view_run
from swarmkeep.runs.agents import Registry
from swarmkeep.runs.approvals import check_arguments, check_sizes, refuse_wrong_functions
from swarmkeep.runs.hub import is_open
from swarmkeep.runs.identifiers import ANSWER_READY, derive_id, reach
from swarmkeep.runs.limits import Limits, check_active_runs, check_session_quotas, check_tokens_left, limit_options
from swarmkeep.runs.policy import Decide, SessionPlan
from swarmkeep.runs.reader import RunPosition, SessionReader
from swarmkeep.runs.worker import Worker, has_stopped_run
from swarmkeep.store.opening import SqlStore
from swarmkeep.store.records import IdempotencyRecord, IdempotencyRecordExists, SessionKey

if TYPE_CHECKING:
    from swarmkeep.runs.tracing import Tracing


# Idempotency keys: a request that is sent again has its effect once and gets the same answer.

T = TypeVar("T")


class IdempotentRequest(msgspec.Struct, frozen=True):
    """A key that the caller chose, and a digest of the request it came with."""

    key: str
    digest: str

    def make_record(self, run_id: str | None = None) -> IdempotencyRecord:
        return IdempotencyRecord(key=self.key, digest=self.digest, run_id=run_id)

    def derive_session_id(self, tenant: str) -> str:
        """The id of a session that this request makes without naming one: the same each time it is sent."""
        return derive_id("sess", f"{tenant}/{self.key}")

    def derive_older_session_id(self, tenant: str) -> str:
        """Derive that id as it was before ids became shorter: a key is good for as long as its session lives."""
        return f"sess_{uuid5(NAMESPACE_URL, f'{tenant}/{self.key}').hex}"


async def run_once(
    store: SqlStore, key: SessionKey, request: IdempotentRequest | None, effect: Callable[[], Awaitable[T]]
) -> T | IdempotencyRecord:
    """Carry out `effect`, whose append carries the record of `request`; or give the record that an earlier one left.

    A refusal may only mean that the effect is there already: then the record answers instead.
    Raises IdempotencyMismatch when the key came with another request.
    """
    try:
        return await effect()
    except IdempotencyRecordExists as known:
        return known.record
    except DomainError:
        record = await find_record(store, key, request)
        if record is None:
            raise
        return record


async def find_record(store: SqlStore, key: SessionKey, request: IdempotentRequest | None) -> IdempotencyRecord | None:
    """Return the record that this request left in a session when it came before. Raises IdempotencyMismatch if that was
    another one."""
    record = None if request is None else await store.find_idempotency_record(key, request.key)
    if request is not None and record is not None and record.digest != request.digest:
        raise IdempotencyMismatch(request.key)
    return record


class Runs:
    """Runs of every session. A run is a task of its own: no watcher or waiting caller keeps it alive or ends it."""

    def __init__(
        self,
        store: SqlStore,
        reader: SessionReader,
        registry: Registry,
        worker: Worker,
        limits: Limits,
        tracing: Tracing | None = None,
    ) -> None:
        self._store = store
        self._reader = reader
        self._registry = registry
        self._worker = worker
        self._limits = limits
        self._sizes = limits.sizes
        self._tracing = tracing
        self.is_draining = False

    async def start(
        self,
        key: SessionKey,
        command: StartRun,
        *,
        idempotency: IdempotentRequest | None = None,
        is_asked: bool = False,
        plan: SessionPlan | None = None,
    ) -> RunPosition:
        """Record the run and its input, and begin; returns once that is durable. With a `plan` the session is made in
        the same commit.

        One that `is_asked` by another run is refused for no limit of runs at once: the other one would wait for ever.

        Raises SessionBusy, AgentNotFound, AgentUnavailable, SessionNotFound, Draining, IdempotencyMismatch, TooLarge,
        QuotaExceeded; SessionExists if what is planned is there, SeqConflict if what it is a fork of has changed.
        """
        if self._tracing is not None:
            command = self._tracing.mark_command(command)
        # What an interrupted run's model was just saying is kept with it.
        said = await self._worker.partials.find(key) if command.on_busy == "interrupt" else NOTHING_SAID
        decide, files = await self._decide_start(command, said)
        aside = is_heavy(command.messages, command.context_variables, command.options)
        aside = aside or (plan is not None and plan.is_heavy)
        begin = partial(
            self.commit_change,
            key,
            decide,
            None if idempotency is None else idempotency.make_record(command.run_id),
            begins=True,
            is_asked=is_asked,
            aside=aside,
            files=files,
            plan=plan,
        )
        return await self._find_begun(key, command.run_id, await run_once(self._store, key, idempotency, begin))

    async def _decide_start(self, command: StartRun, said: PartialReply) -> tuple[Decide, Mapping[str, bytes]]:
        """Decide how a run begins, and return its files, once all checks that need no session are done."""
        command = replace(command, options=self.apply_limits(command.options))
        command, files = await self._take_out_files(command)
        if command.agent is not None:
            command = replace(command, agent=self._registry.get(command.agent).name)

        def decide(state: State) -> Sequence[EventDraft]:
            agent = self._registry.get_active(command.agent or state.agent)
            self._sizes.check_run_context(state, command.context_variables)
            # An agent that has another name now is called by that from here on.
            chosen = command if agent.name in (command.agent, state.agent) else replace(command, agent=agent.name)
            drafts = start_run(state, chosen, said)
            check_session_quotas(state, drafts, self._limits)
            return drafts

        return decide, files

    async def _take_out_files(self, command: StartRun) -> tuple[StartRun, Mapping[str, bytes]]:
        """The command without what is kept beside the events, and that. Raises InvalidRequest and TooLarge."""

        def check() -> TakenMessages:
            taken = take_out_files(command.messages, "/input", self._limits.files)
            self._sizes.check_messages(taken.messages, "/input")
            return taken

        is_large = is_heavy(command.messages, command.options)
        taken = await asyncio.to_thread(check) if is_large else check()
        return replace(command, messages=taken.messages), taken.files

    def apply_limits(self, options: RunOptions) -> RunOptions:
        """The options with the server's own limits. Raises InvalidRequest for a function that an agent has, too, and
        for the choice of one that is not there, and TooLarge."""
        refuse_wrong_functions(options, self._registry)
        return limit_options(options, self._limits)

    async def _find_begun(
        self, key: SessionKey, run_id: str, begun: list[RecordedEvent] | IdempotencyRecord
    ) -> RunPosition:
        """Find the run that was started or resumed; where an earlier request has done so already, its run."""
        if isinstance(begun, IdempotencyRecord):
            return replace(await self._reader.find_position(key, begun.run_id or run_id), seq=begun.seq, repeated=True)
        started = next((event.seq for event in begun if event.run_id == run_id), None)
        if started is None:
            return await self._reader.find_position(key, run_id)
        return RunPosition(run_id, started - 1, begun[-1].seq)

    async def check_capacity(self, key: SessionKey, *, is_asked: bool = False) -> None:
        if self.is_draining:
            raise Draining
        tasks = self._worker.tasks
        # Those of one tenant are counted only where all of them together could be too many.
        if len(tasks) >= self._limits.max_runs_per_tenant and not (is_asked or key in tasks):
            check_active_runs(tasks.count_tenant(key.tenant), self._limits)
        await check_tokens_left(self._store, key.tenant, self._limits)

    async def commit_change(
        self,
        key: SessionKey,
        decide: Decide,
        mark: IdempotencyRecord | None = None,
        *,
        within_quota: bool = False,
        begins: bool = False,
        is_asked: bool = False,
        aside: bool = False,
        files: Mapping[str, bytes] | None = None,
        plan: SessionPlan | None = None,
    ) -> list[RecordedEvent]:
        """Commit a decision, and drive what it set going. One with which a run `begins` is refused by all limits."""
        if begins:
            await self.check_capacity(key, is_asked=is_asked)
        within_quota = within_quota or begins
        state = await self._store.state(key, fresh=False) if plan is None else plan.base
        session_log = self._worker.open_session_log(key, state, is_remembered=plan is None)
        events = await session_log.commit(decide, files, mark=mark, within_quota=within_quota, aside=aside, plan=plan)
        if has_stopped_run(events, session_log.state):
            self._worker.abandon(key)
        self._worker.continue_session(session_log, events)
        await self._worker.teams.follow_change(key, session_log.state, events)
        return events

    async def wait(self, key: SessionKey, run_id: str, *, since: int | None = None) -> RunView:
        """Return the run once it has ended or waits for an answer; at once if it does already.

        With `since`, as it was when it first did after that event, even if it has changed later.

        Raises Draining once this server has stopped, and the run is in a queue or another server's, and HistoryDamaged
        if the run cannot go on.
        """
        if since is not None and (answer := await self._reader.find_answer(key, run_id, since)) is not None:
            return answer
        while True:
            with self._worker.waiters.add_waiter(key, run_id) as waiter:
                state = await self._store.state(key, fresh=not self._worker.is_advancing(key))
                if find_run(state, run_id) is None:
                    # Another server may have put it into the queue.
                    state = await self._store.state(key)
                if is_open(find_run(state, run_id)):
                    refuse_damaged(key.id, state)
                if (ended := await _view_if_over(key, state, run_id)) is not None:
                    return ended
                # One that was woken during the read looks at what it was told first: its run may have ended just then.
                if self._worker.waiters.is_closed and not waiter.done():
                    raise Draining
                await asyncio.wait([waiter], timeout=self._limits.lease_seconds)
                state_after = waiter.result() if waiter.done() else None
                if state_after is not None and (ended := await _view_if_over(key, state_after, run_id)) is not None:
                    return ended
                # The events alone do not tell that a file of theirs was changed, or that another server found that.
                if state_after is None and await self._store.find_damaged_seq(key) is not None:
                    state = await self._store.check(key)
                    if is_open(find_run(state, run_id)):
                        refuse_damaged(key.id, state)

    async def cancel(self, key: SessionKey, run_id: str, *, idempotency: IdempotentRequest | None = None) -> RunView:
        """End a run; what it produced stays. A run that has ended already is left as it is."""
        said = await self._worker.partials.find(key, run_id)
        mark = None if idempotency is None else idempotency.make_record(run_id)
        done = await run_once(
            self._store,
            key,
            idempotency,
            lambda: self.commit_change(key, lambda state: cancel_run(state, run_id, said), mark),
        )
        if not done or isinstance(done, IdempotencyRecord):
            # It had ended before, perhaps by this very request, which broke off then.
            await self._worker.teams.cancel_run(key, await self._store.state(key), run_id)
        return await self._reader.get_run(key, run_id, at=done.seq if isinstance(done, IdempotencyRecord) else None)

    async def resume(
        self,
        key: SessionKey,
        run_id: str,
        *,
        tool_results: Sequence[ToolAnswer] = (),
        approvals: Sequence[Approval] = (),
        messages: Sequence[Json] = (),
        options: RunOptions | UnsetType = UNSET,
        idempotency: IdempotentRequest | None = None,
        is_asked: bool = False,
    ) -> RunPosition:
        """Go on with a waiting run, or try an interrupted one again; returns once that is durable.

        `messages` and `options` are for a caller who gives all that it waits for: more messages, and how to go on.

        Raises RunNotWaiting, AlreadyDecided, InvalidRequest, RunNotFound, AgentUnavailable, Draining, TooLarge,
        QuotaExceeded.
        """
        chosen = UNSET if options is UNSET else self.apply_limits(options)

        def check() -> TakenMessages:
            for place, answer in enumerate(tool_results):
                self._sizes.check_content(answer.content, f"/tool_results/{place}/content")
            check_sizes(approvals, self._sizes)
            taken = take_out_files(messages, "/input", self._limits.files)
            self._sizes.check_messages(taken.messages, "/input")
            return taken

        if not is_asked:
            await self._worker.teams.end_orphan(key, run_id)
        # Arguments that were changed are looked at by what their functions bring along for that.
        is_edited = any(approval.arguments is not None for approval in approvals)
        aside = is_edited or is_heavy(tool_results, messages)
        taken = await asyncio.to_thread(check) if aside else check()

        # Whether it is too late for a decision says the clock that says it to every server.
        now = await self._store.read_clock() if approvals else None

        def decide(state: State) -> Sequence[EventDraft]:
            self._registry.get_active(state.agent)
            check_arguments(self._registry, state, approvals)
            goes_on = keep_limits(state, chosen)
            drafts = resume_run(
                state, run_id, tool_results, approvals, messages=taken.messages, options=goes_on, now=now
            )
            check_session_quotas(state, drafts, self._limits)
            return drafts

        begin = partial(
            self.commit_change,
            key,
            decide,
            None if idempotency is None else idempotency.make_record(run_id),
            begins=True,
            is_asked=is_asked,
            aside=aside,
            files=taken.files,
        )
        return await self._find_begun(key, run_id, await run_once(self._store, key, idempotency, begin))

    async def hide(self, key: SessionKey, run_id: str, part: int | None = None, *, by: str | None = None) -> None:
        """Make a run, or what it did after so many waits, unfindable where it is shown as a response; here it is shown
        as before.

        Done again, it changes nothing. Raises SessionNotFound, RunNotFound, and SessionBusy while it goes on.
        """
        await self.commit_change(key, lambda state: hide_run(state, run_id, by, part))


async def _view_if_over(key: SessionKey, state: State, run_id: str) -> RunView | None:
    """The run, unless it goes on by itself. Raises RunNotFound."""
    run = find_run(state, run_id)
    if run is None:
        raise RunNotFound(run_id)
    if is_open(run):
        return None
    await reach(ANSWER_READY, key.id)
    return view_run(key.id, state, run)
