"""Removes payloads in one transaction, with every other copy of them in the session."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import msgspec
from sqlalchemy import Connection, delete, select, update

from swarmkeep.domain.envelope import RecordedEvent
from swarmkeep.domain.errors import SeqConflict
from swarmkeep.domain.events import RunQueued, RunStarted
from swarmkeep.domain.state import State
from swarmkeep.store.hashing import SealedEvent
from swarmkeep.store.ports import SessionKey
from swarmkeep.store.sql import usage
from swarmkeep.store.sql.heads import AppendPlan
from swarmkeep.store.sql.tables import IS_FIRST, blobs, events, idempotency
from swarmkeep.store.sql.writes import append, replace_labels
from swarmkeep.store.upcast import upcast

# Below every database's limit of parameters in one statement.
_VALUES_PER_STATEMENT = 500


def replace_payloads(log: Sequence[SealedEvent], stand_ins: Mapping[int, str]) -> list[RecordedEvent]:
    """The events of a log with these texts in the place of payloads."""
    return [
        msgspec.structs.replace(event, payload=text, fact=upcast(event.type, event.version, text))
        if (text := stand_ins.get(event.seq)) is not None
        else event
        for event in (one.event for one in log)
    ]


def find_idempotency_keys(log: Sequence[SealedEvent], seqs: Collection[int]) -> list[str]:
    """The idempotency keys that stand in the payloads of these events."""
    facts = [one.event.fact for one in log if one.event.seq in seqs]
    keys = [fact.idempotency_key for fact in facts if isinstance(fact, RunStarted | RunQueued)]
    return [key for key in keys if key is not None]


def redact(
    connection: Connection, plan: AppendPlan, redacted: Sequence[RecordedEvent], used_keys: Sequence[str]
) -> None:
    """Give events their new payloads, and remove every other copy in this session; and record that."""
    append(connection, plan)
    replace_labels(connection, plan)
    mine = (events.c.tenant == plan.key.tenant, events.c.session_id == plan.key.id)
    for event in redacted:
        # Nobody can guess a payload from its commitment without the salt.
        change = update(events).where(*mine, events.c.seq == event.seq).values(payload=event.payload, salt=None)
        if connection.execute(change).rowcount != 1:
            raise SeqConflict(plan.key.id, plan.base.seq)
    usage.rewrite_usage(connection, plan.key, redacted)
    _delete_unnamed_blobs(connection, plan.key, _collect_blob_names(plan.state))
    records = (idempotency.c.tenant == plan.key.tenant, idempotency.c.session_id == plan.key.id)
    connection.execute(delete(idempotency).where(*records, idempotency.c.key.in_(used_keys)))
    # Digests of requests, of which any may have held what was removed: a short text can be guessed from one. A key
    # without its digest matches no request any more.
    own = "" if plan.idempotency is None else plan.idempotency.key
    connection.execute(update(idempotency).where(*records, idempotency.c.key != own).values(digest=""))


def _collect_blob_names(state: State) -> set[str]:
    records = [entry.completion.request for entry in state.messages if entry.completion is not None]
    names = {name for record in records if record is not None for name in (record.instructions, record.tools)}
    return {name for name in names if name is not None}


def _delete_unnamed_blobs(connection: Connection, key: SessionKey, named: Collection[str]) -> None:
    mine = (blobs.c.tenant == key.tenant, blobs.c.session_id == key.id)
    stray = sorted(set(connection.scalars(select(blobs.c.hash).where(*mine))) - set(named))
    for start in range(0, len(stray), _VALUES_PER_STATEMENT):
        connection.execute(delete(blobs).where(*mine, blobs.c.hash.in_(stray[start : start + _VALUES_PER_STATEMENT])))


def find_copies(connection: Connection, key: SessionKey, copied: Mapping[int, bytes]) -> dict[SessionKey, list[int]]:
    """Which other sessions that begin with the same event hold these events (hashes by seq) with their payload."""
    mine = (events.c.tenant == key.tenant, events.c.session_id == key.id)
    first = connection.scalar(select(events.c.hash).where(*mine, events.c.seq == 1))
    family = select(events.c.session_id).where(events.c.tenant == key.tenant, IS_FIRST, events.c.hash == first)
    found: dict[SessionKey, list[int]] = {}
    for name in sorted(set(connection.scalars(family)) - {key.id}):
        theirs = (events.c.tenant == key.tenant, events.c.session_id == name, events.c.salt.is_not(None))
        for start in range(0, len(copied), _VALUES_PER_STATEMENT):
            seqs = sorted(copied)[start : start + _VALUES_PER_STATEMENT]
            rows = connection.execute(select(events.c.seq, events.c.hash).where(*theirs, events.c.seq.in_(seqs)))
            kept = [row.seq for row in rows if row.hash == copied[row.seq]]
            if kept:
                found.setdefault(SessionKey(key.tenant, name), []).extend(sorted(kept))
    return found


def read_redacted_payloads(connection: Connection, key: SessionKey, upto: int) -> dict[int, str]:
    """The texts that stand in the place of removed payloads, by seq."""
    found = select(events.c.seq, events.c.payload).where(
        events.c.tenant == key.tenant, events.c.session_id == key.id, events.c.seq <= upto, events.c.salt.is_(None)
    )
    return {row.seq: row.payload for row in connection.execute(found.order_by(events.c.seq))}
