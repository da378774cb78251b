"""`python -m benchmarks.verify`: how fast a long session is checked, and read when its state is not in memory.

CPU time of this process, on a SQLite file in a temporary folder; best of a few rounds. The garbage collector is set as
the server sets it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
import tracemalloc
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from benchmarks.team import INSTRUCTIONS
from swarmkeep.decide.commands import create_session
from swarmkeep.decide.drafts import draft_events
from swarmkeep.events.codec import digest
from swarmkeep.events.facts import ContextUpdated, MessageAdded, RunCompleted, RunStarted, SessionEvent, ToolStarted
from swarmkeep.events.records import CompletionRecord, RequestRecord, RunOptions, ToolRecord
from swarmkeep.events.state import State
from swarmkeep.history.verify import verify
from swarmkeep.serve.server import tune_garbage_collector
from swarmkeep.store import schema
from swarmkeep.store.opening import SqlStore, open_store
from swarmkeep.store.records import SessionKey

KEY = SessionKey("default", "long")
BLOBS = {digest(INSTRUCTIONS): INSTRUCTIONS}


def make_turn(number: int) -> list[SessionEvent]:
    """A run with one tool call: eight events of ordinary length."""
    call_id = f"call_{number}"
    call = {"name": "look_up_order", "arguments": f'{{"order_id":"{number}"}}'}
    usage = {"prompt_tokens": 900, "completion_tokens": 20, "total_tokens": 920}
    request = RequestRecord(instructions=digest(INSTRUCTIONS), params={"model": "stub", "parallel_tool_calls": True})
    reply = CompletionRecord(
        id=f"chatcmpl-{number}", model="stub", finish_reason="stop", usage=usage, duration_ms=800.5, request=request
    )
    message = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": call_id, "type": "function", "function": call}],
    }
    result = {"role": "tool", "tool_call_id": call_id, "tool_name": call["name"], "content": "It was sent on Friday."}
    return [
        RunStarted(options=RunOptions()),
        MessageAdded(message={"role": "user", "content": f"Where is my order {number}? " * 3, "sender": "user"}),
        MessageAdded(message={**message, "sender": "Clerk"}, completion=reply),
        ToolStarted(tool_call_id=call_id, name=call["name"], arguments=call["arguments"]),
        MessageAdded(message={**result, "sender": "Clerk"}, tool=ToolRecord(name=call["name"], status="ok")),
        ContextUpdated(patch={"orders": number}, tool_call_id=call_id),
        MessageAdded(
            message={"role": "assistant", "content": "It was sent on Friday. " * 5, "sender": "Clerk"}, completion=reply
        ),
        RunCompleted(stop_reason="end_turn"),
    ]


async def fill_store(store: SqlStore, events: int) -> None:
    created = draft_events("Clerk", create_session("Clerk", {}, {}, []), None)
    state = (await store.append(KEY, State(), created, blobs=BLOBS)).state
    number = 0
    while state.seq < events:
        number += 1
        state = (await store.append(KEY, state, draft_events("Clerk", make_turn(number), f"run_{number}"))).state


async def measure_best_ms(rounds: int, work: Callable[[], Awaitable[Any]]) -> float:
    times = []
    for _ in range(rounds):
        start = time.process_time()
        await work()
        times.append(time.process_time() - start)
    return min(times) * 1000


async def measure(events: int, rounds: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{Path(folder) / 'bench.db'}"
        schema.upgrade(url)
        store = open_store(url, cache_bytes=0)
        try:
            await fill_store(store, events)
            checked = await measure_best_ms(rounds, lambda: verify(store, KEY))
            read = await measure_best_ms(rounds, lambda: store.state(KEY))
            tracemalloc.start()
            assert (await verify(store, KEY)).valid
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
        finally:
            await store.close()
    return {
        "events": events,
        "verify_events_per_second": events / checked * 1000,
        "verify_peak_mb": peak / 1e6,
        "cold_state_ms": read,
        "cold_state_ms_per_1000_events": read / events * 1000,
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.verify", description=__doc__)
    parser.add_argument(
        "--events", type=int, nargs="+", default=[1_000, 5_000, 20_000], help="how long the sessions are"
    )
    parser.add_argument("--rounds", type=int, default=5, help="measurements of each kind, of which the best counts")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    arguments = parser.parse_args()
    tune_garbage_collector()
    rows = [asyncio.run(measure(events, arguments.rounds)) for events in arguments.events]
    if arguments.json:
        print(json.dumps(rows, indent=2))
        return
    for row in rows:
        print(
            f"{row['events']:>7,} events   verify {row['verify_events_per_second']:>8,.0f} events/s, "
            f"peak {row['verify_peak_mb']:5.1f} MB   cold state {row['cold_state_ms']:7.1f} ms "
            f"({row['cold_state_ms_per_1000_events']:.1f} ms per 1,000 events)"
        )


if __name__ == "__main__":
    main()
