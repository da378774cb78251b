"""One turn of a run: the agent that is asked, the request, and what its model says."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from functools import partial

from msgspec.structs import replace

from swarmkeep.agent import Agent, FunctionSchemaError, InvalidFunctionError
from swarmkeep.agent.output import OutputTypeError
from swarmkeep.domain.codec import Json
from swarmkeep.domain.decisions.partial import NOTHING_SAID, PartialReply
from swarmkeep.domain.envelope import RecordedEvent
from swarmkeep.domain.errors import AgentUnavailable, QuotaExceeded
from swarmkeep.domain.events import CompletionRecord, RunError
from swarmkeep.domain.facts.compaction import CompactionStarted
from swarmkeep.domain.history.sent import measure_new_history
from swarmkeep.domain.history.window import count_turns
from swarmkeep.domain.request import ModelRequest, Profile, build_request, choose_rules
from swarmkeep.domain.state import Run, State
from swarmkeep.engine.agents.registry import Registry
from swarmkeep.engine.compaction.summarising import find_compaction
from swarmkeep.engine.failpoints import MODEL_SENT, reach
from swarmkeep.engine.models.failures import CONTEXT_TOO_LONG
from swarmkeep.engine.models.model import Deltas, Model, Reply, TurnFailed
from swarmkeep.engine.policy import DecideOnRun, LoopPolicy, SessionLog, restrict_to_run
from swarmkeep.engine.streams.items import Item, MessageDeltas, join_text, merge_texts
from swarmkeep.engine.tool_runners import ToolRunner
from swarmkeep.engine.toolbox.toolbox import NO_SERVERS, Toolbox

# Of no more, all is encoded within a few milliseconds.
_FEW_MESSAGES = 500
_FEW_BYTES = 200_000

# Files by their hashes.
ReadFiles = Callable[[Sequence[str]], Awaitable[Mapping[str, bytes]]]
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
        self.compaction: CompactionStarted | None = None
        """What is to be made of the history before the model is asked."""
        self._policy = policy
        self._said: list[Json] = []

    @property
    def text(self) -> str:
        """The text that has come of it so far."""
        return join_text(self._said)

    async def prepare(self, prepare: Prepare) -> None:
        await self.prepare_agent(prepare)
        await self._build_request()
        await self._find_compaction()

    async def prepare_agent(self, prepare: Prepare) -> None:
        try:
            await self._policy.check_tokens_left()
        except QuotaExceeded as error:
            raise TurnFailed(RunError(code=error.code, message=str(error), retryable=True)) from error
        self.agent, self.profile = await prepare(self.state)

    async def list_tools(self, agent: Agent, toolbox: Toolbox, log: SessionLog) -> list[RecordedEvent]:
        """Record what the agent's servers offer, where that is not what the session has recorded."""
        facts, texts = await toolbox.list_anew(agent, self.state) if agent.mcp_servers else ([], {})
        if not facts:
            return []
        listed = await log.commit(restrict_to_run(self.run, lambda state, run: facts), texts)
        self.state = log.state
        return listed

    async def _find_compaction(self, *, is_too_long: bool = False) -> None:
        """Have the history made shorter first, if the agent's settings ask for that now."""
        request = self.request
        if request is None or self.agent.compaction is None or not self._policy.compacts_history:
            return
        find = partial(find_compaction, self.agent, self.state, request, is_too_long=is_too_long)
        is_long = len(self.state.messages) > _FEW_MESSAGES
        self.compaction = await self._policy.run_aside(find) if is_long else find()
        if self.compaction is not None:
            self.request = None

    async def _build_request(self, turns: int | None = None) -> None:
        def build() -> ModelRequest:
            return build_request(self.state, self.profile, stream=self.is_streamed, turns=turns)

        messages, size = measure_new_history(self.state, choose_rules(self.state, self.profile))
        is_long = messages > _FEW_MESSAGES or size > _FEW_BYTES
        self.request = await self._policy.run_aside(build) if is_long else build()

    @asynccontextmanager
    async def send(self, model: Model, read_files: ReadFiles) -> AsyncGenerator[AsyncGenerator[Deltas | Reply]]:
        """The pieces of the answer. If the history was too long for the model, a shorter request is to be sent next, or
        a compaction comes first."""
        request = self.request
        assert request is not None
        sent = await attach_files(request, read_files, self._policy)
        await reach(MODEL_SENT)
        try:
            async with aclosing(model.ask(sent, stream=self.is_streamed)) as pieces:
                yield pieces
            self.request = None
        except TurnFailed as failure:
            if failure.error.code == CONTEXT_TOO_LONG:
                await self._find_compaction(is_too_long=True)
            if self.compaction is not None:
                return
            turns = self._reduce_turns(request, failure)
            if turns is None:
                raise
            await self._build_request(turns)

    def _reduce_turns(self, request: ModelRequest, failure: TurnFailed) -> int | None:
        """How much of the history to try next with a model that it was too long for: half, down to the last turn."""
        if not self._policy.shortens_history or failure.error.code != CONTEXT_TOO_LONG:
            return None
        # Without those that are made up for it.
        return count_turns([entry for entry in request.entries if entry.seq]) // 2 or None

    def describe_completion(self, completion: CompletionRecord, state: State) -> CompletionRecord:
        """What is to be recorded of the reply in `state`: the log may not be what its request was made of any more."""
        if completion.request is None or state.last_change <= self.state.seq:
            return completion
        return replace(completion, request=replace(completion.request, history_upto=self.state.seq))

    def make_partial(self, text: str, finish_reason: str | None = None) -> PartialReply:
        """The reply that was cut off with this text, and what its provider said of that."""
        if not text:
            return NOTHING_SAID
        return PartialReply(
            run_id=self.run.id, seq=self.state.seq, agent=self.agent.name, text=text, finish_reason=finish_reason
        )

    @property
    def is_held(self) -> bool:
        """Whether nobody is shown anything before the agent's guardrails have looked at the whole reply."""
        return self.request is not None and bool(self.agent.output_guardrails)

    def show(self, said: Deltas) -> list[Item]:
        """Keep pieces; what may be shown of them at once."""
        self._said += said.deltas
        if self.is_held:
            return []
        return [MessageDeltas(self.run.id, self.agent.name, self.state.seq, said.deltas)]

    def show_held(self) -> list[Item]:
        """What was held back, with texts that follow each other in one piece."""
        deltas = merge_texts(self._said) if self.is_held else []
        return [MessageDeltas(self.run.id, self.agent.name, self.state.seq, deltas)] if deltas else []

    def decide_once(self, decide: DecideOnRun) -> DecideOnRun:
        """What is decided on the reply; nothing where it is recorded: an attempt that failed was made after all."""
        return lambda state, run: [] if run.turns != self.run.turns else decide(state, run)


async def attach_files(request: ModelRequest, read_files: ReadFiles, policy: LoopPolicy) -> ModelRequest:
    """The request with the files that its messages refer to. They are in memory for as long as it is."""
    names = request.file_names
    if not names:
        return request
    sent = replace(request, files=await read_files(names))
    # Megabytes: nobody else waits while they are encoded.
    await policy.run_aside(lambda: sent.sent_history)
    return sent


async def prepare_turn(
    registry: Registry, runner: ToolRunner, state: State, *, toolbox: Toolbox = NO_SERVERS
) -> tuple[Agent, Profile]:
    """The active agent, as its model is to see it now. Raises TurnFailed."""
    try:
        agent = registry.get_active(state.agent)
        more = await toolbox.describe(agent, state)
        profile = await registry.make_profile(agent, state.context_variables, runner, more)
    except AgentUnavailable as error:
        raise TurnFailed(RunError(code=error.code, message=str(error))) from error
    except OutputTypeError as error:
        raise TurnFailed(RunError(code="agent_invalid", message=f"agent {state.agent!r}: {error}")) from error
    except (FunctionSchemaError, InvalidFunctionError) as error:
        raise TurnFailed(RunError(code="agent_invalid", message=str(error))) from error
    except Exception as error:
        text = f"the instructions of {state.agent!r} failed: {type(error).__name__}: {error}"
        raise TurnFailed(RunError(code="instructions_failed", message=text)) from error
    return agent, profile
