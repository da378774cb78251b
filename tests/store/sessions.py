"""Sessions to try a store on."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from sqlalchemy import select

from swarmkeep.domain.commands import StartRun, create_session, start_run
from swarmkeep.domain.drafts import drafted
from swarmkeep.domain.envelope import Draft
from swarmkeep.domain.events import MessageAdded, RunCompleted, SessionForked
from swarmkeep.domain.state import State
from swarmkeep.store.port import Claim, Lease, SessionKey
from swarmkeep.store.sql import SqlStore
from swarmkeep.store.tables import metadata

KEY = SessionKey("default", "s1")
OTHER = SessionKey("default", "s2")
Json = dict[str, Any]

_numbers = itertools.count(1)


def key(name: str = "s", tenant: str = "default") -> SessionKey:
    """A session that nothing else uses."""
    return SessionKey(tenant, f"{name}-{next(_numbers)}")


def created(metadata: Json | None = None, context: Json | None = None, agent: str = "Triage") -> list[Draft]:
    return drafted(agent, create_session(agent, context or {}, metadata or {}, []), None)


def said(*texts: Any) -> list[Draft]:
    return [Draft(MessageAdded(message={"role": "user", "content": text}), None, "Triage") for text in texts]


def run_started(state: State, run_id: str = "r1") -> list[Draft]:
    return start_run(state, StartRun(run_id=run_id, messages=({"role": "user", "content": "hi"},)))


def run_completed(state: State) -> list[Draft]:
    assert state.run is not None
    return [Draft(RunCompleted(stop_reason="end_turn"), state.run.id, state.agent)]


def forked(base: State) -> list[Draft]:
    """The first fact of a fork of KEY."""
    fact = SessionForked(from_session_id=KEY.id, from_seq=base.seq, from_hash=base.hash)
    return [Draft(fact, None, base.agent)]


async def begun(store: SqlStore, session: SessionKey = KEY, **given: Any) -> State:
    """A session with its first event."""
    return (await store.append(session, State(), created(**given))).state


async def running(store: SqlStore, session: SessionKey = KEY, owner: str = "a") -> tuple[State, Lease]:
    """A session with a run that `owner` holds the lease for."""
    state = await begun(store, session)
    appended = await store.append(session, state, run_started(state), lease=Claim(owner, 60))
    assert appended.lease is not None
    return appended.state, appended.lease


async def everything(store: SqlStore) -> dict[str, list[tuple[Any, ...]]]:
    """Every row of every table but Alembic's."""

    def read(connection: Any) -> dict[str, list[tuple[Any, ...]]]:
        return {
            table.name: sorted((tuple(row) for row in connection.execute(select(table))), key=repr)
            for table in metadata.tables.values()
        }

    return await store.database.read(read)


async def left(store: SqlStore) -> set[str]:
    """The tables that still have rows."""
    return {name for name, rows in (await everything(store)).items() if rows}


def seqs(events: Sequence[Any]) -> list[int]:
    return [event.seq for event in events]
