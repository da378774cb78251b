"""A loop that stands still keeps its runs: nobody takes them over, until it has been dead for long."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable

import pytest
from msgspec.structs import replace

from swarmkeep import Agent
from swarmkeep.runs.recovery import LeaseKeeper
from swarmkeep.store.opening import open_store
from swarmkeep.store.records import Lease, SessionKey
from tests.runs.cluster import LIMITS, EngineCluster, make_start_run, open_session, wait_for_end
from tests.support.scripted import ScriptedModel

AGENT = Agent(name="A")
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
    engine = await cluster.open_engine(AGENT, limits=replace(LIMITS, lease_seconds=LEASE_SECONDS))
    key = await open_session(engine)
    model.hang("Still ", then="here.")
    await engine.runs.start(key, make_start_run())
    await model.wait_for_requests_async(1)
    began = time.monotonic()
    # Long enough for the lease to have ended if nobody had renewed it.
    stand_still(lambda: time.monotonic() - began > 3 * LEASE_SECONDS)
    assert find_abandoned(cluster._url) == []
    assert "the event loop was blocked" in caplog.text
    model.release()
    assert (await wait_for_end(engine)).output_text == "Still here."


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
