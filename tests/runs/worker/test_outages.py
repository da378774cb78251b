"""The database goes away while runs go on: they wait for it, and nothing is lost, doubled or called a failure."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from swarmkeep import Agent, tool
from swarmkeep.runs.watcher import Watcher
from swarmkeep.store.records import OutcomeUnknown, SessionKey, StoreUnavailable
from tests.runs.cluster import KEY, LIMITS, EngineCluster, Server, expire_leases, kill_engine
from tests.support.scripted import ScriptedModel

SECONDS = 20.0
PLAIN = ["session.created", "run.started", "message.added", "message.added", "run.completed"]


class Outage:
    """Stands between an engine and its store. `fails` says what becomes of an append before, or after, it was made."""

    def __init__(self, engine: Server) -> None:
        self.failures = 0
        self.failed = asyncio.Event()
        self.before: Callable[[], Exception | None] = lambda: None
        self.after: Callable[[], Exception | None] = lambda: None
        self._append = engine.store.append
        engine.store.append = self.append  # type: ignore[method-assign]

    async def append(self, *args: Any, **kwargs: Any) -> Any:
        self._raise(self.before())
        appended = await self._append(*args, **kwargs)
        error = self.after()
        if isinstance(error, OutcomeUnknown):
            error.appended = appended
        self._raise(error)
        return appended

    def _raise(self, error: Exception | None) -> None:
        if error is not None:
            self.failures += 1
            self.failed.set()
            raise error


def fail_times(count: int, error: type[Exception]) -> Callable[[], Exception | None]:
    """That error so many times, and then none."""
    left = [error("the database is gone")] * count
    return lambda: left.pop() if left else None


@pytest.fixture
async def engine(cluster: EngineCluster) -> Server:
    return await cluster.begin(Agent(name="A"))


async def start_run_with_outage(engine: Server, model: ScriptedModel) -> Outage:
    """A run in the middle of its model call; then the trouble may begin."""
    await engine.start_hanging_run(model, then="Hello.")
    return Outage(engine)


@pytest.mark.parametrize(
    ("refused", "doubtful"),
    [
        ((4, StoreUnavailable), (0, OutcomeUnknown)),
        ((0, StoreUnavailable), (1, OutcomeUnknown)),
        ((2, StoreUnavailable), (1, OutcomeUnknown)),
        # The reply was recorded, and the store does not know it.
        ((0, StoreUnavailable), (1, StoreUnavailable)),
    ],
)
async def test_run_waits_and_repeats_no_commit(
    engine: Server, model: ScriptedModel, refused: tuple[int, Any], doubtful: tuple[int, Any]
) -> None:
    outage = await start_run_with_outage(engine, model)
    outage.before, outage.after = fail_times(*refused), fail_times(*doubtful)
    model.release()
    view = await engine.wait()
    assert (view.status, view.output_text) == ("completed", "Hello.")
    assert outage.failures == refused[0] + doubtful[0]
    assert model.request_count == 1
    assert await engine.read_types() == PLAIN


@pytest.mark.parametrize("idempotent", [False, True])
@pytest.mark.parametrize("failing", ["reply", "result"])
async def test_doubtfully_recorded_result_is_not_repeated(
    cluster: EngineCluster, model: ScriptedModel, idempotent: bool, failing: str
) -> None:
    calls: list[str] = []

    @tool(idempotent=idempotent)
    def pay() -> str:
        calls.append("pay")
        if failing == "result":
            outage.after = fail_times(1, StoreUnavailable)
        return "paid"

    engine = await cluster.begin(Agent(name="A", functions=[pay]))
    gate = threading.Event()
    model.call("pay", id="c1", gate=gate)
    model.say("Paid.")
    await engine.start_run()
    await model.wait_for_requests_async(1)
    outage = Outage(engine)
    if failing == "reply":
        outage.after = fail_times(1, StoreUnavailable)
    gate.set()
    view = await engine.wait()
    assert (view.output_text, outage.failures) == ("Paid.", 1)
    assert [message["role"] for message in view.messages] == ["user", "assistant", "tool", "assistant"]
    # Of a start that the loop never heard of it cannot tell whose it is.
    assert len(calls) == (1 if failing == "result" or idempotent else 0)


async def test_tool_with_doubtful_start_runs_once(cluster: EngineCluster, model: ScriptedModel) -> None:
    calls: list[str] = []

    def pay() -> str:
        calls.append("pay")
        return "paid"

    engine = await cluster.begin(Agent(name="A", functions=[pay]))
    await engine.start_hanging_run(model)
    await kill_engine(engine)
    model.call("pay", id="c1")
    model.say("Paid.")
    heir = await cluster.open_engine(Agent(name="A", functions=[pay]), start=False)
    outage = Outage(heir)
    # In turn: the take-over, the call's start, its result.
    outcomes = [OutcomeUnknown("?"), OutcomeUnknown("?"), OutcomeUnknown("?")]
    outage.after = lambda: outcomes.pop() if outcomes else None
    await heir.start()
    assert (await heir.wait()).output_text == "Paid."
    assert calls == ["pay"]
    assert outage.failures == 3


async def test_doubtfully_recorded_start_is_answered_and_driven(engine: Server, model: ScriptedModel) -> None:
    outage = Outage(engine)
    outage.after = fail_times(1, OutcomeUnknown)
    model.say("Hello.")
    assert (await engine.run()).output_text == "Hello."
    assert outage.failures == 1
    assert await engine.read_types() == PLAIN


async def test_callers_are_refused_during_outage(engine: Server, model: ScriptedModel) -> None:
    outage = Outage(engine)
    outage.before = lambda: StoreUnavailable("the database is gone")
    with pytest.raises(StoreUnavailable):
        await engine.start_run()
    assert outage.failures == 1
    outage.before = lambda: None
    model.say("Hello.")
    assert (await engine.run()).status == "completed"


async def test_run_taken_over_in_outage_stays_there(
    cluster: EngineCluster, engine: Server, model: ScriptedModel
) -> None:
    outage = await start_run_with_outage(engine, model)
    outage.before = lambda: StoreUnavailable("the database is gone")
    model.release()
    async with asyncio.timeout(SECONDS):
        await outage.failed.wait()
    model.say("Alive.")
    # To the others it is as good as dead.
    await expire_leases(engine)
    heir = await cluster.open_engine(Agent(name="A"))
    assert (await heir.wait()).output_text == "Alive."
    before = await heir.read_log()
    outage.before = lambda: None
    await engine.wait_for_state(lambda state: not engine._worker.is_advancing(KEY))
    assert await heir.read_log() == before


async def test_server_stops_without_its_database(cluster: EngineCluster, model: ScriptedModel) -> None:
    engine = await cluster.begin(Agent(name="A"), limits=replace(LIMITS, interrupt_seconds=0.05))
    outage = await start_run_with_outage(engine, model)
    outage.before = lambda: StoreUnavailable("the database is gone")
    model.release()
    async with asyncio.timeout(SECONDS):
        await outage.failed.wait()
        await engine.drain()
    outage.before = lambda: None
    assert (await engine.reader.get_run(KEY, "r1")).status == "running"


async def test_unreported_session_news_follow_next_look(engine: Server) -> None:
    told: list[set[SessionKey]] = []
    arrived = asyncio.Event()
    fail = fail_times(1, StoreUnavailable)

    async def tell(keys: set[SessionKey]) -> None:
        told.append(keys)
        if (error := fail()) is not None:
            raise error
        arrived.set()

    watcher = Watcher(engine.store, lambda: {KEY}, lambda key: key == KEY, tell, poll_seconds=0.02)
    watching = asyncio.create_task(watcher.run())
    async with asyncio.timeout(SECONDS):
        await arrived.wait()
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)
    assert told == [{KEY}, {KEY}]
