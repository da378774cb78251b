"""Lists of sessions: order, pages and filters, and the same page whichever index it is read from."""

from __future__ import annotations

import base64
import itertools
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, get_args

import msgspec
import pytest
from sqlalchemy import Connection, insert

from swarmkeep.events.codec import encode
from swarmkeep.events.errors import InvalidRequest
from swarmkeep.events.facts import EventDraft, SessionUpdated
from swarmkeep.events.state import SessionStatus
from swarmkeep.events.views import ListedSession, view_session
from swarmkeep.store.index import Found, Place, SessionFilter, Walk, find_sessions
from swarmkeep.store.opening import SqlStore
from swarmkeep.store.records import SessionCount, SessionKey, SessionOrder, labels_of
from swarmkeep.store.tables import session_labels, sessions
from tests.store.conftest import Opener
from tests.store.sessions import KEY, begin_run, begin_session, draft_run_completion, draft_user_messages
from tests.support.cases import first

T0 = datetime(2026, 1, 1, tzinfo=UTC)


def make_key(id: str) -> SessionKey:
    return SessionKey("default", id)


async def list_ids(store: SqlStore, limit: int = 50, **filters: Any) -> list[str]:
    page = await store.list_sessions(SessionFilter("default", **filters), limit=limit)
    return [view.id for view in page.sessions]


async def test_list_shows_current_sessions(store: SqlStore) -> None:
    state = await begin_session(store, metadata={"a": "b"}, context={"c": {"d": -0.0}, "\ud800": "NUL \0"})
    state = (await store.append(KEY, state, draft_user_messages("x"))).state
    view = msgspec.structs.asdict(view_session(KEY.id, state))
    # What one costs is said of one that is asked for.
    assert view.pop("cost") is msgspec.UNSET
    whole = ListedSession(**view)
    page = await store.list_sessions(SessionFilter("default"), include_context=True)
    assert (page.sessions, page.next_cursor) == ([whole], None)
    bare = msgspec.structs.replace(whole, context_variables=msgspec.UNSET)
    assert (await store.list_sessions(SessionFilter("default"))).sessions == [bare]


async def test_empty_list_has_no_next_page(store: SqlStore) -> None:
    page = await store.list_sessions(SessionFilter("default"))
    assert (page.sessions, page.next_cursor) == ([], None)


async def test_newest_first_order_survives_changes(opener: Opener) -> None:
    times = iter(T0 + timedelta(seconds=number) for number in range(10))
    store = opener(clock=lambda: next(times))
    states = [await begin_session(store, make_key(id)) for id in "abc"]
    await store.append(make_key("a"), states[0], draft_user_messages("newer"))
    assert await list_ids(store) == ["c", "b", "a"]


async def test_pages_meet_without_gap_or_double(opener: Opener) -> None:
    # Several at the same moment, so that only the id tells them apart; ids sort by code point.
    times = (T0 + timedelta(seconds=number // 7) for number in range(1000))
    store = opener(clock=lambda: next(times))
    ids = [f"{letter}{number}" for number in range(6) for letter in "aZ-_.:0"]
    for id in ids:
        await begin_session(store, make_key(id))
    whole = await list_ids(store, limit=1000)
    assert sorted(whole) == sorted(ids)
    for limit in (1, 2, 5, 41, 42, 43):
        seen: list[str] = []
        cursor: str | None = None
        while True:
            page = await store.list_sessions(SessionFilter("default"), limit=limit, cursor=cursor)
            seen += [view.id for view in page.sessions]
            cursor = page.next_cursor
            if cursor is None:
                break
            assert len(page.sessions) == limit
        assert seen == whole
    assert whole[:7] == sorted((f"{letter}5" for letter in "aZ-_.:0"), reverse=True)


async def test_later_sessions_do_not_shift_second_page(store: SqlStore) -> None:
    for id in "abcd":
        await begin_session(store, make_key(id))
    page = await store.list_sessions(SessionFilter("default"), limit=2)
    await begin_session(store, make_key("e"))
    rest = await store.list_sessions(SessionFilter("default"), cursor=page.next_cursor)
    assert [view.id for view in rest.sessions] == ["b", "a"]


def _encode_cursor(value: object) -> str:
    return base64.urlsafe_b64encode(encode(value)).decode().rstrip("=")


@pytest.mark.parametrize(
    "cursor",
    [
        "",
        "x",
        "=",
        "====",
        "é",
        "\0",
        "\ud800",
        "bm9wZQ",
        "a" * 5000,
        _encode_cursor([1, 2]),
        _encode_cursor(["x", "y"]),
        _encode_cursor(["2026-01-01T00:00:00.000000Z"]),
        _encode_cursor({}),
        _encode_cursor(["2026-01-01T00:00:00.000000Z", "a", "b"]),
        _encode_cursor("2026-01-01T00:00:00.000000Z"),
        _encode_cursor(["2026-01-01T00:00:00.000000Z", "a"]) + "=",
        _encode_cursor(["2026-01-01T00:00:00.000000Z\n", "a"]),
        "[" * 3000,
    ],
)
async def test_foreign_cursor_is_refused(store: SqlStore, cursor: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        await store.list_sessions(SessionFilter("default"), cursor=cursor)
    assert refused.value.errors[0]["pointer"] == "/cursor"


async def test_filters_by_agent_and_status(store: SqlStore) -> None:
    await begin_session(store, make_key("idle"))
    await begin_run(store, make_key("running"))
    await begin_session(store, make_key("refunds"), agent="Refunds")
    assert await list_ids(store, agent="Refunds") == ["refunds"]
    assert await list_ids(store, agent="refunds") == []
    assert await list_ids(store, status="running") == ["running"]
    assert await list_ids(store, status="idle") == ["refunds", "idle"]
    assert await list_ids(store, status="idle", agent="Triage") == ["idle"]
    state = await store.state(make_key("running"))
    await store.append(make_key("running"), state, draft_run_completion(state))
    assert await list_ids(store, status="running") == []


METADATA = {
    "plain": "text",
    "": "empty key",
    "dotted.key": "a.b",
    "quoted\"'key": 'it\'s "quoted"',
    "sql'; DROP TABLE sessions; --": "%_*",
    "ünï": "e\u0301",
    "\0": "NUL \0",
    "\ud800": "\udfff",
    "empty": "",
    "long": "x" * 20_000,
}
AS_JSON: dict[str, tuple[Any, str]] = {
    "n": (1, "1"),
    "f": (1.0, "1.0"),
    "t": (True, "true"),
    "z": (None, "null"),
    "l": ([1, "a"], '[1,"a"]'),
    "o": ({"a": {}}, '{"a":{}}'),
    "big": (2**70, str(2**70)),
    "minus": (-0.0, "-0.0"),
}


async def test_filters_by_metadata_whatever_it_is(store: SqlStore) -> None:
    await begin_session(store, make_key("other"), metadata={"plain": "other"})
    await begin_session(
        store, make_key("odd"), metadata={**METADATA, **{key: value for key, (value, _) in AS_JSON.items()}}
    )
    wanted = {**METADATA, **{key: text for key, (_, text) in AS_JSON.items()}}
    for name, text in wanted.items():
        assert await list_ids(store, metadata={name: text}) == ["odd"], name
        assert await list_ids(store, metadata={name: text + " "}) == [], name
    assert await list_ids(store, metadata=wanted) == ["odd"]
    assert await list_ids(store, metadata={**wanted, "plain": "other"}) == []
    assert await list_ids(store, metadata={"plain.text": ""}) == []


async def test_filters_follow_changes_of_metadata(store: SqlStore) -> None:
    state = await begin_session(store, metadata={"a": "1", "b": "1"})
    patch = SessionUpdated(metadata={"a": None, "b": 2, "c": "3"})
    state = (await store.append(KEY, state, [EventDraft(patch, None, "Triage")])).state
    for gone in ({"a": "1"}, {"b": "1"}):
        assert await list_ids(store, metadata=gone) == []
    assert await list_ids(store, metadata={"b": "2", "c": "3"}) == [KEY.id]
    await store.append(KEY, state, [EventDraft(SessionUpdated(metadata={"b": None, "c": None}), None, "Triage")])
    assert await list_ids(store, metadata={"b": "2"}) == []


async def test_a_tenant_lists_its_own(store: SqlStore) -> None:
    await begin_session(store, SessionKey("one", "a"), metadata={"k": "v"})
    await begin_session(store, SessionKey("two", "b"), metadata={"k": "v"})
    for tenant, id in (("one", "a"), ("two", "b")):
        assert [
            view.id for view in (await store.list_sessions(SessionFilter(tenant, metadata={"k": "v"}))).sessions
        ] == [id]
    assert (await store.list_sessions(SessionFilter("three"))).sessions == []


# A page of sessions by any filters is what reading all of them would give, whichever index it is read from.

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
        (None, AGENTS[0]), (None, "idle", "waiting"), ENDS[1:4], ({}, {"team": "a"}), get_args(SessionOrder)
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
    return sorted(found, reverse=wanted.order != "oldest_activity")


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
            is_ascending = wanted.order == "oldest_activity"
            assert before is None or (page.after > before) == is_ascending, "the cursor goes on"
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
