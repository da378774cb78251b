"""`python -m benchmarks.cluster`: three servers behind haproxy, on pgbouncer and PostgreSQL with a synchronous replica.

First it measures with one, two and three servers: idle, under load that is balanced request by request, and under load
whose requests are balanced by session. Then it kills the servers one by one under load, restarts them in order one by
one, kills the primary, promotes the replica and re-points pgbouncer. In the end it checks that nothing acknowledged is
lost, that no function that must not has started twice, and that every session verifies and goes on.

With `--upgrade-from` servers of an older commit take the load, the database is migrated, and servers of this release
take their places; then the same is checked.

It needs Debian's packages haproxy, pgbouncer and postgresql, and rights to run programs as the user `postgres`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.cluster.load import Load, find_problems
from benchmarks.cluster.servers import Cluster
from benchmarks.cluster.upgrade import Release, upgrade_under_load

CALLERS = 12


async def measure(cluster: Cluster, seconds: float) -> dict[str, Any]:
    """CPU without callers, then plain turns for so long, balanced in either way."""
    count = sum(server is not None for server in cluster.servers)
    before = cluster.measure_cpu()[0]
    await asyncio.sleep(seconds)
    idle = (cluster.measure_cpu()[0] - before) * 1000 / seconds / count
    urls = {"any_server": cluster.balancer.url, "by_session": cluster.balancer.url_by_session}
    # The newest server loads what its first run needs, which is not counted.
    await _measure_turns(cluster, urls["any_server"], min(seconds, 3.0))
    # In turn, so that a machine whose speed drifts slows both.
    rounds = [{way: await _measure_turns(cluster, url, seconds / 2) for way, url in urls.items()} for _ in range(2)]
    means = {way: {name: fmean(one[way][name] for one in rounds) for name in rounds[0][way]} for way in urls}
    return {"servers": count, "idle_ms_per_second_and_server": idle, **means}


async def _measure_turns(cluster: Cluster, url: str, seconds: float) -> dict[str, float]:
    load = Load(url, CALLERS, tools=False)
    # Sessions and connections are made.
    await asyncio.sleep(2.0)
    servers, database = cluster.measure_cpu()
    before, began = load.run_count, time.monotonic()
    await asyncio.sleep(seconds)
    count, took = max(1, load.run_count - before), time.monotonic() - began
    servers_after, database_after = cluster.measure_cpu()
    await load.stop()
    return {
        "turns_per_second": count / took,
        "server_ms": (servers_after - servers) * 1000 / count,
        "database_ms": (database_after - database) * 1000 / count,
    }


async def break_everything(cluster: Cluster, seconds: float, report: Callable[[str], None]) -> dict[str, Any]:
    """Servers die, are replaced in order, and the primary dies, each under load for a while."""
    load = Load(cluster.balancer.url, CALLERS)
    await asyncio.sleep(seconds)
    for place in range(len(cluster.servers)):
        report(f"server {place + 1} is killed")
        await asyncio.to_thread(cluster.kill_server, place)
        await asyncio.sleep(seconds)
        await asyncio.to_thread(cluster.start_server, place)
    for place in range(len(cluster.servers)):
        report(f"server {place + 1} is stopped and started again")
        await asyncio.to_thread(cluster.stop_server, place)
        await asyncio.to_thread(cluster.start_server, place)
        await asyncio.sleep(seconds / 2)
    gap_of_servers, load.longest_gap = load.longest_gap, 0.0
    report("the primary is killed, the replica promoted, pgbouncer re-pointed")
    await asyncio.to_thread(cluster.fail_over)
    await asyncio.sleep(max(seconds, 5.0))
    report("the load ends, and all is checked")
    await load.stop()
    problems = await find_problems(load)
    starts = Counter(cluster.effects.read_text().split())
    return {
        "sessions": len(load.told),
        "runs_acknowledged": sum(len(told.runs) for told in load.told.values()),
        "events_acknowledged": sum(len(told.heads) for told in load.told.values()),
        "streams_read_to_their_end": load.stream_count,
        "tool_calls": len(starts),
        "double_starts": [call_id for call_id, count in starts.items() if count > 1],
        "longest_silence_seconds": {"servers killed": gap_of_servers, "primary killed": load.longest_gap},
        "errors_on_the_way": dict(load.errors),
        "servers_complained_of": cluster.count_log_lines(),
        "problems": problems,
    }


async def run(seconds: float, kills: bool) -> dict[str, Any]:
    with _make_home() as folder, ExitStack() as stack:
        cluster = await asyncio.to_thread(Cluster, stack, folder)
        figures = []
        for place in range(len(cluster.servers)):
            await asyncio.to_thread(cluster.start_server, place)
            _report(f"{place + 1} of {len(cluster.servers)} servers")
            # The balancer has seen it by then.
            await asyncio.sleep(2)
            figures.append(await measure(cluster, seconds))
        broken = {"broken": await break_everything(cluster, seconds, _report)} if kills else {}
        return {"throughput": figures, **broken}


def _report(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


@contextmanager
def _make_home() -> Iterator[Path]:
    """A folder that the user of PostgreSQL may go through."""
    folder = Path(tempfile.mkdtemp(prefix="swarmkeep-cluster-"))
    folder.chmod(0o711)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


async def run_upgrade(commit: str, callers: int, seconds: float) -> dict[str, Any]:
    with _make_home() as folder, ExitStack() as stack:
        old = Release(folder / "old", commit)
        cluster = await asyncio.to_thread(Cluster, stack, folder, old.migrate)
        return await upgrade_under_load(cluster, old, callers, seconds, _report)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.cluster", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=20.0, help="of load in each part")
    parser.add_argument("--callers", type=int, default=CALLERS, help="at once, with `--upgrade-from`")
    parser.add_argument("--no-kills", action="store_true", help="measure only")
    parser.add_argument(
        "--upgrade-from", metavar="COMMIT", help="do something else: replace servers of an older commit under load"
    )
    parser.add_argument("--json", action="store_true", help="print the figures as JSON only")
    arguments = parser.parse_args()
    # What it has started ends with it, also when it is told to end.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if arguments.upgrade_from is not None:
        upgraded = asyncio.run(run_upgrade(arguments.upgrade_from, arguments.callers, arguments.seconds))
        print(json.dumps(upgraded, indent=2))
        sys.exit(bool(upgraded["problems"] or upgraded["double_starts"] or upgraded["left_after_recount"]))
    found = asyncio.run(run(arguments.seconds, not arguments.no_kills))
    print(json.dumps(found, indent=2))
    if not arguments.json:
        for row in found["throughput"]:
            print(f"{row['servers']} servers, idle {row['idle_ms_per_second_and_server']:.1f} ms/s each")
            for way in ("any_server", "by_session"):
                cost = f"server {row[way]['server_ms']:6.2f} ms   database {row[way]['database_ms']:6.2f} ms"
                print(f"    {way:<12} {cost}   {row[way]['turns_per_second']:6.1f} turns/s")
    broken = found.get("broken", {})
    if broken.get("problems") or broken.get("double_starts"):
        sys.exit(1)


if __name__ == "__main__":
    main()
