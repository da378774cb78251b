"""The head row of a session: where its log ends, what lists show of it, and who may advance it."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec
from sqlalchemy import Connection, Update, bindparam, case, literal_column, null, or_, select, update

from swarmkeep.events.codec import encode_text
from swarmkeep.events.errors import HistoryDamaged, LeaseLost, SeqConflict
from swarmkeep.events.facts import MessageRemoved
from swarmkeep.events.fold import fold
from swarmkeep.events.state import State
from swarmkeep.events.views import find_last_run_status, view_stored_session
from swarmkeep.store.hashing import SealedEvent, last_hash
from swarmkeep.store.integrity import NO_KEYS, IntegrityKeys
from swarmkeep.store.records import AppendResult, Claim, IdempotencyRecord, Lease, SessionKey, StorageQuota
from swarmkeep.store.statements import PreparedStatement, build_insert_if_absent
from swarmkeep.store.tables import IS_SOUND, database_now, of_session, sessions

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
    def is_running(self) -> bool:
        return self.state.status == "running"

    @property
    def changes_index(self) -> bool:
        """Tell if the session is to be indexed: at the end of a turn, and at once when a message is taken out."""
        return not self.is_running or any(isinstance(one.event.fact, MessageRemoved) for one in self.sealed)

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
    state = fold((one.event for one in sealed), base)
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
        stamp=keys.sign(key, state.seq, last_hash(state)),
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
    row["new_created_at"] = plan.state.created_at
    if _prepare_head_insert(connection.dialect.name, claim is not None).execute(connection, row) == 0:
        raise SeqConflict(plan.key.id, 0)
    return None if claim is None else Lease(claim.owner, 1)


def advance_head(connection: Connection, plan: AppendPlan) -> Lease | None:
    """Move a session from the plan's base to its state, if it still is there and the lease allows."""
    # An index is written to wherever a column of it is set, even to what it was.
    hands_over = plan.state.agent != plan.base.agent
    statement = _prepare_head_update(plan.lease_mode, plan.is_running, hands_over)
    advanced = statement.fetch_all(connection, make_advance_row(plan))
    if not advanced:
        raise _find_refusal(connection, plan)
    [[epoch]] = advanced
    return plan.make_lease(epoch)


def make_advance_row(plan: AppendPlan) -> Row:
    """The parameters of `build_head_update`."""
    row = _make_head_row(plan) | {"base_seq": plan.base.seq, "base_hash": bytes.fromhex(plan.base.hash)}
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
def _prepare_head_update(mode: LeaseMode, running: bool, hands_over: bool) -> PreparedStatement:
    return PreparedStatement(build_head_update(mode, running, hands_over).returning(sessions.c.lease_epoch))


def build_head_update(mode: LeaseMode, running: bool, hands_over: bool = True) -> Update:
    """The update that moves a session on: no row if it is not at the base any more, or the lease is another's.

    Unless it `hands_over` its agent stays.
    """
    columns = sessions.c
    statement = update(sessions).where(
        columns.tenant == bindparam("tenant_"),
        columns.id == bindparam("id_"),
        columns.head_seq == bindparam("base_seq"),
        columns.head_hash == bindparam("base_hash"),
        IS_SOUND,
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
