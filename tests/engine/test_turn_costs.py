"""What a turn costs in kind: how often the database is asked. Times are the benchmarks' business."""

from __future__ import annotations

from typing import Any

from swarmkeep import Agent
from tests.engine.cluster import EngineCluster, open_session, run_to_end
from tests.support.scripted import ScriptedModel


class CountingDatabase:
    """A database that counts what it is asked to do; each is a hop to another thread, or to a server, and back."""

    def __init__(self, database: Any) -> None:
        self._database = database
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database, name)

    async def read(self, *given: Any, **options: Any) -> Any:
        self.calls.append("read")
        return await self._database.read(*given, **options)

    async def write(self, *given: Any, **options: Any) -> Any:
        self.calls.append("write")
        return await self._database.write(*given, **options)


def look() -> str:
    return "rain"


async def count_turn(cluster: EngineCluster, model: ScriptedModel) -> list[str]:
    engine = await cluster.open_engine(Agent(name="A", functions=[look]), start=False)
    await open_session(engine)
    counting: Any = CountingDatabase(engine.store.database)  # type: ignore[attr-defined]
    engine.store.database = counting  # type: ignore[attr-defined]
    run = await run_to_end(engine)
    assert run.status == "completed"
    return list(counting.calls)


async def test_a_plain_turn_writes_twice_and_reads_nothing(cluster: EngineCluster, model: ScriptedModel) -> None:
    model.say("Hello.")
    assert await count_turn(cluster, model) == ["write", "write"]


async def test_a_tool_adds_two_writes(cluster: EngineCluster, model: ScriptedModel) -> None:
    model.call("look")
    model.say("Rain.")
    assert await count_turn(cluster, model) == ["write"] * 4
