"""What a turn costs in kind: how often the database is asked. Times are the benchmarks' business."""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI

from swarmkeep import Agent
from swarmkeep.request.request import History
from swarmkeep.runs.identifiers import make_id
from swarmkeep.store.records import SessionKey
from tests.runs.cluster import KEY, EngineCluster, make_start_run
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
    engine = await cluster.begin(Agent(name="A", functions=[look]), start=False)
    counting: Any = CountingDatabase(engine.store.database)  # type: ignore[attr-defined]
    engine.store.database = counting  # type: ignore[attr-defined]
    run = await engine.run()
    assert run.status == "completed"
    return list(counting.calls)


async def test_plain_turn_writes_twice_reads_nothing(cluster: EngineCluster, model: ScriptedModel) -> None:
    model.say("Hello.")
    assert await count_turn(cluster, model) == ["write", "write"]


async def test_a_tool_adds_two_writes(cluster: EngineCluster, model: ScriptedModel) -> None:
    model.call("look")
    model.say("Rain.")
    assert await count_turn(cluster, model) == ["write"] * 4


async def test_turn_copies_no_earlier_messages(cluster: EngineCluster, model: ScriptedModel) -> None:
    engine = await cluster.begin(Agent(name="A", functions=[look]), start=False)
    lists: list[list[int]] = []
    for number in range(6):
        model.call("look")
        model.say("Rain.")
        assert (await engine.run(run_id=f"r{number}")).status == "completed"
        state = await engine.store.state(KEY)
        sent = state.messages.recall(History)
        lists.append([id(chain.shared) for chain in (state.messages, state.finished, sent.entries)])
    # All before the last call: its result was sent with the last request.
    assert len(sent.entries) == 5 * 4 + 1
    assert lists == [lists[0]] * 6


async def count_turn_on_the_wire(
    url: str, client: AsyncOpenAI, model: ScriptedModel, folder: Path, *, with_tool: bool
) -> int:
    """The round trips to PostgreSQL of the second turn: with the first come connections and prepared statements."""
    async with count_round_trips(url, folder) as counted, EngineCluster(counted.url, client) as cluster:
        engine = await cluster.begin(Agent(name="A", functions=[look]), start=False)
        before = 0
        for run_id in ("r1", "r2"):
            before = counted.count
            if with_tool:
                model.call("look")
            model.say("Hello.")
            assert (await engine.run(run_id=run_id)).status == "completed"
        return counted.count - before


async def test_postgresql_plain_turn_is_two_round_trips(
    postgres_ready: str, async_client: AsyncOpenAI, model: ScriptedModel, tmp_path: Path
) -> None:
    assert await count_turn_on_the_wire(postgres_ready, async_client, model, tmp_path, with_tool=False) == 2


async def test_there_a_tool_adds_two(
    postgres_ready: str, async_client: AsyncOpenAI, model: ScriptedModel, tmp_path: Path
) -> None:
    assert await count_turn_on_the_wire(postgres_ready, async_client, model, tmp_path, with_tool=True) == 4


async def test_postgresql_first_turn_is_eight_round_trips(
    postgres_ready: str, async_client: AsyncOpenAI, model: ScriptedModel, tmp_path: Path
) -> None:
    async with (
        count_round_trips(postgres_ready, tmp_path) as counted,
        EngineCluster(counted.url, async_client) as cluster,
    ):
        engine = await cluster.open_engine(Agent(name="A"), start=False)
        before = 0
        for name in ("s1", "s2"):
            before = counted.count
            model.say("Hello.")
            key = SessionKey("default", name)
            await engine.runs.start(key, make_start_run(), plan=await engine.sessions.plan())
            assert (await engine.wait(key=key)).status == "completed"
        assert counted.count - before == 8


TEXT = "Where is my order number 17? It should have been here last week, and nobody has written to me. " * 3


async def fill_turns(cluster: EngineCluster, model: ScriptedModel, path: Path, upto: Sequence[int]) -> list[int]:
    """The database's bytes after each of these numbers of turns, each of two messages of 200 characters."""
    engine = await cluster.open_engine(Agent(name="A"), start=False)
    # As long as the ids that the server makes: they are in every row.
    key = await engine.open_session(SessionKey("default", make_id("sess")))
    sizes, done = [], 0
    for turns in upto:
        for _ in range(turns - done):
            model.say(TEXT[:200])
            run = await engine.run(TEXT[:200], make_id("run"), key)
            assert run.status == "completed"
        done = turns
        sizes.append(measure_used_bytes(path))
    return sizes


def measure_used_bytes(path: Path) -> int:
    """What rows and their indexes take of the file's pages, as far as these are full."""
    with closing(sqlite3.connect(path)) as connection:
        used: int = connection.execute("SELECT sum(pgsize - unused) FROM dbstat").fetchone()[0]
    return used


async def test_turn_bytes_ignore_session_length(
    sqlite_ready: str, async_client: AsyncOpenAI, model: ScriptedModel
) -> None:
    path = Path(sqlite_ready.removeprefix("sqlite:///"))
    async with EngineCluster(sqlite_ready, async_client) as cluster:
        sizes = await fill_turns(cluster, model, path, [10, 50, 190, 230])
    early, _, late = [more - less for less, more in itertools.pairwise(sizes)]
    assert late == pytest.approx(early, rel=0.02)
    assert max(early, late) < 2680 * 40
