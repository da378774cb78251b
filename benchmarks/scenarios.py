"""Turns of each kind, on the server and on the floor, and what they cost."""

from __future__ import annotations

import asyncio
import itertools
import statistics
from collections import deque
from collections.abc import Awaitable, Callable

import httpx2
import msgspec

from benchmarks.processes import Meter, Process
from benchmarks.stub_model import LONG_ANSWER
from benchmarks.team import make_history

Turn = Callable[[], Awaitable[None]]

_INDEX_SECONDS = 0.6


class Figures(msgspec.Struct, frozen=True):
    """CPU milliseconds a turn, as medians of the rounds, and the median of the rounds' ratios.

    `database_ms` is what the database's own processes take of it, and a part of neither the server's nor the floor's;
    the ratio counts it to the server.
    """

    scenario: str
    messages: int
    at_once: int
    server_ms: float
    database_ms: float
    floor_ms: float
    ratio: float


class Scenario:
    """Turns of one kind. Sessions are used in rotation, so that their histories hardly grow while measured; one that
    is in use is left out of it."""

    def __init__(
        self,
        name: str,
        *,
        messages: int = 10,
        tool: bool = False,
        at_once: int = 1,
        turns: int = 100,
        text: str = "Where is my order?",
    ) -> None:
        self.name = name
        self.text = text
        self.messages = messages
        self.tool = tool
        self.at_once = at_once
        self.turns = turns
        self.sessions: deque[str] = deque()

    async def prepare(self, client: httpx2.AsyncClient, server_url: str) -> None:
        for _ in range(128 if self.messages < 100 else 4):
            agent = "Clerk" if self.tool else "Plain"
            body = {"agent": agent, "messages": make_history(self.messages)}
            answer = await client.post(f"{server_url}/v1/sessions", json=body)
            answer.raise_for_status()
            self.sessions.append(answer.json()["id"])

    async def server_turn(self, client: httpx2.AsyncClient, url: str) -> None:
        session = self.sessions.popleft()
        answer = await client.post(f"{url}/v1/sessions/{session}/runs", json={"input": self.text})
        answer.raise_for_status()
        self.sessions.append(session)
        if answer.json()["status"] != "completed":
            raise RuntimeError(answer.text)

    async def floor_turn(self, client: httpx2.AsyncClient, url: str) -> None:
        body = {"input": self.text, "history": self.messages, "tool": self.tool}
        answer = await client.post(f"{url}/turn", json=body)
        answer.raise_for_status()


def make_scenarios() -> list[Scenario]:
    return [
        Scenario("plain turn"),
        Scenario("turn with a tool", tool=True),
        Scenario("plain turn, 8 at once", at_once=8, turns=320),
        Scenario("plain turn, 32 at once", at_once=32, turns=320),
        Scenario("history of 100 messages", messages=100),
        Scenario("history of 1,000 messages", messages=1_000, turns=40),
        Scenario("history of 5,000 messages", messages=5_000, turns=20),
    ]


async def wait_until_indexed(client: httpx2.AsyncClient, url: str) -> None:
    """Wait until searches find all that was said: the index of words follows behind the turns, and is part of their
    cost."""
    while True:
        # Longer than it gathers what is to be done.
        await asyncio.sleep(_INDEX_SECONDS)
        answer = await client.get(f"{url}/health/ready")
        answer.raise_for_status()
        if not answer.json().get("search_sessions_behind"):
            return


async def measure_cpu_ms(
    meters: list[Meter], turn: Turn, turns: int, at_once: int, settle: Turn | None = None
) -> list[float]:
    """CPU milliseconds of each meter per turn. `settle` waits for what there is still to do after the last."""
    numbers = iter(range(turns))

    async def worker() -> None:
        for _ in numbers:
            await turn()

    before = [meter.cpu_seconds for meter in meters]
    await asyncio.gather(*(worker() for _ in range(at_once)))
    if settle is not None:
        await settle()
    return [(meter.cpu_seconds - start) * 1000 / turns for meter, start in zip(meters, before, strict=True)]


async def measure(
    client: httpx2.AsyncClient, scenario: Scenario, ours: Process, database: Meter, bare: Process, rounds: int
) -> Figures:
    await scenario.prepare(client, ours.url)

    async def server_turn() -> None:
        await scenario.server_turn(client, ours.url)

    async def floor_turn() -> None:
        await scenario.floor_turn(client, bare.url)

    async def settle() -> None:
        await wait_until_indexed(client, ours.url)

    # Both warm up: imports, connections, caches.
    await measure_cpu_ms([ours], server_turn, max(8, scenario.at_once), scenario.at_once)
    await measure_cpu_ms([bare], floor_turn, max(8, scenario.at_once), scenario.at_once)
    await settle()
    pairs = []
    for _ in range(rounds):
        mine, stored = await measure_cpu_ms([ours, database], server_turn, scenario.turns, scenario.at_once, settle)
        [theirs] = await measure_cpu_ms([bare], floor_turn, scenario.turns, scenario.at_once)
        pairs.append((mine, stored, theirs, (mine + stored) / theirs))
    medians = (statistics.median(column) for column in zip(*pairs, strict=True))
    return Figures(scenario.name, scenario.messages, scenario.at_once, *medians)


class Growth(msgspec.Struct, frozen=True):
    """Bytes per turn of a session, from `first_turn` on up to a turn; and how much of it is which table or index."""

    first_turn: int
    last_turn: int
    size: float
    parts: dict[str, float]


async def measure_growth(
    client: httpx2.AsyncClient, ours: Process, measure_size: Callable[[], dict[str, int]], upto: list[int]
) -> list[Growth]:
    """Bytes that the database grows by per turn of one session, up to each of these turns from the one before it."""
    scenario = Scenario("growth", messages=0, text=f"{LONG_ANSWER.decode()} Where is my order? ".ljust(200, "."))
    await scenario.prepare(client, ours.url)
    scenario.sessions = deque([scenario.sessions[0]])
    await wait_until_indexed(client, ours.url)
    sizes = [measure_size()]
    for before, after in itertools.pairwise([0, *upto]):
        for _ in range(after - before):
            await scenario.server_turn(client, ours.url)
        await wait_until_indexed(client, ours.url)
        sizes.append(measure_size())
    steps = zip(itertools.pairwise([0, *upto]), itertools.pairwise(sizes), strict=True)
    return [_compare_sizes(before, after, smaller, larger) for (before, after), (smaller, larger) in steps]


def _compare_sizes(before: int, after: int, smaller: dict[str, int], larger: dict[str, int]) -> Growth:
    parts = {name: (size - smaller.get(name, 0)) / (after - before) for name, size in larger.items()}
    return Growth(before, after, sum(parts.values()), {name: size for name, size in parts.items() if size})
