"""The table of runs: a row for each run that is over, whatever was done to its session; pages, sums, percentiles."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from benchmarks.large_database import AGENT, TENANT, fill_database
from sqlalchemy import Connection, insert, select

from swarmkeep.decide.drafts import draft_events
from swarmkeep.events import facts
from swarmkeep.events.errors import InvalidRequest
from swarmkeep.events.records import CompletionRecord, RunOptions, ToolRecord
from swarmkeep.events.redaction import redact_payload
from swarmkeep.events.run_table import EndedRun, FiguresQuery, RunFilter, RunGroup, RunQuery, RunSort
from swarmkeep.events.state import State
from swarmkeep.store import schema
from swarmkeep.store.hashing import SealedEvent
from swarmkeep.store.index import SessionFilter
from swarmkeep.store.opening import SqlStore
from swarmkeep.store.records import AuditAction, Restoration, SealedBatch, SessionKey, encode_cursor
from swarmkeep.store.runs import RunWalk, make_run_rows
from swarmkeep.store.tables import runs
from tests.store.calls import REPLY, make_reply, make_tool_result
from tests.store.conftest import Opener
from tests.store.plans.cases import draft_redaction
from tests.store.sessions import begin_run, draft_creation, draft_run_completion
from tests.support.logs import SeededDice, make_hostile_log, make_random_log

KEY = SessionKey("default", "s")
STARTED = facts.RunStarted(options=RunOptions())
WAITING = facts.RunWaiting(
    pending=(facts.PendingCall(tool_call_id="c", name="pay", arguments="{}", reason="approval"),)
)
COMPLETED, FAILED = facts.RunCompleted(stop_reason="end_turn"), facts.RunFailed(stop_reason="error")
INTERRUPTED = facts.RunInterrupted(stop_reason="interrupted")


def make_streamed_reply(model: str, first_token_ms: float, **usage: Any) -> facts.MessageAdded:
    completion = CompletionRecord(model=model, usage=usage, time_to_first_token_ms=first_token_ms)
    return facts.MessageAdded(message=REPLY, completion=completion)


def make_result(status: str) -> facts.MessageAdded:
    message = {"role": "tool", "tool_call_id": "c", "content": "ok"}
    return facts.MessageAdded(message=message, tool=ToolRecord(name="t", status=status))


class Recorder:
    """Records facts at times, each some seconds after the one before."""

    def __init__(self, opener: Opener) -> None:
        self.now = datetime(2026, 3, 1, 12, tzinfo=UTC)
        self.store = opener(clock=lambda: self.now)
        self.states: dict[SessionKey, State] = {}

    async def record(
        self, *recorded: facts.SessionEvent, run: str = "r1", key: SessionKey = KEY, after: float = 1.0
    ) -> State:
        self.now += timedelta(seconds=after)
        if key not in self.states:
            self.states[key] = (await self.store.append(key, State(), draft_creation(agent="Ann"))).state
        drafts = draft_events("Ann", recorded, run)
        self.states[key] = (await self.store.append(key, self.states[key], drafts)).state
        return self.states[key]

    async def end(self, run: str, *recorded: facts.SessionEvent, key: SessionKey = KEY, after: float = 1.0) -> State:
        await self.record(STARTED, run=run, key=key)
        return await self.record(*recorded, run=run, key=key, after=after)


@pytest.fixture
def recorder(opener: Opener) -> Recorder:
    return Recorder(opener)


async def list_runs(store: SqlStore, tenant: str = "default", sort: RunSort = "created_at", **only: Any) -> list[Any]:
    page = await store.list_ended_runs(tenant, RunQuery(only=RunFilter(**only), sort=sort))
    assert page.next_cursor is None
    return page.runs


async def read_run_rows(store: SqlStore) -> list[Any]:
    """The rows as they are; those of a session are what its events add up to."""
    found = await store.database.read(
        lambda connection: connection.execute(select(runs).order_by(*runs.primary_key)).mappings().all()
    )
    told = []
    for tenant, name in sorted({(row["tenant"], row["session_id"]) for row in found}):
        state = await store.state(SessionKey(tenant, name))
        told += [{"tenant": tenant, "session_id": name, **row} for row in make_run_rows(state)]
    assert [dict(row) for row in found] == told
    return list(found)


async def test_run_that_is_over_has_a_row(recorder: Recorder) -> None:
    await recorder.record(STARTED, run="r1")
    assert await list_runs(recorder.store) == []
    reply = make_streamed_reply("m-1", 120.0, prompt_tokens=10, completion_tokens=5, total_tokens=15)
    await recorder.record(reply, make_result("ok"), make_result("timeout"), after=0.25)
    await recorder.record(make_streamed_reply("m-2", 50.0, prompt_tokens=1, total_tokens=1), COMPLETED, after=1.5)
    (run,) = await list_runs(recorder.store)
    assert run == EndedRun(
        id="r1", session_id="s", agent="Ann", model="m-2", status="completed", stop_reason="end_turn", error=None,
        created_at="2026-03-01T12:00:01.000000Z", finished_at="2026-03-01T12:00:02.750000Z", latency_ms=1750.0,
        waited_ms=0.0, first_token_ms=120.0, model_calls=2, tool_calls=2, tool_errors=1, prompt_tokens=11,
        completion_tokens=5, total_tokens=16,
    )  # fmt: skip
    assert len(await read_run_rows(recorder.store)) == 1


async def test_time_spent_waiting_is_no_latency(recorder: Recorder) -> None:
    await recorder.record(STARTED)
    await recorder.record(WAITING, after=2)
    await recorder.record(facts.RunResumed(reason="approval"), after=100)
    await recorder.record(INTERRUPTED, after=3)
    (run,) = await list_runs(recorder.store)
    assert (run.status, run.latency_ms, run.waited_ms) == ("interrupted", 5000.0, 100_000.0)
    await recorder.record(facts.RunResumed(reason="recovery"), after=50)
    assert await list_runs(recorder.store) == []
    await recorder.record(FAILED, after=4)
    (run,) = await list_runs(recorder.store)
    assert (run.status, run.latency_ms, run.waited_ms) == ("failed", 9000.0, 150_000.0)
    await recorder.end("r2", WAITING)
    await recorder.record(COMPLETED, run="r2", after=60)
    latest = (await list_runs(recorder.store, session="s"))[0]
    assert (latest.latency_ms, latest.waited_ms) == (1000, 60_000)
    assert len(await read_run_rows(recorder.store)) == 2


async def test_rows_follow_every_session_change(recorder: Recorder) -> None:
    store = recorder.store
    await recorder.end("r1", make_reply("m"), COMPLETED)
    open_run = await recorder.record(STARTED, run="r2")
    await recorder.record(make_reply("m"), COMPLETED, run="r2")
    forked = draft_events(
        "Ann", [facts.SessionForked(from_session_id="s", from_seq=open_run.seq, from_hash=open_run.hash)], None
    )
    copy = SessionKey("default", "f")
    recorder.states[copy] = (await store.fork(KEY, open_run, copy, forked)).state
    assert [(run.session_id, run.id) for run in await list_runs(store)] == [("s", "r2"), ("s", "r1")]
    await recorder.record(facts.RunResumed(reason="recovery"), run="r2", key=copy)
    await recorder.record(FAILED, run="r2", key=copy)
    assert {(run.session_id, run.id) for run in await list_runs(store)} == {("s", "r2"), ("s", "r1"), ("f", "r2")}
    rows = await read_run_rows(store)

    sealed = await store.read_sealed(copy)
    await store.delete(copy)
    assert [row["session_id"] for row in await read_run_rows(store)] == ["s", "s"]
    chunks = [SealedBatch(sealed[start : start + 2]) for start in range(0, len(sealed), 2)]
    restored = Restoration(copy, lambda: chunks, lambda _: [])
    await store.restore([restored], action=AuditAction(type="session.imported"))
    assert await read_run_rows(store) == rows

    log = await store.read_sealed(KEY)
    said = next(one.event for one in log if one.event.type == "message.added")
    await store.redact(KEY, log, {said.seq: redact_payload(said)}, draft_redaction(said.seq))
    assert len(await read_run_rows(store)) == 3


async def test_what_was_redacted_is_in_no_row(recorder: Recorder) -> None:
    await recorder.end("r1", make_reply("A canary's name"), COMPLETED)
    log = await recorder.store.read_sealed(KEY)
    said = next(one.event for one in log if one.event.type == "message.added")
    await recorder.store.redact(KEY, log, {said.seq: redact_payload(said)}, draft_redaction(said.seq))
    (row,) = await read_run_rows(recorder.store)
    assert "canary" not in str(dict(row))


async def test_runs_are_filtered_and_sorted(recorder: Recorder) -> None:
    store, other = recorder.store, SessionKey("default", "t")
    broken = facts.RunFailed(stop_reason="error", error=facts.RunError(code="provider_failed", message="x"))
    await recorder.end("fast", make_streamed_reply("m", 30.0, total_tokens=5), COMPLETED, after=1)
    await recorder.end("slow", make_reply("n", total_tokens=50), broken, after=9)
    await recorder.end("mid", make_streamed_reply("m", 90.0, total_tokens=7), COMPLETED, key=other, after=4)
    await recorder.end("theirs", COMPLETED, key=SessionKey("acme", "s"))
    orders: dict[RunSort, list[str]] = {
        "created_at": ["mid", "slow", "fast"],
        "latency_ms": ["slow", "mid", "fast"],
        "first_token_ms": ["mid", "fast"],
        "total_tokens": ["slow", "mid", "fast"],
    }
    assert {sort: [run.id for run in await list_runs(store, sort=sort)] for sort in orders} == orders
    filters: list[tuple[dict[str, Any], list[str]]] = [
        ({"model": "m"}, ["mid", "fast"]),
        ({"status": "failed"}, ["slow"]),
        ({"status": "completed", "model": "m"}, ["mid", "fast"]),
        ({"status": "failed", "agent": "Ann", "error": "provider_failed"}, ["slow"]),
        ({"stop_reason": "end_turn", "session": "s"}, ["fast"]),
        ({"error": "other"}, []),
        ({"agent": "Bob"}, []),
        ({"created_after": "2026-03-01T12:00:03.000000Z"}, ["mid", "slow"]),
        ({"created_before": "2026-03-01T12:00:03.000000Z"}, ["fast"]),
    ]
    for only, expected in filters:
        for sort in orders:
            found = [run.id for run in await list_runs(store, sort=sort, **only)]
            assert found == [name for name in orders[sort] if name in expected], (only, sort)
    assert [run.id for run in await list_runs(store, tenant="acme")] == ["theirs"]


def insert_some_runs(connection: Connection, count: int) -> None:
    """Runs of which many have the same figures; every seventh failed."""
    made = {"tenant": "default", "agent": "Ann", "stop_reason": "end_turn", "error": "", "waited_ms": 0.0,
            "finished_at": "2026-03-01T12:00:00.000000Z", "model_calls": 1, "tool_calls": 0, "tool_errors": 0,
            "prompt_tokens": 1, "completion_tokens": 1}  # fmt: skip
    rows = [
        {**made, "session_id": f"s{n % 3}", "seq": n + 1, "run_id": f"r{n}", "model": f"m{n % 2}",
         "status": "completed" if n % 7 else "failed", "latency_ms": float(n % 5) + 0.125, "total_tokens": n % 4,
         "first_token_ms": None if n % 2 else float(n % 3), "created_at": f"2026-03-0{n % 3 + 1}T12:00:00.000000Z"}
        for n in range(count)
    ]  # fmt: skip
    connection.execute(insert(runs), rows)


async def walk_pages(store: SqlStore, query: RunQuery, walk: RunWalk) -> list[str]:
    found: list[str] = []
    cursor: str | None = ""
    while cursor is not None:
        asked = RunQuery(only=query.only, sort=query.sort, limit=query.limit, cursor=cursor or None)
        page = await store.list_ended_runs("default", asked, walk)
        assert len(page.runs) <= query.limit
        found += [run.id for run in page.runs]
        cursor = page.next_cursor
    return found


@pytest.mark.parametrize("sort", ["created_at", "latency_ms", "first_token_ms", "total_tokens"])
async def test_pages_have_each_run_once(store: SqlStore, sort: RunSort) -> None:
    await store.database.write(lambda connection: insert_some_runs(connection, 60))
    for only in ({}, {"status": "failed"}, {"model": "m1"}, {"error": "", "model": "m0"}, {"session": "s1"}):
        query = RunQuery(only=RunFilter(**only), sort=sort, limit=200)
        whole = [run.id for run in (await store.list_ended_runs("default", query)).runs]
        assert whole or sort == "first_token_ms"
        for walk in (RunWalk(), RunWalk(runs_for_a_page=4, runs_to_sort=3)):
            paged = await walk_pages(store, RunQuery(only=RunFilter(**only), sort=sort, limit=3), walk)
            assert paged == whole, (only, walk)


async def test_foreign_cursors_are_refused(store: SqlStore) -> None:
    cursors: list[tuple[RunSort, str]] = [
        ("latency_ms", "x"),
        ("latency_ms", encode_cursor(["created_at", "2026-03-01T12:00:00.000000Z", "s", "1"])),
        *(
            ("latency_ms", encode_cursor(["latency_ms", text, "s", "1"]))
            for text in ("nan", "inf", "-1", "é", "1" * 50)
        ),
        *(("total_tokens", encode_cursor(["total_tokens", "1", "s", seq])) for seq in ("", "-1", str(2**63), "1e400")),
    ]
    for sort, cursor in cursors:
        with pytest.raises(InvalidRequest, match="cursor"):
            await store.list_ended_runs("default", RunQuery(sort=sort, cursor=cursor))
    for by, cursor in (((), encode_cursor([])), (("day",), "x"), (("day",), encode_cursor(["a", "b"]))):
        with pytest.raises(InvalidRequest, match="cursor"):
            await store.sum_runs("default", FiguresQuery(by=by, cursor=cursor))  # type: ignore[arg-type]


def nearest_rank(values: Sequence[float], percent: int) -> float | None:
    ordered = sorted(values)
    return ordered[(len(ordered) * percent + 99) // 100 - 1] if ordered else None


async def test_percentiles_are_exact(store: SqlStore) -> None:
    await store.database.write(lambda connection: insert_some_runs(connection, 150))
    rows = await store.database.read(lambda connection: connection.execute(select(runs)).mappings().all())

    def expect(by: Sequence[RunGroup]) -> Iterator[Any]:
        names = {"day": lambda row: row["created_at"][:10], "agent": lambda row: row["agent"],
                 "model": lambda row: row["model"]}  # fmt: skip
        groups: dict[tuple[str, ...], list[Any]] = {}
        for row in rows:
            groups.setdefault(tuple(names[name](row) for name in by), []).append(row)
        for group in sorted(groups):
            some = groups[group]
            firsts = [row["first_token_ms"] for row in some if row["first_token_ms"] is not None]
            yield (
                group, len(some), sum(row["status"] == "failed" for row in some),
                sum(row["total_tokens"] for row in some),
                [nearest_rank([row["latency_ms"] for row in some], percent) for percent in (50, 90, 99)],
                [nearest_rank(firsts, percent) for percent in (50, 90, 99)],
            )  # fmt: skip

    groupings: tuple[tuple[RunGroup, ...], ...] = ((), ("day",), ("model",), ("day", "agent", "model"))
    for by in groupings:
        page = await store.sum_runs("default", FiguresQuery(by=by, limit=200))
        found = [
            (
                tuple(getattr(row, name) for name in by), row.runs, row.failed, row.total_tokens,
                [row.latency_ms.p50, row.latency_ms.p90, row.latency_ms.p99],
                [row.first_token_ms.p50, row.first_token_ms.p90, row.first_token_ms.p99],
            )
            for row in page.rows
        ]  # fmt: skip
        assert (found, page.next_cursor) == (list(expect(by)), None)
    one = await store.sum_runs("default", FiguresQuery(by=("day", "model"), limit=1))
    two = await store.sum_runs("default", FiguresQuery(by=("day", "model"), limit=1, cursor=one.next_cursor))
    assert [(row.day, row.model) for row in (*one.rows, *two.rows)] == [("2026-03-01", "m0"), ("2026-03-01", "m1")]
    (nothing,) = (await store.sum_runs("acme", FiguresQuery())).rows
    assert (nothing.runs, nothing.failed, nothing.latency_ms.p50) == (0, 0, None)
    (some,) = (await store.sum_runs("default", FiguresQuery(only=RunFilter(status="failed", model="m1")))).rows
    assert some.runs == some.failed == sum(row["status"] == "failed" and row["model"] == "m1" for row in rows)


async def test_runs_without_a_reply_belong_to_no_model(recorder: Recorder) -> None:
    await recorder.end("r1", COMPLETED)
    assert (await list_runs(recorder.store))[0].model is None
    (row,) = (await recorder.store.sum_runs("default", FiguresQuery(by=("model",)))).rows
    assert (row.model, row.runs) == (None, 1)


async def test_shares_are_of_the_session_too(recorder: Recorder) -> None:
    await recorder.end("r1", make_reply("x", prompt_tokens=3), make_reply("y", prompt_tokens=4), COMPLETED)
    await recorder.end("r1", make_reply("x", prompt_tokens=9), COMPLETED, key=SessionKey("default", "t"))
    await recorder.end("r2", COMPLETED)
    page = await recorder.store.list_ended_runs("default", RunQuery(with_shares=True))
    shares = {
        (run.session_id, run.id): {share.model: share.prompt_tokens for share in shares}
        for run, shares in zip(page.runs, page.shares, strict=True)
    }
    assert shares == {("s", "r1"): {"x": 3, "y": 4}, ("t", "r1"): {"x": 9}, ("s", "r2"): {}}


@pytest.mark.parametrize("seeds", [range(40), pytest.param(range(40, 400), marks=pytest.mark.long)], ids=str)
async def test_migration_makes_the_rows_of_the_server(url: str, opener: Opener, seeds: range) -> None:
    store = opener()
    for seed in seeds:
        make = make_hostile_log if seed % 3 == 0 else make_random_log
        sealed = [SealedEvent(event, b"s" * 16, b"c") for event in make(SeededDice(seed))]
        if sealed:
            batch = Restoration(
                SessionKey("default", f"s{seed}"), lambda sealed=sealed: [SealedBatch(sealed)], lambda _: []
            )  # type: ignore[misc]
            await store.restore([batch], action=AuditAction(type="session.imported"))
    query = select(runs).order_by(*runs.primary_key)

    def read(connection: Connection) -> list[Any]:
        return [tuple(row) for row in connection.execute(query)]

    rows = await store.database.read(read)
    assert len(rows) > len(seeds) / 2
    await store.close()
    await asyncio.to_thread(schema.downgrade, url, "0019")
    await asyncio.to_thread(schema.upgrade, url)
    assert await opener().database.read(read) == rows


async def test_large_table_answers_by_pages(sqlite_ready: str) -> None:
    """Of many sessions, no page looks at more than a bounded number of runs, whatever the filters leave."""
    from swarmkeep.store.opening import open_store

    store = open_store(sqlite_ready)
    await store.database.write(lambda connection: fill_database(connection, 6_000, 1, 1))
    found = await store.list_ended_runs(TENANT, RunQuery(only=RunFilter(stop_reason="none such")))
    assert (found.runs, found.next_cursor is not None) == ([], True)
    found = await store.list_ended_runs(TENANT, RunQuery(only=RunFilter(agent=AGENT), sort="latency_ms"))
    assert len(found.runs) == 50
    await store.close()


# Lists of the runs that are active: whose they are, what they took, and who has their leases.


async def test_active_runs_list_lease_calls_queue(store: SqlStore) -> None:
    busy, other = SessionKey("default", "busy"), SessionKey("default", "other")
    await begin_run(store, SessionKey("elsewhere", "busy"))
    ended, lease = await begin_run(store, SessionKey("default", "ended"))
    await store.append(SessionKey("default", "ended"), ended, draft_run_completion(ended), lease=lease)
    await begin_run(store, other, owner="b")
    state, lease = await begin_run(store, busy)
    calls = [make_reply(prompt_tokens=7, completion_tokens=2, total_tokens=9), make_tool_result()]
    state = (await store.append(busy, state, draft_events("Triage", calls, "r1"), lease=lease)).state
    queued = facts.EventDraft(facts.RunQueued(options=RunOptions(), messages=()), "r2", "Triage")
    state = (await store.append(busy, state, [queued], lease=lease)).state

    first = await store.list_active_runs("default", "running", limit=1)
    assert first.next_cursor is not None
    second = await store.list_active_runs("default", "running", limit=1, cursor=first.next_cursor)
    assert second.next_cursor is None
    (run,), (of_other,) = first.runs, second.runs
    assert (run.session_id, run.id, run.status, run.agent, run.title, run.seq) == (
        "busy", "r1", "running", "Triage", "hi", state.seq,
    )  # fmt: skip
    assert (run.model_calls, run.tool_calls, run.prompt_tokens, run.completion_tokens, run.total_tokens) == (
        1, 1, 7, 2, 9,
    )  # fmt: skip
    assert (run.server, run.lease_epoch, run.queued_runs) == ("a", lease.epoch, 1)
    assert run.lease_seconds is not None
    assert 0 < run.lease_seconds <= 60
    # It has a run of the same name, in another session.
    assert (of_other.session_id, of_other.server, of_other.model_calls, of_other.queued_runs) == ("other", "b", 0, 0)
    assert run.since == state.run.created_at
    (listed,) = [one for one in (await store.list_sessions(SessionFilter("default"))).sessions if one.id == "busy"]
    assert listed.queued_runs == 1

    waiting = facts.RunWaiting(
        pending=(facts.PendingCall(tool_call_id="c", name="t", arguments="{}", reason="approval"),)
    )
    state = (await store.append(busy, state, draft_events("Triage", [waiting], "r1"), lease=lease)).state
    assert [one.session_id for one in (await store.list_active_runs("default", "running")).runs] == ["other"]
    (run,) = (await store.list_active_runs("default", "waiting")).runs
    assert (run.status, run.server, run.lease_seconds, run.since) == ("waiting", None, None, state.updated_at)
