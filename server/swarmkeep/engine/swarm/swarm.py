"""Swarm and AsyncSwarm: the loop on a list in memory, with the interface of OpenAI's Swarm."""

from __future__ import annotations

import math
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from msgspec import UNSET
from msgspec.structs import replace

from swarmkeep.agent import Agent, Response
from swarmkeep.agent.values import copy_plain_object
from swarmkeep.domain.codec import Json
from swarmkeep.domain.decisions.commands import StartRun, start_run
from swarmkeep.domain.decisions.settling import Approvals
from swarmkeep.domain.events import MessageAdded
from swarmkeep.domain.messages import Entry
from swarmkeep.domain.run_options import RunOptions
from swarmkeep.domain.views import find_answer
from swarmkeep.engine.agents.approvals import make_approvals
from swarmkeep.engine.ids import make_id
from swarmkeep.engine.mcp.servers import ToolServers
from swarmkeep.engine.models.model import ChatModel
from swarmkeep.engine.streams.items import Item, MessageDeltas, MessageStarted
from swarmkeep.engine.swarm.blocking import ASYNC_CLIENT_MESSAGE, iterate_blocking, run_blocking
from swarmkeep.engine.swarm.memory_log import MemorySessionLog
from swarmkeep.engine.swarm.session import MemorySession, make_open_registry
from swarmkeep.engine.tool_runners import InlineRunner, ThreadRunner, ToolRunner

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
        """The answer as the `output_type` of whoever gave it; None where there is none."""
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
