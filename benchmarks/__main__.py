"""`python -m benchmarks`: the server and a bare floor side by side, and what the server's turns cost in floor turns.

Both run in processes of their own against the same stub model, one after the other in rounds, so that a drifting
machine slows both. What is counted is the CPU time of the process, so the load generator does not matter.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
from pathlib import Path

import httpx2
import msgspec

from benchmarks.databases import MeasuredDatabase, open_postgres, open_sqlite
from benchmarks.machine import describe_machine
from benchmarks.processes import start_floor, start_server, start_stub_model
from benchmarks.scenarios import Figures, Growth, make_scenarios, measure, measure_growth
from swarmkeep.cli.terminal import INTERRUPTED, say, show_progress

_GROWTH_TURNS = [10, 100, 400, 1_000]


class Results(msgspec.Struct, frozen=True):
    """`growth` is empty where it is not measured."""

    machine: dict[str, object]
    database: str
    turns: list[Figures]
    growth: list[Growth]


async def run(database: MeasuredDatabase, kind: str, rounds: int, only: str | None) -> Results:
    # Otherwise it counts only once something is awaited, and a process that starts is waited for.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    machine: dict[str, object] = {**describe_machine()}
    with (
        start_stub_model() as model,
        start_floor(model.url) as bare,
        start_server(model.url, database.url) as ours,
    ):
        async with httpx2.AsyncClient(timeout=120) as client:
            turns: list[Figures] = []
            chosen = [scenario for scenario in make_scenarios() if only is None or only in scenario.name]
            with show_progress("measuring", "scenarios", len(chosen)) as progress:
                for scenario in progress.track(chosen):
                    turns.append(await measure(client, scenario, ours, database.meter, bare, rounds))
                    say(_format_row(turns[-1]))
            growth: list[Growth] = []
            if database.measure_size is not None:
                growth = await measure_growth(client, ours, database.measure_size, _GROWTH_TURNS)
    return Results(machine, kind, turns, growth)


def _format_row(row: Figures) -> str:
    database = f"   database {row.database_ms:6.2f} ms" if row.database_ms else ""
    figures = f"server {row.server_ms:8.2f} ms{database}   floor {row.floor_ms:8.2f} ms   × {row.ratio:.2f}"
    return f"{row.scenario:<28} {figures}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="measurements of each kind, of which the median counts")
    parser.add_argument("--only", help="only scenarios whose name holds this text")
    parser.add_argument("--postgres", action="store_true", help="on PostgreSQL, whose own share is counted, too")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--svg", type=Path, metavar="FOLDER", help="draw them, into files in this folder")
    arguments = parser.parse_args()
    with open_postgres() if arguments.postgres else open_sqlite() as database:
        kind = "PostgreSQL" if arguments.postgres else "SQLite"
        try:
            results = asyncio.run(run(database, kind, arguments.rounds, arguments.only))
        except KeyboardInterrupt:
            say("interrupted: the lines above are what was measured; nothing was drawn")
            sys.exit(INTERRUPTED)
    if arguments.svg is not None:
        from benchmarks.charts import draw_charts

        for path in draw_charts(arguments.svg, results.turns, results.growth):
            print(f"drew {path}", file=sys.stderr)
    if arguments.json:
        print(json.dumps(msgspec.to_builtins(results), indent=2))
        return
    machine = results.machine
    print(
        f"{results.database} on {machine['processor']}, {machine['cores']} cores, load {machine['load_before']} before"
    )
    print("CPU per turn (user + system, medians)")
    for row in results.turns:
        print(_format_row(row))
    for growth in results.growth:
        print(f"bytes per turn up to turn {growth.last_turn:<6,} {growth.size:8,.0f}")
    for name, size in sorted(results.growth[-1].parts.items(), key=lambda part: -part[1]) if results.growth else ():
        print(f"    {name:<32} {size:8,.0f}")


if __name__ == "__main__":
    main()
