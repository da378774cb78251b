"""Removes payloads in one transaction, with every other copy of them in the session."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import msgspec
from sqlalchemy import Connection, bindparam, delete, null, update

from swarmkeep.domain.envelope import RecordedEvent
from swarmkeep.domain.errors import SeqConflict
from swarmkeep.domain.events import RunQueued, RunStarted
from swarmkeep.store.hashing import SealedEvent
from swarmkeep.store.sql.contents import NamedContents, delete_unnamed
from swarmkeep.store.sql.counting.totals import Growth, count_change, measure_session
from swarmkeep.store.sql.counting.usage import rewrite_usage
from swarmkeep.store.sql.heads import AppendPlan
from swarmkeep.store.sql.idempotency import forget_key
from swarmkeep.store.sql.indexes.usage_days import change_days, read_session_sums
from swarmkeep.store.sql.prepared import PreparedStatement
from swarmkeep.store.sql.searching.marks import void_words
from swarmkeep.store.sql.tables import (
    blobs,
    creations,
    events,
    files,
    idempotency,
    of_bound_session,
    of_session,
    session_columns,
)
from swarmkeep.store.sql.writes import insert_append, replace_labels
from swarmkeep.store.upcast import upcast


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
    connection: Connection,
    plan: AppendPlan,
    redacted: Sequence[RecordedEvent],
    used_keys: Sequence[str],
    named: NamedContents,
) -> None:
    """Give events their new payloads, and remove every other copy in this session, and what is not `named` any more;
    and record that."""
    before = measure_session(connection, plan.key)
    insert_append(connection, plan)
    used = read_session_sums(connection, plan.key)
    replace_labels(connection, plan)
    for event in redacted:
        row = {**session_columns(plan.key), "at_seq": event.seq, "stand_in": event.payload}
        if _REPLACE_PAYLOAD.execute(connection, row) != 1:
            raise SeqConflict(plan.key.id, plan.base.seq)
    rewrite_usage(connection, plan.key, redacted)
    void_words(connection, plan.key)
    delete_unnamed(connection, blobs, plan.key, named.texts)
    delete_unnamed(connection, files, plan.key, named.files)
    for used_key in {*used_keys}:
        forget_key(connection, plan.key, used_key)
    connection.execute(delete(creations).where(*of_session(creations, plan.key), creations.c.key.in_(used_keys)))
    # Digests of requests, of which any may have held what was removed: a short text can be guessed from one. A key
    # without its digest matches no request any more.
    records = of_session(idempotency, plan.key)
    own = "" if plan.idempotency is None else plan.idempotency.key
    connection.execute(update(idempotency).where(*records, idempotency.c.key != own).values(digest=""))
    count_change(connection, plan.key, Growth(bytes=measure_session(connection, plan.key) - before))
    change_days(connection, plan.key, used, read_session_sums(connection, plan.key))


# Nobody can guess a payload from its commitment without the salt.
_REPLACE_PAYLOAD = PreparedStatement(
    update(events)
    .where(*of_bound_session(events), events.c.seq == bindparam("at_seq"))
    .values(payload=bindparam("stand_in"), salt=null())
)
