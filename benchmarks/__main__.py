"""`python -m benchmarks`: the server and a bare floor side by side, and what the server's turns cost in floor turns.

Both run in processes of their own against the same stub model, one after the other in rounds, so that a drifting
machine slows both. What is counted is the CPU time of the process, so the load generator does not matter.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import statistics
import sys
import tempfile
from collections import deque
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx2

from benchmarks.processes import Process, start_floor, start_server, start_stub_model
from benchmarks.team import make_history

Turn = Callable[[], Awaitable[None]]


class Scenario:
    """Turns of one kind. Sessions are used in rotation, so that their histories hardly grow while measured; one that
    is in use is left out of it."""

    def __init__(
        self, name: str, *, messages: int = 10, tool: bool = False, at_once: int = 1, turns: int = 100
    ) -> None:
        self.name = name
        self.messages = messages
        self.tool = tool
        self.at_once = at_once
        self.turns = turns
        self.sessions: deque[str] = deque()

    async def prepare(self, client: httpx2.AsyncClient, server_url: str) -> None:
        for _ in range(128 if self.messages < 100 else 4):
            agent = "Clerk" if self.tool else "Plain"
            body = {"agent": agent, "messages": make_history(self.messages)}
            answer = await client.post(f"{server_url}/v1/sessions", json=body)
            answer.raise_for_status()
            self.sessions.append(answer.json()["id"])

    async def server_turn(self, client: httpx2.AsyncClient, url: str) -> None:
        session = self.sessions.popleft()
        answer = await client.post(f"{url}/v1/sessions/{session}/runs", json={"input": "Where is my order?"})
        answer.raise_for_status()
        self.sessions.append(session)
        if answer.json()["status"] != "completed":
            raise RuntimeError(answer.text)

    async def floor_turn(self, client: httpx2.AsyncClient, url: str) -> None:
        body = {"input": "Where is my order?", "history": self.messages, "tool": self.tool}
        answer = await client.post(f"{url}/turn", json=body)
        answer.raise_for_status()


SCENARIOS = [
    Scenario("plain turn"),
    Scenario("turn with a tool", tool=True),
    Scenario("plain turn, 32 at once", at_once=32, turns=320),
    Scenario("history of 1,000 messages", messages=1_000, turns=40),
    Scenario("history of 5,000 messages", messages=5_000, turns=20),
]


async def measure_cpu_ms(process: Process, turn: Turn, turns: int, at_once: int) -> float:
    """CPU milliseconds of `process` per turn."""
    numbers = iter(range(turns))

    async def worker() -> None:
        for _ in numbers:
            await turn()

    before = process.cpu_seconds
    await asyncio.gather(*(worker() for _ in range(at_once)))
    return (process.cpu_seconds - before) * 1000 / turns


async def measure(
    client: httpx2.AsyncClient, scenario: Scenario, ours: Process, bare: Process, rounds: int
) -> dict[str, Any]:
    await scenario.prepare(client, ours.url)

    async def server_turn() -> None:
        await scenario.server_turn(client, ours.url)

    async def floor_turn() -> None:
        await scenario.floor_turn(client, bare.url)

    # Both warm up: imports, connections, caches.
    await measure_cpu_ms(ours, server_turn, max(8, scenario.at_once), scenario.at_once)
    await measure_cpu_ms(bare, floor_turn, max(8, scenario.at_once), scenario.at_once)
    pairs = []
    for _ in range(rounds):
        mine = await measure_cpu_ms(ours, server_turn, scenario.turns, scenario.at_once)
        theirs = await measure_cpu_ms(bare, floor_turn, scenario.turns, scenario.at_once)
        pairs.append((mine, theirs, mine / theirs))
    mine, theirs, ratio = (statistics.median(column) for column in zip(*pairs, strict=True))
    return {"scenario": scenario.name, "server_ms": mine, "floor_ms": theirs, "ratio": ratio}


async def measure_bytes_per_turn(client: httpx2.AsyncClient, ours: Process, database: Path, turns: int) -> list[float]:
    """Bytes that the database grows by per turn of one session: in its first turns, and in as many after them."""
    scenario = Scenario("bytes", messages=0)
    await scenario.prepare(client, ours.url)
    scenario.sessions = deque([scenario.sessions[0]])
    sizes = [_measure_size(database)]
    for _ in range(2):
        for _ in range(turns):
            await scenario.server_turn(client, ours.url)
        sizes.append(_measure_size(database))
    return [(after - before) / turns for before, after in itertools.pairwise(sizes)]


def _measure_size(database: Path) -> int:
    """The size once the write-ahead log is folded in."""
    import sqlite3

    with sqlite3.connect(database) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    return database.stat().st_size


async def run(rounds: int, only: str | None) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        database = Path(folder) / "bench.db"
        with (
            start_stub_model() as model,
            start_floor(model.url) as bare,
            start_server(model.url, f"sqlite:///{database}") as ours,
        ):
            async with httpx2.AsyncClient(timeout=120) as client:
                rows = []
                for scenario in SCENARIOS:
                    if only is None or only in scenario.name:
                        rows.append(await measure(client, scenario, ours, bare, rounds))
                        print(_format_row(rows[-1]), file=sys.stderr, flush=True)
                growth = await measure_bytes_per_turn(client, ours, database, 200)
    return {"turns": rows, "bytes_per_turn": growth}


def _format_row(row: dict[str, Any]) -> str:
    figures = f"server {row['server_ms']:8.2f} ms   floor {row['floor_ms']:8.2f} ms   × {row['ratio']:.2f}"
    return f"{row['scenario']:<28} {figures}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="measurements of each kind, of which the median counts")
    parser.add_argument("--only", help="only scenarios whose name holds this text")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    arguments = parser.parse_args()
    figures = asyncio.run(run(arguments.rounds, arguments.only))
    if arguments.json:
        print(json.dumps(figures, indent=2))
        return
    print("CPU per turn (user + system, medians)")
    for row in figures["turns"]:
        print(_format_row(row))
    first, later = figures["bytes_per_turn"]
    print(f"bytes per turn               first 200 turns {first:,.0f}   next 200 {later:,.0f}")


if __name__ == "__main__":
    main()
