"""Usage: each call is counted once, where and when it was made, and sums by day are what the calls come to."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection, Engine, event, func, select, update

from swarmkeep.decide.drafts import draft_events
from swarmkeep.events.codec import Json
from swarmkeep.events.errors import InvalidRequest
from swarmkeep.events.facts import MessageAdded, SessionForked
from swarmkeep.events.records import CompletionRecord, RequestRecord, UsageGroup, UsageQuery, UsageRow
from swarmkeep.events.redaction import redact_payload
from swarmkeep.events.state import State
from swarmkeep.store import schema
from swarmkeep.store.hashing import seal
from swarmkeep.store.opening import SqlStore
from swarmkeep.store.records import AuditAction, Restoration, SealedBatch, SessionKey
from swarmkeep.store.tables import usage, usage_days
from swarmkeep.store.usage import SUMS, make_usage_row
from tests.store.calls import REPLY, make_reply, make_tool_result, record_calls
from tests.store.conftest import Opener
from tests.store.plans.cases import draft_redaction


def make_key(name: str, tenant: str = "default") -> SessionKey:
    return SessionKey(tenant, name)


async def read_usage(store: SqlStore, *by: Any, tenant: str = "default", **query: Any) -> list[UsageRow]:
    return (await store.sum_usage(tenant, UsageQuery(by=by, **query))).rows


async def test_calls_are_summed_up_in_groups(store: SqlStore) -> None:
    details = {"prompt_tokens_details": {"cached_tokens": 3}, "completion_tokens_details": {"reasoning_tokens": 2}}
    await record_calls(
        store,
        make_key("a"),
        make_reply("x", prompt_tokens=10, completion_tokens=5, total_tokens=15, **details),
        make_tool_result(),
    )
    await record_calls(store, make_key("b"), make_reply("y", prompt_tokens=1, total_tokens=1), agent="Bob", run="q")
    (everything,) = await read_usage(store)
    assert (everything.model_calls, everything.tool_calls, everything.total_tokens) == (2, 1, 16)
    assert (everything.cached_tokens, everything.reasoning_tokens) == (3, 2)
    assert (everything.model_ms, everything.tool_ms) == (20.0, 5.0)
    assert [(row.model, row.total_tokens, row.tool_calls) for row in await read_usage(store, "model")] == [
        (None, 0, 1),
        ("x", 15, 0),
        ("y", 1, 0),
    ]
    assert [(row.agent, row.session_id) for row in await read_usage(store, "agent", "session")] == [
        ("Ann", "a"),
        ("Bob", "b"),
    ]
    assert [row.run_id for row in await read_usage(store, "run", only={"agent": "Bob"})] == ["q"]
    (today,) = await read_usage(store, "day")
    assert isinstance(today.day, str)
    assert await read_usage(store, "day", first_day=today.day, last_day=today.day) == [today]
    assert await read_usage(store, "day", last_day="2001-01-01") == []


async def test_groups_are_told_by_model_too(store: SqlStore) -> None:
    details = {"prompt_tokens_details": {"cached_tokens": 3}}
    await record_calls(store, make_key("a"), make_reply("x", prompt_tokens=10, **details), make_tool_result())
    await record_calls(store, make_key("b"), make_reply("y", prompt_tokens=1), agent="Bob")
    await record_calls(store, make_key("c"), make_reply("x"), make_reply("y"), make_reply("z"))
    groups: list[tuple[UsageGroup, ...]] = [(), ("agent",), ("session",), ("day", "model")]
    shown = [
        [
            {share.model: (share.model_calls, share.prompt_tokens, share.cached_tokens) for share in shares}
            for shares in (await store.sum_usage("default", UsageQuery(by=by, with_shares=True))).shares
        ]
        for by in groups
    ]
    x, y, z = (1, 10, 3), (1, 1, 0), (1, 0, 0)
    assert shown == [
        [{"x": (2, 10, 3), "y": (2, 1, 0), "z": z}],
        [{"x": (2, 10, 3), "y": z, "z": z}, {"y": y}],
        [{"x": x}, {"y": y}, {"x": z, "y": z, "z": z}],
        [{}, {"x": (2, 10, 3)}, {"y": (2, 1, 0)}, {"z": z}],
    ]
    page = await store.sum_usage("default", UsageQuery(by=("session",), with_shares=True, limit=1))
    assert [[share.model for share in shares] for shares in page.shares] == [["x"]]


async def test_a_tenant_sees_its_own(store: SqlStore) -> None:
    await record_calls(store, make_key("a", "one"), make_reply(total_tokens=1))
    await record_calls(store, make_key("a", "two"), make_reply(total_tokens=2))
    assert [row.total_tokens for row in await read_usage(store, tenant="two")] == [2]
    assert await read_usage(store, "day", tenant="three") == []


async def test_groups_come_in_pages(store: SqlStore) -> None:
    names = ["", "\x00", '"quoted"', "\ud800", "a", "b", "😀"]
    for number, name in enumerate(names):
        await record_calls(store, make_key(str(number)), make_reply(name or None, total_tokens=1), agent=name)
    seen: list[Any] = []
    cursor = None
    while True:
        query = UsageQuery(by=("agent", "model"), limit=2, cursor=cursor, with_shares=True)
        page = await store.sum_usage("default", query)
        seen += [(row.agent, row.model) for row in page.rows]
        assert [[share.model for share in shares] for shares in page.shares] == [[row.model or ""] for row in page.rows]
        if (cursor := page.next_cursor) is None:
            break
    assert sorted(seen, key=repr) == sorted([(name, name or None) for name in names], key=repr)
    for bad in ("x", "", "W10", "WyJhIl0"):
        with pytest.raises(InvalidRequest):
            await store.sum_usage("default", UsageQuery(by=("agent", "model"), cursor=bad))


async def test_shares_cover_only_page_groups(store: SqlStore) -> None:
    for name in "abcde":
        await record_calls(store, make_key(name), make_reply("x"), make_reply("y"))
    first = await store.sum_usage("default", UsageQuery(by=("day", "session"), limit=1))
    statements: list[tuple[str, Any]] = []

    def note(connection: Any, cursor: Any, sql: str, parameters: Any, context: Any, many: bool) -> None:
        statements.append((sql, parameters))

    event.listen(Engine, "before_cursor_execute", note)
    try:
        query = UsageQuery(by=("day", "session"), limit=2, cursor=first.next_cursor, with_shares=True)
        page = await store.sum_usage("default", query)
    finally:
        event.remove(Engine, "before_cursor_execute", note)
    assert [row.session_id for row in page.rows] == ["b", "c"]
    [(sql, parameters)] = [each for each in statements if "of_model" in each[0]]
    found = await store.database.read(lambda connection: connection.exec_driver_sql(sql, parameters).all())
    assert sorted(tuple(row)[1:3] for row in found) == [("b", "x"), ("b", "y"), ("c", "x"), ("c", "y")]


async def test_fork_counts_only_its_calls(store: SqlStore) -> None:
    state = await record_calls(store, make_key("a"), make_reply(total_tokens=5))
    forked = SessionForked(from_session_id="a", from_seq=state.seq, from_hash=state.hash)
    fork = await store.fork(make_key("a"), state, make_key("f"), draft_events("Ann", [forked], None))
    await store.append(make_key("f"), fork.state, draft_events("Ann", [make_reply(total_tokens=7)], "r2"))
    expected = [("a", 5), ("f", 7)]
    assert [(row.session_id, row.total_tokens) for row in await read_usage(store, "session")] == expected
    # Recorded elsewhere and restored here, it is the same.
    sealed = await store.read_sealed(make_key("f"))
    await store.delete(make_key("f"))
    assert [row.session_id for row in await read_usage(store, "session")] == ["a"]
    for size in (1, 2, 10):
        chunks = [SealedBatch(sealed[start : start + size]) for start in range(0, len(sealed), size)]
        restored = AuditAction(type="session.imported")
        again = Restoration(make_key("f"), lambda chunks=chunks: chunks, lambda _: [])  # type: ignore[misc]
        await store.restore([again], action=restored)
        assert [(row.session_id, row.total_tokens) for row in await read_usage(store, "session")] == expected
        own = [event for event in await store.read(make_key("f")) if event.seq > state.seq]
        rows = {event.seq: row for event in own if (row := make_usage_row(event)) is not None}
        last = own[-1].seq
        kept = await store.read_snapshot(
            lambda stored, upto=last: stored.read_usage_rows(make_key("f"), after=0, upto=upto)
        )
        assert kept == rows
        await store.delete(make_key("f"))


async def test_odd_usage_is_zero_or_capped(store: SqlStore) -> None:
    odd = {"prompt_tokens": "9", "completion_tokens": True, "total_tokens": -4, "prompt_tokens_details": [1]}
    facts = [make_reply(**odd), *(make_reply(total_tokens=2**200, ms=1e300) for _ in range(3))]
    await record_calls(store, make_key("a"), *facts)
    (row,) = await read_usage(store)
    assert (row.prompt_tokens, row.completion_tokens, row.cached_tokens, row.model_calls) == (0, 0, 0, 4)
    assert row.total_tokens == 3 * 2**40


async def test_asked_model_counts_without_answering_one(store: SqlStore) -> None:
    request = RequestRecord(instructions="", params={"model": "asked"})
    await record_calls(store, make_key("a"), MessageAdded(message=REPLY, completion=CompletionRecord(request=request)))
    assert [row.model for row in await read_usage(store, "model")] == ["asked"]


@settings(deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(["prompt_tokens", "total_tokens", "prompt_tokens_details"]), st.integers() | st.text()
    )
)
def test_any_provider_usage_makes_a_row(usage: Json) -> None:
    (one, two) = seal(
        "s",
        State(),
        draft_events("A", [make_reply(**usage), make_tool_result()], None),
        at="2026-01-02T03:04:05.000006Z",
    )
    made = [make_usage_row(one.event), make_usage_row(two.event)]
    assert [row and row["day"] for row in made] == ["2026-01-02"] * 2
    assert Counter(type(value) for row in made if row for value in row.values()).keys() <= {str, int, float}


async def test_records_before_the_index_count(store: SqlStore, url: str) -> None:
    await record_calls(store, make_key("a"), make_reply(total_tokens=5), make_tool_result())
    before = await read_usage(store, "session", "run", "day")
    await asyncio.to_thread(schema.downgrade, url, "0003")
    await asyncio.to_thread(schema.upgrade, url)
    assert await read_usage(store, "session", "run", "day") == before


# Sums by day are what the rows of the calls come to after any change of the sessions.


def make_day_key(name: str) -> SessionKey:
    return SessionKey("default", name)


def read_sums(connection: Connection, table: Any) -> list[tuple[Any, ...]]:
    names = (table.c.tenant, table.c.day, table.c.agent, table.c.model)
    query = select(*names, *(func.sum(table.c[name]) for name in SUMS)).group_by(*names)
    return sorted((*row[:4], *(round(float(value), 3) for value in row[4:])) for row in connection.execute(query))


async def check(store: SqlStore) -> list[tuple[Any, ...]]:
    kept, counted = await store.database.read(
        lambda connection: (read_sums(connection, usage_days), read_sums(connection, usage))
    )
    assert kept == counted
    return kept


async def test_usage_follows_every_session_change(store: SqlStore) -> None:
    first = await record_calls(
        store, make_day_key("a"), make_reply("x", total_tokens=3), make_tool_result(0.1), agent="Ann"
    )
    await record_calls(store, make_day_key("b"), make_reply("x", total_tokens=5), agent="Ann")
    assert len(await check(store)) == 2
    forked = SessionForked(from_session_id="a", from_seq=first.seq, from_hash=first.hash)
    fork = await store.fork(make_day_key("a"), first, make_day_key("f"), draft_events("Ann", [forked], None))
    await store.append(make_day_key("f"), fork.state, draft_events("Ann", [make_reply("y", total_tokens=7)], "r2"))
    assert [row[3] for row in await check(store)] == ["", "x", "y"]

    sealed = await store.read_sealed(make_day_key("f"))
    await store.delete(make_day_key("f"))
    # Not even the name of what only that session had is left.
    assert [row[3] for row in await check(store)] == ["", "x"]
    chunks = [SealedBatch(sealed[start : start + 2]) for start in range(0, len(sealed), 2)]
    action = AuditAction(type="session.imported")
    await store.restore([Restoration(make_day_key("f"), lambda: chunks, lambda _: [])], action=action)
    assert [row[3] for row in await check(store)] == ["", "x", "y"]
    for name in "abf":
        await store.delete(make_day_key(name))
    assert await check(store) == []


async def test_redacted_calls_keep_counting(store: SqlStore) -> None:
    await record_calls(store, make_day_key("a"), make_reply("a name, maybe", total_tokens=3), make_reply("x"))
    log = await store.read_sealed(make_day_key("a"))
    said = next(one.event for one in log if one.event.type == "message.added")
    await store.redact(make_day_key("a"), log, {said.seq: redact_payload(said)}, draft_redaction(said.seq))
    kept = await check(store)
    assert "a name, maybe" not in {row[3] for row in kept}
    assert sum(row[4] for row in kept) == 2


async def test_counts_before_parts_can_be_deleted(store: SqlStore) -> None:
    await record_calls(store, make_day_key("a"), make_reply("x", total_tokens=3))
    await record_calls(store, make_day_key("b"), make_reply("y", total_tokens=5))
    # As the migration puts it.
    await store.database.write(lambda connection: connection.execute(update(usage_days).values(part=0)).rowcount)
    await store.delete(make_day_key("a"))
    rows = (await store.sum_usage("default", UsageQuery(by=("model",)))).rows
    assert [(row.model, row.total_tokens) for row in rows] == [("y", 5)]


async def test_many_at_once_lose_nothing(opener: Opener) -> None:
    stores = [opener(), opener()]
    facts = [make_reply(model, total_tokens=1) for model in ("x", "y", "z")]
    await asyncio.gather(
        *(
            record_calls(stores[number % 2], make_day_key(f"s{number}"), *facts[:: 1 if number % 2 else -1])
            for number in range(24)
        )
    )
    assert sum(row[8] for row in await check(stores[0])) == 72
    await asyncio.gather(*(stores[number % 2].delete(make_day_key(f"s{number}")) for number in range(0, 24, 2)))
    assert sum(row[8] for row in await check(stores[1])) == 36


@pytest.mark.parametrize("by", [("session",), ("run",), ("session", "run"), ("run", "model"), ("session", "agent")])
async def test_session_and_run_pages_match_all_calls(store: SqlStore, by: Any) -> None:
    for number in range(9):
        facts = [make_reply(f"m{place % 2}", total_tokens=place) for place in range(number % 4)]
        await record_calls(store, make_day_key(f"s{number}"), *facts, run=f"r{number // 2}")
    (whole,) = [await store.sum_usage("default", UsageQuery(by=by, limit=200))]
    assert whole.next_cursor is None
    for limit in (1, 2, 3):
        rows: list[Any] = []
        cursor = None
        while True:
            page = await store.sum_usage("default", UsageQuery(by=by, limit=limit, cursor=cursor))
            rows += page.rows
            if (cursor := page.next_cursor) is None:
                break
        assert rows == whole.rows
    everything = (await store.sum_usage("default", UsageQuery())).rows[0]
    assert sum(row.total_tokens for row in rows) == everything.total_tokens
