"""One turn of a run: the agent that is asked, the request, and what its model says."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager

from swarmkeep.agent import Agent, FunctionSchemaError, InvalidFunctionError
from swarmkeep.domain.decisions.partial import NOTHING_SAID, PartialReply
from swarmkeep.domain.errors import AgentUnavailable, QuotaExceeded
from swarmkeep.domain.events import RunError
from swarmkeep.domain.request import ModelRequest, Profile, build_request, measure_new_history
from swarmkeep.domain.state import Run, State
from swarmkeep.domain.window import count_turns
from swarmkeep.engine.agents.registry import Registry
from swarmkeep.engine.failpoints import MODEL_SENT, reach
from swarmkeep.engine.models.failures import CONTEXT_TOO_LONG
from swarmkeep.engine.models.model import Delta, Model, Reply, TurnFailed
from swarmkeep.engine.policy import LoopPolicy
from swarmkeep.engine.tool_runners import ToolRunner

# Of no more, all is encoded within a few milliseconds.
_FEW_MESSAGES = 500
_FEW_BYTES = 200_000

# Raises TurnFailed where the agent cannot be asked.
Prepare = Callable[[State], Awaitable[tuple[Agent, Profile]]]


class ModelTurn:
    """One question to the model: what it is sent, and what it says."""

    agent: Agent
    profile: Profile

    def __init__(self, run: Run, state: State, policy: LoopPolicy) -> None:
        self.run = run
        self.state = state
        self.is_streamed = policy.should_stream(run)
        self.request: ModelRequest | None = None
        """The request to send next; none once it was answered."""
        self._policy = policy
        self._texts: list[str] = []

    @property
    def text(self) -> str:
        """The text that has come of it so far."""
        return "".join(self._texts)

    async def prepare(self, prepare: Prepare) -> None:
        try:
            await self._policy.check_tokens_left()
        except QuotaExceeded as error:
            raise TurnFailed(RunError(code=error.code, message=str(error), retryable=True)) from error
        self.agent, self.profile = await prepare(self.state)
        await self._build_request()

    async def _build_request(self, turns: int | None = None) -> None:
        def build() -> ModelRequest:
            return build_request(self.state, self.profile, stream=self.is_streamed, turns=turns)

        messages, size = measure_new_history(self.state)
        is_long = messages > _FEW_MESSAGES or size > _FEW_BYTES
        self.request = await self._policy.run_aside(build) if is_long else build()

    @asynccontextmanager
    async def send(self, model: Model) -> AsyncGenerator[AsyncGenerator[Delta | Reply]]:
        """The pieces of the answer. If the history was too long for the model, a shorter request is to be sent next."""
        request = self.request
        assert request is not None
        reach(MODEL_SENT)
        try:
            async with aclosing(model.ask(request, stream=self.is_streamed)) as pieces:
                yield pieces
            self.request = None
        except TurnFailed as failure:
            turns = self._reduce_turns(request, failure)
            if turns is None:
                raise
            await self._build_request(turns)

    def _reduce_turns(self, request: ModelRequest, failure: TurnFailed) -> int | None:
        """How much of the history to try next with a model that it was too long for: half, down to the last turn."""
        if not self._policy.shortens_history or failure.error.code != CONTEXT_TOO_LONG:
            return None
        return count_turns(request.entries) // 2 or None

    def make_partial(self, text: str) -> PartialReply:
        """The reply that was cut off with this text."""
        if not text:
            return NOTHING_SAID
        return PartialReply(run_id=self.run.id, seq=self.state.seq, agent=self.agent.name, text=text)

    def add(self, piece: Delta) -> None:
        self._texts.append(piece.delta.get("content") or "")


async def prepare_turn(registry: Registry, runner: ToolRunner, state: State) -> tuple[Agent, Profile]:
    """The active agent, as its model is to see it now. Raises TurnFailed."""
    try:
        agent = registry.get_active(state.agent)
        profile = await registry.make_profile(agent, state.context_variables, runner)
    except AgentUnavailable as error:
        raise TurnFailed(RunError(code=error.code, message=str(error))) from error
    except (FunctionSchemaError, InvalidFunctionError) as error:
        raise TurnFailed(RunError(code="agent_invalid", message=str(error))) from error
    except Exception as error:
        text = f"the instructions of {state.agent!r} failed: {type(error).__name__}: {error}"
        raise TurnFailed(RunError(code="instructions_failed", message=text)) from error
    return agent, profile
