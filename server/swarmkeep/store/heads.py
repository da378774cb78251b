"""Head rows: what an append does to them; and their leases, which are renewed, and found when no server holds them."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from datetime import UTC, datetime
from typing import Any, Literal

import msgspec
from sqlalchemy import (
    ColumnElement,
    Connection,
    Subquery,
    Update,
    and_,
    bindparam,
    case,
    column,
    func,
    literal_column,
    null,
    or_,
    select,
    text,
    tuple_,
    update,
)

from swarmkeep.events.codec import encode_text
from swarmkeep.events.errors import HistoryDamaged, LeaseLost, SeqConflict
from swarmkeep.events.facts import MessageRemoved, SessionEvent, SessionRedacted
from swarmkeep.events.fold import fold
from swarmkeep.events.state import State
from swarmkeep.events.views import find_last_run_status, view_stored_session
from swarmkeep.store.hashing import SealedEvent, last_hash
from swarmkeep.store.integrity import NO_KEYS, IntegrityKeys
from swarmkeep.store.person_keys import PARTIAL, encrypt_text, read_text
from swarmkeep.store.records import AppendResult, Claim, IdempotencyRecord, Lease, SessionHead, SessionKey, StorageQuota
from swarmkeep.store.statements import Database, OnDatabase, PreparedStatement, build_insert_if_absent
from swarmkeep.store.tables import (
    IS_DUE,
    IS_PLAIN,
    IS_RUNNING,
    IS_SOUND,
    as_bytes,
    as_text,
    database_now,
    escape,
    of_bound_session,
    of_session,
    session_columns,
    sessions,
    unescape,
)

Row = dict[str, Any]
LeaseMode = Literal["none", "renew", "claim", "take_over"]


class AppendPlan(msgspec.Struct, frozen=True, kw_only=True):
    """An append, worked out before any transaction begins: `state` is what `sealed` makes of `base`.

    `view` is the state as lists show it, in JSON.
    """

    key: SessionKey
    base: State
    state: State
    sealed: Sequence[SealedEvent]
    view: str
    lease: Lease | Claim | None
    lease_seconds: float
    blobs: Mapping[str, str | bytes]
    idempotency: IdempotencyRecord | None
    quota: StorageQuota | None
    kinds: Set[type[SessionEvent]]
    """The kinds of facts that are recorded."""
    is_running: bool
    stamp: bytes | None = None

    @property
    def lease_mode(self) -> LeaseMode:
        if self.lease is None:
            return "none"
        if isinstance(self.lease, Lease):
            return "renew"
        # The lease that there is was for a run which is over with this append.
        return "claim" if _active_run_id(self.base) == _active_run_id(self.state) else "take_over"

    @property
    def changes_index(self) -> bool:
        """Tell if the session is to be indexed: at the end of a turn, and at once when a message is taken out."""
        return not self.is_running or MessageRemoved in self.kinds

    def make_lease(self, epoch: int) -> Lease | None:
        """Return the lease that is granted with the epoch that the head row has after it."""
        return Lease(self.lease.owner, epoch) if self.lease is not None and self.is_running else None

    def make_result(self, lease: Lease | None) -> AppendResult:
        return AppendResult([one.event for one in self.sealed], self.state, lease)


def plan_append(
    key: SessionKey,
    base: State,
    sealed: Sequence[SealedEvent],
    *,
    lease: Lease | Claim | None = None,
    lease_seconds: float = 15.0,
    blobs: Mapping[str, str | bytes] | None = None,
    idempotency: IdempotencyRecord | None = None,
    quota: StorageQuota | None = None,
    keys: IntegrityKeys = NO_KEYS,
) -> AppendPlan:
    state = fold([one.event for one in sealed], base)
    return AppendPlan(
        key=key,
        base=base,
        state=state,
        sealed=sealed,
        view=encode_text(view_stored_session(key.id, state)),
        lease=lease,
        lease_seconds=lease_seconds,
        blobs=blobs or {},
        idempotency=idempotency,
        quota=quota,
        kinds={type(one.event.fact) for one in sealed},
        is_running=state.status == "running",
        stamp=keys.sign(key, state.seq, last_hash(state)) if keys else None,
    )


def _active_run_id(state: State) -> str | None:
    return None if state.run is None else state.run.id


def is_head(state: State) -> Any:
    """The condition that a session still ends with the event that `state` does."""
    return (sessions.c.head_seq == state.seq) & (sessions.c.head_hash == bytes.fromhex(state.hash))


def _make_head_row(plan: AppendPlan) -> Row:
    state = plan.state
    return {
        "new_seq": state.seq,
        "new_hash": bytes.fromhex(state.hash),
        "new_agent": state.agent,
        "new_status": state.status,
        "new_updated_at": state.updated_at,
        "new_view": plan.view,
        "new_due_at": state.due_at,
        "new_last_run": find_last_run_status(state),
        "new_assignee": state.assignee,
        "new_feedback": state.feedback.verdict,
        "new_stamp": plan.stamp,
        "tenant_": plan.key.tenant,
        "id_": plan.key.id,
    }


def insert_head(connection: Connection, plan: AppendPlan) -> Lease | None:
    """Begin a session with the plan's state."""
    if isinstance(plan.lease, Lease):
        raise LeaseLost(plan.key.id)
    row = _make_head_row(plan)
    claim = plan.lease if plan.is_running else None
    if claim is not None:
        row |= {"owner": claim.owner, "seconds": claim.lease_seconds}
    row |= {"new_created_at": plan.state.created_at, "new_person_key": plan.state.person_key}
    if _prepare_head_insert(connection.dialect.name, claim is not None).execute(connection, row) == 0:
        raise SeqConflict(plan.key.id, 0)
    return None if claim is None else Lease(claim.owner, 1)


def advance_head(connection: Connection, plan: AppendPlan) -> Lease | None:
    """Move a session from the plan's base to its state, if it still is there and the lease allows."""
    # An index is written to wherever a column of it is set, even to what it was.
    state, base = plan.state, plan.base
    hands_over = state.agent != base.agent
    relists = (
        state.assignee != base.assignee
        or (state.feedback is not base.feedback and state.feedback.verdict != base.feedback.verdict)
        # The base of a redaction is what it leaves of the log already.
        or SessionRedacted in plan.kinds
    )
    encrypted = state.person_key is not None
    statement = _prepare_head_update(plan.lease_mode, plan.is_running, hands_over, relists, encrypted)
    advanced = statement.fetch_all(connection, make_advance_row(plan))
    if not advanced:
        raise _find_refusal(connection, plan)
    [[epoch]] = advanced
    return plan.make_lease(epoch)


def make_advance_row(plan: AppendPlan) -> Row:
    """The parameters of `build_head_update`."""
    row = _make_head_row(plan) | {"base_seq": plan.base.seq, "base_hash": bytes.fromhex(plan.base.hash)}
    if plan.state.person_key is not None:
        row["person_key"] = plan.state.person_key
    if isinstance(plan.lease, Lease):
        row |= {"owner": plan.lease.owner, "epoch": plan.lease.epoch, "seconds": plan.lease_seconds}
    elif plan.lease is not None:
        row |= {"owner": plan.lease.owner, "seconds": plan.lease.lease_seconds}
    return row


def _find_refusal(connection: Connection, plan: AppendPlan) -> SeqConflict | LeaseLost | HistoryDamaged:
    here = select(sessions.c.damaged_seq).where(*of_session(sessions, plan.key), is_head(plan.base))
    found = connection.execute(here).all()
    if not found:
        return SeqConflict(plan.key.id, plan.base.seq)
    [[damaged_seq]] = found
    return LeaseLost(plan.key.id) if damaged_seq is None else HistoryDamaged(plan.key.id, damaged_seq)


_HEAD_PARAMETERS = {
    "head_seq": "new_seq",
    "head_hash": "new_hash",
    "agent": "new_agent",
    "status": "new_status",
    "updated_at": "new_updated_at",
    "view": "new_view",
    "due_at": "new_due_at",
    "last_run": "new_last_run",
    "assignee": "new_assignee",
    "feedback": "new_feedback",
    # A server without a key removes the stamp: it is of another head.
    "stamp": "new_stamp",
}


def _bind_columns(names: Mapping[str, str]) -> dict[str, Any]:
    return {column: bindparam(name, type_=sessions.c[column].type) for column, name in names.items()}


def _build_expiry() -> Any:
    return database_now() + bindparam("seconds", type_=sessions.c.lease_expires_at.type)


@functools.cache
def _prepare_head_insert(dialect: str, claimed: bool) -> PreparedStatement:
    values = _bind_columns(
        {
            **_HEAD_PARAMETERS,
            "active_at": "new_updated_at",
            "created_at": "new_created_at",
            "person_key": "new_person_key",
            "tenant": "tenant_",
            "id": "id_",
        }
    )
    owner = bindparam("owner", type_=sessions.c.lease_owner.type) if claimed else null()
    lease = {"lease_owner": owner, "lease_epoch": 1 if claimed else 0, "lease_expires_at": null()}
    if claimed:
        lease["lease_expires_at"] = _build_expiry()
    return PreparedStatement(build_insert_if_absent(sessions, dialect).values(**values, **lease))


@functools.cache
def _prepare_head_update(
    mode: LeaseMode, running: bool, hands_over: bool, relists: bool, encrypted: bool
) -> PreparedStatement:
    statement = build_head_update(mode, running, hands_over, relists, encrypted)
    return PreparedStatement(statement.returning(sessions.c.lease_epoch))


def build_head_update(
    mode: LeaseMode, running: bool, hands_over: bool = True, relists: bool = True, encrypted: bool = False
) -> Update:
    """The update that moves a session on: no row if it is not at the base any more, or the lease is another's.

    Unless it `hands_over` its agent stays, and unless it `relists` who looks after it, and its feedback. What is not
    `encrypted` moves on no session that is.
    """
    columns = sessions.c
    statement = update(sessions).where(
        columns.tenant == bindparam("tenant_"),
        columns.id == bindparam("id_"),
        columns.head_seq == bindparam("base_seq"),
        columns.head_hash == bindparam("base_hash"),
        IS_SOUND,
        columns.person_key == bindparam("person_key", type_=columns.person_key.type) if encrypted else IS_PLAIN,
    )
    owner = bindparam("owner", type_=columns.lease_owner.type)
    if mode == "renew":
        statement = statement.where(columns.lease_owner == owner, columns.lease_epoch == bindparam("epoch"))
    elif mode == "claim":
        # The owner itself may claim again: the next epoch then ends all that it had going under the one before.
        free = or_(
            columns.lease_owner.is_(None), columns.lease_owner == owner, columns.lease_expires_at <= database_now()
        )
        statement = statement.where(free)
    values = _bind_columns(_HEAD_PARAMETERS)
    if not hands_over:
        del values["agent"]
    if not relists:
        del values["assignee"], values["feedback"]
    if running:
        # Within a run it stays: its index is not changed with every append.
        goes_on = columns.status == literal_column("'running'")
        values["active_at"] = case((goes_on, columns.active_at), else_=values["updated_at"])
    else:
        values["active_at"] = values["updated_at"]
    if not running or mode in ("claim", "take_over"):
        # What was asked of the lease's former holder, or answered by it.
        values["partial"] = null()
    if not running:
        values |= {"lease_owner": null(), "lease_expires_at": null(), "lease_epoch": columns.lease_epoch + 1}
    elif mode == "renew":
        values |= {"lease_expires_at": _build_expiry()}
    elif mode in ("claim", "take_over"):
        values |= {"lease_owner": owner, "lease_expires_at": _build_expiry(), "lease_epoch": columns.lease_epoch + 1}
    return statement.values(**values)


# Leases on head rows: renewing them, and finding the sessions without one.


_CLOCK = PreparedStatement(select(database_now()))


class SqlLeases(OnDatabase):
    """The leases of all sessions."""

    def __init__(self, database: Database, *, only: SessionKey | None = None) -> None:
        OnDatabase.__init__(self, database)
        self._only = {} if only is None else session_columns(only)
        columns, mine = sessions.c, () if only is None else of_bound_session(sessions)
        free = or_(columns.lease_owner.is_(None), columns.lease_expires_at <= database_now())
        self._abandoned = _prepare_in_turn(columns.lease_expires_at, IS_RUNNING, IS_SOUND, free, *mine)
        # A query of its own, which is run once: PostgreSQL would ask the clock again for each session that may be due.
        now = select(database_now()).scalar_subquery()
        self._due = _prepare_in_turn(columns.due_at, IS_DUE, IS_SOUND, columns.due_at <= now, *mine)

    async def renew(self, leases: Mapping[SessionKey, Lease], *, lease_seconds: float) -> set[SessionKey]:
        """Extend these leases, by the database's clock. Returns the sessions on which they are not held any more."""
        await self.database.write(lambda connection: renew_leases(connection, leases, lease_seconds))
        heads = await self.read_heads(leases)
        return {key for key, lease in leases.items() if key not in heads or heads[key].lease != lease}

    async def renew_from_anywhere(self, leases: Mapping[SessionKey, Lease], *, lease_seconds: float) -> None:
        """Extend these leases, those of them that are still held, from another event loop than the store's."""
        await self.database.write_from_anywhere(lambda connection: renew_leases(connection, leases, lease_seconds))

    async def find_abandoned(self, *, limit: int = 100) -> list[SessionKey]:
        """Find sessions that are running without an unexpired lease on them: of each tenant in its turn, the
        longest abandoned first.
        """
        return await self._find_in_turn(self._abandoned, limit)

    async def find_due(self, *, limit: int = 100) -> list[SessionKey]:
        """Sessions that have become due (see `State.due_at`): of each tenant in its turn, the longest due first."""
        return await self._find_in_turn(self._due, limit)

    async def _find_in_turn(self, statement: PreparedStatement, limit: int) -> list[SessionKey]:
        given = {**self._only, "most": limit}
        rows = await self.database.read(lambda connection: statement.fetch_all(connection, given))
        return [SessionKey(unescape(as_text(tenant)), unescape(as_text(name))) for tenant, name in rows]

    async def read_clock(self) -> datetime:
        """The present in UTC by the database's clock: the only one that all servers share."""
        [[seconds]] = await self.database.read(lambda connection: _CLOCK.fetch_all(connection, {}))
        return datetime.fromtimestamp(seconds or 0.0, UTC)

    async def ask_for_partial(self, key: SessionKey, owner: str) -> bool:
        """Ask the process that advances a session what its model has said so far: `SessionHead.partial` is the answer.

        False if no process but `owner`, who asks, advances it. The wish ends with the run, or when it is taken over.
        """
        columns = sessions.c
        # Neither is true if no process holds one: then both are null.
        held = (columns.lease_owner != owner, columns.lease_expires_at > database_now())
        wish = update(sessions).where(*of_session(sessions, key), IS_RUNNING, *held).values(partial="")
        asked = await self.database.write(lambda connection: connection.execute(wish).rowcount == 1)
        if asked:
            self.database.notify(key)
        return asked

    async def answer_partial(self, key: SessionKey, lease: Lease, text: str) -> None:
        """Answer that, if it is still asked and the lease is still held."""
        columns = sessions.c
        held = (columns.lease_owner == lease.owner, columns.lease_epoch == lease.epoch, columns.partial == "")
        answer = update(sessions).where(*of_session(sessions, key), *held)

        def job(connection: Connection) -> int:
            person_key = connection.scalar(select(columns.person_key).where(*of_session(sessions, key)))
            said = encrypt_text(connection, person_key, text, PARTIAL)
            return connection.execute(answer.values(partial=said)).rowcount

        await self.database.write(job)

    async def read_heads(self, keys: Collection[SessionKey]) -> dict[SessionKey, SessionHead]:
        """Read where these sessions end by now; those that do not exist are left out."""
        return await self.database.read(lambda connection: find_heads(connection, keys))


def renew_leases(connection: Connection, leases: Mapping[SessionKey, Lease], lease_seconds: float) -> None:
    """Extend those of these leases that are still held.

    Rows that another transaction has locked are left out: an append that hangs must not take the other leases down
    with it, and what it does to its own lease is its own affair.
    """
    statement = _prepare_renewal(connection.dialect.name)
    for named in _render_named([(*_name(key), escape(lease.owner), lease.epoch) for key, lease in leases.items()]):
        statement.execute(connection, {"named": named, "seconds": lease_seconds})


@functools.cache
def _prepare_renewal(dialect: str) -> PreparedStatement:
    columns, named = sessions.c, _build_named(dialect)
    held = (columns.lease_owner == named.c.owner, columns.lease_epoch == named.c.epoch)
    mine = select(columns.tenant, columns.id).join_from(named, sessions, and_(_is_named(named), *held))
    free = mine.where(IS_RUNNING).with_for_update(skip_locked=True, of=sessions)
    until = database_now() + bindparam("seconds", type_=columns.lease_expires_at.type)
    return PreparedStatement(
        update(sessions).where(tuple_(columns.tenant, columns.id).in_(free)).values(lease_expires_at=until)
    )


def _prepare_in_turn(since: ColumnElement[Any], *conditions: Any) -> PreparedStatement:
    """A query for the first session of each tenant, then the second of each, and so on, up to the `most`.

    However many one tenant has, they take no more than its share of what is looked at.
    """
    tenant, name = sessions.c.tenant, sessions.c.id
    turn = func.row_number().over(partition_by=tenant, order_by=(since.nulls_first(), name))
    found = select(tenant, name, turn.label("turn"), since.label("since")).where(*conditions).subquery()
    rows = select(found.c.tenant, found.c.id).order_by(
        found.c.turn, found.c.since.nulls_first(), found.c.tenant, found.c.id
    )
    return PreparedStatement(rows.limit(bindparam("most")))


def find_heads(connection: Connection, keys: Collection[SessionKey]) -> dict[SessionKey, SessionHead]:
    """Find where these sessions end."""
    statement = _prepare_heads(connection.dialect.name)
    found: dict[SessionKey, SessionHead] = {}
    for named in _render_named([_name(key) for key in keys]):
        rows = statement.fetch_all(connection, {"named": named})
        for tenant, name, seq, digest, owner, epoch, partial in rows:
            lease = None if owner is None else Lease(unescape(as_text(owner)), epoch)
            said = None if partial is None else str(read_text(connection, unescape(as_text(partial)), PARTIAL))
            key = SessionKey(unescape(as_text(tenant)), unescape(as_text(name)))
            found[key] = SessionHead(seq, as_bytes(digest).hex(), lease, said)
    return found


@functools.cache
def _prepare_heads(dialect: str) -> PreparedStatement:
    columns, named = sessions.c, _build_named(dialect)
    wanted = (
        columns.tenant,
        columns.id,
        columns.head_seq,
        columns.head_hash,
        columns.lease_owner,
        columns.lease_epoch,
        columns.partial,
    )
    return PreparedStatement(select(*wanted).join_from(named, sessions, _is_named(named)))


# In one statement, whose rows take a few milliseconds to read.
_SESSIONS_AT_ONCE = 1000


def _name(key: SessionKey) -> tuple[str, str]:
    return escape(key.tenant), escape(key.id)


def _render_named(sessions: Sequence[tuple[Any, ...]]) -> Iterator[str]:
    """The parameter of `_build_named`, for as many statements as it takes."""
    for start in range(0, len(sessions), _SESSIONS_AT_ONCE):
        yield encode_text(sessions[start : start + _SESSIONS_AT_ONCE])


def _build_named(dialect: str) -> Subquery:
    """Sessions as rows, out of lists in JSON: tenant, id, and where a lease matters its owner and epoch.

    They are one parameter, so that the statement is the same however many they are.
    """
    if dialect == "sqlite":
        rows = text(
            "SELECT json_extract(value, '$[0]') AS tenant, json_extract(value, '$[1]') AS id,"
            " json_extract(value, '$[2]') AS owner, json_extract(value, '$[3]') AS epoch FROM json_each(:named)"
        )
    else:
        rows = text(
            "SELECT value ->> 0 AS tenant, value ->> 1 AS id, value ->> 2 AS owner,"
            " CAST(value ->> 3 AS bigint) AS epoch"
            " FROM json_array_elements(CAST(CAST(:named AS text) AS json)) AS value"
        )
    return rows.columns(column("tenant"), column("id"), column("owner"), column("epoch")).subquery("named")


def _is_named(named: Subquery) -> ColumnElement[bool]:
    return and_(sessions.c.tenant == named.c.tenant, sessions.c.id == named.c.id)
