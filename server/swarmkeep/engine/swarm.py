"""Swarm and AsyncSwarm: the loop on a list in memory, with the interface of OpenAI's Swarm."""

from __future__ import annotations

import math
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, nullcontext, suppress
from typing import Any, TypeVar

from swarmkeep.agent import Agent, Response
from swarmkeep.domain.commands import StartRun, create_session, start_run
from swarmkeep.domain.drafts import drafted
from swarmkeep.domain.envelope import Recorded
from swarmkeep.domain.events import MessageAdded, RunOptions
from swarmkeep.domain.messages import ROLES
from swarmkeep.domain.state import Run, State
from swarmkeep.engine.ledger import MemoryLedger
from swarmkeep.engine.loop import Item, Loop, MessageDelta, MessageStarted
from swarmkeep.engine.model import ChatModel, TurnFailed
from swarmkeep.engine.registry import OpenRegistry
from swarmkeep.engine.tools import Caller, Inline, InThreads
from swarmkeep.engine.values import plain_object

Json = dict[str, Any]
T = TypeVar("T")
_RUN = "run"
_ASYNCHRONOUS = "the client is asynchronous: use AsyncSwarm with it"


class RunError(RuntimeError):
    """The run could not go on: `code` says why. What a client raises is raised as it is, not as this."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class _Conversation:
    """One call of `run`: the loop over a fresh in-memory session."""

    def __init__(
        self,
        model: ChatModel,
        caller: Caller,
        agent: Agent,
        messages: Sequence[Json],
        context_variables: Mapping[str, Any],
        options: RunOptions,
        debug: bool,
    ) -> None:
        self._registry = OpenRegistry([agent])
        self._registry.admits(agent)
        self._ledger = MemoryLedger()
        self._model = _Remembering(model)
        self._options = options
        self._loop = Loop(self._ledger, self._registry, self._model, caller, self)
        self._debug = debug
        self._agent = agent.name
        self._context = plain_object(context_variables, "context_variables")
        self._history = [_message(message, index) for index, message in enumerate(messages)]

    tool_seconds = None
    # As Swarm does, it tells its caller that the history is too long, and leaves the rest to them.
    shortens_history = False

    def streams(self, run: Run) -> bool:
        return self._options.stream

    def approval_expires_at(self) -> str | None:
        return None

    def time_limit(self, run: Run) -> AbstractAsyncContextManager[None]:
        return nullcontext()

    async def items(self) -> AsyncGenerator[Item]:
        def begin(state: State) -> Any:
            return drafted(self._agent, create_session(self._agent, self._context, {}, self._history), None)

        await self._ledger.commit(begin)
        wish = StartRun(run_id=_RUN, messages=(), options=self._options)
        for event in await self._ledger.commit(lambda state: start_run(state, wish)):
            yield event
        async with aclosing(self._loop.advance()) as items:
            async for item in items:
                self._show(item)
                yield item
        self._raise_failure()

    async def deltas(self) -> AsyncGenerator[Json]:
        """The frames of a streamed run, in Swarm's shape."""
        speaker: str | None = None
        async with aclosing(self.items()) as items:
            async for item in items:
                if isinstance(item, MessageStarted):
                    yield {"delim": "start"}
                    speaker = item.agent
                elif isinstance(item, MessageDelta):
                    # The sender and the role come with the first piece of a message.
                    yield {**item.delta, "role": "assistant", "sender": speaker} if speaker else dict(item.delta)
                    speaker = None
                elif isinstance(item.fact, MessageAdded) and item.fact.completion is not None:
                    yield {"delim": "end"}
        yield {"response": self.response()}

    def response(self) -> Response:
        state = self._ledger.state
        new = state.messages[len(self._history) :]
        return Response(
            messages=[dict(entry.message) for entry in new],
            agent=self._registry.get(state.agent),
            context_variables=plain_object(state.context_variables),
        )

    def _raise_failure(self) -> None:
        finished = self._ledger.state.finished
        if not finished or finished[-1].error is None:
            return
        if self._model.failure is not None:
            raise self._model.failure
        raise RunError(finished[-1].error.code, finished[-1].error.message)

    def _show(self, item: Item) -> None:
        if self._debug and isinstance(item, Recorded):
            print(f"[{item.at}] {item.type} {item.agent}: {item.fact}")


class _Remembering:
    """Keeps what the client raised, so that the caller gets it as Swarm's callers do."""

    def __init__(self, model: ChatModel) -> None:
        self._model = model
        self.failure: BaseException | None = None

    async def ask(self, request: Any, *, stream: bool) -> AsyncGenerator[Any]:
        try:
            async with aclosing(self._model.ask(request, stream=stream)) as pieces:
                async for piece in pieces:
                    yield piece
        except TurnFailed as failed:
            self.failure = failed.__cause__
            raise


def _message(message: Any, index: int) -> Json:
    plain = plain_object(message, f"messages[{index}]")
    if plain.get("role") not in ROLES:
        raise ValueError(f"messages[{index}].role is {plain.get('role')!r}; it must be one of {', '.join(ROLES)}")
    return plain


def _options(model: str | None, max_turns: float, execute_tools: bool, stream: bool) -> RunOptions:
    turns = None if math.isinf(max_turns) else int(max_turns)
    return RunOptions(max_turns=turns, model=model, execute_tools=execute_tools, stream=stream)


def _refuse(client: Any, name: str, reason: str) -> None:
    """Refuse an official client, or a subclass, of the wrong kind; of any other object the kind shows only in use."""
    openai = sys.modules.get("openai")
    if openai is not None and isinstance(client, getattr(openai, name)):
        raise TypeError(reason)


class Swarm:
    """Runs agents in this process, in this thread, keeping nothing: Swarm's own interface on Swarmkeep's loop.

    `client` is any object with OpenAI's synchronous Chat Completions interface; by default `openai.OpenAI()`.
    """

    def __init__(self, client: Any = None) -> None:
        if client is None:
            from openai import OpenAI

            client = OpenAI()
        _refuse(client, "AsyncOpenAI", _ASYNCHRONOUS)
        self.client = client
        self._model = ChatModel(client)

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
        options = _options(model_override, max_turns, execute_tools, stream)
        conversation = _Conversation(self._model, Inline(), agent, messages, context_variables, options, debug)
        if stream:
            return _iterate(conversation.deltas())
        _finish(_drain(conversation))
        return conversation.response()

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
        _refuse(client, "OpenAI", "the client is synchronous and would block the event loop: use Swarm with it")
        self.client = client
        self._model = ChatModel(client)

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
        options = _options(model_override, max_turns, execute_tools, stream)
        conversation = _Conversation(self._model, InThreads(), agent, messages, context_variables, options, debug)
        return _Deltas(conversation.deltas()) if stream else _answered(conversation)


class _Deltas:
    """The frames of a run: `async for frame in swarm.run(...)`, and the same after an `await`."""

    def __init__(self, frames: AsyncGenerator[Json]) -> None:
        self._frames = frames

    def __aiter__(self) -> AsyncIterator[Json]:
        return self._frames

    def __await__(self) -> Generator[Any, None, _Deltas]:
        return self
        yield


async def _answered(conversation: _Conversation) -> Response:
    await _drain(conversation)
    return conversation.response()


async def _drain(conversation: _Conversation) -> None:
    async with aclosing(conversation.items()) as items:
        async for _ in items:
            pass


def _finish(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never suspends: with a blocking client and inline tools, the one loop is synchronous."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]
    error = TypeError(_ASYNCHRONOUS)
    # Thrown in where it waits, it ends every generator on its way out; closing the coroutine would not.
    with suppress(StopIteration):
        coroutine.throw(error)
    raise error


def _iterate(items: AsyncGenerator[T]) -> Generator[T, None, None]:
    try:
        while True:
            try:
                yield _finish(_next(items))
            except StopAsyncIteration:
                return
    finally:
        _finish(_close(items))


async def _next(items: AsyncGenerator[T]) -> T:
    return await anext(items)


async def _close(items: AsyncGenerator[Any]) -> None:
    await items.aclose()
