"""Records a session that was recorded elsewhere exactly as it was, in one transaction."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from sqlalchemy import Connection, update

from swarmkeep.domain.codec import encode_text
from swarmkeep.domain.fold import fold
from swarmkeep.domain.state import State
from swarmkeep.domain.views import view_session
from swarmkeep.store.ports import SealedBatch, SessionKey
from swarmkeep.store.sql.heads import AppendPlan
from swarmkeep.store.sql.tables import sessions
from swarmkeep.store.sql.writes import append


def restore(
    connection: Connection, key: SessionKey, batches: Iterable[SealedBatch], finish: Callable[[State], SealedBatch]
) -> State:
    """Append the batches one after another, then what `finish` makes of the state, to a session that must be new."""
    state = State()
    for batch in batches:
        state = _append(connection, key, state, batch)
    state = _append(connection, key, state, finish(state))
    # A fork is as old as its fork, which came after what it shares.
    row = {"created_at": state.created_at}
    connection.execute(update(sessions).where(sessions.c.tenant == key.tenant, sessions.c.id == key.id).values(row))
    return state


def _append(connection: Connection, key: SessionKey, base: State, batch: SealedBatch) -> State:
    if not (batch.events or batch.blobs):
        return base
    state = fold((one.event for one in batch.events), base)
    view = encode_text(view_session(key.id, state))
    append(connection, AppendPlan(key=key, base=base, state=state, sealed=batch.events, view=view, blobs=batch.blobs))
    return state
