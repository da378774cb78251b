"""`python -m benchmarks.anchors`: what checkpoints of the log of heads cost in a database of a million sessions.

Once each, elapsed time and the CPU time of this process, which on SQLite is all: this is what somebody waits for who
runs `swarmkeep anchor`, or `verify ID --checkpoint`.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Awaitable
from pathlib import Path
from typing import TypeVar

from sqlalchemy import text

from benchmarks.large_database import TENANT, fill_database
from swarmkeep.events.codec import encode
from swarmkeep.history.proofs import HeadLog, TreeHash, parse_note
from swarmkeep.store import schema
from swarmkeep.store.opening import SqlStore, open_store
from swarmkeep.store.records import SessionKey

T = TypeVar("T")

_LEAVES_AT_ONCE = 500
_SIZE = {
    "sqlite": "SELECT sum(pgsize) FROM dbstat WHERE name LIKE '%log_leaves%'",
    "postgresql": "SELECT pg_total_relation_size('log_leaves')",
}
_GO_ON = "UPDATE sessions SET head_seq = head_seq + 1 WHERE id LIKE '%00'"


async def measure(name: str, work: Awaitable[T]) -> T:
    began, used = time.perf_counter(), time.process_time()
    found = await work
    took, used = time.perf_counter() - began, time.process_time() - used
    print(f"{name:<45} {took:8.2f} s, {used:8.2f} s of CPU", flush=True)
    return found


async def compare(store: SqlStore, note: str) -> None:
    """Read all leaves, and see whether they are those of the note."""
    tree, after = TreeHash(), -1
    while page := await store.read_leaves(TENANT, after=after, limit=_LEAVES_AT_ONCE):
        for leaf in page:
            tree.add(leaf.data)
        after = page[-1].index
    assert tree.root == parse_note(note.encode()).root


async def run(url: str, sessions: int, events_per_session: int) -> None:
    schema.upgrade(url)
    await asyncio.to_thread(
        schema.change_at_once, url, lambda connection: fill_database(connection, sessions, events_per_session, 0)
    )
    store = open_store(url)
    try:
        log = HeadLog(store, origin="bench.example", signer=None)
        await store.database.write(lambda connection: connection.execute(text("ANALYZE")))
        await measure("the first checkpoint", log.make(TENANT))
        await store.database.write(lambda connection: connection.execute(text(_GO_ON)))
        made = await measure("a later one, one session of 100 has gone on", log.make(TENANT))
        await measure("all leaves compared with a checkpoint", compare(store, made.note))
        proof = await measure("a proof of one session", log.prove(SessionKey(TENANT, f"s{sessions // 2:09}")))
        print(f"{made.size:,} leaves, a proof of {len(encode(proof)):,} bytes")
        size = await store.database.read(lambda connection: connection.scalar(text(_SIZE[connection.dialect.name])))
        print(f"the log's table has {size / made.size:.0f} bytes for each leaf")
    finally:
        await store.close()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.anchors", description=__doc__)
    parser.add_argument("--sessions", type=int, default=1_000_000)
    parser.add_argument("--events-per-session", type=int, default=1)
    parser.add_argument("--database", help="the URL of an empty database to fill")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        url = arguments.database or f"sqlite:///{Path(folder) / 'bench.db'}"
        asyncio.run(run(url, arguments.sessions, arguments.events_per_session))


if __name__ == "__main__":
    main()
