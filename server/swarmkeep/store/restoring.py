"""Records sessions that were recorded elsewhere, a few in one transaction."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec
from sqlalchemy import Connection

from swarmkeep.events.errors import QuotaExceeded, SeqConflict
from swarmkeep.events.facts import EventDraft, SessionForked
from swarmkeep.events.fold import fold
from swarmkeep.events.state import State
from swarmkeep.store.audit import record_actions
from swarmkeep.store.contents import insert_file
from swarmkeep.store.hashing import SealedEvent
from swarmkeep.store.heads import AppendPlan, insert_head, plan_append
from swarmkeep.store.integrity import NO_KEYS, IntegrityKeys
from swarmkeep.store.records import AuditAction, Restoration, SealedBatch, SessionHead, SessionKey, StorageQuota
from swarmkeep.store.search import set_marks
from swarmkeep.store.statements import Database, prepare_insert_if_absent
from swarmkeep.store.tables import blobs, escape, session_columns
from swarmkeep.store.threads import free_aside, free_state_aside
from swarmkeep.store.totals import Growth, Row, count_changes, insert_usage, make_usage_row, measure_events
from swarmkeep.store.usage import add_sums, sum_rows
from swarmkeep.store.writes import SLICE_EVENTS, cut, insert_event_rows, insert_labels, make_event_rows, make_label_rows

# Sessions that were recorded elsewhere, worked out before any transaction begins.

Seal = Callable[[SessionKey, State, Sequence[EventDraft]], list[SealedEvent]]

# Of one transaction: a commit for each small session would take most of the time, and on SQLite all other writes wait
# for a transaction.
_MAX_SESSIONS = 64
_MAX_BYTES = 256 * 1024


class RestorePlan(msgspec.Struct, frozen=True, kw_only=True):
    """A session that is to be recorded: `head` is where it ends.

    `slices` are all of its events, a few at a time: while the database takes one, others have the event loop. `bytes`
    are those of its payloads and texts, `calls` the rows of its usage.
    """

    head: AppendPlan
    slices: list[SealedBatch]
    bytes: int
    calls: list[Row]

    @property
    def key(self) -> SessionKey:
        return self.head.key

    @property
    def end(self) -> SessionHead:
        return SessionHead(self.head.state.seq, self.head.state.hash)


def plan_some(
    sessions: Iterator[Restoration], seal: Seal, keys: IntegrityKeys = NO_KEYS
) -> tuple[list[RestorePlan], Exception | None]:
    """The next sessions, as many as one transaction may record, none when all are planned; and what ended that."""
    plans: list[RestorePlan] = []
    size = 0
    try:
        while len(plans) < _MAX_SESSIONS and size < _MAX_BYTES and (session := next(sessions, None)) is not None:
            plans.append(_plan_session(session, seal, keys))
            size += plans[-1].bytes + sum(len(content) for one in plans[-1].slices for content in one.files.values())
    except Exception as error:
        # For those before it is too early to be lost.
        return plans, error
    return plans, None


def _plan_session(session: Restoration, seal: Seal, keys: IntegrityKeys) -> RestorePlan:
    """Read a session's batches and fold them, then what `finish` makes of the state."""
    key, state = session.key, State()
    slices: list[SealedBatch] = []
    for batch in session.batches():
        state = fold((one.event for one in batch.events), state)
        slices.append(batch)
    free_state_aside(state)
    added = seal(key, state, session.finish(state))
    slices += cut(added)
    free_aside(slices, events_in_each=SLICE_EVENTS)
    head = msgspec.structs.replace(plan_append(key, state, added, keys=keys), base=State())
    calls = _list_calls(key, slices)
    free_aside(calls)
    return RestorePlan(head=head, slices=slices, bytes=_measure(slices), calls=calls)


def _list_calls(key: SessionKey, slices: Iterable[SealedBatch]) -> list[Row]:
    """The rows of usage. What came before the last fork was used elsewhere."""
    calls: list[Row] = []
    for batch in slices:
        for event in (one.event for one in batch.events):
            if isinstance(event.fact, SessionForked):
                calls.clear()
            elif (row := make_usage_row(event)) is not None:
                calls.append({**session_columns(key), **row})
    return calls


def _measure(slices: Sequence[SealedBatch]) -> int:
    texts = {name: text for batch in slices for name, text in batch.blobs.items()}
    size = sum(measure_events(one.event for one in batch.events) for batch in slices)
    return size + sum(len(escape(text).encode()) for text in texts.values())


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

    Tables beside the sessions' own come last: until then no writer to the tenant's sums or to the audit log has to
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
    """Insert the contents that its events name by a hash; gives the bytes of the files."""
    statement = prepare_insert_if_absent(blobs, connection.dialect.name)
    size = 0
    for batch in plan.slices:
        if batch.blobs:
            rows = [{**session_columns(plan.key), "hash": name, "text": text} for name, text in batch.blobs.items()]
            statement.insert_many(connection, rows)
        size += sum(insert_file(connection, plan.key, name, content) for name, content in batch.files.items())
    return size
