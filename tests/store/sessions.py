"""Sessions to try a store on."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, select

from swarmkeep.decide.commands import StartRun, create_session, start_run
from swarmkeep.decide.drafts import draft_events
from swarmkeep.events.codec import Json
from swarmkeep.events.facts import EventDraft, MessageAdded, RunCompleted, SessionForked
from swarmkeep.events.state import State
from swarmkeep.store.opening import SqlStore
from swarmkeep.store.records import Claim, Lease, SessionKey
from swarmkeep.store.tables import metadata

KEY = SessionKey("default", "s1")
OTHER = SessionKey("default", "s2")

_numbers = itertools.count(1)


def new_key(name: str = "s", tenant: str = "default") -> SessionKey:
    """A session that nothing else uses."""
    return SessionKey(tenant, f"{name}-{next(_numbers)}")


def draft_creation(
    metadata: Json | None = None, context: Json | None = None, agent: str = "Triage"
) -> list[EventDraft]:
    return draft_events(agent, create_session(agent, context or {}, metadata or {}, []), None)


def draft_user_messages(*texts: Any) -> list[EventDraft]:
    return [EventDraft(MessageAdded(message={"role": "user", "content": text}), None, "Triage") for text in texts]


def make_picture_part(content: bytes) -> Json:
    """A part of a message that refers to a picture."""
    name = hashlib.sha256(content).hexdigest()
    return {
        "type": "image_url",
        "image_url": {},
        "blob": {"sha256": name, "media_type": "image/png", "size": len(content)},
    }


def draft_run_start(state: State, run_id: str = "r1") -> list[EventDraft]:
    return start_run(state, StartRun(run_id=run_id, messages=({"role": "user", "content": "hi"},)))


def draft_run_completion(state: State) -> list[EventDraft]:
    return [EventDraft(RunCompleted(stop_reason="end_turn"), state.run.id, state.agent)]


def draft_fork(base: State) -> list[EventDraft]:
    """The first fact of a fork of KEY."""
    fact = SessionForked(from_session_id=KEY.id, from_seq=base.seq, from_hash=base.hash)
    return [EventDraft(fact, None, base.agent)]


async def begin_session(store: SqlStore, session: SessionKey = KEY, **given: Any) -> State:
    """A session with its first event."""
    return (await store.append(session, State(), draft_creation(**given))).state


async def begin_run(store: SqlStore, session: SessionKey = KEY, owner: str = "a") -> tuple[State, Lease]:
    """A session with a run that `owner` holds the lease for."""
    state = await begin_session(store, session)
    appended = await store.append(session, state, draft_run_start(state), lease=Claim(owner, 60))
    assert appended.lease is not None
    return appended.state, appended.lease


async def read_all_rows(store: SqlStore) -> dict[str, list[tuple[Any, ...]]]:
    """Every row of every table but Alembic's."""

    return await store.database.read(read_rows)


def read_rows(connection: Connection) -> dict[str, list[tuple[Any, ...]]]:
    """The same, by a connection."""
    return {
        table.name: sorted((tuple(row) for row in connection.execute(select(table))), key=repr)
        for table in metadata.tables.values()
    }


async def list_filled_tables(store: SqlStore) -> set[str]:
    """The tables that still have rows."""
    return {name for name, rows in (await read_all_rows(store)).items() if rows}


def list_seqs(events: Sequence[Any]) -> list[int]:
    return [event.seq for event in events]
