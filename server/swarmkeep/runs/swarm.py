"""Swarm and AsyncSwarm: the loop on a list in memory, with the interface of OpenAI's Swarm."""

from __future__ import annotations

import asyncio
import math
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, nullcontext, suppress
from copy import copy
from functools import partial
from typing import Any, TypeVar

from msgspec import UNSET
from msgspec.structs import replace

from swarmkeep.agent import Agent, Response, Tool
from swarmkeep.agent.values import copy_plain_object
from swarmkeep.decide.checks import FileLimits
from swarmkeep.decide.commands import StartRun, create_session, start_run
from swarmkeep.decide.drafts import draft_events, preview_event
from swarmkeep.decide.settle import NO_APPROVALS, Approvals, settle
from swarmkeep.decide.steps import REPLY_CUT
from swarmkeep.decide.turns import ToolOutcome
from swarmkeep.events.codec import Json, encode_text, make_timestamp
from swarmkeep.events.errors import InvalidRequest
from swarmkeep.events.facts import EventDraft, MessageAdded, RecordedEvent
from swarmkeep.events.files import MAX_SENT_BYTES
from swarmkeep.events.fold import evolve
from swarmkeep.events.messages import ROLES, Entry
from swarmkeep.events.model_profiles import ModelServer
from swarmkeep.events.parts import convert_message
from swarmkeep.events.records import RunOptions
from swarmkeep.events.sizes import UNBOUNDED
from swarmkeep.events.state import Run, State, ToolCall
from swarmkeep.events.views import find_answer, find_run, view_run
from swarmkeep.models.failures import NO_SECRETS
from swarmkeep.models.model import ChatModel, Model
from swarmkeep.runs.agents import OpenRegistry, Registry
from swarmkeep.runs.approvals import make_approvals
from swarmkeep.runs.hub import Item, MessageDeltas, MessageStarted
from swarmkeep.runs.identifiers import MOST_DEPTH, make_id
from swarmkeep.runs.loop import Loop, ReadFiles, make_loop
from swarmkeep.runs.policy import AskedAgents, Decide, LoopPolicy, decide_nothing
from swarmkeep.runs.teams import make_answer, make_error
from swarmkeep.runs.tool_runners import InlineRunner, ThreadRunner, ToolRunner
from swarmkeep.runs.tool_servers import ToolServers
from swarmkeep.runs.toolbox import NO_SERVERS, Toolbox

# The one loop without an event loop: what never suspends is run by a blocking caller.

T = TypeVar("T")
ASYNC_CLIENT_MESSAGE = "the client is asynchronous: use AsyncSwarm with it"


def run_blocking(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never suspends: with a blocking client and inline tools, the one loop is synchronous."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]
    error = TypeError(ASYNC_CLIENT_MESSAGE)
    # Thrown in where it waits, it ends every generator on its way out; closing the coroutine would not.
    with suppress(StopIteration):
        coroutine.throw(error)
    raise error


def iterate_blocking(items: AsyncGenerator[T]) -> Generator[T, None, None]:
    """The items of a generator that never suspends; it is closed when the reader stops."""
    try:
        while True:
            try:
                yield run_blocking(_advance_once(items))
            except StopAsyncIteration:
                return
    finally:
        run_blocking(_close(items))


async def _advance_once(items: AsyncGenerator[T]) -> T:
    return await anext(items)


async def _close(items: AsyncGenerator[Any]) -> None:
    await items.aclose()


# A session log that is nowhere but in memory.


async def _read_nothing(names: Sequence[str]) -> Mapping[str, bytes]:
    """Read no files: what is given in memory keeps its content in the messages."""
    return {}


class GivenFiles:
    """The files that functions have given in a session in memory, by hash: the newest of it, as many bytes as one
    request to a model has at most."""

    def __init__(self, max_bytes: int = MAX_SENT_BYTES) -> None:
        self._max_bytes = max_bytes
        self._content: dict[str, bytes] = {}
        self._size = 0

    def add(self, content: Mapping[str, bytes]) -> None:
        """Keep files, and let go of those that were given longest ago."""
        for name, data in content.items():
            self._size += len(data) - len(self._content.pop(name, b""))
            self._content[name] = data
        while self._size > self._max_bytes:
            self._size -= len(self._content.pop(next(iter(self._content))))

    def find(self, names: Sequence[str]) -> dict[str, bytes]:
        return {name: self._content[name] for name in names if name in self._content}


class MemorySessionLog:
    """A session that is nowhere but here, and of which only the state is kept: what `Swarm.run` works on.

    `given` is what functions have given in earlier runs of the session.
    """

    def __init__(
        self,
        state: State | None = None,
        approvals: Approvals = NO_APPROVALS,
        read_files: ReadFiles | None = None,
        given: GivenFiles | None = None,
    ) -> None:
        self.state = State() if state is None else state
        self._approvals = approvals
        self._read_files = read_files or _read_nothing
        self._given = GivenFiles() if given is None else given

    async def commit(
        self,
        decide: Decide,
        blobs: Mapping[str, str | bytes] | None = None,
        *,
        aside: bool = False,
        within_quota: bool = False,
    ) -> list[RecordedEvent]:
        if aside:
            # No other changes the session meanwhile: it is one run's.
            return await asyncio.to_thread(self._commit, decide, blobs)
        return self._commit(decide, blobs)

    def _commit(self, decide: Decide, blobs: Mapping[str, str | bytes] | None) -> list[RecordedEvent]:
        drafts = decide(self.state)
        self._given.add({name: content for name, content in (blobs or {}).items() if isinstance(content, bytes)})
        return [] if drafts is None else self.record(settle(self.state, drafts, approvals=self._approvals))

    async def read_files(self, names: Sequence[str]) -> Mapping[str, bytes]:
        given = self._given.find(names)
        others = [name for name in names if name not in given]
        return {**await self._read_files(others), **given} if others else given

    async def settle(self) -> list[RecordedEvent]:
        return await self.commit(decide_nothing)

    def record(self, drafts: Sequence[EventDraft]) -> list[RecordedEvent]:
        """Add to the session: all of it, or nothing if it is interrupted."""
        state, recorded = self.state, []
        for draft in drafts:
            event = preview_event(state.seq + 1, draft, make_timestamp())
            state = evolve(state, event)
            recorded.append(event)
        self.state = state
        return recorded


# Agents that are asked where nothing is kept: each in a session in memory, which is over with its answer.

_RUN = "run"
_NO_OPTIONS = RunOptions()


class AgentsInMemory:
    """The agents that are asked by a session in memory.

    `choose_registry` gives the agents that the asked one knows, `make_policy` the policy of its loop, in which the
    agents that it asks itself are those given.
    """

    def __init__(
        self,
        model: Model,
        runner: ToolRunner,
        choose_registry: Callable[[Agent], Registry],
        make_policy: Callable[[AskedAgents], LoopPolicy],
        *,
        approvals: Approvals = NO_APPROVALS,
        options: RunOptions = _NO_OPTIONS,
        toolbox: Toolbox = NO_SERVERS,
    ) -> None:
        self._model = model
        self._runner = runner
        self._choose_registry = choose_registry
        self._make_policy = make_policy
        self._approvals = approvals
        self._options = options
        self._toolbox = toolbox
        self._depth = 0

    async def ask(self, state: State, tool: Tool, call: ToolCall, text: str) -> ToolOutcome:
        if self._depth >= MOST_DEPTH:
            return make_error(tool, f"was not asked: agents may ask one another up to {MOST_DEPTH} deep")
        assert isinstance(tool.asked_agent, Agent)
        registry = self._choose_registry(tool.asked_agent)
        name = registry.get(tool.asked_agent.name).name
        log = MemorySessionLog(approvals=replace(self._approvals, find_bare=make_approvals(registry).find_bare))
        made = create_session(name, state.context_variables, {}, ())
        await log.commit(lambda state: draft_events(name, made, None))
        message = {"role": "user", "content": text, "sender": call.agent or state.agent}
        asked = StartRun(run_id=_RUN, messages=(message,), options=self._options)
        begun = await log.commit(lambda state: start_run(state, asked))
        policy = self._make_policy(self._go_deeper())
        loop = make_loop(log, registry, self._model, self._runner, policy, begun, toolbox=self._toolbox)
        async with aclosing(loop.advance()) as parts:
            async for _ in parts:
                pass
        run = find_run(log.state, _RUN)
        assert run is not None
        return make_answer(tool, view_run("", log.state, run), state.context_variables)

    def _go_deeper(self) -> AskedAgents:
        deeper = copy(self)
        deeper._depth += 1
        return deeper

    async def cancel(self, state: State, call: ToolCall) -> None:
        """Nothing of it is left."""


# A session in memory, and the loop over it.


class SwarmRunError(RuntimeError):
    """The run could not go on: `code` says why. What a client raises is raised as it is, not as this."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class MemoryPolicy:
    """The policy of a loop in memory: there are no limits but those of each run."""

    tool_seconds = None
    # As Swarm does, it tells its caller that the history is too long, and leaves the rest to them.
    shortens_history = False
    compacts_history = True
    secrets = NO_SECRETS
    sizes = UNBOUNDED
    files = FileLimits()

    def __init__(self, agents: AskedAgents) -> None:
        self.agents = agents

    def should_stream(self, run: Run) -> bool:
        return run.options.stream

    async def run_aside(self, work: Callable[[], T]) -> T:
        return work()

    async def approval_expires_at(self) -> str | None:
        return None

    async def check_tokens_left(self) -> None:
        """As many as it takes."""

    def time_limit(self, run: Run) -> AbstractAsyncContextManager[None]:
        return nullcontext()


class MemorySession:
    """The loop over a log in memory."""

    def __init__(
        self,
        model: ChatModel,
        runner: ToolRunner,
        registry: OpenRegistry,
        log: MemorySessionLog,
        *,
        debug: bool = False,
        toolbox: Toolbox = NO_SERVERS,
    ) -> None:
        choose_registry = partial(make_open_registry, server=model.server)
        self._policy = MemoryPolicy(AgentsInMemory(model, runner, choose_registry, MemoryPolicy, toolbox=toolbox))
        self._model = model
        self._tool_runner = runner
        self._registry = registry
        self._log = log
        self._debug = debug
        self._toolbox = toolbox
        self._loop: Loop | None = None

    @property
    def state(self) -> State:
        return self._log.state

    async def create(self, agent: str, context: Mapping[str, Any], messages: Sequence[Json] = ()) -> None:
        """Make the session. Raises ValueError for what is no message, and NotJsonError."""
        history = [_check_message(message, index) for index, message in enumerate(messages)]
        facts = create_session(agent, copy_plain_object(context, "context_variables"), {}, history)
        await self._log.commit(lambda state: draft_events(agent, facts, None))

    async def advance(self, decide: Decide) -> AsyncGenerator[Item]:
        """Record a decision, and do what follows from it; gives what happens, as it happens."""
        begun = await self._log.commit(decide)
        for event in begun:
            self._print_event(event)
            yield event
        parts = (self._log, self._registry, self._model, self._tool_runner, self._policy, begun)
        self._loop = make_loop(*parts, toolbox=self._toolbox)
        async with aclosing(self._loop.advance()) as happening:
            async for items in happening:
                for item in items:
                    self._print_event(item)
                    yield item

    def raise_failure(self) -> None:
        """Raise what the last run failed with, if it did: what the client raised, or else a RunError.

        A reply that was cut off in a call says so in the messages. Where the caller's own limit, or the caller, ends
        the run there, that is all.
        """
        finished = self.state.finished
        if not finished or finished[-1].error is None:
            return
        is_own_end = finished[-1].stop_reason != "error" or not finished[-1].options.execute_tools
        if finished[-1].error.code == REPLY_CUT and is_own_end:
            return
        if self._loop is not None and self._loop.client_error is not None:
            raise self._loop.client_error
        raise SwarmRunError(finished[-1].error.code, finished[-1].error.message)

    def _print_event(self, item: Item) -> None:
        if self._debug and isinstance(item, RecordedEvent):
            print(f"[{item.at}] {item.type} {item.agent}: {encode_text(item.fact)}")


def make_open_registry(agent: Agent, server: ModelServer) -> OpenRegistry:
    """The agents that may be met on the way from this one."""
    registry = OpenRegistry([agent], server=server)
    registry.admit(agent)
    return registry


def _check_message(message: Any, index: int) -> Json:
    plain = copy_plain_object(message, f"messages[{index}]")
    if plain.get("role") not in ROLES:
        raise ValueError(f"messages[{index}].role is {plain.get('role')!r}; it must be one of {', '.join(ROLES)}")
    content = plain.get("content")
    if isinstance(content, list) and not all(isinstance(part, dict) for part in content):
        raise ValueError(f"messages[{index}].content must be a text, or a list of parts that are objects")
    try:
        return convert_message(plain, f"/messages/{index}")
    except InvalidRequest as error:
        raise ValueError(f"{error.errors[0]['pointer']}: {error.errors[0]['detail']}") from None


_OF_ANSWERS = ("content", "refusal", "function_call", "tool_calls")


class _SwarmRun:
    """One call of `run`: a fresh conversation in memory, and what comes of it."""

    def __init__(
        self,
        model: ChatModel,
        runner: ToolRunner,
        agent: Agent,
        messages: Sequence[Json],
        context_variables: Mapping[str, Any],
        options: RunOptions,
        debug: bool,
        servers: ToolServers,
        *,
        runs_at_once: bool = False,
    ) -> None:
        self._registry = make_open_registry(agent, model.server)
        self._servers = servers
        self._scope = make_id("run")
        toolbox = servers.make_toolbox(self._scope, runner)
        rules = make_approvals(self._registry)
        starts = Approvals(find_bare=rules.find_bare)
        if runs_at_once:
            starts = replace(starts, find_batch=rules.find_batch)
        log = MemorySessionLog(approvals=starts)
        self._session = MemorySession(model, runner, self._registry, log, debug=debug, toolbox=toolbox)
        self._command = StartRun(run_id="run", messages=(), options=options)
        self._input_count = len(messages)
        # In memory nothing is waited for; and what is wrong with the input is said at once.
        run_blocking(self._session.create(agent.name, context_variables, messages))

    async def _advance(self) -> AsyncGenerator[Item]:
        try:
            async with aclosing(self._session.advance(lambda state: start_run(state, self._command))) as items:
                async for item in items:
                    yield item
        finally:
            self._servers.close_scope(self._scope)

    async def run(self) -> Response:
        """All of it at once."""
        async with aclosing(self._advance()) as items:
            async for _ in items:
                pass
        self._session.raise_failure()
        return self._make_response()

    async def iterate_frames(self) -> AsyncGenerator[Json]:
        """The frames of a streamed run, in Swarm's shape."""
        speaker: str | None = None
        async with aclosing(self._advance()) as items:
            async for item in items:
                if isinstance(item, MessageStarted):
                    yield {"delim": "start"}
                    speaker = item.agent
                elif isinstance(item, MessageDeltas):
                    for delta in item.deltas:
                        # The sender and the role come with the first piece of a message.
                        yield {**delta, "role": "assistant", "sender": speaker} if speaker else dict(delta)
                        speaker = None
                elif isinstance(item.fact, MessageAdded) and item.fact.guardrail is not UNSET:
                    if item.fact.completion is None:
                        yield {"delim": "start"}
                    yield dict(item.fact.message)
                    yield {"delim": "end"}
                elif isinstance(item.fact, MessageAdded) and item.fact.completion is not None:
                    yield {"delim": "end"}
        self._session.raise_failure()
        yield {"response": self._make_response()}

    def _make_response(self) -> Response:
        state = self._session.state
        return Response(
            output=self._read_output(),
            messages=[_make_message(entry) for entry in state.messages[self._input_count :]],
            agent=self._registry.get(state.agent),
            context_variables=copy_plain_object(state.context_variables),
        )

    def _read_output(self) -> Any:
        """Read the answer as the `output_type` of the agent that gave it; None if there is none."""
        state = self._session.state
        run = state.finished[-1] if state.finished else None
        if run is None or run.stop_reason != "end_turn":
            return None
        entries = state.messages[run.first_message : run.last_message]
        answer = find_answer(entries)
        speaker = next((entry.message.get("sender") for entry in reversed(entries) if entry.role == "assistant"), "")
        output = self._registry.get(str(speaker)).output() if answer.is_json else None
        return None if output is None else output.check(answer.text)


def _make_message(entry: Entry) -> Json:
    """A message as Swarm gives it: its programs read `message["tool_calls"]` of every answer. Null keys are never sent
    to a model when they come back."""
    absent = _OF_ANSWERS if entry.role == "assistant" else ()
    return {**dict.fromkeys(absent), **entry.message}


def _make_options(model: str | None, max_turns: float, execute_tools: bool, stream: bool) -> RunOptions:
    turns = None if math.isinf(max_turns) else int(max_turns)
    return RunOptions(max_turns=turns, model=model, execute_tools=execute_tools, stream=stream)


def _refuse_client(client: Any, name: str, reason: str) -> None:
    """Refuse an official client, or a subclass, of the wrong kind; of any other object the kind shows only in use."""
    openai = sys.modules.get("openai")
    if openai is not None and isinstance(client, getattr(openai, name)):
        raise TypeError(reason)


class Swarm:
    """Runs agents in this process, in this thread, keeping nothing: Swarm's own interface on Swarmkeep's loop.

    In one thread functions run one after the other, concurrent ones, too: what comes of them is the same.

    `client` is any object with OpenAI's synchronous Chat Completions interface; by default `openai.OpenAI()`.
    """

    def __init__(self, client: Any = None) -> None:
        if client is None:
            from openai import OpenAI

            client = OpenAI()
        _refuse_client(client, "AsyncOpenAI", ASYNC_CLIENT_MESSAGE)
        self.client = client
        self._model = ChatModel(client)
        self._servers = ToolServers()

    def run(
        self,
        agent: Agent,
        messages: Sequence[Json],
        context_variables: Mapping[str, Any] = {},
        model_override: str | None = None,
        stream: bool = False,
        debug: bool = False,
        max_turns: float = math.inf,
        execute_tools: bool = True,
    ) -> Any:
        """Let the agent answer, with as many turns, tool calls and handoffs as that takes.

        `max_turns` counts model calls. Nothing given is changed: the new messages, the agent that is active in the end
        and the context variables come back in the Response. With `stream=True` an iterator of deltas between
        `{"delim": "start"}` and `{"delim": "end"}`, and last `{"response": Response}`.

        Raises what the client raises; a tool's exception is a message to the model instead.
        """
        options = _make_options(model_override, max_turns, execute_tools, stream)
        answer = _SwarmRun(
            self._model, InlineRunner(), agent, messages, context_variables, options, debug, self._servers
        )
        if stream:
            return iterate_blocking(answer.iterate_frames())
        return run_blocking(answer.run())

    def run_and_stream(self, agent: Agent, messages: Sequence[Json], *args: Any, **kwargs: Any) -> Iterator[Json]:
        """`run(..., stream=True)`, under the name that Swarm has for it."""
        deltas: Iterator[Json] = self.run(agent, messages, *args, **{**kwargs, "stream": True})
        return deltas


class AsyncSwarm:
    """Swarm over an asynchronous client, by default `openai.AsyncOpenAI()`; plain functions run in threads."""

    def __init__(self, client: Any = None) -> None:
        if client is None:
            from openai import AsyncOpenAI

            client = AsyncOpenAI()
        _refuse_client(client, "OpenAI", "the client is synchronous and would block the event loop: use Swarm with it")
        self.client = client
        self._model = ChatModel(client)
        self._servers = ToolServers()

    def run(
        self,
        agent: Agent,
        messages: Sequence[Json],
        context_variables: Mapping[str, Any] = {},
        model_override: str | None = None,
        stream: bool = False,
        debug: bool = False,
        max_turns: float = math.inf,
        execute_tools: bool = True,
    ) -> Any:
        """As `Swarm.run`, to be awaited; with `stream=True` an asynchronous iterator, awaited first or not."""
        options = _make_options(model_override, max_turns, execute_tools, stream)
        answer = _SwarmRun(
            self._model,
            ThreadRunner(),
            agent,
            messages,
            context_variables,
            options,
            debug,
            self._servers,
            runs_at_once=True,
        )
        return _FrameStream(answer.iterate_frames()) if stream else answer.run()


class _FrameStream:
    """The frames of a run: `async for frame in swarm.run(...)`, and the same after an `await`."""

    def __init__(self, frames: AsyncGenerator[Json]) -> None:
        self._frames = frames

    def __aiter__(self) -> AsyncIterator[Json]:
        return self._frames

    def __await__(self) -> Generator[Any, None, _FrameStream]:
        return self
        yield
