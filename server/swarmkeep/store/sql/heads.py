"""The head row of a session: where its log ends, what lists show of it, and who may advance it."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any, Literal

import msgspec
from sqlalchemy import Connection, Table, bindparam, null, or_, select, tuple_, update

from swarmkeep.domain.errors import LeaseLost, SeqConflict
from swarmkeep.domain.state import State
from swarmkeep.store.hashing import SealedEvent
from swarmkeep.store.ports import Claim, IdempotencyRecord, Lease, SessionHead, SessionKey
from swarmkeep.store.sql.columns import database_now
from swarmkeep.store.sql.prepared import PreparedStatement
from swarmkeep.store.sql.tables import IS_RUNNING, sessions

Row = dict[str, Any]
LeaseMode = Literal["none", "held", "claim", "seize"]


class AppendPlan(msgspec.Struct, frozen=True, kw_only=True):
    """An append, worked out before any transaction begins: `state` is what `sealed` makes of `base`.

    `view` is the state as lists show it, in JSON.
    """

    key: SessionKey
    base: State
    state: State
    sealed: Sequence[SealedEvent]
    view: str
    lease: Lease | Claim | None = None
    lease_seconds: float = 15.0
    blobs: Mapping[str, str] = {}
    mark: IdempotencyRecord | None = None

    @property
    def hold(self) -> LeaseMode:
        if self.lease is None:
            return "none"
        if isinstance(self.lease, Lease):
            return "held"
        # The lease that there is was for a run which is over with this append.
        return "claim" if _active_run_id(self.base) == _active_run_id(self.state) else "seize"

    @property
    def running(self) -> bool:
        return self.state.status == "running"


def _active_run_id(state: State) -> str | None:
    return None if state.run is None else state.run.id


def is_head(state: State) -> Any:
    """The condition that a session still ends with the event that `state` does."""
    return (sessions.c.head_seq == state.seq) & (sessions.c.head_hash == bytes.fromhex(state.hash))


def _make_head_row(step: AppendPlan) -> Row:
    state = step.state
    return {
        "new_seq": state.seq,
        "new_hash": bytes.fromhex(state.hash),
        "new_agent": state.agent,
        "new_status": state.status,
        "new_updated_at": state.updated_at,
        "new_view": step.view,
        "new_due_at": state.due_at,
        "tenant_": step.key.tenant,
        "id_": step.key.id,
    }


def insert_head(connection: Connection, step: AppendPlan) -> Lease | None:
    """Begin a session with the step's state."""
    if isinstance(step.lease, Lease):
        raise LeaseLost(step.key.id)
    row = _make_head_row(step)
    claim = step.lease if step.running else None
    if claim is not None:
        row |= {"owner": claim.owner, "seconds": claim.lease_seconds}
    row["new_created_at"] = step.state.created_at
    if _prepare_head_insert(connection.dialect.name, claim is not None).execute(connection, row).rowcount == 0:
        raise SeqConflict(step.key.id, 0)
    return None if claim is None else Lease(claim.owner, 1)


def advance_head(connection: Connection, step: AppendPlan) -> Lease | None:
    """Move a session from the step's base to its state, if it still is there and the lease allows."""
    row = _make_head_row(step) | {"base_seq": step.base.seq, "base_hash": bytes.fromhex(step.base.hash)}
    if isinstance(step.lease, Lease):
        row |= {"owner": step.lease.owner, "epoch": step.lease.epoch, "seconds": step.lease_seconds}
    elif step.lease is not None:
        row |= {"owner": step.lease.owner, "seconds": step.lease.lease_seconds}
    epoch = _prepare_head_update(step.hold, step.running).execute(connection, row).scalar()
    if epoch is None:
        raise _find_refusal(connection, step)
    return Lease(step.lease.owner, epoch) if step.lease is not None and step.running else None


def _find_refusal(connection: Connection, step: AppendPlan) -> SeqConflict | LeaseLost:
    this = (sessions.c.tenant == step.key.tenant, sessions.c.id == step.key.id)
    current = connection.scalar(select(sessions.c.id).where(*this, is_head(step.base)))
    return SeqConflict(step.key.id, step.base.seq) if current is None else LeaseLost(step.key.id)


_HEAD_PARAMETERS = {
    "head_seq": "new_seq",
    "head_hash": "new_hash",
    "agent": "new_agent",
    "status": "new_status",
    "updated_at": "new_updated_at",
    "view": "new_view",
    "due_at": "new_due_at",
}


def _bind_columns(names: Mapping[str, str]) -> dict[str, Any]:
    return {column: bindparam(name, type_=sessions.c[column].type) for column, name in names.items()}


def _build_expiry() -> Any:
    return database_now() + bindparam("seconds", type_=sessions.c.lease_expires_at.type)


@functools.cache
def _prepare_head_insert(dialect: str, claimed: bool) -> PreparedStatement:
    values = _bind_columns({**_HEAD_PARAMETERS, "created_at": "new_created_at", "tenant": "tenant_", "id": "id_"})
    owner = bindparam("owner", type_=sessions.c.lease_owner.type) if claimed else null()
    lease = {"lease_owner": owner, "lease_epoch": 1 if claimed else 0, "lease_expires_at": null()}
    if claimed:
        lease["lease_expires_at"] = _build_expiry()
    return PreparedStatement(build_insert_if_absent(sessions, dialect).values(**values, **lease))


@functools.cache
def _prepare_head_update(hold: LeaseMode, running: bool) -> PreparedStatement:
    columns = sessions.c
    statement = update(sessions).where(
        columns.tenant == bindparam("tenant_"),
        columns.id == bindparam("id_"),
        columns.head_seq == bindparam("base_seq"),
        columns.head_hash == bindparam("base_hash"),
    )
    owner = bindparam("owner", type_=columns.lease_owner.type)
    if hold == "held":
        statement = statement.where(columns.lease_owner == owner, columns.lease_epoch == bindparam("epoch"))
    elif hold == "claim":
        # The owner itself may claim again: the next epoch then ends whatever it had going under the one before.
        free = or_(
            columns.lease_owner.is_(None), columns.lease_owner == owner, columns.lease_expires_at <= database_now()
        )
        statement = statement.where(free)
    values = _bind_columns(_HEAD_PARAMETERS)
    if not running:
        values |= {"lease_owner": null(), "lease_expires_at": null(), "lease_epoch": columns.lease_epoch + 1}
    elif hold == "held":
        values |= {"lease_expires_at": _build_expiry()}
    elif hold in ("claim", "seize"):
        values |= {"lease_owner": owner, "lease_expires_at": _build_expiry(), "lease_epoch": columns.lease_epoch + 1}
    return PreparedStatement(statement.values(**values).returning(columns.lease_epoch))


def renew_leases(connection: Connection, leases: Mapping[SessionKey, Lease], lease_seconds: float) -> None:
    """Extend those of these leases that are still held.

    Rows that somebody has locked are left out: an append that hangs must not take the other leases down with it, and
    what it does to its own lease is its own affair.
    """
    owners = sorted({lease.owner for lease in leases.values()})
    for some in split_keys(leases):
        mine = select(sessions.c.tenant, sessions.c.id).where(
            IS_RUNNING, is_one_of(some), sessions.c.lease_owner.in_(owners)
        )
        connection.execute(
            update(sessions)
            .where(_SESSION_NAME.in_(mine.with_for_update(skip_locked=True)))
            .values(lease_expires_at=database_now() + lease_seconds)
        )


def find_heads(connection: Connection, keys: Collection[SessionKey]) -> dict[SessionKey, SessionHead]:
    """Where these sessions end."""
    columns = sessions.c
    wanted = (
        columns.tenant,
        columns.id,
        columns.head_seq,
        columns.head_hash,
        columns.lease_owner,
        columns.lease_epoch,
    )
    found: dict[SessionKey, SessionHead] = {}
    for some in split_keys(keys):
        for tenant, name, seq, digest, owner, epoch in connection.execute(select(*wanted).where(is_one_of(some))):
            lease = None if owner is None else Lease(owner, epoch)
            found[SessionKey(tenant, name)] = SessionHead(seq, digest.hex(), lease)
    return found


_SESSION_NAME = tuple_(sessions.c.tenant, sessions.c.id)
# Below every database's limit of parameters in one statement.
_KEYS_PER_STATEMENT = 250


def split_keys(keys: Iterable[SessionKey]) -> Iterator[list[SessionKey]]:
    left = list(keys)
    for start in range(0, len(left), _KEYS_PER_STATEMENT):
        yield left[start : start + _KEYS_PER_STATEMENT]


def is_one_of(keys: Iterable[SessionKey]) -> Any:
    return _SESSION_NAME.in_([(key.tenant, key.id) for key in keys])


def build_insert_if_absent(table: Table, dialect: str) -> Any:
    """An insert that leaves a row which is there already."""
    # A dialect brings all of its drivers: only the one of this database is loaded.
    return import_module(f"sqlalchemy.dialects.{dialect}").insert(table).on_conflict_do_nothing()
