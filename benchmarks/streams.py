"""`python -m benchmarks.streams`: what a piece of a stream costs, from the provider's bytes to the reader's.

The server and a bare floor, which passes the openai client's stream on, in processes of their own against the same stub
model, in rounds. CPU time of the process per piece, of one stream alone and of forty at once, the time to the first
piece, and how long the health check takes while many slow streams are read.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import statistics
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, Protocol

import httpx2

from benchmarks.processes import Process, start_floor, start_server, start_stub_model

PIECE = b"event: message.delta"


# Reads a stream of so many pieces, so many milliseconds apart; gives the seconds to the first piece.
class Read(Protocol):
    async def __call__(self, count: int, pause_ms: int, begun: asyncio.Event | None = None) -> float: ...


def read_server(client: httpx2.AsyncClient, url: str) -> Read:
    async def read(count: int, pause_ms: int, begun: asyncio.Event | None = None) -> float:
        made = await client.post(f"{url}/v1/sessions", json={"agent": "Plain"})
        body = {"input": f"{count} chunks every {pause_ms} ms", "stream": True}
        return await _read_pieces(client, f"{url}/v1/sessions/{made.json()['id']}/runs", body, count, begun)

    return read


def read_floor(client: httpx2.AsyncClient, url: str) -> Read:
    async def read(count: int, pause_ms: int, begun: asyncio.Event | None = None) -> float:
        return await _read_pieces(
            client, f"{url}/stream", {"input": f"{count} chunks every {pause_ms} ms"}, count, begun
        )

    return read


async def _read_pieces(
    client: httpx2.AsyncClient, url: str, body: dict[str, Any], count: int, begun: asyncio.Event | None
) -> float:
    began, first, found, rest = time.perf_counter(), 0.0, 0, b""
    async with client.stream("POST", url, json=body) as answer:
        async for data in answer.aiter_raw():
            rest += data
            found += rest.count(PIECE)
            first = first or (time.perf_counter() - began if found else 0.0)
            if found and begun is not None:
                begun.set()
            rest = rest[max(0, rest.rfind(b"\n\n")) :] if rest.rfind(b"\n\n") > rest.rfind(PIECE) else rest
            rest = rest.replace(PIECE, b"")
    if found != count:
        raise RuntimeError(f"{url} gave {found} pieces of {count}")
    return first


async def measure_piece_us(process: Process, read: Read, pieces: int, streams: int) -> float:
    """CPU microseconds for each piece: of long streams, less what as many short ones take."""
    long = await _measure_cpu(process, read, pieces, streams)
    short = await _measure_cpu(process, read, 1, streams)
    return (long - short) * 1e6 / ((pieces - 1) * streams)


async def _measure_cpu(process: Process, read: Read, pieces: int, streams: int) -> float:
    before = process.cpu_seconds
    for _ in range(streams):
        await read(pieces, 2)
    return process.cpu_seconds - before


async def measure_busy_us(process: Process, read: Read, pieces: int, streams: int) -> float:
    """As `measure_piece_us`, with that many streams at once, each a piece every 40 ms."""
    before = process.cpu_seconds
    await asyncio.gather(*(read(pieces, 40) for _ in range(streams)))
    between = process.cpu_seconds
    await asyncio.gather(*(read(1, 0) for _ in range(streams)))
    return (2 * between - before - process.cpu_seconds) * 1e6 / ((pieces - 1) * streams)


async def measure_first_ms(read: Read, times: int) -> float:
    return 1000 * statistics.median([await read(1, 0) for _ in range(times)])


async def measure_health_ms(url: str, read: Read, streams: int) -> float:
    """The 99th percentile of the health check while that many streams are read, each a piece every 200 ms."""
    begun = [asyncio.Event() for _ in range(streams)]
    reading = [asyncio.create_task(read(100, 200, event)) for event in begun]
    await asyncio.gather(*(event.wait() for event in begun))
    # Who asks has a process to himself: in this one he would wait for those who read.
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as processes:
        taken = await asyncio.get_running_loop().run_in_executor(processes, _ask_health, url, 10)
    if any(task.done() for task in reading):
        raise RuntimeError("a stream ended while the health check was asked")
    await asyncio.gather(*reading)
    return statistics.quantiles(taken, n=100)[98]


def _ask_health(url: str, seconds: float) -> list[float]:
    """The milliseconds that each answer took, for so long."""
    taken = []
    with httpx2.Client(base_url=url) as client:
        client.get("/health/live").raise_for_status()
        until = time.perf_counter() + seconds
        while time.perf_counter() < until:
            began = time.perf_counter()
            client.get("/health/live").raise_for_status()
            taken.append(1000 * (time.perf_counter() - began))
            time.sleep(0.01)
    return taken


async def run(rounds: int, pieces: int, streams: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        database = f"sqlite:///{Path(folder) / 'bench.db'}"
        limits = httpx2.Limits(max_connections=None)
        with start_stub_model() as model, start_floor(model.url) as bare, start_server(model.url, database) as ours:
            async with httpx2.AsyncClient(timeout=120, limits=limits) as client:
                mine, theirs = read_server(client, ours.url), read_floor(client, bare.url)
                for read in (mine, theirs):
                    # Imports, connections, caches.
                    await measure_first_ms(read, 5)
                pairs = []
                for _ in range(rounds):
                    piece = [await measure_piece_us(*one, pieces, 4) for one in ((ours, mine), (bare, theirs))]
                    busy = [await measure_busy_us(*one, 50, 40) for one in ((ours, mine), (bare, theirs))]
                    first = [await measure_first_ms(read, 20) for read in (mine, theirs)]
                    pairs.append(tuple(each for one, two in (piece, busy, first) for each in (one, two, one / two)))
                    print(f"{piece[0]:.0f} µs, floor {piece[1]:.0f} µs", file=sys.stderr, flush=True)
                health = await measure_health_ms(ours.url, mine, streams)
    kinds = (("piece", "us"), ("busy_piece", "us"), ("first", "ms"))
    names = [each for name, unit in kinds for each in (f"{name}_{unit}", f"floor_{name}_{unit}", f"{name}_ratio")]
    medians = [statistics.median(column) for column in zip(*pairs, strict=True)]
    return {**dict(zip(names, medians, strict=True)), "health_p99_ms": health, "streams_at_once": streams}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.streams", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="measurements of each kind, of which the median counts")
    parser.add_argument("--pieces", type=int, default=500, help="pieces of a long stream")
    parser.add_argument("--streams", type=int, default=200, help="slow streams at once beside the health check")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    arguments = parser.parse_args()
    found = asyncio.run(run(arguments.rounds, arguments.pieces, arguments.streams))
    if arguments.json:
        print(json.dumps(found, indent=2))
        return
    for what, name, unit in (
        ("CPU per piece", "piece", "us"),
        ("40 at once", "busy_piece", "us"),
        ("first piece", "first", "ms"),
    ):
        mine, theirs, ratio = found[f"{name}_{unit}"], found[f"floor_{name}_{unit}"], found[f"{name}_ratio"]
        print(f"{what:<16} server {mine:7.1f} {unit}   floor {theirs:7.1f} {unit}   × {ratio:.2f}")
    print(f"health, p99      {found['health_p99_ms']:.1f} ms beside {found['streams_at_once']} streams")


if __name__ == "__main__":
    main()
