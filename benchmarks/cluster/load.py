"""Callers that talk without a pause, and note what they were told."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from uuid import uuid4

from swarmkeep_client import AsyncClient, Done, Event, RunNotCompleted, SwarmkeepError

# Callers try again for so long, as one whose work matters would.
_PATIENCE_SECONDS = 120.0
_RUNS_PER_SESSION = 30


class Acknowledged:
    """What a session's caller was told: hashes of events by their seq, and the last seq of runs that have ended."""

    def __init__(self) -> None:
        self.heads: dict[int, str] = {}
        self.runs: dict[str, int] = {}


class Load:
    """Callers on one address, until `stop`."""

    def __init__(self, url: str, callers: int, *, tools: bool = True) -> None:
        self.url = url
        self.told: dict[str, Acknowledged] = {}
        self.errors: Counter[str] = Counter()
        self.stuck: list[str] = []
        self.run_count = 0
        self.stream_count = 0
        self.longest_gap = 0.0
        self._tools = tools
        self._ended = asyncio.Event()
        self._last_answer = time.monotonic()
        self._tasks = [asyncio.create_task(self._talk(number)) for number in range(callers)]

    async def stop(self) -> None:
        self._ended.set()
        await asyncio.gather(*self._tasks)

    async def _talk(self, number: int) -> None:
        kinds = itertools.cycle(("run", "stream", "run") if self._tools else ("run",))
        async with AsyncClient(self.url, timeout=60.0) as client:
            while not self._ended.is_set():
                agent = "Clerk" if self._tools and number % 2 else "Plain"
                session_id = f"load-{uuid4().hex}"
                create = partial(client.sessions.create, id=session_id, agent=agent)
                if not await self._insist(session_id, create):
                    return
                self.told[session_id] = Acknowledged()
                for _ in range(_RUNS_PER_SESSION):
                    if self._ended.is_set():
                        return
                    take_turn = partial(self._take_turn, client, session_id, uuid4().hex, next(kinds))
                    if not await self._insist(session_id, take_turn):
                        return

    async def _take_turn(self, client: AsyncClient, session_id: str, key: str, kind: str) -> None:
        told = self.told[session_id]
        session = await client.sessions.get(session_id)
        if kind == "run":
            run = await session.run("Where is my order?", idempotency_key=key)
            told.runs[run.id] = run.last_seq
        else:
            async for item in session.stream("Where is my order?", idempotency_key=key):
                if isinstance(item, Event):
                    told.heads[item.seq] = item.hash
                elif isinstance(item, Done):
                    told.runs[item.run.id] = item.run.last_seq
                    self.stream_count += 1
        self.run_count += 1

    async def _insist(self, session_id: str, call: Callable[[], Awaitable[object]]) -> bool:
        """Do it until it is answered; whether it was."""
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while time.monotonic() < deadline:
            try:
                await call()
            except RunNotCompleted as ended:
                self.told[session_id].runs[ended.run.id] = ended.run.last_seq
                self.errors[f"run {ended.run.status}: {ended.code}"] += 1
            except SwarmkeepError as error:
                self.errors[error.code or type(error).__name__] += 1
                await asyncio.sleep(0.1)
                continue
            now = time.monotonic()
            self.longest_gap = max(self.longest_gap, now - self._last_answer)
            self._last_answer = now
            return True
        self.stuck.append(session_id)
        return False


async def find_problems(load: Load) -> list[str]:
    """Whatever was acknowledged and is not there, does not verify, or does not go on."""
    limit = asyncio.Semaphore(4)

    async def check(client: AsyncClient, session_id: str, told: Acknowledged) -> list[str]:
        async with limit:
            try:
                return await _check_session(client, session_id, told)
            except SwarmkeepError as error:
                return [f"{session_id}: {error}"]

    async with AsyncClient(load.url, timeout=60.0) as client:
        found = await asyncio.gather(*(check(client, *each) for each in load.told.items()))
    return [f"{one} gave no answer" for one in load.stuck] + list(itertools.chain.from_iterable(found))


async def _check_session(client: AsyncClient, session_id: str, told: Acknowledged) -> list[str]:
    session = await client.sessions.get(session_id)
    last = await session.run("And then?")
    problems = [] if last.status == "completed" else [f"{session_id}: its next run is {last.status}"]
    verification = await session.verify()
    if not verification.valid:
        problems.append(f"{session_id}: does not verify: {verification.problems}")
    hashes = {event.seq: event.hash async for event in session.events()}
    problems += [f"{session_id}: event {seq} is lost" for seq, hash in told.heads.items() if hashes.get(seq) != hash]
    known = {run.id: run.last_seq async for run in session.runs()}
    problems += [f"{session_id}: {run_id} is lost" for run_id, seq in told.runs.items() if known.get(run_id) != seq]
    return problems
