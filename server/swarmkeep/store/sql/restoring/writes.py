"""Records sessions that were recorded elsewhere, a few in one transaction."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection

from swarmkeep.domain.errors import QuotaExceeded, SeqConflict
from swarmkeep.store.ports import SessionHead, SessionKey, StorageQuota
from swarmkeep.store.ports.audit import AuditAction
from swarmkeep.store.ports.database import Database
from swarmkeep.store.sql.audit_log import record_actions
from swarmkeep.store.sql.contents import insert_file
from swarmkeep.store.sql.counting.totals import Growth, count_changes
from swarmkeep.store.sql.counting.usage import Row, insert_usage
from swarmkeep.store.sql.heads import insert_head
from swarmkeep.store.sql.indexes.usage_days import add_sums, sum_rows
from swarmkeep.store.sql.prepared import prepare_insert_if_absent
from swarmkeep.store.sql.restoring.plans import RestorePlan
from swarmkeep.store.sql.searching.marks import set_marks
from swarmkeep.store.sql.tables import blobs, session_columns
from swarmkeep.store.sql.writes import SLICE_EVENTS, insert_event_rows, insert_labels, make_event_rows, make_label_rows


async def restore(
    database: Database, plans: Sequence[RestorePlan], action: AuditAction, at: str, quota: StorageQuota | None
) -> list[SessionHead | None]:
    """Record planned sessions at once; gives where each ends, None for one that is there already.

    Raises QuotaExceeded for the first that is too much: those before it are recorded then.
    """
    try:
        new = await database.write(lambda connection: _restore_together(connection, plans, action, at, quota))
    except QuotaExceeded:
        if len(plans) == 1:
            raise
        return [end for plan in plans for end in await restore(database, [plan], action, at, quota)]
    return [plan.end if plan.key in new else None for plan in plans]


def _restore_together(
    connection: Connection, plans: Sequence[RestorePlan], action: AuditAction, at: str, quota: StorageQuota | None
) -> set[SessionKey]:
    """Record those of these sessions that are not there yet; gives which ones.

    What is not the sessions' own comes last: until then nobody who adds to the tenant's sums or to the audit log has to
    wait. All rows that others change, too, are taken in one order, or two would wait for one another.
    """
    began = {plan.key for plan in sorted(plans, key=lambda plan: plan.key.id) if _begin(connection, plan)}
    new = [plan for plan in plans if plan.key in began]
    if not new:
        return began
    _insert_events(connection, new)
    sizes = [plan.bytes + _insert_contents(connection, plan) for plan in new]
    set_marks(connection, [(plan.key, plan.head.state.seq) for plan in new])
    insert_labels(connection, [row for plan in new for row in make_label_rows(plan.head)])
    growths = [(plan.key, Growth(sessions=1, bytes=size)) for plan, size in zip(new, sizes, strict=True)]
    count_changes(connection, growths, quota)
    add_sums(connection, [(plan.key, sum_rows(plan.calls)) for plan in new])
    told = [{"session_id": plan.key.id, "seq": plan.end.seq, "hash": plan.end.hash} for plan in new]
    record_actions(connection, new[0].key.tenant, action, told, at)
    return began


def _begin(connection: Connection, plan: RestorePlan) -> bool:
    try:
        insert_head(connection, plan.head)
    except SeqConflict:
        return False
    return True


def _insert_events(connection: Connection, plans: Sequence[RestorePlan]) -> None:
    """The events of all of them and their usage, a few at a time: between two inserts others have the event loop."""
    events: list[Row] = []
    for plan in plans:
        for batch in plan.slices:
            events += make_event_rows(plan.key, batch.events)
            if len(events) >= SLICE_EVENTS:
                insert_event_rows(connection, events)
                events = []
    insert_event_rows(connection, events)
    calls = [row for plan in plans for row in plan.calls]
    for start in range(0, len(calls), SLICE_EVENTS):
        insert_usage(connection, calls[start : start + SLICE_EVENTS])


def _insert_contents(connection: Connection, plan: RestorePlan) -> int:
    """What its events name by a hash; gives the bytes of the files."""
    statement = prepare_insert_if_absent(blobs, connection.dialect.name)
    size = 0
    for batch in plan.slices:
        if batch.blobs:
            rows = [{**session_columns(plan.key), "hash": name, "text": text} for name, text in batch.blobs.items()]
            statement.insert_many(connection, rows)
        size += sum(insert_file(connection, plan.key, name, content) for name, content in batch.files.items())
    return size
