"""Features that write, each crossed with what cuts across: nothing is repeated, nothing comes back, all of it verifies.

A feature is a row of `FEATURES`, and plays as a client that asks for everything again until it is answered. What cuts
across is a row of `CROSSINGS`. After each of their meetings, the log verifies, today's agents replay it without a
difference, and each request is rebuilt to the byte as the model was sent it.
"""

from __future__ import annotations

import asyncio
import base64
import io
import json
import os
import signal
import sys
import zlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from swarmkeep import Agent, Compaction, MCPServer, Refusal, Result, ToolCallId, tool
from swarmkeep.decide.commands import Approval, StartRun
from swarmkeep.events.codec import Json
from swarmkeep.events.errors import (
    AlreadyDecided,
    Draining,
    PersonErased,
    RequestNotKept,
    RunNotWaiting,
    SessionBusy,
    SessionNotFound,
)
from swarmkeep.events.facts import CompactionSummarised, MessageAdded, RecordedEvent, ToolStarted
from swarmkeep.events.views import RunView
from swarmkeep.history.erasure import erase_person
from swarmkeep.history.export import iterate_keys, write_export
from swarmkeep.history.import_export import import_export
from swarmkeep.history.redact import redact
from swarmkeep.history.replay import rebuild_request, replay_session
from swarmkeep.history.verify import verify
from swarmkeep.runs.identifiers import derive_child_run
from swarmkeep.runs.runs import IdempotentRequest
from swarmkeep.store import schema
from swarmkeep.store.index import SessionFilter
from swarmkeep.store.records import SessionKey
from tests.history.test_redact import dump_database
from tests.runs.cluster import LOOKS_OFTEN, EngineCluster, Server, expire_leases
from tests.runs.mcp.test_connections import serve, write_answer, write_result
from tests.runs.swarm.runners import open_async
from tests.support.hypothesis_profiles import some
from tests.support.scripted import ScriptedModel
from tests.support.scripted.replies import Call, Completion, Reply

# The model: what it says follows from what it is sent, so that it says the same when it is asked again.

DO = "do "
OLDER_REVISION = "0005"
MORE = "next "


def answer(request: Json) -> Reply | str:
    """Do what the last user says: `do NAME TEXT` calls a function, more of them at once begin with `next`."""
    messages = request["messages"]
    last = messages[-1]
    text = last["content"] if isinstance(last["content"], str) else last["content"][0]["text"]
    if str(messages[0]["content"]).startswith("You sum up a conversation"):
        # It repeats what it is told, as models do.
        return "They said: " + " ".join(word for word in json.dumps(messages).split() if word.startswith("canary"))
    if last["role"] == "tool":
        return "Done."
    if "response_format" in request:
        return '{"text": "fine"}' if text.startswith("Your answer does not") else '{"text": 5}'
    if not text.startswith(DO):
        return "I see."
    # What another agent is asked may be several calls, which are that one's.
    parts = [text] if text.startswith(f"{DO}ask_clerk") else text.split(f" {MORE}")
    calls = [part.removeprefix(DO).split(" ", 1) for part in parts]
    return Completion(
        calls=[
            Call(name, {"input" if name == "ask_clerk" else "text": said}, f"call{len(messages)}-{place}")
            for place, (name, said) in enumerate(calls)
        ]
    )


# The agents, and how often each call of theirs had its effect.

effects: Counter[tuple[str, str]] = Counter()
# Where a process that will be killed writes them down.
EFFECTS_FILE = "MATRIX_EFFECTS"


def count_effect(text: str, call_id: str) -> None:
    effects[text, call_id] += 1
    if path := os.environ.get(EFFECTS_FILE):
        with Path(path).open("a") as file:
            file.write(f"{json.dumps([text, call_id])}\n")


def note(text: str, tool_call_id: ToolCallId) -> Result:
    """Write something down."""
    count_effect(text, tool_call_id)
    return Result("noted", context_variables={"note": text})


def pass_on(text: str, tool_call_id: ToolCallId) -> Result:
    """Have a colleague look after it."""
    count_effect(text, tool_call_id)
    return Result("passed on", assign=text, context_variables={"passed": text})


@tool(requires_approval=True)
def pay(text: str, tool_call_id: ToolCallId) -> str:
    """Pay."""
    count_effect(text, tool_call_id)
    return "paid"


@tool(concurrent=True)
async def look(text: str, tool_call_id: ToolCallId) -> Result:
    """Look at something."""
    count_effect(text, tool_call_id)
    return Result("seen", context_variables={text.split()[-1]: text})


def refuse_swearing(passing: Any, context_variables: Json) -> Refusal | None:
    return Refusal("Mind your words.") if "damn" in json.dumps(passing) else None


FORM = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}


def make_agents(server: MCPServer) -> list[Agent]:
    clerk = Agent(name="Clerk", functions=[note, pay])
    return [
        Agent(name="Plain", functions=[note, pay, pass_on], compaction=Compaction(of_tokens=100_000, keep_turns=1)),
        Agent(name="Desk", functions=[clerk.as_tool("ask_clerk", "Ask the clerk.")]),
        clerk,
        Agent(name="Together", functions=[look], concurrent_tools=True),
        Agent(name="Guarded", functions=[note], input_guardrails=[refuse_swearing]),
        Agent(name="Formal", output_type=FORM),
        Agent(name="Served", mcp_servers=[server]),
    ]


def serve_tool(message: Json) -> bytes:
    """Answer as an MCP server that has one tool."""
    reading = {"name": "read", "description": "Read a page.", "inputSchema": TEXT_SCHEMA}
    results: dict[str, Json] = {
        "tools/list": {"tools": [reading]},
        "tools/call": {"content": [{"type": "text", "text": "It is read."}]},
    }
    result = results.get(message.get("method", ""))
    if result is None:
        return write_result(message)
    if message["method"] == "tools/call":
        effects[message["params"]["arguments"]["text"], "mcp"] += 1
    text = json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result})
    return write_answer(200, "application/json", text.encode())


TEXT_SCHEMA = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}


class Cell:
    """A feature in one session, and the word that only this session knows: `canary`."""

    def __init__(self, name: str, engine: Server, agent: str) -> None:
        self.key = SessionKey("default", name)
        self.canary = f"canary{zlib.crc32(name.encode()):08x}"
        self.engine = engine
        self.agent = agent

    def on(self, engine: Server) -> Cell:
        """The same, through another server."""
        cell = Cell(self.key.id, engine, self.agent)
        cell.canary = self.canary
        return cell

    def in_session(self, session_id: str) -> Cell:
        cell = self.on(self.engine)
        cell.key = SessionKey("default", session_id)
        return cell

    def once(self, name: str) -> IdempotentRequest:
        """A request that is sent again until it is answered."""
        return IdempotentRequest(f"{self.key.id}-{name}", f"{zlib.crc32(name.encode()):064x}")

    async def open(self, **given: Any) -> None:
        metadata = {"customer": self.key.id, **given.pop("metadata", {})}
        await self.engine.sessions.create(
            "default", session_id=self.key.id, agent=self.agent, metadata=metadata, **given
        )

    async def start(self, content: Any, name: str = "r1", **options: Any) -> str:
        run_id = f"{self.key.id}-{name}"
        message = {"role": "user", "content": content}
        await self.engine.runs.start(self.key, StartRun(run_id=run_id, messages=(message,), **options))
        return run_id

    async def run(self, content: Any, name: str = "r1", **options: Any) -> RunView:
        return await self.wait(await self.start(content, name, **options))

    async def wait(self, run_id: str) -> RunView:
        """Wait for the end of a run, which is tried again where its server has stopped."""
        async with asyncio.timeout(60):
            while (view := await self.engine.runs.wait(self.key, run_id)).status == "interrupted":
                try:
                    await self.engine.runs.resume(self.key, run_id)
                except RunNotWaiting:
                    if (await self.engine.reader.get_run(self.key, run_id)).status == "interrupted":
                        # Another one has followed it.
                        break
            return view

    async def approve(self, run_id: str, arguments: Json | None = None) -> RunView:
        """Approve what a run waits for, here or below, until it is over."""
        while (view := await self.wait(run_id)).status == "waiting":
            for call in view.pending:
                if call.reason == "session":
                    below = self.in_session(str(call.session_id))
                    await below.approve(derive_child_run(below.key))
                    continue
                approval = Approval(tool_call_id=call.tool_call_id, decision="approve", by="Ann", arguments=arguments)
                with suppress(AlreadyDecided, RunNotWaiting):
                    await self.engine.runs.resume(self.key, run_id, approvals=[approval])
            # A session above goes on once what is below it has.
            await asyncio.sleep(0.005)
        return view

    async def list_sessions(self) -> list[SessionKey]:
        """The session, and those of the agents that were asked."""
        starts = [event.fact for event in await self.engine.read_log(self.key)]
        below = {
            fact.session_id for fact in starts if isinstance(fact, ToolStarted) and isinstance(fact.session_id, str)
        }
        return [self.key, *(SessionKey("default", name) for name in sorted(map(str, below)))]


Play = Callable[[Cell], Awaitable[None]]


async def play_compaction(cell: Cell) -> None:
    await cell.open()
    await cell.run(f"{cell.canary} is my name.")
    for number in (2, 3):
        await cell.run("Well?", f"r{number}")
    await cell.engine.compactions.compact(cell.key, keep_turns=1, by="Ann", idempotency=cell.once("compact"))
    await cell.run("And?", "r4")


async def play_takeover(cell: Cell) -> None:
    await cell.open()
    await cell.run("Hello.")
    takeovers, ann = cell.engine.takeovers, {"by": "Ann"}
    await takeovers.take_over(cell.key, note=f"{cell.canary} one", idempotency=cell.once("take"), **ann)
    await takeovers.answer(cell.key, f"{cell.canary} two", idempotency=cell.once("say"), **ann)
    await takeovers.hand_back(cell.key, note=f"{cell.canary} three", idempotency=cell.once("back"), **ann)
    await cell.run("And?", "r2")


async def play_desk(cell: Cell) -> None:
    await cell.open()
    run = await cell.run(f"do pass_on {cell.canary}")
    takeovers, ann = cell.engine.takeovers, {"by": "Ann"}
    await takeovers.add_note(cell.key, f"{cell.canary} one", idempotency=cell.once("note"), **ann)
    reason = f"{cell.canary} two"
    await takeovers.assign(cell.key, cell.canary, reason=reason, idempotency=cell.once("assign"), **ann)
    remark = f"{cell.canary} three"
    await takeovers.add_feedback(
        cell.key, "down", run_id=run.id, comment=remark, idempotency=cell.once("feedback"), **ann
    )
    await cell.run("And?", "r2")


async def play_asked_agent(cell: Cell) -> None:
    await cell.open()
    await cell.approve(await cell.start(f"do ask_clerk do note {cell.canary} next pay {cell.canary} two"))


async def play_server(cell: Cell) -> None:
    await cell.open()
    await cell.run(f"do read {cell.canary}")


async def play_guardrail(cell: Cell) -> None:
    await cell.open()
    await cell.run(f"damn {cell.canary}")
    await cell.run(f"do note {cell.canary} two", "r2")


async def play_file(cell: Cell) -> None:
    await cell.open()
    data = f"data:text/plain;base64,{base64.b64encode(cell.canary.encode()).decode()}"
    file = {"type": "file", "file": {"file_data": data, "filename": "a.txt"}}
    await cell.run([{"type": "text", "text": f"What is {cell.canary}?"}, file])


async def play_parallel_calls(cell: Cell) -> None:
    await cell.open()
    await cell.run(f"do look {cell.canary} one next look {cell.canary} two")


async def play_edited_approval(cell: Cell) -> None:
    await cell.open()
    await cell.approve(await cell.start(f"do pay {cell.canary}"), {"text": f"{cell.canary} edited"})


async def play_queue(cell: Cell) -> None:
    await cell.open()
    first = await cell.start(f"do pay {cell.canary}")
    given = {"context_variables": {"secret": cell.canary}, "on_busy": "queue"}
    second = await cell.start(f"{cell.canary} waits.", "r2", **given)
    await cell.approve(first)
    await cell.wait(second)


async def play_wrong_output(cell: Cell) -> None:
    await cell.open()
    await cell.run(f"Fill {cell.canary} in.")


async def play_index(cell: Cell) -> None:
    await cell.open(metadata={"title": f"About {cell.canary}"}, context_variables={"name": cell.canary})
    await cell.run(f"do note {cell.canary}")
    await cell.engine.sessions.update(cell.key, metadata={"label": cell.canary}, idempotency=cell.once("label"))


FEATURES: dict[str, tuple[str, Play]] = {
    "compaction": ("Plain", play_compaction),
    "takeover": ("Plain", play_takeover),
    "desk": ("Plain", play_desk),
    "asked agent": ("Desk", play_asked_agent),
    "tools of a server": ("Served", play_server),
    "guardrail": ("Guarded", play_guardrail),
    "file": ("Plain", play_file),
    "parallel calls": ("Together", play_parallel_calls),
    "edited approval": ("Plain", play_edited_approval),
    "queue": ("Plain", play_queue),
    "wrong output": ("Formal", play_wrong_output),
    "index and title": ("Plain", play_index),
}


class Bench:
    """Two servers on one database and a model, for all meetings of a feature with what cuts across."""

    def __init__(
        self, cluster: EngineCluster, model: ScriptedModel, agents: list[Agent], url: str, *, is_long: bool
    ) -> None:
        self.cluster = cluster
        self.model = model
        self.agents = agents
        self.is_long = is_long
        self.url = url
        self._file = Path(url.removeprefix("sqlite:///")) if url.startswith("sqlite") else None
        self._sent: set[bytes] = set()
        self._seen = 0
        self.cuts: dict[str, list[int]] = {}

    async def open(self) -> None:
        self.one, self.two = [await self.open_engine() for _ in range(2)]

    async def open_engine(self) -> Server:
        return await self.cluster.open_engine(*self.agents, limits=LOOKS_OFTEN)

    async def check(self, cell: Cell, *, is_whole: bool = True) -> None:
        """All of a session, and of those below it, is as it was recorded, and nothing happened twice."""
        assert not {call: count for call, count in effects.items() if count > 1 and cell.canary in call[0]}
        await self.check_logs(cell, await cell.list_sessions(), is_whole=is_whole)

    async def check_logs(self, cell: Cell, keys: Sequence[SessionKey], *, is_whole: bool = True) -> None:
        """These sessions verify, today's agents do the same, and what was sent is known to the byte."""
        for key in keys:
            assert (await verify(cell.engine.store, key)).problems == []
            assert (await replay_session(cell.engine.store, cell.engine.registry, key)).divergences == []
            for event in await cell.engine.read_log(key):
                await self._check_request(cell.engine, key, event, is_whole=is_whole)

    async def _check_request(self, engine: Server, key: SessionKey, event: RecordedEvent, *, is_whole: bool) -> None:
        fact = event.fact
        completion = fact.completion if isinstance(fact, MessageAdded | CompactionSummarised) else None
        if completion is None or completion.request is None:
            return
        try:
            rebuilt = await rebuild_request(engine.store, key, event.seq)
        except RequestNotKept:
            assert not is_whole
            return
        self._sent.update(self.model.raw_requests[self._seen :])
        self._seen = len(self.model.raw_requests)
        assert rebuilt in self._sent

    async def find(self, cell: Cell) -> list[str]:
        """The sessions that are found by the cell's word."""
        while await cell.engine.store.index_some():
            pass
        page = await cell.engine.reader.list_page(SessionFilter("default"), q=cell.canary)
        return [session.id for session in page.sessions]

    async def assert_gone(self, cell: Cell) -> None:
        """The word is in no row, and in no byte of a file."""
        assert await self.find(cell) == []
        word = cell.canary
        encoded = base64.b64encode(word.encode()).decode()
        async with asyncio.timeout(30):
            # What another server is reading at that moment is overwritten once it has.
            while await self._is_kept(cell, word) or await self._is_kept(cell, encoded):  # noqa: ASYNC110
                await asyncio.sleep(0.02)

    async def _is_kept(self, cell: Cell, word: str) -> bool:
        files = [] if self._file is None else list(self._file.parent.iterdir())
        in_file = any(word.encode() in file.read_bytes() for file in files)
        return in_file or word in await dump_database(cell.engine.store)

    async def go_on(self, cell: Cell, name: str = "further") -> list[bytes]:
        """Another turn; gives what the model was sent for it."""
        before = len(self.model.raw_requests)
        view = await cell.run("And then?", name)
        assert view.status == "completed", view.error
        return self.model.raw_requests[before:]


# Made by the server out of what callers, models and functions gave: these go with their sources.
_COPIES = {
    "approval.requested", "tool.started", "run.waiting", "run.queued", "compaction.summarised", "session.handed_back",
    "guardrail.tripped", "run.failed",
}  # fmt: skip


async def cross_redaction(bench: Bench, cell: Cell, play: Play) -> None:
    await play(cell)
    for key in await cell.list_sessions():
        given = [
            event.seq
            for event in await cell.engine.read_log(key)
            if cell.canary in event.payload and event.type not in _COPIES
        ]
        files = [
            event.seq
            for event in await cell.engine.read_log(key)
            if event.type == "message.added" and '"blob"' in event.payload
        ]
        if key == cell.key or given:
            await redact(cell.engine.store, key, [*given, *files], "private", publish=cell.engine.publish)
    await bench.assert_gone(cell)
    sent = await bench.go_on(cell)
    assert not any(cell.canary.encode() in request for request in sent)
    await bench.check(cell, is_whole=False)


async def cross_removal(bench: Bench, cell: Cell, play: Play) -> None:
    await play(cell)
    for key in await cell.list_sessions():
        for entry in list((await cell.engine.read_state(key)).messages):
            if cell.canary in str(entry.message):
                await cell.engine.sessions.remove_message(key, entry.seq)
    await cell.engine.sessions.update(cell.key, metadata={"title": None, "label": None})
    assert await bench.find(cell) == []
    sent = await bench.go_on(cell)
    assert not any(cell.canary.encode() in request for request in sent)
    await bench.check(cell)


async def cross_deletion(bench: Bench, cell: Cell, play: Play) -> None:
    await play(cell)
    sessions = await cell.list_sessions()
    assert await bench.find(cell)
    await cell.engine.sessions.delete(cell.key, reason="asked")
    await bench.assert_gone(cell)
    for key in sessions:
        for engine in (bench.one, bench.two):
            with pytest.raises(SessionNotFound):
                await engine.store.state(key)


async def cross_erasure(bench: Bench, cell: Cell, play: Play) -> None:
    for engine in (bench.one, bench.two):
        engine.store.person = "customer"
    await play(cell)
    sessions = await cell.list_sessions()
    # Encrypted from its first event on; but lists are by owners.
    if play is not play_desk:
        await bench.assert_gone(cell)
    await bench.check(cell)
    await bench.go_on(cell.on(bench.two))
    await bench.check_logs(cell, sessions)
    done = await erase_person(cell.engine.store, "default", cell.key.id, "asked")
    assert {key.id for key in sessions} <= set(done.sessions)
    await bench.assert_gone(cell)
    for key in sessions:
        for engine in (bench.one, bench.two):
            assert cell.canary not in str(await engine.read_log(key))
            assert (await verify(engine.store, key)).problems == []
            with pytest.raises(PersonErased):
                await Cell(key.id, engine, cell.agent).start("And then?", "later")


async def cross_fork(bench: Bench, cell: Cell, play: Play) -> None:
    await play(cell)
    end = (await cell.engine.read_state(cell.key)).seq
    places = range(1, end + 1) if bench.is_long else {end // 2, end * 3 // 4, end}
    for at in places:
        fork = cell.in_session(f"{cell.key.id}-{at}")
        await cell.engine.sessions.fork(cell.key, at=at, session_id=fork.key.id)
        started = {
            event.fact.tool_call_id
            for event in await cell.engine.read_log(fork.key)
            if isinstance(event.fact, ToolStarted)
        }
        before = {call: count for call, count in effects.items() if cell.canary in call[0] and call[1] in started}
        finished = (await cell.engine.read_state(fork.key)).finished
        if len(finished) and finished[-1].status == "interrupted":
            # Nothing that began in the original begins again here.
            await cell.engine.runs.resume(fork.key, finished[-1].id)
            await fork.engine.runs.wait(fork.key, finished[-1].id)
            assert {call: effects[call] for call in before} == before
            with suppress(SessionBusy):
                await fork.engine.runs.cancel(fork.key, finished[-1].id)
        await bench.go_on(fork)
        await bench.check_logs(cell, [fork.key])


async def export(cell: Cell, key: SessionKey) -> bytes:
    return b"".join([piece async for piece in write_export(cell.engine.store, iterate_keys([key]), alone=True)])


async def cross_transfer(bench: Bench, cell: Cell, play: Play) -> None:
    await play(cell)
    text = await export(cell, cell.key)
    assert text == await export(cell.on(bench.two), cell.key)
    copy = cell.in_session(f"{cell.key.id}-copy")
    await import_export(cell.engine.store, "default", io.BytesIO(text), as_id=copy.key.id)
    kept, brought = [await cell.engine.read_state(each.key) for each in (cell, copy)]
    assert [entry.message for entry in brought.messages] == [entry.message for entry in kept.messages]
    assert brought.context_variables == kept.context_variables
    await bench.go_on(copy)
    await bench.check_logs(cell, [copy.key, cell.key])


class Cut:
    """Stops an engine right before it records what follows event `at` of a session."""

    def __init__(self, engine: Server, key: SessionKey, at: int) -> None:
        self.reached, self.opened = asyncio.Event(), asyncio.Event()
        self._at, self._key = at, key
        self._append = engine.store.append
        engine.store.append = self._stop_before  # type: ignore[method-assign]

    async def _stop_before(self, key: SessionKey, base: Any, drafts: Any, **more: Any) -> Any:
        if key == self._key and base.seq >= self._at:
            self.reached.set()
            await self.opened.wait()
        return await self._append(key, base, drafts, **more)


async def list_cuts(bench: Bench, cell: Cell, play: Play) -> list[int]:
    """Where a session of this kind can be cut: before each of its appends, or some; in the short run, one of them."""
    trial = Cell(f"{cell.key.id}-trial", cell.engine, cell.agent)
    await play(trial)
    end = (await cell.engine.read_state(trial.key)).seq
    return list(some(range(1, end))) if bench.is_long else [2 + zlib.crc32(cell.key.id.encode()) % (end - 2)]


async def cross_drain(bench: Bench, cell: Cell, play: Play) -> None:
    for at in await list_cuts(bench, cell, play):
        engine = await bench.open_engine()
        one = Cell(f"{cell.key.id}-{at}", engine, cell.agent)
        cut = Cut(engine, one.key, at)
        playing = asyncio.ensure_future(play(one))
        reached = asyncio.ensure_future(cut.reached.wait())
        await asyncio.wait([playing, reached], return_when=asyncio.FIRST_COMPLETED)
        draining = asyncio.ensure_future(engine.drain())
        await asyncio.sleep(0)
        cut.opened.set()
        await draining
        reached.cancel()
        await asyncio.wait([playing])
        with suppress(Draining):
            playing.result()
        again = one.on(bench.two)
        await play(again)
        await bench.go_on(again)
        await bench.check(again)


async def die(url: str, model_url: str, server_url: str, cuts: dict[str, list[int]]) -> None:
    """Play features in a process of its own, once for each cut; it is killed when all that can have stopped there."""
    stopped: set[SessionKey] = set()
    changed = asyncio.Event()
    async with open_async(model_url) as client:
        agents = make_agents(MCPServer(url=server_url, name="files", connect_timeout=20))
        engine = await EngineCluster(url, client).open_engine(*agents, limits=LOOKS_OFTEN)
        ends = {SessionKey("default", f"{name}-{at}"): at for name, places in cuts.items() for at in places}
        append = engine.store.append

        async def stop_before(key: SessionKey, base: Any, drafts: Any, **more: Any) -> Any:
            if base.seq >= ends.get(key, base.seq + 1):
                stopped.add(key)
                changed.set()
                await asyncio.Event().wait()
            return await append(key, base, drafts, **more)

        engine.store.append = stop_before  # type: ignore[method-assign]
        tasks: dict[SessionKey, asyncio.Future[None]] = {}
        for key in ends:
            agent, play = FEATURES[key.id.partition("-kill")[0].replace("-", " ")]
            tasks[key] = asyncio.ensure_future(play(Cell(key.id, engine, agent)))
            tasks[key].add_done_callback(lambda _: changed.set())
        while not all(key in stopped or task.done() for key, task in tasks.items()):
            await changed.wait()
            changed.clear()
        os.kill(os.getpid(), signal.SIGKILL)


async def kill_process(bench: Bench, cells: Sequence[tuple[Cell, Play]], folder: Path) -> None:
    """Let a process play features, and die."""
    bench.cuts = cuts = {cell.key.id: await list_cuts(bench, cell, play) for cell, play in cells}
    path = folder / "effects"
    given = (bench.url, bench.model.url, bench.agents[-1].mcp_servers[0].url, cuts)
    program = f"import asyncio; from tests.runs.test_matrix import die; asyncio.run(die(*{given!r}))"
    env = {**os.environ, EFFECTS_FILE: str(path)}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, env=env, stderr=asyncio.subprocess.PIPE
    )
    _, said = await process.communicate()
    assert process.returncode == -signal.SIGKILL, said.decode()
    effects.update(map(tuple, map(json.loads, path.read_text().splitlines() if path.exists() else [])))
    await expire_leases(bench.one)


async def cross_death(bench: Bench, cell: Cell, play: Play) -> None:
    for at in bench.cuts[cell.key.id]:
        again = Cell(f"{cell.key.id}-{at}", bench.two, cell.agent)
        await play(again)
        await bench.go_on(again)
        await bench.check(again)


async def upgrade_database(bench: Bench, cells: Sequence[tuple[Cell, Play]], _: Path) -> None:
    """Have features played in a database that is one of the release before, and then of this one."""
    for cell, play in cells:
        await play(cell)
    for engine in (bench.one, bench.two):
        await engine.stop()
    await asyncio.to_thread(schema.downgrade, bench.url, OLDER_REVISION)
    await asyncio.to_thread(schema.upgrade, bench.url)
    await bench.open()


async def cross_upgrade(bench: Bench, cell: Cell, play: Play) -> None:
    again = cell.on(bench.one)
    await play(again)
    await bench.go_on(again)
    await bench.check(again)
    assert await bench.find(again)


async def cross_second_server(bench: Bench, cell: Cell, play: Play) -> None:
    await asyncio.gather(play(cell), play(cell.on(bench.two)))
    await bench.go_on(cell.on(bench.two))
    for engine in (bench.one, bench.two):
        await bench.check(cell.on(engine))
    assert await bench.find(cell)


CROSSINGS: dict[str, Callable[[Bench, Cell, Play], Awaitable[None]]] = {
    "redact": cross_redaction,
    "take out": cross_removal,
    "delete": cross_deletion,
    "erase": cross_erasure,
    "fork": cross_fork,
    "export and import": cross_transfer,
    "drain": cross_drain,
    "second server": cross_second_server,
    "kill -9": cross_death,
    "upgrade": cross_upgrade,
}
# What is done once, for all features.
PREPARATIONS: dict[str, Callable[[Bench, Sequence[tuple[Cell, Play]], Path], Awaitable[None]]] = {
    "kill -9": kill_process,
    "upgrade": upgrade_database,
}
# The release before has no files: what it would keep of them is gone.
NEVER_MEET = {("file", "upgrade")}


@pytest.fixture
def model() -> Iterator[ScriptedModel]:
    with ScriptedModel(default=answer) as scripted:
        yield scripted


@pytest.fixture
async def server() -> AsyncIterator[MCPServer]:
    async with serve(serve_tool) as served:
        yield served


async def meet(bench: Bench, crossing: str, features: Iterable[str], folder: Path) -> None:
    """Cross features with something; all that fails is told together."""
    effects.clear()
    await bench.open()
    met = [feature for feature in features if (feature, crossing) not in NEVER_MEET]
    named = {feature: f"{feature}-{crossing}".replace(" ", "-") for feature in met}
    cells = {feature: (Cell(named[feature], bench.one, FEATURES[feature][0]), FEATURES[feature][1]) for feature in met}
    if crossing in PREPARATIONS:
        await PREPARATIONS[crossing](bench, list(cells.values()), folder)
    failures: list[Exception] = []
    for feature, (cell, play) in cells.items():
        try:
            async with asyncio.timeout(120):
                await CROSSINGS[crossing](bench, cell, play)
        except Exception as failure:
            failure.add_note(f"{feature} × {crossing}")
            failures.append(failure)
    if failures:
        raise ExceptionGroup(f"not everything goes with {crossing}", failures)


@pytest.fixture(params=["sqlite", "postgres"])
def long_url(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue(f"{request.param}_ready"))


@pytest.fixture
def ready_url(request: pytest.FixtureRequest) -> str:
    """In the short run, either kind of database in turn."""
    if "long_url" in request.fixturenames:
        return str(request.getfixturevalue("long_url"))
    place = list(CROSSINGS).index(request.node.callspec.params["crossing"])
    return str(request.getfixturevalue(f"{('sqlite', 'postgres')[place % 2]}_ready"))


@pytest.mark.parametrize("crossing", CROSSINGS)
async def test_features_go_with_what_cuts_across(
    cluster: EngineCluster, model: ScriptedModel, server: MCPServer, ready_url: str, crossing: str, tmp_path: Path
) -> None:
    await meet(Bench(cluster, model, make_agents(server), ready_url, is_long=False), crossing, FEATURES, tmp_path)


# One death, at all places, is enough for all of them; and what is done at the end, or to all at once, has none.
_AT_END = {*PREPARATIONS, "delete", "erase", "second server"}
_LONG = [(crossing, [feature]) for crossing in CROSSINGS if crossing not in _AT_END for feature in FEATURES]


@pytest.mark.long
@pytest.mark.one_database
@pytest.mark.parametrize(("crossing", "features"), [*_LONG, ("kill -9", list(FEATURES))])
async def test_feature_works_at_every_place(
    long_url: str,
    cluster: EngineCluster,
    model: ScriptedModel,
    server: MCPServer,
    crossing: str,
    features: list[str],
    tmp_path: Path,
) -> None:
    await meet(Bench(cluster, model, make_agents(server), long_url, is_long=True), crossing, features, tmp_path)
