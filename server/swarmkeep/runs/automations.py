"""Automations begin runs at set times: once, or by a cron expression in a time zone.

What is due becomes an invocation, in the transaction that says when the automation is due next: so each time becomes
one, on whichever server. The run of an invocation has an id that follows from it, and is recorded with its idempotency
key: so it is begun once, however often a process dies on the way.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import math
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Literal
from zoneinfo import ZoneInfo

import msgspec
from cronsim import CronSim, CronSimError
from msgspec import UNSET
from msgspec.structs import replace

from swarmkeep.decide.commands import StartRun
from swarmkeep.events import errors
from swarmkeep.events.codec import Json, decode, encode_text
from swarmkeep.events.records import RunOptions
from swarmkeep.events.state import State
from swarmkeep.runs.identifiers import INVOCATION_READY, RUN_BEGUN, derive_id, reach
from swarmkeep.runs.limits import Limits
from swarmkeep.runs.loop import UNAVAILABLE
from swarmkeep.runs.reader import SessionReader
from swarmkeep.runs.runs import IdempotentRequest, Runs, find_record
from swarmkeep.runs.sessions import Sessions
from swarmkeep.runs.watcher import Background
from swarmkeep.store.automations import Due, StoredAutomation, StoredInvocation
from swarmkeep.store.keys import SqlApiKeys
from swarmkeep.store.opening import SqlStore
from swarmkeep.store.records import SessionKey, StoreUnavailable

log = logging.getLogger(__name__)

# When a schedule is due.

_MAX_EXPRESSION_CHARACTERS = 200
_MAX_ZONE_CHARACTERS = 64
MAX_SECONDS = 2**33
"""The last time that may be named, in the year 2242."""


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    """When an automation is due: at `run_at`, in seconds, or by a cron expression."""

    run_at: int | None = None
    expression: str = ""
    timezone: str = ""

    def find_next(self, after: datetime) -> int | None:
        """The first second after that time at which it is due; None if there is none.

        Raises InvalidRequest for an expression or a zone that is none.
        """
        if self.run_at is not None:
            return self.run_at
        try:
            found = next(CronSim(self.expression, after.astimezone(self._find_zone())), None)
        except (CronSimError, ValueError, AssertionError, OverflowError) as error:
            wrong = str(error).removeprefix("Bad ") if isinstance(error, CronSimError) else "a field"
            raise errors.InvalidRequest(
                f"{wrong}: no such value, or none that ever comes; `0 9 * * MON-FRI` is 9:00 from Monday to Friday",
                "/expression",
            ) from None
        return None if found is None else int(found.timestamp())

    def check(self, now: datetime) -> int:
        """The time at which it is due first. Raises InvalidRequest."""
        if self.run_at is not None:
            if not now.timestamp() < self.run_at <= MAX_SECONDS:
                raise errors.InvalidRequest("name a time to come, in seconds since 1970", "/run_at")
            return self.run_at
        if len(self.expression) > _MAX_EXPRESSION_CHARACTERS or len(self.expression.split()) != 5:
            raise errors.InvalidRequest(
                f"write the five fields of cron, in at most {_MAX_EXPRESSION_CHARACTERS} characters", "/expression"
            )
        due_at = self.find_next(now)
        if due_at is None:
            raise errors.InvalidRequest("the expression names no day that there is", "/expression")
        return due_at

    def _find_zone(self) -> ZoneInfo:
        try:
            if len(self.timezone) <= _MAX_ZONE_CHARACTERS:
                return ZoneInfo(self.timezone)
        except (KeyError, ValueError, OSError):
            pass
        raise errors.InvalidRequest("name a time zone of the IANA database, such as `Europe/Berlin`", "/timezone")


# What an automation does, and what has become of it.


PauseReason = Literal["target_session_failed"]


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """Where the messages go: to the session `session_id`, or to a new one of `agent` each time. `options` are those of
    the runs of new ones. `shown` is what its caller asked for, in that caller's words."""

    messages: tuple[Json, ...]
    session_id: str | None = None
    agent: str | None = None
    options: RunOptions = RunOptions()
    metadata: Json = {}
    shown: Json = {}


class Maker(msgspec.Struct, frozen=True):
    """The caller who is answerable for runs: the label and the id of the API key; None while the server was open."""

    by: str | None
    key_id: str | None


class AskedOnce(msgspec.Struct, frozen=True):
    """A caller's request for an invocation, and the number of that."""

    request: IdempotentRequest
    number: int


class Automation(msgspec.Struct, frozen=True, kw_only=True):
    """`asked`: the last requests for invocations that came with an idempotency key."""

    id: str
    name: str
    schedule: Schedule
    target: Target
    metadata: dict[str, str]
    created_at: int
    maker: Maker
    request: IdempotentRequest | None = None
    asked: tuple[AskedOnce, ...] = ()
    status: Literal["active", "paused", "completed"] = "active"
    pause_reason: PauseReason | None = None


class Failure(msgspec.Struct, frozen=True):
    code: str
    message: str


class Invocation(msgspec.Struct, frozen=True, kw_only=True):
    """One time of an automation, as that was then. Without `scheduled_at` a caller asked for it."""

    automation: Automation
    created_at: int
    maker: Maker
    number: int = 0
    scheduled_at: int | None = None
    status: Literal["queued", "completed", "failed", "skipped"] = "queued"
    session_id: str | None = None
    error: Failure | None = None
    skip_reason: Literal["pending_delivery"] | None = None


def read_automation(stored: StoredAutomation) -> Automation:
    return decode(stored.data, Automation)


def read_invocation(stored: StoredInvocation) -> Invocation:
    return replace(decode(stored.data, Invocation), number=stored.number)


def find_number(automation: Automation, request: IdempotentRequest) -> int:
    """The number of the invocation that this request made; 0 if none. Raises IdempotencyMismatch."""
    found = next((asked for asked in automation.asked if asked.request.key == request.key), None)
    if found is not None and found.request != request:
        raise errors.IdempotencyMismatch(request.key)
    return 0 if found is None else found.number


# The agent of a session, as its callers asked for it to be.

# Of runs by other doors, so many are looked over for the last one that says what the session's agent is to be like.
_LOOK_BACK = 100
CONFIG = "agent"
"""The name under which a run keeps what its session's agent is to be like, for the runs after it."""


def find_config(state: State) -> RunOptions:
    """The options of the last run here that says what the session's agent is to be like."""
    runs = [queued.fact.options for queued in reversed(state.queue)]
    runs += [] if state.run is None else [state.run.options]
    last = len(state.finished)
    runs += [state.finished[at].options for at in range(last - 1, max(-1, last - 1 - _LOOK_BACK), -1)]
    found = (options for options in runs if options.request is not UNSET and CONFIG in options.request)
    return next(found, RunOptions())


def continue_options(state: State) -> RunOptions:
    """The options of a session's next run: as its agent was asked to be when the session was made."""
    said = find_config(state)
    return RunOptions(
        stream=True,
        tools=said.tools,
        model_settings=said.model_settings,
        instructions=said.instructions,
        response_format=said.response_format,
        request=said.request,
    )


# The server's task that begins what is due.

_POLL_SECONDS = 1.0
# Of one look, so that the automations of all tenants have their turn.
_AT_ONCE = 100
# What cannot be read or begun now is tried again so much later.
_RETRY_SECONDS = 10
# For how long servers that do not have the agent leave an invocation to others.
_UNSERVED_SECONDS = 60
_MOST_ASKED = 50
_PASSING = (*UNAVAILABLE, errors.Draining, errors.QuotaExceeded)
_MAKER_GONE = Failure("unauthenticated", "the API key that it was made with does not count any more: make it anew")
# What the next times would fail for, too.
_PAUSING: dict[str, PauseReason | None] = {
    _MAKER_GONE.code: None,
    errors.SessionNotFound.code: "target_session_failed",
    errors.HistoryDamaged.code: "target_session_failed",
    errors.PersonErased.code: "target_session_failed",
}


class Automations(Background):
    """Makes invocations of what is due, and begins their runs, until it is stopped."""

    def __init__(
        self,
        store: SqlStore,
        reader: SessionReader,
        sessions: Sessions,
        runs: Runs,
        limits: Limits,
        *,
        clock: Callable[[], Awaitable[datetime]] | None = None,
    ) -> None:
        self._store = store
        # For so long an invocation belongs to the process that begins its run; then another one tries.
        self._hold_seconds = math.ceil(limits.lease_seconds)
        self.read_now = clock or store.read_clock
        """The time that automations go by: the database's."""
        self._reader = reader
        self._sessions = sessions
        self._runs = runs
        self._keys = SqlApiKeys(store.database)
        self._asked = asyncio.Event()

    async def make(self, tenant: str, automation: Automation) -> tuple[Automation, bool]:
        """Record an automation; the second is false if there was one of its id.

        Raises InvalidRequest, QuotaExceeded, SessionNotFound, PersonErased.
        """
        due_at = await asyncio.to_thread(automation.schedule.check, await self.read_now())
        key, told = await self._find_key(tenant, automation.target), automation.target.session_id
        wanted = StoredAutomation(tenant, automation.id, encode_text(automation), 0, due_at, told, key)
        found = await self._store.add_automation(wanted)
        return read_automation(found), found is wanted

    async def _find_key(self, tenant: str, target: Target) -> str | None:
        """The key of the person to whom the session belongs that an automation tells something, or begins."""
        if target.session_id is not None:
            return await self._store.find_person_key(SessionKey(tenant, target.session_id))
        return await self._store.take_key_of(tenant, target.metadata)

    async def change(
        self, tenant: str, automation_id: str, change: Callable[[Automation], Automation]
    ) -> Automation | None:
        """Change an automation; None without one. Where its schedule or status changes, the next time is set again.

        Raises InvalidRequest, SessionNotFound, PersonErased, and what `change` raises.
        """
        now = await self.read_now()
        known = await self._store.find_automation(tenant, automation_id)
        if known is None:
            return None
        # An expression may take its time: it is not worked out while others wait for the database.
        wanted = change(read_automation(known))
        schedule, target = wanted.schedule, wanted.target
        is_new = schedule != read_automation(known).schedule
        due_at = await asyncio.to_thread(schedule.check if is_new else schedule.find_next, now)
        key = await self._find_key(tenant, target)

        def apply(stored: StoredAutomation) -> StoredAutomation:
            before = read_automation(stored)
            after = change(before)
            if (after.schedule, after.target) != (schedule, target):
                raise errors.InvalidRequest("the automation was changed by another caller meanwhile; try again")
            kept = stored.due_at if after.schedule == before.schedule and after.status == before.status else due_at
            next_at = kept if after.status == "active" else None
            return replace(
                stored, data=encode_text(after), due_at=next_at, session_id=target.session_id, person_key=key
            )

        changed = await self._store.change_automation(tenant, automation_id, apply)
        return None if changed is None else read_automation(changed)

    async def invoke(
        self, tenant: str, automation_id: str, maker: Maker, request: IdempotentRequest | None
    ) -> Invocation | None:
        """Have an automation begin a run now, outside of its schedule. None if there is none.

        Raises IdempotencyMismatch.
        """
        now = int((await self.read_now()).timestamp())
        known: list[int] = []

        def make(stored: StoredAutomation, is_pending: bool) -> tuple[StoredAutomation, str, int] | None:
            automation, number = read_automation(stored), stored.count + 1
            known[:] = [find_number(automation, request)] if request is not None else []
            if any(known):
                return None
            made = Invocation(automation=replace(automation, asked=()), created_at=now, maker=maker)
            if request is not None:
                asked = (*automation.asked, AskedOnce(request, number))[-_MOST_ASKED:]
                stored = replace(stored, data=encode_text(replace(automation, asked=asked)))
            return stored, encode_text(made), now

        stored = await self._store.invoke_automation(tenant, automation_id, make)
        self._asked.set()
        if stored is None:
            every = await self._store.list_invocations(tenant, automation_id)
            stored = next((each for each in every if each.number in known), None)
        return None if stored is None else read_invocation(stored)

    async def _run(self) -> None:
        has_failed = False
        while True:
            try:
                await self.look()
                has_failed = False
            except Exception:
                if not has_failed:
                    log.exception("automations could not be looked after; trying again")
                has_failed = True
            try:
                async with asyncio.timeout(_POLL_SECONDS):
                    await self._asked.wait()
            except TimeoutError:
                pass
            self._asked.clear()

    async def look(self) -> None:
        """Make invocations of what is due, and begin their runs."""
        now = await self.read_now()
        seconds = int(now.timestamp())
        due = await self._store.list_due_automations(seconds, _AT_ONCE)
        for automation in due:
            await self._make_invocation(automation, now)
        waiting = await self._store.list_due_invocations(seconds, _AT_ONCE)
        if _AT_ONCE in (len(due), len(waiting)):
            self._asked.set()
        for invocation in waiting:
            held = replace(invocation, due_at=seconds + self._hold_seconds)
            if await self._store.postpone(invocation, held.due_at):
                await self._begin(held, seconds)

    async def _make_invocation(self, due: Due, now: datetime) -> None:
        """Make an invocation of the time at which an automation is due. Of times that passed while no server looked,
        the first becomes one."""
        found = await self._read_due(due, int(now.timestamp()))
        if found is None:
            return
        schedule = read_automation(found).schedule
        following = None if schedule.run_at is not None else await asyncio.to_thread(schedule.find_next, now)
        key = await self._find_key(due.tenant, read_automation(found).target)

        def make(stored: StoredAutomation, is_pending: bool) -> tuple[StoredAutomation, str, int | None] | None:
            if (stored.due_at, stored.data) != (due.due_at, found.data):
                return None
            known = read_automation(stored)
            seconds = int(now.timestamp())
            made = Invocation(
                automation=replace(known, asked=()), created_at=seconds, maker=known.maker, scheduled_at=due.due_at
            )
            if is_pending:
                made = replace(made, status="skipped", skip_reason="pending_delivery")
            if following is None:
                known = replace(known, status="completed")
            # One from before there were keys gets one.
            after = replace(stored, data=encode_text(known), due_at=following, person_key=key)
            return after, encode_text(made), None if is_pending else seconds

        if await self._store.invoke_automation(due.tenant, due.automation_id, make) is not None:
            await reach(INVOCATION_READY)

    async def _read_due(self, due: Due, now: int) -> StoredAutomation | None:
        """None for one that cannot be read now, which is tried again: the others do not wait for its key."""
        try:
            found = await self._store.find_automation(due.tenant, due.automation_id)
        except StoreUnavailable as error:
            log.info("automation %s: it cannot be read yet: %s", due.automation_id, error)
            found = None
        if found is None:
            await self._store.postpone(due, now + _RETRY_SECONDS)
        return found

    async def _begin(self, held: Due, now: int) -> None:
        """Begin the run of an invocation that this process holds; or say why there is none."""
        stored = done = None
        try:
            stored = await self._store.find_due_invocation(held)
            done = None if stored is None else await self._try(stored, now)
        except _PASSING as error:
            log.info("automation %s: its run could not be begun yet: %s", held.automation_id, error)
        except Exception:
            log.exception("automation %s: its run could not be begun; trying again", held.automation_id)
            return
        if stored is None or done is None:
            await self._store.postpone(held, now + _RETRY_SECONDS)
            return
        if done.error is not None:
            log.warning("automation %s: its run could not be begun: %s", held.automation_id, done.error.message)
            if done.error.code in _PAUSING and done.scheduled_at is not None:
                await self._pause(held, _PAUSING[done.error.code])
        await self._store.finish_invocation(replace(stored, data=encode_text(done)))

    async def _try(self, stored: StoredInvocation, now: int) -> Invocation | None:
        """The invocation, over; None if it is left to others. Raises what may be otherwise the next time."""
        invocation = read_invocation(stored)
        if not await self._is_answerable(invocation.maker):
            return replace(invocation, status="failed", error=_MAKER_GONE)
        try:
            session_id = await self.begin_run(stored)
        except _PASSING:
            raise
        except errors.DomainError as error:
            is_unserved = isinstance(error, errors.AgentNotFound | errors.AgentUnavailable)
            if is_unserved and now < invocation.created_at + _UNSERVED_SECONDS:
                return None
            return replace(invocation, status="failed", error=Failure(error.code, str(error)))
        await reach(RUN_BEGUN)
        return replace(invocation, status="completed", session_id=session_id)

    async def _is_answerable(self, maker: Maker) -> bool:
        """Tell if the API key still counts; without one, if none is needed."""
        if maker.key_id is None:
            return not await self._keys.has_keys()
        found = await self._keys.find(maker.key_id)
        return found is not None and found.key.is_valid(datetime.now(UTC))

    async def begin_run(self, stored: StoredInvocation) -> str:
        """Record the run of an invocation, unless that was done before, and return its session.

        Raises PersonErased also where its person was erased since it was read, and what `Runs.start` raises.
        """
        tenant, invocation = stored.tenant, read_invocation(stored)
        target, automation_id = invocation.automation.target, invocation.automation.id
        name = f"{tenant}\n{automation_id}\n{invocation.number}"
        key = SessionKey(tenant, target.session_id or derive_id("sess", name))
        once = IdempotentRequest(f"{automation_id} {invocation.number}", hashlib.sha256(name.encode()).hexdigest())
        if await find_record(self._store, key, once) is not None:
            return key.id
        plan, options = None, target.options
        if target.session_id is None:
            plan = await self._sessions.plan(agent=target.agent, metadata=target.metadata)
            # Not by another key, which the person has once this one is erased.
            plan = replace(plan, base=replace(plan.base, person_key=stored.person_key))
        else:
            options = continue_options(await self._reader.sound_state(key))
        command = StartRun(
            run_id=derive_id("run", name),
            messages=target.messages,
            options=options,
            idempotency_key=once.key,
            on_busy="queue",
            by=UNSET if invocation.maker.by is None else invocation.maker.by,
        )
        await self._runs.start(key, command, idempotency=once, plan=plan)
        return key.id

    async def _pause(self, held: Due, reason: PauseReason | None) -> None:
        def pause(stored: StoredAutomation) -> StoredAutomation:
            known = read_automation(stored)
            if known.status != "active":
                return stored
            return replace(stored, data=encode_text(replace(known, status="paused", pause_reason=reason)), due_at=None)

        await self._store.change_automation(held.tenant, held.automation_id, pause)
