"""Runs that are kept nowhere: the same loop, under the server's limits, over a log in memory."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing, suppress
from functools import partial

from msgspec.structs import replace

from swarmkeep.decide.checks import TakenMessages, take_out_files
from swarmkeep.decide.commands import Approval, StartRun, ToolAnswer, keep_limits, resume_run, start_run
from swarmkeep.decide.drafts import draft_events
from swarmkeep.decide.turns import Trip
from swarmkeep.events.codec import Json
from swarmkeep.events.errors import Draining, TooLarge
from swarmkeep.events.facts import EventDraft, RecordedEvent, RunStarted
from swarmkeep.events.files import MAX_SENT_BYTES, list_references
from swarmkeep.events.records import RunOptions
from swarmkeep.events.sizes import is_heavy
from swarmkeep.events.state import State
from swarmkeep.models.failures import Secrets
from swarmkeep.models.model import Model, TurnFailed
from swarmkeep.request.request import ModelRequest, build_request
from swarmkeep.runs.agents import Registry
from swarmkeep.runs.approvals import ApprovalRules, refuse_wrong_functions
from swarmkeep.runs.guardrails import Guards, find_refused
from swarmkeep.runs.hub import Hub, Item, with_pauses
from swarmkeep.runs.identifiers import make_id
from swarmkeep.runs.limits import Limits, check_active_runs, limit_options, refuse_uncounted
from swarmkeep.runs.loop import Loop, make_loop, prepare_turn
from swarmkeep.runs.policy import AskedAgents, Decide, NobodyAsked
from swarmkeep.runs.reader import Batch
from swarmkeep.runs.session_log import read_sound_files
from swarmkeep.runs.swarm import AgentsInMemory, GivenFiles, MemorySessionLog
from swarmkeep.runs.tool_runners import ThreadRunner
from swarmkeep.runs.tool_servers import ToolServers
from swarmkeep.runs.toolbox import Toolbox
from swarmkeep.runs.worker import SessionPolicy
from swarmkeep.store.opening import SqlStore
from swarmkeep.store.records import SessionKey

_EVENTS_IN_A_ROW = 50


class UnstoredSession:
    """A session in this process's memory. It may begin with the state of a stored one, which it never changes.

    `run_events` are those of its last run, by which that can be told from its beginning.
    """

    def __init__(self, state: State, run_events: Iterable[RecordedEvent] = (), session_id: str | None = None) -> None:
        self.id = session_id or make_id("unstored")
        self.scope = make_id("unstored")
        """The name by which servers with a connection for each session know it; no caller can choose it."""
        self.state = state
        self.run_events = list(run_events)
        self.files = GivenFiles()
        """What functions have given in it."""
        self._brought_bytes = 0

    def count_files(self, taken: TakenMessages) -> None:
        """Count the files of messages, which it keeps inline wherever they are. Raises TooLarge if no request could
        have them all."""
        references = (found for message in taken.messages for found in list_references(message))
        self._brought_bytes += sum(reference.size for reference in references)
        if self._brought_bytes > MAX_SENT_BYTES:
            raise TooLarge(
                "the files of a response that is not stored, and of those that it continues, have more than "
                f"{MAX_SENT_BYTES} bytes together; begin anew, or have it stored"
            )

    def note(self, item: Item) -> None:
        if isinstance(item, RecordedEvent):
            if isinstance(item.fact, RunStarted):
                self.run_events = []
            self.run_events.append(item)


class UnstoredRuns:
    """Starts and resumes runs of sessions in memory. A run is cut off when its caller stops taking what it gives."""

    def __init__(
        self,
        store: SqlStore,
        registry: Registry,
        model: Model,
        limits: Limits,
        secrets: Secrets,
        servers: ToolServers,
    ) -> None:
        self._store = store
        self._registry = registry
        self._model = model
        self._limits = limits
        self._secrets = secrets
        self._runner = ThreadRunner()
        self._servers = servers
        self._rules = ApprovalRules(registry, store.read_clock, limits.approval_seconds)
        self._active: Counter[str] = Counter()
        self._at_rest = asyncio.Event()
        self._at_rest.set()
        self.is_draining = False

    async def drain(self) -> None:
        """Take no more runs, and give those there are their grace time."""
        self.is_draining = True
        with suppress(TimeoutError):
            async with asyncio.timeout(self._limits.grace_seconds):
                await self._at_rest.wait()

    async def start(self, tenant: str, session: UnstoredSession, command: StartRun) -> AsyncGenerator[Batch]:
        """Start a run and yield its items, as they happen; an empty batch is a sign of life.

        Raises, before anything does, what `Runs.start` raises.
        """
        refuse_wrong_functions(command.options, self._registry)
        command = replace(command, options=limit_options(command.options, self._limits))
        agent = self._registry.get_active(command.agent or session.state.agent)
        session.count_files(await self._check_messages(command.messages))
        is_long = is_heavy(command.messages)
        return await self._begin(tenant, session, lambda state: start_run(state, command), agent.name, is_long=is_long)

    async def resume(
        self,
        tenant: str,
        session: UnstoredSession,
        run_id: str,
        *,
        tool_results: Sequence[ToolAnswer],
        approvals: Sequence[Approval],
        messages: Sequence[Json],
        options: RunOptions,
    ) -> AsyncGenerator[Batch]:
        """As `start`, for a run that waits."""
        refuse_wrong_functions(options, self._registry)
        chosen = limit_options(options, self._limits)
        agent = self._registry.get_active(session.state.agent)
        said = [*messages, *({"content": answer.content} for answer in tool_results)]
        session.count_files(await self._check_messages(said))
        now = await self._store.read_clock() if approvals else None

        def decide(state: State) -> list[EventDraft]:
            goes_on = keep_limits(state, chosen)
            return resume_run(state, run_id, tool_results, approvals, messages=messages, options=goes_on, now=now)

        return await self._begin(tenant, session, decide, agent.name, is_long=is_heavy(said))

    async def find_passing(self, tenant: str, agent: str, messages: Sequence[Json]) -> list[int]:
        """The places of those messages of a history that an agent's guardrails let through."""
        refused = await find_refused(self._make_guards(tenant), self._registry.get_active(agent), messages, {})
        gone = {place for _, places in refused for place in places}
        return [place for place in range(len(messages)) if place not in gone]

    async def check_state(self, tenant: str, state: State, *given: Json) -> Trip | None:
        """The refusal of what a session's agent would be told next outside of runs, with what is `given` besides."""
        agent = self._registry.get_active(state.agent)
        return await self._make_guards(tenant).check_state(agent, state, *given)

    def _make_guards(self, tenant: str) -> Guards:
        return Guards(self._runner, self._make_policy(SessionKey(tenant, make_id("unstored")), NobodyAsked()))

    def _make_policy(self, key: SessionKey, agents: AskedAgents) -> SessionPolicy:
        hub = Hub(secrets=self._secrets)
        return SessionPolicy(self._store, self._limits, hub, key, self._rules, self._secrets, agents)

    async def preview(self, session: UnstoredSession, decide: Decide, options: RunOptions) -> ModelRequest:
        """Preview the first request to the model by a run that is decided on; nothing is, and the session stays as it
        is.

        Raises what `decide` raises, and TurnFailed if the agent cannot be asked.
        """
        refuse_wrong_functions(options, self._registry)
        log = MemorySessionLog(session.state)
        await log.commit(decide)
        toolbox, state = self._make_toolbox(session), log.state
        facts, _ = await toolbox.list_anew(self._registry.get_active(state.agent), state)
        await log.commit(lambda state: draft_events(state.agent, facts, None if state.run is None else state.run.id))
        try:
            _, profile = await prepare_turn(self._registry, self._runner, log.state, toolbox=toolbox)
        except TurnFailed as failure:
            raise failure.mask(self._secrets) from failure
        return await asyncio.to_thread(build_request, log.state, profile)

    def _make_toolbox(self, session: UnstoredSession) -> Toolbox:
        return self._servers.make_toolbox(session.scope, self._runner)

    async def _check_messages(self, messages: Sequence[Json]) -> TakenMessages:
        def check() -> TakenMessages:
            # Kept nowhere, they keep their content; what would be refused of them elsewhere is refused here, too.
            taken = take_out_files(messages, "/input", self._limits.files)
            self._limits.sizes.check_messages(taken.messages, "/input")
            return taken

        return await asyncio.to_thread(check) if is_heavy(messages) else check()

    async def _begin(
        self, tenant: str, session: UnstoredSession, decide: Decide, agent: str, *, is_long: bool
    ) -> AsyncGenerator[Batch]:
        if self.is_draining:
            raise Draining
        refuse_uncounted(self._limits)
        check_active_runs(self._active[tenant], self._limits)
        # Counted from here on: of two that come at once the second is to see the first.
        self._count(tenant, 1)
        try:
            approvals = self._rules.make_approvals(await self._rules.expires_at())
            key = SessionKey(tenant, session.id)
            # What it began with may be stored, and then its files are.
            read_files = partial(read_sound_files, self._store, key)
            log = MemorySessionLog(session.state, approvals, read_files, session.files)
            begun = await log.commit(decide, aside=is_long)
            make_policy = partial(self._make_policy, key)
            toolbox = self._make_toolbox(session)
            asked = AgentsInMemory(
                self._model,
                self._runner,
                lambda agent: self._registry,
                make_policy,
                approvals=approvals,
                options=limit_options(RunOptions(), self._limits),
                toolbox=toolbox,
            )
            policy = make_policy(asked)
            loop = make_loop(log, self._registry, self._model, self._runner, policy, begun, toolbox=toolbox)
            items = self._follow(tenant, session, log, loop, begun)
            # Once it has begun, it comes to its end, and is counted no more, whether anybody reads it or not.
            await anext(items)
        except BaseException:
            self._count(tenant, -1)
            raise
        return items

    async def _follow(
        self,
        tenant: str,
        session: UnstoredSession,
        log: MemorySessionLog,
        loop: Loop,
        begun: Sequence[RecordedEvent],
    ) -> AsyncGenerator[Batch]:
        try:
            yield []
            for count, event in enumerate(begun, 1):
                session.note(event)
                yield [event]
                if count % _EVENTS_IN_A_ROW == 0:
                    # A client may bring thousands, and each goes all the way to its readers.
                    await asyncio.sleep(0)
            async with aclosing(with_pauses(loop.advance(), self._limits.poll_seconds)) as parts:
                async for items in parts:
                    for item in items or ():
                        session.note(item)
                    yield [*(items or ())]
        finally:
            session.state = log.state
            self._count(tenant, -1)
            self._servers.close_scope(session.scope)

    def _count(self, tenant: str, change: int) -> None:
        self._active[tenant] += change
        if not self._active[tenant]:
            del self._active[tenant]
        if self._active:
            self._at_rest.clear()
        else:
            self._at_rest.set()
