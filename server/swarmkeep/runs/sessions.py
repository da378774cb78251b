"""Commands on sessions: create, update, take messages out, fork, delete."""

from __future__ import annotations

import asyncio
import contextlib
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import TypeVar

from swarmkeep.decide import people
from swarmkeep.decide.checks import (
    TakenMessages,
    check_messages,
    check_new_id,
    check_object,
    refuse_stray_results,
    take_out_files,
)
from swarmkeep.decide.commands import add_messages, create_session, refuse_if_busy, refuse_if_held, update_session
from swarmkeep.decide.drafts import apply_drafts, draft_events
from swarmkeep.events import errors
from swarmkeep.events.codec import Json, encode_sorted
from swarmkeep.events.facts import EventDraft, MessageAdded, RecordedEvent, SessionEvent, ToolStarted
from swarmkeep.events.files import SHA256
from swarmkeep.events.messages import Entry
from swarmkeep.events.sizes import UNBOUNDED, SizeLimits, is_heavy
from swarmkeep.events.state import State, Verdict, refuse_damaged
from swarmkeep.events.views import SessionView, view_session
from swarmkeep.runs.agents import Registry
from swarmkeep.runs.identifiers import list_children, list_open_children, make_id, reach
from swarmkeep.runs.limits import ForkQuota, Limits, check_session_quotas
from swarmkeep.runs.loop import decide_until_recorded
from swarmkeep.runs.policy import Count, Decide, SessionPlan, make_plan, plan_fork
from swarmkeep.runs.runs import IdempotentRequest, Runs, run_once
from swarmkeep.runs.teams import ChildSessions
from swarmkeep.runs.tool_servers import ToolServers
from swarmkeep.runs.worker import Worker
from swarmkeep.store.opening import SqlStore
from swarmkeep.store.records import AppendResult, IdempotencyRecord, SessionKey, StorageQuota

# Commands on sessions that need the store alone, so that they work without a server, too: fork, delete, and taking
# a message out.

T = TypeVar("T")
# Tells the readers in this process what was recorded.
Publish = Callable[[SessionKey, list[RecordedEvent]], None]
# Characters of a reason for a redaction or a hold.
MAX_REASON = 1000


async def fork_session(
    store: SqlStore,
    key: SessionKey,
    *,
    at: int | None = None,
    session_id: str | None = None,
    metadata: Json | None = None,
    agent: str | None = None,
    idempotency: IdempotentRequest | None = None,
    sizes: SizeLimits = UNBOUNDED,
    quota: StorageQuota | None = None,
    count: Count = nullcontext,
) -> SessionView:
    """A new session with this one's history up to `at` (by default all of it), its hashes included.

    A run that the copied history ends in does not go on there. `agent` becomes the active one. `count` is as in
    SessionPlan. Raises SessionExists, SessionNotFound, EventNotFound.
    """
    targets = choose_keys(key.tenant, session_id, idempotency)
    mark = None if idempotency is None else idempotency.make_record()

    async def copy(target: SessionKey) -> AppendResult:
        plan = await plan_fork(store, key, at=at, metadata=metadata, agent=agent, sizes=sizes, count=count)
        return await plan.record(store, target, plan.drafts, idempotency=mark, quota=quota)

    async def copy_until_recorded(target: SessionKey) -> AppendResult:
        if target == key:
            return await copy(target)
        # The source may be redacted, or deleted and recreated, while it is looked at.
        return await decide_until_recorded(partial(copy, target), session_id=key.id)

    async def make(target: SessionKey) -> SessionView:
        try:
            made = await run_once(store, target, idempotency, lambda: copy_until_recorded(target))
        except errors.SeqConflict:
            raise errors.SessionExists(target.id) from None
        return await view_change(store, target, made)

    return await make_session(targets, make)


async def delete_session(
    store: SqlStore,
    key: SessionKey,
    *,
    force: bool = False,
    if_match: int | None = None,
    by: str | None = None,
    reason: str | None = None,
) -> list[SessionKey]:
    """Remove every row of the session, and of those that its agents began; the tenant's audit log tells who did it,
    and why. Gives those that are gone.

    Those below go first: who is cut off finds them again by this one. Raises SessionBusy while a run is active here or
    below, unless forced, SeqMismatch for `if_match`, and HistoryDamaged, unless forced, if its log has lost its end.
    """

    async def remove() -> list[SessionKey]:
        state = await _read_to_delete(store, key, force=force)
        below = await find_descendants(store, key, state)
        await refuse_if_held_above(store, key, state)
        for each, found in below.items():
            await refuse_if_held_above(store, each, found)
        if not force:
            for each, found in {key: state, **below}.items():
                await _refuse_if_running(store, each, found)
        if if_match is not None and state.seq != if_match:
            raise errors.SeqMismatch(if_match, state.seq)
        for child in reversed(below):
            with contextlib.suppress(errors.SessionNotFound):
                await _delete_one(store, child, below[child], force=force, by=by, reason=reason)
        await _delete_one(store, key, state, force=force and if_match is None, by=by, reason=reason)
        return [key, *below]

    return await decide_until_recorded(remove)


async def _refuse_if_running(store: SqlStore, key: SessionKey, state: State) -> None:
    try:
        refuse_if_busy(state, key.id)
    except errors.SessionBusy:
        try:
            await store.refuse_erased(key)
        except errors.PersonErased:
            # A copy of the database from before has a run that never ends: no one can add to it.
            return
        raise


async def _delete_one(
    store: SqlStore, key: SessionKey, state: State, *, force: bool, by: str | None, reason: str | None
) -> None:
    try:
        await store.delete(key, expected=state, by=by, reason=reason)
    except errors.SeqConflict:
        if not force:
            # Its row may name another end than its log has, and always will.
            refuse_damaged(key.id, state)
            raise
        if (await _read_to_delete(store, key, force=True)).seq > state.seq:
            raise
        # Nothing can be added to such a log, and so no hold either.
        await store.delete(key, expected=None, by=by, reason=reason)


async def hold_session(
    store: SqlStore, key: SessionKey, reason: str, *, by: str | None, publish: Publish | None = None
) -> SessionView:
    """Put a session on hold: until that is lifted, nothing of it is redacted or deleted.

    Done again for the same reason, it changes nothing. Raises SessionNotFound, InvalidRequest, HistoryDamaged.
    """
    if not 0 < len(reason) <= MAX_REASON:
        raise errors.InvalidRequest(f"give a reason, of up to {MAX_REASON} characters", "/reason")
    return await _record(store, key, lambda state: people.hold(state, reason=reason, by=by), publish)


async def release_session(
    store: SqlStore, key: SessionKey, *, by: str | None, publish: Publish | None = None
) -> SessionView:
    """Lift a session's hold. Without one, nothing changes. Raises SessionNotFound, HistoryDamaged."""
    return await _record(store, key, lambda state: people.release(state, by=by), publish)


async def refuse_if_held_above(store: SqlStore, key: SessionKey, state: State) -> None:
    """Raise OnHold if a session is held, or one whose agents began it."""
    seen = {key}
    while True:
        refuse_if_held(key.id, state)
        if state.parent is None or (key := SessionKey(key.tenant, state.parent.session_id)) in seen:
            return
        seen.add(key)
        try:
            state = await store.state(key)
        except (errors.SessionNotFound, errors.HistoryDamaged):
            return


async def _read_to_delete(store: SqlStore, key: SessionKey, *, force: bool) -> State:
    try:
        return await store.state(key)
    except errors.HistoryDamaged:
        # Nothing is left of it but the row that says that it was there.
        if not force:
            raise
        return State()


async def find_descendants(store: SqlStore, key: SessionKey, state: State) -> dict[SessionKey, State]:
    """The sessions that the agents of this one began, and those that were begun in them, from the top down."""
    found: dict[SessionKey, State] = {}
    waiting = [(key, state)]
    while waiting:
        above, known = waiting.pop()
        # The log knows them all; a state forgets the calls that were given up, and those that were taken out.
        starts: list[RecordedEvent] = []
        # Of one whose object in the archive is lost nothing can be read, and it is to go all the same.
        with contextlib.suppress(errors.HistoryDamaged):
            starts = await store.read(above, types=[ToolStarted.type])
        for child in list_children(above, known, starts):
            with contextlib.suppress(errors.SessionNotFound, errors.HistoryDamaged):
                if child not in found:
                    found[child] = await store.state(child)
                    waiting.append((child, found[child]))
    return found


async def remove_stored_message(
    store: SqlStore, key: SessionKey, seq: int, tool_call_id: str | None = None, *, by: str | None = None
) -> None:
    """See `Sessions.remove_message`."""

    async def remove() -> None:
        state = await store.sound_state(key)
        drafts = people.remove_message(state, seq, tool_call_id, by)
        if drafts:
            await store.append(key, state, drafts)

    await decide_until_recorded(remove)


async def label_stored_session(store: SqlStore, key: SessionKey, metadata: Json) -> SessionView:
    """Merge into a session's metadata."""
    labels = check_object(metadata, "/metadata")
    return await _record(
        store, key, lambda state: draft_events(state.agent, update_session(state, metadata=labels), None)
    )


async def _record(
    store: SqlStore,
    key: SessionKey,
    decide: Callable[[State], Sequence[EventDraft]],
    publish: Publish | None = None,
) -> SessionView:
    async def record() -> SessionView:
        state = await store.sound_state(key)
        drafts = decide(state)
        if not drafts:
            return view_session(key.id, state)
        made = await store.append(key, state, drafts)
        if publish is not None:
            publish(key, made.events)
        return view_session(key.id, made.state)

    return await decide_until_recorded(record)


async def view_change(store: SqlStore, key: SessionKey, made: AppendResult | IdempotencyRecord) -> SessionView:
    """The session as a change left it, whether it was made now or before."""
    if isinstance(made, IdempotencyRecord):
        return view_session(key.id, await store.state(key, at=made.seq))
    for event in made.events:
        await reach(event.type, key.id)
    return view_session(key.id, made.state)


def choose_keys(tenant: str, session_id: str | None, idempotency: IdempotentRequest | None) -> tuple[SessionKey, ...]:
    """The key of a new session; and behind it the one that earlier releases gave it."""
    if session_id is not None:
        return (SessionKey(tenant, check_new_id(session_id)),)
    if idempotency is None:
        return (SessionKey(tenant, make_id("sess")),)
    derived = (idempotency.derive_session_id(tenant), idempotency.derive_older_session_id(tenant))
    return tuple(SessionKey(tenant, each) for each in derived)


async def make_session(keys: tuple[SessionKey, ...], make: Callable[[SessionKey], Awaitable[T]]) -> T:
    """Make a session under the first of its keys, unless its request has made it under another one."""
    for key in keys[:-1]:
        with contextlib.suppress(errors.IdempotencyMismatch):
            return await make(key)
    return await make(keys[-1])


async def read_stored_file(store: SqlStore, key: SessionKey, sha256: str) -> bytes:
    """The content of a file of a session. Raises BlobNotFound, and SessionNotFound."""
    found = await store.read_files(key, [sha256]) if SHA256.fullmatch(sha256) else {}
    if sha256 not in found:
        raise errors.SessionNotFound(key.id) if await store.read_head(key) is None else errors.BlobNotFound(sha256)
    return found[sha256]


class Sessions:
    """Sessions of every tenant; each call names its own."""

    def __init__(
        self, store: SqlStore, registry: Registry, worker: Worker, limits: Limits, servers: ToolServers
    ) -> None:
        self._store = store
        self._registry = registry
        self._worker = worker
        self._limits = limits
        self._servers = servers
        self._sizes = limits.sizes
        self._quota = limits.storage_quota
        self._forks = ForkQuota(limits.max_forks_per_minute)

    async def create(
        self,
        tenant: str,
        *,
        session_id: str | None = None,
        agent: str | None = None,
        context_variables: Json | None = None,
        metadata: Json | None = None,
        messages: list[Json] | None = None,
        idempotency: IdempotentRequest | None = None,
    ) -> tuple[SessionView, bool]:
        """Make a session, by default with the first agent; True if it was made by this request.

        Asked again with the same id and the same content, gives the session as it was made, and False.
        Raises SessionExists, AgentNotFound, InvalidRequest, TooLarge, IdempotencyMismatch, QuotaExceeded.
        """
        keys = choose_keys(tenant, session_id, idempotency)
        plan = await self.plan(agent=agent, context_variables=context_variables, metadata=metadata, messages=messages)
        mark = None if idempotency is None else idempotency.make_record()

        async def create(key: SessionKey) -> AppendResult:
            return await plan.record(
                self._store, key, plan.drafts, blobs=plan.files, idempotency=mark, quota=self._quota
            )

        async def make(key: SessionKey) -> tuple[SessionView, bool]:
            try:
                made = await run_once(self._store, key, idempotency, lambda: create(key))
            except errors.SeqConflict:
                return await self._view_existing(key, [draft.fact for draft in plan.drafts]), False
            return await view_change(self._store, key, made), True

        return await make_session(keys, make)

    async def plan(
        self,
        *,
        agent: str | None = None,
        context_variables: Json | None = None,
        metadata: Json | None = None,
        messages: list[Json] | None = None,
    ) -> SessionPlan:
        """Plan the session that `create` would make, for a run to begin with it. Raises AgentNotFound, InvalidRequest,
        TooLarge."""
        name = self._registry.get(agent).name if agent is not None else self._registry.default
        history = await self._check_history(messages or [])
        context, labels = await self._check_state(context_variables or {}, metadata or {})
        facts = create_session(name, context, labels, history.messages)
        return await make_plan(draft_events(name, facts, None), files=history.files)

    async def plan_fork(self, key: SessionKey, *, at: int | None = None) -> SessionPlan:
        """Plan the session that `fork` would make, for a run to begin with it, and counted then. Raises
        SessionNotFound, EventNotFound."""
        count = partial(self._forks.count, key.tenant)
        return await plan_fork(self._store, key, at=at, sizes=self._sizes, count=count)

    async def _check_history(self, messages: list[Json], *, is_whole: bool = True) -> TakenMessages:
        """The messages, if they can be a history, or a part of one. Large ones in a thread: no one else waits for
        that."""

        def check() -> TakenMessages:
            history = check_messages(messages, "/messages", self._limits.max_messages)
            taken = take_out_files(history, "/messages", self._limits.files)
            self._sizes.check_messages(taken.messages, "/messages")
            if is_whole:
                refuse_stray_results(taken.messages, "/messages")
            return taken

        return await asyncio.to_thread(check) if is_heavy(messages) else check()

    async def _check_state(self, context_variables: Json, metadata: Json) -> tuple[Json, Json]:
        def check() -> tuple[Json, Json]:
            context, labels = check_objects(context_variables, metadata)
            self._sizes.check_context(context)
            self._sizes.check_metadata(labels)
            return context, labels

        return await asyncio.to_thread(check) if is_heavy(context_variables, metadata) else check()

    async def _view_existing(self, key: SessionKey, facts: Sequence[SessionEvent]) -> SessionView:
        events = await self._store.read(key, upto=len(facts) + 1)
        made, after = events[: len(facts)], events[len(facts) :]

        def are_same() -> bool:
            # JSON's objects have no order, and not every caller writes one twice in the same.
            return [encode_sorted(event.fact) for event in made] == [encode_sorted(fact) for fact in facts]

        same = await asyncio.to_thread(are_same) if is_heavy(facts) else are_same()
        longer = bool(after) and isinstance(after[0].fact, MessageAdded) and after[0].run_id is None
        if not same or longer:
            raise errors.SessionExists(key.id)
        return view_session(key.id, await self._store.state(key, at=len(facts)))

    async def add_messages(
        self, key: SessionKey, messages: list[Json], *, idempotency: IdempotentRequest | None = None
    ) -> list[Entry]:
        """Add to the history without a run; gives the messages as they were recorded.

        Raises SessionNotFound, SessionBusy, InvalidRequest, TooLarge, IdempotencyMismatch, QuotaExceeded.
        """
        known = await self._store.sound_state(key)
        added = await self._check_history(messages, is_whole=False)

        def decide(state: State) -> Sequence[EventDraft]:
            drafts = draft_events(state.agent, add_messages(state, added.messages), None)
            check_session_quotas(state, drafts, self._limits)
            return drafts

        session_log = self._worker.open_session_log(key, known)
        mark = None if idempotency is None else idempotency.make_record()

        async def add() -> list[RecordedEvent]:
            return await session_log.commit(
                decide, added.files, mark=mark, within_quota=True, aside=is_heavy(added.messages)
            )

        changed = await run_once(self._store, key, idempotency, add)
        if isinstance(changed, IdempotencyRecord):
            return await self._read_added(key, changed.seq, len(added.messages))
        state = session_log.state
        self._worker.publish(key, changed, state)
        return list(state.messages[len(state.messages) - len(added.messages) :])

    async def _read_added(self, key: SessionKey, seq: int, count: int) -> list[Entry]:
        """So many messages, of which the last is this event, as they were then."""
        state = await self._store.state(key)
        if state.last_change > seq:
            state = await self._store.state(key, at=seq)
        end = bisect_right(state.messages, seq, key=lambda entry: entry.seq)
        return list(state.messages[end - count : end])

    async def update(
        self,
        key: SessionKey,
        *,
        agent: str | None = None,
        context_variables: Json | None = None,
        metadata: Json | None = None,
        if_match: int | None = None,
        idempotency: IdempotentRequest | None = None,
    ) -> SessionView:
        """Merge patches; writers of different keys do not disturb each other.

        Raises SeqMismatch for `if_match`, TooLarge and QuotaExceeded.
        """
        if agent is not None:
            agent = self._registry.get(agent).name
        check = partial(check_objects, context_variables or {}, metadata or {})
        aside = is_heavy(context_variables, metadata)
        context, labels = await asyncio.to_thread(check) if aside else check()

        def decide(state: State) -> Sequence[EventDraft]:
            if if_match is not None and state.seq != if_match:
                raise errors.SeqMismatch(if_match, state.seq)
            facts = update_session(state, agent=agent, context_variables=context, metadata=labels)
            run_id = state.run.id if state.run is not None else None
            drafts = draft_events(state.agent, facts, run_id)
            check_session_quotas(state, drafts, self._limits)
            self._sizes.check_change(state, apply_drafts(state, drafts))
            return drafts

        session_log = self._worker.open_session_log(key, await self._store.sound_state(key))
        mark = None if idempotency is None else idempotency.make_record()

        async def change() -> list[RecordedEvent]:
            return await session_log.commit(decide, mark=mark, within_quota=True, aside=aside)

        changed = await run_once(self._store, key, idempotency, change)
        if isinstance(changed, IdempotencyRecord):
            return await view_change(self._store, key, changed)
        state = session_log.state
        # What waits in the queue may have begun with it, and then it is this process's to advance.
        self._worker.continue_session(session_log, changed)
        return view_session(key.id, state)

    async def remove_message(
        self,
        key: SessionKey,
        seq: int,
        tool_call_id: str | None = None,
        *,
        content_only: bool = False,
        by: str | None = None,
    ) -> None:
        """Take a message, or one call of it with its result, out of what models are sent and lists show; with
        `content_only` what it says, and not its calls.

        The log keeps it. Done again, it changes nothing. Raises SessionNotFound, EventNotFound, and SessionBusy for
        what belongs to the active run.
        """
        session_log = self._worker.open_session_log(key, await self._store.sound_state(key))
        changed = await session_log.commit(
            lambda state: people.remove_message(state, seq, tool_call_id, by, content_only=content_only)
        )
        self._worker.continue_session(session_log, changed)

    async def fork(
        self,
        key: SessionKey,
        *,
        at: int | None = None,
        session_id: str | None = None,
        metadata: Json | None = None,
        agent: str | None = None,
        idempotency: IdempotentRequest | None = None,
    ) -> SessionView:
        """See `fork_session`. Raises AgentNotFound, TooLarge and QuotaExceeded, too."""
        if agent is not None:
            agent = self._registry.get(agent).name
        return await fork_session(
            self._store,
            key,
            at=at,
            session_id=session_id,
            metadata=metadata,
            agent=agent,
            idempotency=idempotency,
            sizes=self._sizes,
            quota=self._quota,
            count=partial(self._forks.count, key.tenant),
        )

    async def delete(
        self,
        key: SessionKey,
        *,
        force: bool = False,
        if_match: int | None = None,
        by: str | None = None,
        reason: str | None = None,
    ) -> None:
        """See `delete_session`."""
        gone = await delete_session(self._store, key, force=force, if_match=if_match, by=by, reason=reason)
        for each in gone:
            self._worker.abandon(each)
            self._servers.close_session(each)


def check_objects(context_variables: Json, metadata: Json) -> tuple[Json, Json]:
    return check_object(context_variables, "/context_variables"), check_object(metadata, "/metadata")


# People who speak in the agent's place: take over, answer, hand back.


class Takeovers:
    """Sessions in which people answer. Each command is recorded before it returns, on any server that receives it."""

    def __init__(
        self, store: SqlStore, registry: Registry, runs: Runs, children: ChildSessions, limits: Limits
    ) -> None:
        self._store = store
        self._registry = registry
        self._runs = runs
        self._children = children
        self._limits = limits

    async def take_over(
        self,
        key: SessionKey,
        *,
        by: str | None,
        note: str | None = None,
        force: bool = False,
        owner: str | None = None,
        idempotency: IdempotentRequest | None = None,
    ) -> SessionView:
        """Answer in the agent's place from here on; what its model is just saying is dropped. `owner`: the name that
        looks after the session from here on.

        Raises SessionNotFound, TakenOverByOther, QuotaExceeded, IdempotencyMismatch.
        """
        decide = partial(people.take_over, by=by, note=note, force=force, owner=owner)
        seq = await self._commit(key, decide, idempotency)
        return view_session(key.id, await self._store.state(key, at=seq))

    async def answer(
        self, key: SessionKey, content: str, *, by: str | None, idempotency: IdempotentRequest | None = None
    ) -> Entry:
        """Say something in the agent's place; gives it as it was recorded. A run that waits is completed by it.

        Raises SessionNotFound, NotTakenOver, TakenOverByOther, SessionBusy, TooLarge, QuotaExceeded,
        IdempotencyMismatch.
        """
        self._limits.sizes.check_content(content, "/content")
        asked: list[SessionKey] = []

        def decide(state: State) -> Sequence[EventDraft]:
            asked[:] = [] if state.run is None else list_open_children(key, state, state.run)
            return people.answer(state, content, by=by)

        seq = await self._commit(key, decide, idempotency)
        await self._children.cancel_sessions(asked)
        state = await self._store.state(key, at=seq)
        return next(entry for entry in reversed(state.messages) if entry.person is not None)

    async def hand_back(
        self,
        key: SessionKey,
        *,
        by: str | None,
        note: str | None = None,
        force: bool = False,
        idempotency: IdempotentRequest | None = None,
    ) -> SessionView:
        """Have the agent answer again. A run that waits goes on here.

        Raises SessionNotFound, NotTakenOver, TakenOverByOther, AgentUnavailable, Draining, QuotaExceeded,
        IdempotencyMismatch.
        """
        await self._runs.check_capacity(key)

        def decide(state: State) -> Sequence[EventDraft]:
            if state.run is not None:
                self._registry.get_active(state.agent)
            return people.hand_back(state, by=by, note=note, force=force)

        seq = await self._commit(key, decide, idempotency)
        return view_session(key.id, await self._store.state(key, at=seq))

    async def assign(
        self,
        key: SessionKey,
        to: str | None,
        *,
        by: str | None,
        reason: str | None = None,
        idempotency: IdempotentRequest | None = None,
    ) -> SessionView:
        """Have a person or queue look after the session, or with None no one in particular.

        Raises SessionNotFound, InvalidRequest, QuotaExceeded, IdempotencyMismatch.
        """
        seq = await self._commit(key, lambda state: people.assign(state, to=to, by=by, reason=reason), idempotency)
        return view_session(key.id, await self._store.state(key, at=seq))

    async def add_note(
        self, key: SessionKey, text: str, *, by: str | None, idempotency: IdempotentRequest | None = None
    ) -> RecordedEvent:
        """Note something for colleagues; gives the event.

        Raises SessionNotFound, InvalidRequest, QuotaExceeded, IdempotencyMismatch.
        """
        return await self._commit_event(key, lambda state: people.add_note(state, text, by=by), idempotency)

    async def add_feedback(
        self,
        key: SessionKey,
        value: Verdict,
        *,
        seq: int | None = None,
        run_id: str | None = None,
        comment: str | None = None,
        by: str | None,
        idempotency: IdempotentRequest | None = None,
    ) -> RecordedEvent:
        """Say what a person thinks of an answer, by its seq or by its run; gives the event.

        Raises SessionNotFound, RunNotFound, EventNotFound, InvalidRequest, QuotaExceeded, IdempotencyMismatch.
        """
        decide = partial(people.add_feedback, seq=seq, run_id=run_id, value=value, comment=comment, by=by)
        return await self._commit_event(key, decide, idempotency)

    async def _commit_event(
        self, key: SessionKey, decide: Decide, idempotency: IdempotentRequest | None
    ) -> RecordedEvent:
        """Record what is decided, which is something, once; gives its last event."""
        seq = await self._commit(key, decide, idempotency)
        assert seq is not None
        [event] = await self._store.read(key, after=seq - 1, upto=seq)
        return event

    async def _commit(self, key: SessionKey, decide: Decide, idempotency: IdempotentRequest | None) -> int | None:
        """Record what is decided, once; gives the seq after it, None if there was nothing to record."""

        def decide_within_limits(state: State) -> Sequence[EventDraft] | None:
            drafts = decide(state)
            if drafts:
                check_session_quotas(state, drafts, self._limits)
            return drafts

        mark = None if idempotency is None else idempotency.make_record()
        done = await run_once(
            self._store,
            key,
            idempotency,
            lambda: self._runs.commit_change(key, decide_within_limits, mark, within_quota=True),
        )
        if isinstance(done, IdempotencyRecord):
            return done.seq
        return done[-1].seq if done else None
