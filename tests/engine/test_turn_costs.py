"""What a turn costs in kind: how often the database is asked. Times are the benchmarks' business."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from openai import AsyncOpenAI

from swarmkeep import Agent
from tests.engine.cluster import EngineCluster, open_session, run_to_end
from tests.support.round_trips import count_round_trips
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

    async def write_statement(self, *given: Any) -> Any:
        rows = await self._database.write_statement(*given)
        if rows:
            self.calls.append("write")
        return rows


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


async def count_turn_on_the_wire(
    url: str, client: AsyncOpenAI, model: ScriptedModel, folder: Path, *, with_tool: bool
) -> int:
    """The round trips to PostgreSQL of the second turn: with the first come connections and prepared statements."""
    async with count_round_trips(url, folder) as counted, EngineCluster(counted.url, client) as cluster:
        engine = await cluster.open_engine(Agent(name="A", functions=[look]), start=False)
        await open_session(engine)
        before = 0
        for run_id in ("r1", "r2"):
            before = counted.count
            if with_tool:
                model.call("look")
            model.say("Hello.")
            assert (await run_to_end(engine, run_id=run_id)).status == "completed"
        return counted.count - before


async def test_on_postgresql_a_plain_turn_is_two_round_trips(
    postgres_ready: str, async_client: AsyncOpenAI, model: ScriptedModel, tmp_path: Path
) -> None:
    assert await count_turn_on_the_wire(postgres_ready, async_client, model, tmp_path, with_tool=False) == 2


async def test_there_a_tool_adds_two(
    postgres_ready: str, async_client: AsyncOpenAI, model: ScriptedModel, tmp_path: Path
) -> None:
    assert await count_turn_on_the_wire(postgres_ready, async_client, model, tmp_path, with_tool=True) == 4
