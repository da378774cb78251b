"""Usage: each call is counted once, where and when it was made."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swarmkeep.domain.commands import create_session
from swarmkeep.domain.drafts import drafted
from swarmkeep.domain.errors import InvalidRequest
from swarmkeep.domain.events import CompletionRecord, MessageAdded, RequestRecord, SessionForked, ToolRecord
from swarmkeep.domain.state import State
from swarmkeep.domain.usage import UsageQuery, UsageRow
from swarmkeep.store import schema
from swarmkeep.store.hashing import seal
from swarmkeep.store.port import Chunk, SessionKey
from swarmkeep.store.sql import SqlStore
from swarmkeep.store.usage import rebuild, row_of

Json = dict[str, Any]
SAID = {"role": "assistant", "content": "Hi"}


def reply(model: str | None = "m", ms: float = 10.0, **usage: Any) -> MessageAdded:
    return MessageAdded(message=SAID, completion=CompletionRecord(model=model, usage=usage, duration_ms=ms))


def tool(ms: float = 5.0) -> MessageAdded:
    message = {"role": "tool", "tool_call_id": "c", "content": "ok"}
    return MessageAdded(message=message, tool=ToolRecord(name="t", status="ok", duration_ms=ms))


async def talk(store: SqlStore, key: SessionKey, *facts: MessageAdded, agent: str = "Ann", run: str = "r") -> State:
    begun = drafted(agent, create_session(agent, {}, {}, []), None)
    return (await store.append(key, State(), [*begun, *drafted(agent, facts, run)])).state


def key(name: str, tenant: str = "default") -> SessionKey:
    return SessionKey(tenant, name)


async def rows(store: SqlStore, *by: Any, tenant: str = "default", **query: Any) -> list[UsageRow]:
    return (await store.usage(tenant, UsageQuery(by=by, **query))).rows


async def test_calls_are_summed_up_in_groups(store: SqlStore) -> None:
    details = {"prompt_tokens_details": {"cached_tokens": 3}, "completion_tokens_details": {"reasoning_tokens": 2}}
    await talk(store, key("a"), reply("x", prompt_tokens=10, completion_tokens=5, total_tokens=15, **details), tool())
    await talk(store, key("b"), reply("y", prompt_tokens=1, total_tokens=1), agent="Bob", run="q")
    (everything,) = await rows(store)
    assert (everything.model_calls, everything.tool_calls, everything.total_tokens) == (2, 1, 16)
    assert (everything.cached_tokens, everything.reasoning_tokens) == (3, 2)
    assert (everything.model_ms, everything.tool_ms) == (20.0, 5.0)
    assert [(row.model, row.total_tokens, row.tool_calls) for row in await rows(store, "model")] == [
        (None, 0, 1),
        ("x", 15, 0),
        ("y", 1, 0),
    ]
    assert [(row.agent, row.session_id) for row in await rows(store, "agent", "session")] == [
        ("Ann", "a"),
        ("Bob", "b"),
    ]
    assert [row.run_id for row in await rows(store, "run", only={"agent": "Bob"})] == ["q"]
    (today,) = await rows(store, "day")
    assert isinstance(today.day, str)
    assert await rows(store, "day", first_day=today.day, last_day=today.day) == [today]
    assert await rows(store, "day", last_day="2001-01-01") == []


async def test_a_tenant_sees_its_own(store: SqlStore) -> None:
    await talk(store, key("a", "one"), reply(total_tokens=1))
    await talk(store, key("a", "two"), reply(total_tokens=2))
    assert [row.total_tokens for row in await rows(store, tenant="two")] == [2]
    assert await rows(store, "day", tenant="three") == []


async def test_groups_come_in_pages(store: SqlStore) -> None:
    names = ["", "\x00", '"quoted"', "\ud800", "a", "b", "😀"]
    for number, name in enumerate(names):
        await talk(store, key(str(number)), reply(name or None, total_tokens=1), agent=name)
    seen: list[Any] = []
    cursor = None
    while True:
        page = await store.usage("default", UsageQuery(by=("agent", "model"), limit=2, cursor=cursor))
        seen += [(row.agent, row.model) for row in page.rows]
        if (cursor := page.next_cursor) is None:
            break
    assert sorted(seen, key=repr) == sorted([(name, name or None) for name in names], key=repr)
    for bad in ("x", "", "W10", "WyJhIl0"):
        with pytest.raises(InvalidRequest):
            await store.usage("default", UsageQuery(by=("agent", "model"), cursor=bad))


async def test_a_fork_counts_its_own_calls_only(store: SqlStore) -> None:
    state = await talk(store, key("a"), reply(total_tokens=5))
    forked = SessionForked(from_session_id="a", from_seq=state.seq, from_hash=state.hash)
    fork = await store.fork(key("a"), state, key("f"), drafted("Ann", [forked], None))
    await store.append(key("f"), fork.state, drafted("Ann", [reply(total_tokens=7)], "r2"))
    expected = [("a", 5), ("f", 7)]
    assert [(row.session_id, row.total_tokens) for row in await rows(store, "session")] == expected
    # Recorded elsewhere and restored here, it is the same.
    sealed = await store.sealed(key("f"))
    await store.delete(key("f"))
    assert [row.session_id for row in await rows(store, "session")] == ["a"]
    for size in (1, 2, 10):
        chunks = [Chunk(sealed[start : start + size]) for start in range(0, len(sealed), size)]
        await store.restore(key("f"), lambda chunks=chunks: chunks, closing=lambda _: [])  # type: ignore[misc]
        assert [(row.session_id, row.total_tokens) for row in await rows(store, "session")] == expected
        before = await rows(store, "day", "session", "run", "agent", "model")
        await store.database.write(rebuild)
        assert await rows(store, "day", "session", "run", "agent", "model") == before
        await store.delete(key("f"))


async def test_odd_figures_count_as_nothing_and_huge_ones_as_much(store: SqlStore) -> None:
    odd = {"prompt_tokens": "9", "completion_tokens": True, "total_tokens": -4, "prompt_tokens_details": [1]}
    facts = [reply(**odd), *(reply(total_tokens=2**200, ms=1e300) for _ in range(3))]
    await talk(store, key("a"), *facts)
    (row,) = await rows(store)
    assert (row.prompt_tokens, row.completion_tokens, row.cached_tokens, row.model_calls) == (0, 0, 0, 4)
    assert row.total_tokens == 3 * 2**40


async def test_the_model_that_was_asked_counts_where_none_answered(store: SqlStore) -> None:
    request = RequestRecord(instructions="", params={"model": "asked"})
    await talk(store, key("a"), MessageAdded(message=SAID, completion=CompletionRecord(request=request)))
    assert [row.model for row in await rows(store, "model")] == ["asked"]


@settings(deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(["prompt_tokens", "total_tokens", "prompt_tokens_details"]), st.integers() | st.text()
    )
)
def test_whatever_a_provider_reports_makes_a_row(usage: Json) -> None:
    (one, two) = seal("s", State(), drafted("A", [reply(**usage), tool()], None), at="2026-01-02T03:04:05.000006Z")
    made = [row_of(one.event), row_of(two.event)]
    assert [row and row["day"] for row in made] == ["2026-01-02"] * 2
    assert Counter(type(value) for row in made if row for value in row.values()).keys() <= {str, int, float}


async def test_what_was_recorded_before_there_was_an_index_counts(store: SqlStore, url: str) -> None:
    await talk(store, key("a"), reply(total_tokens=5), tool())
    before = await rows(store, "session", "run", "day")
    await asyncio.to_thread(schema.downgrade, url, "0003")
    await asyncio.to_thread(schema.upgrade, url)
    assert await rows(store, "session", "run", "day") == before
