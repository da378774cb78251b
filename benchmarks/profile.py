"""`python -m benchmarks.profile`: a flame graph of the server under plain turns, or turns of another kind.

py-spy looks at the server from outside, so the server is as it is.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import signal
import sys
from pathlib import Path

import httpx2

from benchmarks.databases import open_postgres, open_sqlite
from benchmarks.processes import Process, start_server, start_stub_model
from benchmarks.scenarios import Scenario, make_scenarios


async def put_under_load(server: Process, scenario: Scenario, seconds: float) -> int:
    """Turns for that long; returns how many."""
    clock = asyncio.get_running_loop().time
    turns = 0
    async with httpx2.AsyncClient(timeout=120) as client:
        await scenario.prepare(client, server.url)
        until = clock() + seconds

        async def worker() -> None:
            nonlocal turns
            while clock() < until:
                await scenario.server_turn(client, server.url)
                turns += 1

        await asyncio.gather(*(worker() for _ in range(scenario.at_once)))
    return turns


def main() -> None:
    names = [scenario.name for scenario in make_scenarios()]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.profile", description=__doc__)
    parser.add_argument("--scenario", choices=names, default=names[0], help="what the server does meanwhile")
    parser.add_argument("--seconds", type=float, default=20, help="for how long")
    parser.add_argument("--postgres", action="store_true", help="on PostgreSQL")
    parser.add_argument("--output", type=Path, default=Path("profile.svg"), help="the SVG file to write")
    arguments = parser.parse_args()
    spy = shutil.which("py-spy", path=str(Path(sys.executable).parent))
    if spy is None:
        parser.error("py-spy is not installed: make profile installs it")
    recording = [spy, "record", "--rate", "200", "--output", str(arguments.output), "--"]
    scenario = next(each for each in make_scenarios() if each.name == arguments.scenario)
    with (
        open_postgres() if arguments.postgres else open_sqlite() as database,
        start_stub_model() as model,
        start_server(model.url, database.url, under=recording) as server,
    ):
        turns = asyncio.run(put_under_load(server, scenario, arguments.seconds))
        server.stop(signal.SIGINT)
    print(f"{turns} turns; {arguments.output}")


if __name__ == "__main__":
    main()
