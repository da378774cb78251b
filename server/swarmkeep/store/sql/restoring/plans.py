"""Sessions that were recorded elsewhere, worked out before any transaction begins."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec

from swarmkeep.domain.envelope import EventDraft
from swarmkeep.domain.events import SessionForked
from swarmkeep.domain.fold import fold
from swarmkeep.domain.state import State
from swarmkeep.store.aside import free_aside, free_state_aside
from swarmkeep.store.hashing import SealedEvent
from swarmkeep.store.ports import Restoration, SealedBatch, SessionHead, SessionKey
from swarmkeep.store.sql.columns import escape
from swarmkeep.store.sql.counting.totals import measure_events
from swarmkeep.store.sql.counting.usage import Row, make_usage_row
from swarmkeep.store.sql.heads import AppendPlan, plan_append
from swarmkeep.store.sql.tables import session_columns
from swarmkeep.store.sql.writes import SLICE_EVENTS, cut
from swarmkeep.store.stamps import NO_KEYS, IntegrityKeys

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
