"""A session in memory, and the loop over it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, nullcontext
from functools import partial
from typing import Any, TypeVar

from swarmkeep.agent import Agent
from swarmkeep.agent.values import copy_plain_object
from swarmkeep.domain.checking.files import FileLimits
from swarmkeep.domain.codec import Json, encode_text
from swarmkeep.domain.decisions.commands import create_session
from swarmkeep.domain.decisions.cut_calls import REPLY_CUT
from swarmkeep.domain.decisions.drafts import draft_events
from swarmkeep.domain.decisions.sizes import UNBOUNDED
from swarmkeep.domain.envelope import RecordedEvent
from swarmkeep.domain.errors import InvalidRequest
from swarmkeep.domain.messages import ROLES
from swarmkeep.domain.model_profiles import ModelServer
from swarmkeep.domain.parts import convert_message
from swarmkeep.domain.state import Run, State
from swarmkeep.engine.agents.registry import OpenRegistry
from swarmkeep.engine.loop import Loop, make_loop
from swarmkeep.engine.models.model import ChatModel
from swarmkeep.engine.models.secrets import NO_SECRETS
from swarmkeep.engine.policy import AskedAgents, Decide
from swarmkeep.engine.streams.items import Item
from swarmkeep.engine.swarm.asked import AgentsInMemory
from swarmkeep.engine.swarm.memory_log import MemorySessionLog
from swarmkeep.engine.tool_runners import ToolRunner
from swarmkeep.engine.toolbox.toolbox import NO_SERVERS, Toolbox

T = TypeVar("T")


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
        async with aclosing(self._loop.advance()) as items:
            async for item in items:
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
