"""`python -m benchmarks.doors`: what a response by OpenAI's face costs, beside the same run over `/v1`.

One server, one stub model, turns through either door in rounds, in sessions alike. CPU time of the server's process per
turn, and the time to the first piece of a stream.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from collections import deque
from pathlib import Path
from typing import Any

import httpx2

from benchmarks.processes import start_server, start_stub_model
from benchmarks.scenarios import Scenario, measure_cpu_ms

_QUESTION = "Where is my order?"
_PIECES = {"/v1": b"event: message.delta", "/openai/v1": b"event: response.output_text.delta"}


class _Door:
    """Turns of a plain agent through one door, in its own sessions."""

    def __init__(self, client: httpx2.AsyncClient, url: str, prefix: str, sessions: deque[str]) -> None:
        self._client = client
        self._url = url
        self._prefix = prefix
        self._sessions = sessions

    def _make_request(self, text: str, *, stream: bool) -> tuple[str, dict[str, Any]]:
        session = self._sessions[0]
        self._sessions.rotate(-1)
        if self._prefix == "/v1":
            return f"{self._url}/v1/sessions/{session}/runs", {"input": text, "stream": stream}
        body = {"model": "Plain", "conversation": session, "input": text, "stream": stream}
        return f"{self._url}/openai/v1/responses", body

    async def turn(self) -> None:
        url, body = self._make_request(_QUESTION, stream=False)
        answer = await self._client.post(url, json=body)
        answer.raise_for_status()
        if answer.json()["status"] != "completed":
            raise RuntimeError(answer.text)

    async def read_first_ms(self) -> float:
        """Milliseconds to the first piece of a stream."""
        url, body = self._make_request("1 chunks every 0 ms", stream=True)
        began, first = time.perf_counter(), 0.0
        async with self._client.stream("POST", url, json=body) as answer:
            async for data in answer.aiter_raw():
                if not first and _PIECES[self._prefix] in data:
                    first = 1000 * (time.perf_counter() - began)
        return first


async def run(rounds: int, turns: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        database = f"sqlite:///{Path(folder) / 'bench.db'}"
        with start_stub_model() as model, start_server(model.url, database) as server:
            async with httpx2.AsyncClient(timeout=120) as client:
                doors = []
                for prefix in _PIECES:
                    scenario = Scenario(prefix)
                    await scenario.prepare(client, server.url)
                    doors.append(_Door(client, server.url, prefix, scenario.sessions))
                for door in doors:
                    await measure_cpu_ms([server], door.turn, 20, 1)
                    await door.read_first_ms()
                rows = []
                for _ in range(rounds):
                    cpu = [(await measure_cpu_ms([server], door.turn, turns, 1))[0] for door in doors]
                    first = [statistics.median([await door.read_first_ms() for _ in range(20)]) for door in doors]
                    rows.append((*cpu, cpu[1] / cpu[0], *first, first[1] / first[0]))
    names = ("v1_ms", "openai_ms", "ratio", "v1_first_ms", "openai_first_ms", "first_ratio")
    return dict(zip(names, (statistics.median(column) for column in zip(*rows, strict=True)), strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.doors", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="measurements of each kind, of which the median counts")
    parser.add_argument("--turns", type=int, default=100, help="turns of a round")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    arguments = parser.parse_args()
    found = asyncio.run(run(arguments.rounds, arguments.turns))
    if arguments.json:
        print(json.dumps(found, indent=2))
        return
    turn = f"/v1 {found['v1_ms']:6.2f} ms   /openai/v1 {found['openai_ms']:6.2f} ms"
    print(f"plain turn   {turn}   × {found['ratio']:.2f}")
    first = f"/v1 {found['v1_first_ms']:6.2f} ms   /openai/v1 {found['openai_first_ms']:6.2f} ms"
    print(f"first piece  {first}   × {found['first_ratio']:.2f}")


if __name__ == "__main__":
    main()
