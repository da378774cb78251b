"""Engines on one database, as several servers would have them: started, used, killed."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import aclosing, closing, nullcontext, suppress
from typing import Any, Self

from msgspec.structs import replace
from openai import AsyncOpenAI
from sqlalchemy import update

from swarmkeep import Agent
from swarmkeep.decide.commands import StartRun
from swarmkeep.events.codec import Json
from swarmkeep.events.errors import SessionNotFound
from swarmkeep.events.facts import CompactionSummarised, MessageAdded, RecordedEvent
from swarmkeep.events.fold import evolve
from swarmkeep.events.state import State
from swarmkeep.events.views import RunView
from swarmkeep.history.replay import rebuild_request, replay_session
from swarmkeep.history.verify import verify
from swarmkeep.models.failures import NO_SECRETS, Secrets
from swarmkeep.models.model import ChatModel, Pauses
from swarmkeep.request.request import Profile, build_request
from swarmkeep.runs.agents import Registry
from swarmkeep.runs.engine import Engine
from swarmkeep.runs.hub import Feed, Item
from swarmkeep.runs.limits import Limits
from swarmkeep.runs.reader import RunPosition
from swarmkeep.runs.tracing import Tracing
from swarmkeep.store.opening import open_store
from swarmkeep.store.records import Clock, SessionKey, utc_now
from swarmkeep.store.tables import sessions
from tests.support.rules import find_body_faults
from tests.support.scripted import ScriptedModel

KEY = SessionKey("default", "s1")
PROFILE = Profile(name="A", model="m", instructions="")

# Nothing waits for these: a test that needs a lease to run out makes it run out.
LIMITS = Limits(lease_seconds=30.0, grace_seconds=0.05, tool_seconds=10.0, poll_seconds=0.02, unserved_seconds=0.05)
# For tests that wait for what a server finds when it looks for runs that nobody advances.
LOOKS_OFTEN = replace(LIMITS, recovery_seconds=0.05)


# A test that hangs ends at last; on a busy machine, what is right may take long.
PATIENCE_SECONDS = 60.0


def make_start_run(text: str = "hello", run_id: str = "r1", **options: Any) -> StartRun:
    return StartRun(run_id=run_id, messages=({"role": "user", "content": text},), **options)


class Server(Engine):
    """An engine as a server has it, and what tests do with its sessions; of KEY unless they say which."""

    async def open_session(self, key: SessionKey = KEY, **given: Any) -> SessionKey:
        """A new session."""
        await self.sessions.create(key.tenant, session_id=key.id, **given)
        return key

    async def start_run(
        self,
        text: str = "hello",
        run_id: str = "r1",
        key: SessionKey = KEY,
        *,
        gate: ToolGate | None = None,
        **options: Any,
    ) -> RunPosition:
        """Start a run; with a gate, return once one of its tools stands there."""
        position = await self.runs.start(key, make_start_run(text, run_id, **options))
        if gate is not None:
            await gate.wait_until_reached()
        return position

    async def run(self, text: str = "hello", run_id: str = "r1", key: SessionKey = KEY, **options: Any) -> RunView:
        """Start a run and wait for what becomes of it."""
        await self.start_run(text, run_id, key, **options)
        return await self.wait(run_id, key)

    async def start_hanging_run(
        self, model: ScriptedModel, said: str = "", *, then: str = "released", **options: Any
    ) -> None:
        """Start a run whose model has been asked and answers nothing, or no more than `said`, until it is released."""
        before = model.request_count
        model.hang(said, then=then)
        await self.start_run(**options)
        await model.wait_for_requests_async(before + 1)

    async def wait(self, run_id: str = "r1", key: SessionKey = KEY) -> RunView:
        """Wait for the end of a run."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            return await self.runs.wait(key, run_id)

    async def read_log(self, key: SessionKey = KEY) -> list[RecordedEvent]:
        return await self.store.read(key)

    async def read_types(self, key: SessionKey = KEY) -> list[str]:
        return [event.type for event in await self.read_log(key)]

    async def read_state(self, key: SessionKey = KEY) -> State:
        return await self.store.state(key)

    async def wait_for_state(self, holds: Callable[[State], object], key: SessionKey = KEY) -> State:
        """The session's state once that holds."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                with suppress(SessionNotFound):
                    current = await self.store.state(key)
                    if holds(current):
                        return current
                await asyncio.sleep(0.005)

    async def collect_stream(
        self,
        run_id: str = "r1",
        key: SessionKey = KEY,
        *,
        after: int | None = None,
        found: list[Item] | None = None,
        feed: Feed | None = None,
    ) -> list[Item]:
        """The whole stream of a run, added to `found` as it comes; with a feed that was opened before the run began,
        and is closed here, all that its model said."""
        found = [] if found is None else found
        position = await self.reader.find_position(key, run_id)
        with nullcontext() if feed is None else closing(feed):
            async with (
                asyncio.timeout(PATIENCE_SECONDS),
                aclosing(self.reader.follow_run(key, position, after=after, feed=feed)) as items,
            ):
                async for item in items:
                    if item is not None:
                        found.append(item)
        return found

    async def find_answers(self, key: SessionKey = KEY) -> list[int]:
        """The seqs of what a model has said: its messages and summaries."""
        facts = {event.seq: event.fact for event in await self.read_log(key)}
        answers = {seq: fact for seq, fact in facts.items() if isinstance(fact, MessageAdded | CompactionSummarised)}
        return [seq for seq, fact in answers.items() if fact.completion is not None and fact.completion.request]

    async def check_log(self, model: ScriptedModel | None = None, key: SessionKey = KEY) -> None:
        """The log verifies, today's agents replay it without a difference, a request can be made of each beginning of
        it; and all that `model` was sent is rebuilt to the byte."""
        assert (await verify(self.store, key)).problems == []
        replayed = await replay_session(self.store, self.registry, key)
        assert (replayed.divergences, replayed.matches) == ([], True)
        state = State()
        for event in await self.read_log(key):
            state = evolve(state, event)
            assert find_body_faults(build_request(state, PROFILE).body()) == []
        if model is not None:
            answers = await self.find_answers(key)
            assert [await rebuild_request(self.store, key, seq) for seq in answers] == model.raw_requests


class EngineCluster:
    """One database, and the engines that were opened on it. Leaving stops them and sees that nothing is left."""

    def __init__(self, url: str, client: AsyncOpenAI) -> None:
        self._url = url
        self._client = client
        self._engines: list[Server] = []
        self._earlier_tasks: set[asyncio.Task[Any]] = set()

    async def __aenter__(self) -> Self:
        self._earlier_tasks = asyncio.all_tasks()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        for engine in self._engines:
            await engine.stop()
        if kind is None:
            await self.assert_quiet()

    async def assert_quiet(self) -> None:
        """Nobody subscribes, nobody waits, and no task is left of what was begun here."""
        left = {task for task in asyncio.all_tasks() - self._earlier_tasks if task is not asyncio.current_task()}
        if left:
            await asyncio.wait(left, timeout=5)
        assert [task for task in left if not task.done()] == []
        for engine in self._engines:
            assert engine.hub.reader_count == 0
            assert len(engine._worker.waiters) == 0
            assert len(engine._worker.tasks) == 0

    async def open_engine(
        self,
        *agents: Agent,
        model: Any = None,
        limits: Limits = LIMITS,
        start: bool = True,
        aliases: dict[str, str] | None = None,
        pauses: Pauses | None = None,
        clock: Clock = utc_now,
        tracing: Tracing | None = None,
        secrets: Secrets = NO_SECRETS,
    ) -> Server:
        """Another server on the database; by default on the scripted model, and started."""
        store = open_store(self._url, clock=clock)
        registry = Registry(agents, aliases=aliases)
        engine = Server(store, registry, model or ChatModel(self._client), limits, pauses, None, secrets, tracing)
        self._engines.append(engine)
        if start:
            await engine.start()
        return engine

    async def begin(self, *agents: Agent, **options: Any) -> Server:
        """Another server on the database, and on it the session KEY, which is new."""
        engine = await self.open_engine(*agents, **options)
        await engine.open_session()
        return engine


async def kill_engine(engine: Engine) -> None:
    """As kill -9 would: its tasks stop where they are and record nothing; its leases stay and run out."""
    worker = engine._worker
    tasks = [*worker.tasks._tasks, *worker._background_tasks]
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)
    worker.tasks._by_session.clear()
    worker._background_tasks = []
    await expire_leases(engine)


async def expire_leases(engine: Engine) -> None:
    statement = update(sessions).where(sessions.c.lease_owner.is_not(None)).values(lease_expires_at=0.0)
    await engine.store.database.write(lambda connection: connection.execute(statement))  # type: ignore[attr-defined]


async def take_items(items: AsyncGenerator[Item | None], count: int) -> list[Item]:
    """The next few things that a stream gives."""
    found: list[Item] = []
    async with asyncio.timeout(20):
        while len(found) < count:
            item = await anext(items)
            if item is not None:
                found.append(item)
    return found


def pick_recorded(items: Sequence[Any]) -> list[RecordedEvent]:
    return [item for item in items if isinstance(item, RecordedEvent)]


def list_contents(messages: Sequence[Json]) -> list[Any]:
    return [message["content"] for message in messages]


class ToolGate:
    """A tool's door: it says when the tool has come to it, and lets it through when told to."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.opened = threading.Event()
        self.passed = threading.Event()
        self.count = 0

    def enter(self) -> None:
        """For the tool."""
        self.count += 1
        self.reached.set()
        assert self.opened.wait(20), "nobody opened the gate"
        self.passed.set()

    async def wait_until_reached(self) -> None:
        assert await asyncio.to_thread(self.reached.wait, 20)

    async def open(self) -> None:
        """Let the tool through, and wait until it is."""
        self.opened.set()
        assert await asyncio.to_thread(self.passed.wait, 20)


def list_results(events: Iterable[RecordedEvent]) -> list[tuple[str, str]]:
    """The status and the text of each call's result."""
    facts = [event.fact for event in events]
    return [
        (fact.tool.status, str(fact.message["content"]))
        for fact in facts
        if isinstance(fact, MessageAdded) and fact.tool is not None
    ]
