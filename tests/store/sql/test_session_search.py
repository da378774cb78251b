"""A page of sessions by any filters is what reading all of them would give, whichever index it is read from."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, get_args

import msgspec
import pytest
from sqlalchemy import Connection, insert

from swarmkeep.events.state import SessionStatus
from swarmkeep.store.index import Found, Place, SessionFilter, Walk, find_sessions
from swarmkeep.store.opening import SqlStore
from swarmkeep.store.records import SessionCount, SessionKey, SessionOrder, labels_of
from swarmkeep.store.tables import session_labels, sessions
from tests.store.sessions import begin_session
from tests.support.cases import first

TENANT = "default"
AGENTS = ("Triage", "Refunds", 'odd "\0')
LABELS: tuple[dict[str, str], ...] = ({}, {"team": "a"}, {"team": "b"}, {"team": "a", "plan": "x"})
FILTERS = [
    SessionFilter(tenant=TENANT, agent=agent, status=status, metadata=metadata)
    for agent, status, metadata in itertools.product(
        (None, *AGENTS, "nobody"), (None, *get_args(SessionStatus)), (*LABELS, {"plan": "y"})
    )
]
ENDS = (None, "completed", "failed", "interrupted", "cancelled")
FILTERS += [
    SessionFilter(tenant=TENANT, agent=agent, status=status, last_run=end, metadata=metadata, order=order)  # type: ignore[arg-type]
    for agent, status, end, metadata, order in itertools.product(
        (None, AGENTS[0]), (None, "idle"), ENDS[1:4], ({}, {"team": "a"}), get_args(SessionOrder)
    )
]
BARE = {"head_seq": 1, "head_hash": b"", "updated_at": "", "view": "{}", "lease_epoch": 0}
# The usual one finds all of these at once. A third of the filters still has every pair of agent, status and metadata.
WALKS = (
    (Walk(), FILTERS),
    (Walk(sessions_at_once=3, sessions_for_a_page=6, small_range=2), FILTERS[::3]),
    (Walk(1, 1, 1), FILTERS[1::3]),
)


async def begin_many(store: SqlStore) -> list[dict[str, Any]]:
    """Sessions of every kind, among those of another tenant; as rows, for it is many."""
    rows: list[dict[str, Any]] = []
    labels: list[dict[str, Any]] = []
    for number, (agent, status, metadata) in enumerate(itertools.product(AGENTS, get_args(SessionStatus), LABELS)):
        place = {"tenant": "other" if number % 9 == 4 else TENANT, "created_at": f"2026-01-01T00:00:0{number % 7}Z"}
        name = f"s{number * 37 % 100:02d}"
        ended = ENDS[number % 5] if status == "idle" else status
        activity = {"last_run": ended, "active_at": f"2026-01-01T00:00:0{number % 6}Z"}
        rows.append({**place, **BARE, **activity, "id": name, "agent": agent, "status": status})
        labels += [{**place, "session_id": name, "label": label} for label in labels_of(metadata)]
        rows[-1]["metadata"] = metadata

    def write(connection: Connection) -> None:
        columns = {column.name for column in sessions.c}
        connection.execute(insert(sessions), [{name: row[name] for name in row if name in columns} for row in rows])
        connection.execute(insert(session_labels), labels)

    await store.database.write(write)
    return [row for row in rows if row["tenant"] == TENANT]


def choose(made: list[dict[str, Any]], wanted: SessionFilter) -> list[Place]:
    time = "created_at" if wanted.order == "created" else "active_at"
    found = [
        (session[time], session["id"])
        for session in made
        if wanted.agent in (None, session["agent"])
        and wanted.status in (None, session["status"])
        and wanted.last_run in (None, session["last_run"])
        and wanted.metadata.items() <= session["metadata"].items()
    ]
    return sorted(found, reverse=True)


def describe(wanted: SessionFilter) -> str:
    return repr(msgspec.to_builtins(wanted))


@pytest.mark.parametrize(("walk", "filters"), first(2, WALKS), ids=("all at once", "a few at once", "one by one"))
async def test_filter_combinations_find_matching_sessions(
    store: SqlStore, walk: Walk, filters: list[SessionFilter]
) -> None:
    made = await begin_many(store)

    def list_pages(connection: Any, wanted: SessionFilter, limit: int) -> Iterator[Found]:
        before: Place | None = None
        while True:
            page = find_sessions(connection, wanted, limit=limit, before=before, walk=walk)
            yield page
            if page.after is None:
                return
            assert before is None or page.after < before, "the cursor goes on"
            before = page.after

    def check(connection: Any) -> None:
        for wanted in filters:
            pages = list(list_pages(connection, wanted, 4))
            found = [place for page in pages for place in page.places]
            assert found == choose(made, wanted), describe(wanted)
            assert all(len(page.places) <= 4 for page in pages)

    await store.database.read(check)


async def test_work_bounded_page_ends_with_cursor(store: SqlStore) -> None:
    keys = [SessionKey(TENANT, f"s{number:02d}") for number in range(30)]
    for key in keys:
        await begin_session(store, key, metadata={"team": "a", "rare": str(key.id == "s03")})
    wanted = SessionFilter(tenant=TENANT, metadata={"team": "a", "rare": "True"})
    walk = Walk(sessions_at_once=5, sessions_for_a_page=10, small_range=1)
    first = await store.database.read(lambda db: find_sessions(db, wanted, limit=50, before=None, walk=walk))
    assert (first.places, first.after and first.after[1]) == ([], "s20")
    # With the usual bounds the rare one is looked for first, and found at once.
    whole = await store.database.read(lambda db: find_sessions(db, wanted, limit=50, before=None))
    assert ([name for _, name in whole.places], whole.after) == (["s03"], None)


async def test_busy_and_troubled_counts_are_bounded(store: SqlStore) -> None:
    made = await begin_many(store)
    counts = await store.count_sessions(TENANT)
    found = {**counts.status, **counts.last_run}
    assert list(found) == ["running", "waiting", "failed", "interrupted"]
    assert {name: (one.count, one.more) for name, one in found.items()} == {
        name: (sum(name in (session["status"], session["last_run"]) for session in made), False) for name in found
    }
    exact = await store.count_sessions(TENANT, most=found["failed"].count)
    assert exact.last_run["failed"] == found["failed"]
    bounded = await store.count_sessions(TENANT, most=1)
    assert {**bounded.status, **bounded.last_run} == {
        name: SessionCount(count=1, more=one.count > 1) for name, one in found.items()
    }
    assert bounded.last_run["failed"].more
    asked = {**BARE, "tenant": TENANT, "id": "subsess_1", "agent": AGENTS[0], "status": "waiting", "created_at": "2026"}
    await store.database.write(lambda db: db.execute(insert(sessions), [asked]))
    assert (await store.count_sessions(TENANT)).status == counts.status
    with_children = await store.count_sessions(TENANT, children=True)
    assert with_children.status["waiting"].count == found["waiting"].count + 1
