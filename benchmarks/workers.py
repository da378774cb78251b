"""`python -m benchmarks.workers`: what a turn costs with one worker and with two, and what two servers on one SQLite
file gain.

If workers share nothing but the database, a turn costs as much CPU with two as with one; then throughput grows with the
cores that there are. Each round measures all of them, one after the other, so that a drifting machine slows all alike.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx2
import psutil
from tests.support.postgres import private_postgres

from benchmarks.processes import Process, measure_cpu_seconds, start_server, start_stub_model
from benchmarks.scenarios import Scenario
from swarmkeep.store.schema import upgrade

# Turns at the same time: so many for each worker, so that each has as much to do at once as one alone has.
PER_WORKER = 16
ON_A_FILE = 32
TURNS = 640


class Arrangement:
    """Servers that share a database. `database` is the process whose CPU time is the database's, if it has one.

    Each caller has a connection and sessions of its own; where they are `mixed`, each turn takes any session, so that
    a worker finds what another has recorded in the meantime.
    """

    def __init__(
        self,
        name: str,
        servers: Sequence[Process],
        database: psutil.Process | None,
        at_once: int,
        *,
        mixed: bool = False,
    ) -> None:
        self.name = name
        self.servers = servers
        self._database = database
        self._at_once = at_once
        self._mixed = mixed
        self._scenario = Scenario(name, at_once=at_once)
        self.rounds: list[dict[str, float]] = []

    async def prepare(self) -> None:
        async with httpx2.AsyncClient(timeout=120) as client:
            await self._scenario.prepare(client, self.servers[0].url)
        await self.measure(self._at_once * 4)
        self.rounds.clear()

    async def measure(self, turns: int) -> None:
        servers, database = self._measure_cpu()
        began = time.monotonic()
        await self._take_turns(turns)
        seconds = time.monotonic() - began
        servers_after, database_after = self._measure_cpu()
        self.rounds.append(
            {
                "server_ms": (servers_after - servers) * 1000 / turns,
                "database_ms": (database_after - database) * 1000 / turns,
                "turns_per_second": turns / seconds,
            }
        )

    def _measure_cpu(self) -> tuple[float, float]:
        database = 0.0 if self._database is None else measure_cpu_seconds(self._database)
        return sum(server.cpu_seconds for server in self.servers), database

    async def _take_turns(self, turns: int) -> None:
        numbers = iter(range(turns))

        async def talk(scenario: Scenario, url: str) -> None:
            async with httpx2.AsyncClient(timeout=120) as client:
                for _ in numbers:
                    await scenario.server_turn(client, url)

        urls = [self.servers[place % len(self.servers)].url for place in range(self._at_once)]
        await asyncio.gather(*map(talk, self._share_sessions(), urls))

    def _share_sessions(self) -> list[Scenario]:
        if self._mixed:
            return [self._scenario] * self._at_once
        shares = [Scenario(self.name) for _ in range(self._at_once)]
        for place, session in enumerate(self._scenario.sessions):
            shares[place % self._at_once].sessions.append(session)
        return shares

    def summarize(self, first: Arrangement) -> dict[str, Any]:
        """Medians over the rounds; `ratio` is that of the server's CPU per turn to the first arrangement's."""
        medians = {name: statistics.median(one[name] for one in self.rounds) for name in self.rounds[0]}
        pairs = zip(self.rounds, first.rounds, strict=True)
        ratio = statistics.median(mine["server_ms"] / theirs["server_ms"] for mine, theirs in pairs)
        return {"arrangement": self.name, "at_once": self._at_once, "ratio": ratio, **medians}


async def run(rounds: int, turns: int) -> list[dict[str, Any]]:
    with ExitStack() as stack:
        model = stack.enter_context(start_stub_model())
        arrangements = _arrange(stack, model.url)
        for arrangement in arrangements:
            await arrangement.prepare()
        for number in range(rounds):
            for arrangement in arrangements:
                await arrangement.measure(turns)
            print(f"round {number + 1} of {rounds}", file=sys.stderr, flush=True)
        return [arrangement.summarize(arrangements[0]) for arrangement in arrangements]


def _arrange(stack: ExitStack, model_url: str) -> list[Arrangement]:
    postgres = stack.enter_context(private_postgres(durable=True))
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    found = []
    for count in (1, 2):
        url = postgres.create()
        upgrade(url)
        server = stack.enter_context(start_server(model_url, url, workers=count))
        name = f"PostgreSQL, {count} worker{'s' if count > 1 else ''}"
        database = psutil.Process(postgres.pid)
        found.append(Arrangement(name, [server], database, count * PER_WORKER))
        if count > 1:
            found.append(Arrangement(f"{name}, mixed", [server], database, count * PER_WORKER, mixed=True))
    for count in (1, 2):
        url = f"sqlite:///{folder / f'{count}.db'}"
        servers = [stack.enter_context(start_server(model_url, url)) for _ in range(count)]
        found.append(Arrangement(f"SQLite, {count} server{'s' if count > 1 else ''}", servers, None, ON_A_FILE))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.workers", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="measurements of each kind, of which the median counts")
    parser.add_argument("--turns", type=int, default=TURNS, help="turns in each of them")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    arguments = parser.parse_args()
    figures = asyncio.run(run(arguments.rounds, arguments.turns))
    if arguments.json:
        print(json.dumps(figures, indent=2))
        return
    print("plain turns: CPU per turn of the server (× that of the first line) and of the database, turns per second")
    for row in figures:
        cost = f"server {row['server_ms']:6.2f} ms ×{row['ratio']:.2f}   database {row['database_ms']:6.2f} ms"
        name = f"{row['arrangement']}, {row['at_once']} at once"
        print(f"{name:<40} {cost}   {row['turns_per_second']:6.0f}/s")


if __name__ == "__main__":
    main()
