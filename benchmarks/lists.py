"""`python -m benchmarks.lists`: what lists, filters, sums and recovery cost where there are very many sessions.

A database is filled by SQL, a SQLite file in a temporary folder unless `--database` names an empty one. Given is the
time until the slowest statement has its first row, and that of the whole call; best of a few rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, event, text

from benchmarks.large_database import AGENT, RARE_AGENT, TENANT, fill_database, fill_search_index
from swarmkeep.events.records import UsageQuery
from swarmkeep.events.run_table import FiguresQuery, RunFilter, RunQuery, RunSort
from swarmkeep.events.words import parse_terms
from swarmkeep.store import schema
from swarmkeep.store.index import SessionFilter
from swarmkeep.store.opening import SqlStore, open_store
from swarmkeep.store.records import SessionKey

Call = Callable[[SqlStore], Awaitable[Any]]


def _list(**filters: Any) -> Call:
    return lambda store: store.list_sessions(SessionFilter(TENANT, **filters))


def _find(words: str, **filters: Any) -> Call:
    return _list(terms=parse_terms(words), **filters)


def _sum(*by: Any, **query: Any) -> Call:
    return lambda store: store.sum_usage(TENANT, UsageQuery(by=by, **query))


def _list_runs(sort: RunSort = "created_at", shares: bool = False, **only: Any) -> Call:
    query = RunQuery(only=RunFilter(**only), sort=sort, with_shares=shares)
    return lambda store: store.list_ended_runs(TENANT, query)


def _sum_runs(*by: Any, **only: Any) -> Call:
    return lambda store: store.sum_runs(TENANT, FiguresQuery(only=RunFilter(**only), by=by))


KEYS = [SessionKey(TENANT, f"s{number:09d}") for number in range(200)]
CALLS: dict[str, Call] = {
    "all sessions": _list(),
    "an agent's": _list(agent=AGENT),
    "a rare agent's": _list(agent=RARE_AGENT),
    "nobody's": _list(agent="Nobody"),
    "running": _list(status="running"),
    "waiting": _list(status="waiting"),
    "idle": _list(status="idle"),
    "an agent's that wait": _list(agent="Refunds", status="waiting"),
    "a rare agent's that run": _list(agent=RARE_AGENT, status="running"),
    "with metadata": _list(metadata={"common": "yes"}),
    "with rare metadata": _list(metadata={"rare": "yes"}),
    "with two kinds of metadata": _list(metadata={"common": "yes", "often": "yes"}),
    "with metadata, waiting": _list(metadata={"often": "yes"}, status="waiting"),
    "with metadata, an agent's": _list(metadata={"often": "yes"}, agent="Refunds"),
    "with a word": _find(KEYS[100].id),
    "with a word and a common one": _find(f"common {KEYS[100].id}"),
    "with two common words": _find("common number7"),
    "with a word of all": _find("common"),
    "indexed next": lambda store: store.count_sessions_behind(),
    "abandoned": lambda store: store.find_abandoned(),
    "due": lambda store: store.find_due(),
    "where 200 sessions end": lambda store: store.read_heads(KEYS),
    "usage": _sum(),
    "usage by day": _sum("day"),
    "usage by agent and model": _sum("agent", "model"),
    "usage by session": _sum("session"),
    "usage by run": _sum("run"),
    "usage of a session by run": _sum("run", only={"session": KEYS[100].id}),
    "runs": _list_runs(),
    "runs with their costs": _list_runs(shares=True),
    "runs of an agent": _list_runs(agent=AGENT),
    "failed runs": _list_runs(status="failed"),
    "failed runs of a rare agent": _list_runs(status="failed", agent=RARE_AGENT),
    "runs with an error that none has": _list_runs(error="none"),
    "slowest runs": _list_runs("latency_ms"),
    "slowest runs of a rare agent": _list_runs("latency_ms", agent=RARE_AGENT),
    "slowest runs of an agent": _list_runs("latency_ms", agent=AGENT),
    "slowest runs of 6 hours": _list_runs(
        "latency_ms", created_after="2026-01-02T00:00:00.000000Z", created_before="2026-01-02T06:00:00.000000Z"
    ),
    "percentiles of a day": _sum_runs(
        "day", created_after="2026-01-02T00:00:00.000000Z", created_before="2026-01-03T00:00:00.000000Z"
    ),
    "percentiles of 7 days by agent": _sum_runs(
        "day", "agent", created_after="2026-01-02T00:00:00.000000Z", created_before="2026-01-09T00:00:00.000000Z"
    ),
    "percentiles of all runs": _sum_runs(),
}


class StatementTimes:
    """How long the statements of this process take in the database, in milliseconds."""

    def __init__(self) -> None:
        self.taken: list[float] = []
        self._began = 0.0
        event.listen(Engine, "before_cursor_execute", self._begin)
        event.listen(Engine, "after_cursor_execute", self._end)

    def _begin(self, *_: Any) -> None:
        self._began = time.perf_counter()

    def _end(self, *_: Any) -> None:
        self.taken.append((time.perf_counter() - self._began) * 1000)


async def measure(store: SqlStore, rounds: int) -> dict[str, dict[str, float]]:
    times, found = StatementTimes(), dict[str, dict[str, float]]()
    for name, call in CALLS.items():
        best = {"statement_ms": float("inf"), "call_ms": float("inf")}
        for _ in range(rounds):
            times.taken.clear()
            began = time.perf_counter()
            await call(store)
            best["call_ms"] = min(best["call_ms"], (time.perf_counter() - began) * 1000)
            best["statement_ms"] = min(best["statement_ms"], max(times.taken, default=0.0))
        found[name] = best
    return found


async def run(url: str, arguments: argparse.Namespace) -> dict[str, dict[str, float]]:
    schema.upgrade(url)
    each = (arguments.sessions, arguments.events_per_session, arguments.calls_per_session)

    def fill(connection: Connection) -> None:
        fill_database(connection, *each)
        fill_search_index(connection, *each[:2])

    await asyncio.to_thread(schema.change_at_once, url, fill)
    store = open_store(url)
    try:
        if not url.startswith("sqlite"):
            # What its own housekeeping does within a minute or so.
            await store.database.write(lambda connection: connection.execute(text("ANALYZE")))
        return await measure(store, arguments.rounds)
    finally:
        await store.close()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.lists", description=__doc__)
    parser.add_argument("--sessions", type=int, default=300_000)
    parser.add_argument("--events-per-session", type=int, default=33)
    parser.add_argument("--calls-per-session", type=int, default=4, help="rows of usage")
    parser.add_argument("--rounds", type=int, default=5, help="measurements of each call, of which the best counts")
    parser.add_argument("--database", help="the URL of an empty database to fill")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = asyncio.run(run(arguments.database or f"sqlite:///{Path(folder) / 'bench.db'}", arguments))
    if arguments.json:
        print(json.dumps(found, indent=2))
        return
    for name, figures in found.items():
        print(f"{name:<28} slowest statement {figures['statement_ms']:8.2f} ms   call {figures['call_ms']:8.2f} ms")


if __name__ == "__main__":
    main()
