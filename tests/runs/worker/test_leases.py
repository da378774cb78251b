"""Leases: one server advances a session, however loops and clocks run, and records nothing once it is replaced."""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from msgspec.structs import replace
from sqlalchemy import delete

from swarmkeep import Agent, tool
from swarmkeep.decide.commands import Approval
from swarmkeep.events.codec import parse_timestamp
from swarmkeep.events.errors import AlreadyDecided
from swarmkeep.logs import OutageLog
from swarmkeep.runs.limits import Limits
from swarmkeep.runs.recovery import LeaseKeeper
from swarmkeep.runs.watcher import ClockWatch, subtract_clocks
from swarmkeep.store.opening import SqlStore, open_store
from swarmkeep.store.records import Lease, SessionKey, StoreUnavailable, utc_now
from swarmkeep.store.tables import events
from tests.runs.cluster import KEY, LIMITS, EngineCluster, expire_leases, kill_engine
from tests.runs.worker.servers import AGENT, SECONDS, count_answers, open_engine, read_resume_reasons
from tests.support.scripted import ScriptedModel
from tests.support.waiting import wait_until


async def test_remotely_advanced_runs_are_left_alone(cluster: EngineCluster, model: ScriptedModel) -> None:
    one = await open_engine(cluster)
    await one.start_hanging_run(model, then="Hello.")
    two = await cluster.open_engine(AGENT)
    await two._worker.recovery.recover()
    assert not two._worker.is_advancing(KEY)
    model.release()
    assert (await two.wait()).output_text == "Hello."
    assert await read_resume_reasons(two) == []


async def test_server_never_takes_over_from_itself(cluster: EngineCluster, model: ScriptedModel) -> None:
    engine = await open_engine(cluster)
    await engine.start_hanging_run(model, then="Hello.")
    await expire_leases(engine)
    await engine._worker.recovery.recover()
    model.release()
    assert (await engine.wait()).output_text == "Hello."
    assert model.request_count == 1


async def test_of_many_servers_one_takes_over(cluster: EngineCluster, model: ScriptedModel) -> None:
    one = await open_engine(cluster)
    await one.start_hanging_run(model)
    await kill_engine(one)
    model.hang(then="Hello.")
    engines = [await cluster.open_engine(AGENT, start=False) for _ in range(4)]
    await asyncio.gather(*(engine._worker.recovery.recover() for engine in engines))
    [heir] = [engine for engine in engines if engine._worker.is_advancing(KEY)]
    await model.wait_for_requests_async(2)
    model.release()
    assert (await heir.wait()).output_text == "Hello."
    assert await read_resume_reasons(one) == ["recovery"]
    assert model.request_count == 2


async def test_superseded_server_records_nothing_more(
    cluster: EngineCluster, model: ScriptedModel, caplog: pytest.LogCaptureFixture
) -> None:
    one = await open_engine(cluster)
    await one.start_hanging_run(model, then="From the grave.")
    waiting = asyncio.create_task(one.wait())
    # It is only slow, not dead; its lease runs out all the same.
    await expire_leases(one)
    model.call("look", {"city": "Oslo"}, id="c1", when=lambda request: count_answers(request) == 0)
    model.say("Alive.", when=lambda request: count_answers(request) == 1)
    two = await cluster.open_engine(AGENT)
    assert (await two.wait()).output_text == "Alive."
    before = await two.read_log()
    model.release()
    await one.wait_for_state(lambda state: not one._worker.is_advancing(KEY))
    assert await two.read_log() == before
    # Those who wait at the old server are given the new one's answer.
    assert (await waiting).output_text == "Alive."


async def test_stopping_zombie_spares_the_new_run(cluster: EngineCluster, model: ScriptedModel) -> None:
    one = await open_engine(cluster)
    await one.start_hanging_run(model)
    await expire_leases(one)
    model.hang(then="Alive.")
    two = await cluster.open_engine(AGENT)
    await model.wait_for_requests_async(2)
    await one.drain()
    model.release()
    view = await two.wait()
    assert (view.status, view.output_text) == ("completed", "Alive.")


async def test_leases_are_renewed_during_runs(
    cluster: EngineCluster, model: ScriptedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    renewed = asyncio.Event()
    renew = SqlStore.renew

    async def noticed(self: SqlStore, leases: Any, *, lease_seconds: float) -> set[SessionKey]:
        lost = await renew(self, leases, lease_seconds=lease_seconds)
        renewed.set()
        return lost

    monkeypatch.setattr(SqlStore, "renew", noticed)
    engine = await open_engine(cluster, limits=Limits(lease_seconds=0.03, grace_seconds=0.05, poll_seconds=0.01))
    await engine.start_hanging_run(model, then="Hello.")
    async with asyncio.timeout(SECONDS):
        await renewed.wait()
    model.release()
    assert (await engine.wait()).status == "completed"
    assert await read_resume_reasons(engine) == []


async def test_server_finds_abandoned_runs_itself(cluster: EngineCluster, model: ScriptedModel) -> None:
    one = await open_engine(cluster)
    await one.start_hanging_run(model)
    two = await cluster.open_engine(AGENT, limits=Limits(lease_seconds=0.15, grace_seconds=0.05, poll_seconds=0.01))
    model.say("Hello.")
    await kill_engine(one)
    view = await two.wait()
    assert (view.status, view.output_text) == ("completed", "Hello.")


async def test_database_failures_do_not_end_lease_care(
    cluster: EngineCluster, model: ScriptedModel, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tried, mended = asyncio.Event(), asyncio.Event()
    abandoned = SqlStore.find_abandoned

    async def failing(self: SqlStore, *, limit: int = 100) -> list[SessionKey]:
        if not mended.is_set():
            tried.set()
            raise StoreUnavailable("the database went away")
        return await abandoned(self, limit=limit)

    outage_log = OutageLog(settled_seconds=0)
    monkeypatch.setattr("swarmkeep.runs.loop.outage_log", outage_log)
    monkeypatch.setattr("swarmkeep.runs.recovery.outage_log", outage_log)
    one = await open_engine(cluster)
    await one.start_hanging_run(model)
    two = await cluster.open_engine(AGENT, limits=Limits(lease_seconds=0.03, grace_seconds=0.05, poll_seconds=0.01))
    monkeypatch.setattr(SqlStore, "find_abandoned", failing)
    async with asyncio.timeout(SECONDS):
        await tried.wait()
    model.say("Hello.")
    await kill_engine(one)
    mended.set()
    assert (await two.wait()).status == "completed"
    assert caplog.text.count("the database cannot be used: the database went away") == 1
    await wait_until(lambda: caplog.text.count("the database answers again, after ") == 1)


async def test_unreadable_sessions_do_not_hide_others(
    cluster: EngineCluster, model: ScriptedModel, caplog: pytest.LogCaptureFixture
) -> None:
    one = await cluster.open_engine(AGENT)
    # They are found in the order of their ids, so the last one would never be.
    keys = [await one.open_session(SessionKey(KEY.tenant, f"s{number}")) for number in range(6)]
    for key in keys:
        model.hang()
        await one.start_run(key=key)
    await model.wait_for_requests_async(len(keys))
    await kill_engine(one)
    damaged = [key.id for key in keys[:-1]]
    damage = delete(events).where(events.c.session_id.in_(damaged), events.c.seq == 3)
    await one.store.database.write(lambda connection: connection.execute(damage))  # type: ignore[attr-defined]
    model.say("Hello.")
    two = await cluster.open_engine(AGENT, limits=replace(LIMITS, recovery_sessions=2))
    assert (await two.wait(key=keys[-1])).output_text == "Hello."
    complaints = [name for name in damaged if f"session {name}: what is stored is not what was recorded" in caplog.text]
    assert complaints == damaged


# A loop that stands still keeps its runs, until it has been dead for long.

STALLED_AGENT = Agent(name="A")
LEASE_SECONDS = 1.0


def stand_still(until: Callable[[], bool]) -> None:
    """Hold the loop up, as a function that never awaits would."""
    deadline = time.monotonic() + 60
    while not until():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def find_abandoned(url: str) -> list[SessionKey]:
    """What another server would take over at this moment."""

    async def look() -> list[SessionKey]:
        store = open_store(url)
        try:
            return await store.find_abandoned()
        finally:
            await store.close()

    found: list[list[SessionKey]] = []
    thread = threading.Thread(target=lambda: found.append(asyncio.run(look())))
    thread.start()
    thread.join()
    return found[0]


@pytest.mark.long
async def test_stalled_loop_keeps_its_runs(
    cluster: EngineCluster, model: ScriptedModel, caplog: pytest.LogCaptureFixture
) -> None:
    engine = await cluster.open_engine(STALLED_AGENT, limits=replace(LIMITS, lease_seconds=LEASE_SECONDS))
    key = await engine.open_session()
    model.hang("Still ", then="here.")
    await engine.start_run(key=key)
    await model.wait_for_requests_async(1)
    began = time.monotonic()
    # Long enough for the lease to have ended if nobody had renewed it.
    stand_still(lambda: time.monotonic() - began > 3 * LEASE_SECONDS)
    assert find_abandoned(cluster._url) == []
    assert "the event loop was blocked" in caplog.text
    model.release()
    assert (await engine.wait()).output_text == "Still here."


def test_dead_loop_releases_its_runs(sqlite_url: str) -> None:
    asked: list[float] = []

    def list_leases() -> dict[SessionKey, Lease]:
        asked.append(time.monotonic())
        return {}

    keeper = LeaseKeeper(open_store(sqlite_url), list_leases, 0.06, patience_seconds=0.5)
    keeper.start()
    # It would go on for as long as the loop stands.
    stand_still(lambda: bool(asked) and time.monotonic() - asked[-1] > 0.5)
    keeper.stop()


# Clocks that differ, or jump, are told in the log: once each.

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


async def test_differing_clock_is_reported_once(ready_url: str, caplog: pytest.LogCaptureFixture) -> None:
    store = open_store(ready_url)
    ahead = timedelta(hours=1)
    watch = ClockWatch(store, clock=lambda: utc_now() + ahead)
    await watch.compare()
    await watch.compare()
    assert 3590 < watch.ahead_seconds <= 3610
    ahead = timedelta(0)
    await watch.compare()
    assert abs(watch.ahead_seconds) < 1
    ahead = timedelta(days=-365)
    await watch.compare()
    await store.close()
    # Connecting may take seconds, which do not count as a difference.
    beginnings = [
        r"this machine's clock is 3[56]\d\d s ahead of the database's",
        "this machine's clock was set back by 3600 s",
        "this machine's clock agrees with the database's again",
        "this machine's clock was set back by 31536000 s",
        r"this machine's clock is 315360\d\d s behind the database's",
    ]
    assert len(caplog.messages) == len(beginnings)
    assert all(map(re.match, beginnings, caplog.messages))


async def test_unexpected_error_does_not_end_watch(
    ready_url: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(ready_url)
    errors = [RuntimeError("no clock")]

    async def read_clock(self: SqlStore) -> datetime:
        if errors:
            raise errors.pop()
        return utc_now() - timedelta(hours=1)

    monkeypatch.setattr(SqlStore, "read_clock", read_clock)
    watch = ClockWatch(store, pause_seconds=0.001)
    watch.start()
    await wait_until(lambda: watch.ahead_seconds)
    await watch.stop()
    await store.close()
    assert caplog.messages[0] == "the clocks could not be compared; trying again"


@pytest.mark.parametrize(("before", "after", "ahead"), [(-3, 4, 0), (2, 5, 2), (-5, -2, -2)])
def test_lookup_time_is_no_clock_difference(before: int, after: int, ahead: int) -> None:
    assert subtract_clocks(NOON + timedelta(seconds=before), NOON, NOON + timedelta(seconds=after)) == ahead


# Servers whose clocks are not the same: what has to end at some time goes by the database's clock, or by one's own.

TIMED_AGENT = Agent(name="A")


@pytest.mark.parametrize("hours", [-1.5, 1.5])
async def test_taken_over_run_keeps_time_despite_clock(
    cluster: EngineCluster, model: ScriptedModel, hours: float
) -> None:
    one = await cluster.begin(TIMED_AGENT, clock=lambda: datetime.now(UTC) + timedelta(hours=hours))
    await one.start_hanging_run(model)
    await kill_engine(one)
    model.say("Hello.")
    two = await cluster.open_engine(TIMED_AGENT, limits=replace(LIMITS, run_seconds=3600))
    view = await two.wait()
    assert (view.status, view.output_text) == ("completed", "Hello.")


async def test_skewed_clock_grants_no_extra_time(cluster: EngineCluster, model: ScriptedModel) -> None:
    one = await cluster.begin(TIMED_AGENT, clock=lambda: datetime.now(UTC) + timedelta(hours=1.5))
    await one.start_hanging_run(model)
    await kill_engine(one)
    model.hang()
    two = await cluster.open_engine(TIMED_AGENT, limits=replace(LIMITS, run_seconds=0.2))
    view = await two.wait()
    assert (view.status, view.error.code) == ("failed", "run_timeout")


async def test_approval_expires_by_database_clock(
    cluster: EngineCluster, model: ScriptedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    paid: list[str] = []

    @tool(requires_approval=True)
    def pay(to: str) -> str:
        paid.append(to)
        return "paid"

    # Two hours ahead of this host.
    database = datetime.now(UTC) + timedelta(hours=2)

    async def read_clock(self: SqlStore) -> datetime:
        return database

    monkeypatch.setattr(SqlStore, "read_clock", read_clock)
    engine = await cluster.begin(Agent(name="A", functions=[pay]), limits=replace(LIMITS, approval_seconds=3600))
    model.calls([("pay", {"to": "Ann"}, "c1"), ("pay", {"to": "Bob"}, "c2")])
    await engine.start_run()
    [pending, _] = (await engine.wait()).pending
    assert parse_timestamp(pending.expires_at or "") == database + timedelta(hours=1)
    await engine.runs.resume(KEY, "r1", approvals=[Approval(tool_call_id="c1", decision="approve")])
    database += timedelta(hours=1)
    with pytest.raises(AlreadyDecided):
        await engine.runs.resume(KEY, "r1", approvals=[Approval(tool_call_id="c2", decision="approve")])
    assert (await engine.read_types())[-1] == "approval.decided"
