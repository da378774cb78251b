"""Replaces servers of an older release by those of this one, under load."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import asdict

from benchmarks.cluster.load import Load, find_problems
from benchmarks.cluster.servers import HERE, Cluster
from swarmkeep.store.opening import open_store
from swarmkeep.store.schema import Leftovers, mend_leftovers, upgrade
from swarmkeep.store.usage import recount_totals

_FEW_TURNS = 20
_PARTS = ("server", "migrations", "clients/python/src", "benchmarks")


class Release:
    """The code of a commit, in a folder of its own. It runs on what is installed for this one."""

    def __init__(self, folder: Path, commit: str) -> None:
        folder.mkdir()
        packed = subprocess.run(["git", "-C", HERE, "archive", commit, *_PARTS], capture_output=True, check=True)
        subprocess.run(["tar", "-x", "-C", folder], input=packed.stdout, check=True)
        self.path = os.pathsep.join(str(folder / part) for part in (*_PARTS[:3], ""))

    def migrate(self, url: str) -> None:
        """Make its schema in an empty database."""
        command = [sys.executable, "-m", "swarmkeep", "db", "upgrade", "--database-url", url]
        subprocess.run(command, env={**os.environ, "PYTHONPATH": self.path}, check=True, capture_output=True)


async def upgrade_under_load(
    cluster: Cluster, old: Release, callers: int, seconds: float, report: Callable[[str], None]
) -> dict[str, Any]:
    """Two servers of the older release take the load, and the database is migrated beneath them. A new server begins
    at the third place, and then the others are replaced one by one."""
    first, second, third = range(len(cluster.servers))
    for place in (first, second):
        await asyncio.to_thread(cluster.start_server, place, old.path)
    load = Load(cluster.balancer.url, callers)
    await _wait_for_turns(load, seconds)
    report("the database is migrated")
    before = load.run_count
    await asyncio.to_thread(upgrade, cluster.primary.url)
    between = load.run_count
    report("a server of this release starts")
    await asyncio.to_thread(cluster.start_server, third)
    for place in (first, second):
        await _wait_for_turns(load, seconds / 2)
        report(f"server {place + 1} is stopped, and started as this release")
        await asyncio.to_thread(cluster.stop_server, place)
        await asyncio.to_thread(cluster.start_server, place)
    await _wait_for_turns(load, seconds)
    report("the load ends, and all is checked")
    await load.stop()
    left = await _recount(cluster.primary.url)
    problems = await find_problems(load)
    starts = Counter(cluster.effects.read_text().split())
    return {
        "sessions": len(load.told),
        "runs_before_the_migration": before,
        "runs_during_the_migration": between - before,
        "runs_acknowledged": sum(len(told.runs) for told in load.told.values()),
        "events_acknowledged": sum(len(told.heads) for told in load.told.values()),
        "streams_read_to_their_end": load.stream_count,
        "tool_calls": len(starts),
        "double_starts": [call_id for call_id, count in starts.items() if count > 1],
        "longest_silence_seconds": load.longest_gap,
        "errors_on_the_way": dict(load.errors),
        "servers_complained_of": cluster.count_log_lines(),
        "mended_by_recount": asdict(left[0]),
        "left_after_recount": [asdict(one) for one in left[1:] if one.sessions or one.files],
        "problems": problems,
    }


async def _wait_for_turns(load: Load, seconds: float) -> None:
    """So long, and until callers have been answered meanwhile, also on a machine that has other things to do."""
    wanted = load.run_count + _FEW_TURNS
    await asyncio.sleep(seconds)
    while load.run_count < wanted and not load.stuck:  # noqa: ASYNC110
        await asyncio.sleep(0.1)


async def _recount(url: str) -> Sequence[Leftovers]:
    """What `swarmkeep db recount` mends, and what it leaves."""
    store = open_store(url)
    try:
        mended = await mend_leftovers(store, mend=True)
        await recount_totals(store.database, mend=True)
        return mended, await mend_leftovers(store, mend=False)
    finally:
        await store.close()
