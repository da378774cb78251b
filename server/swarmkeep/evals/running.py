"""Tries cases: conversations on the engine as it is, in a database of their own; recorded ones by a replay."""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from msgspec import UNSET

from swarmkeep.audit.replay.session import replay_session
from swarmkeep.domain.codec import encode_text
from swarmkeep.domain.decisions.commands import StartRun
from swarmkeep.domain.decisions.resuming import Approval
from swarmkeep.domain.errors import DomainError
from swarmkeep.domain.events import GuardrailTripped
from swarmkeep.domain.run_options import RunOptions
from swarmkeep.domain.state import State
from swarmkeep.domain.views import RunView
from swarmkeep.engine.agents.registry import Registry
from swarmkeep.engine.build import EngineSettings, build_engine
from swarmkeep.engine.engine import Engine
from swarmkeep.engine.ids import make_id
from swarmkeep.evals.cases import Case, Expect
from swarmkeep.evals.judging import Judge
from swarmkeep.evals.observing import Observation, find_problems, observe, shorten
from swarmkeep.store.opening import open_store
from swarmkeep.store.ports import DEFAULT_TENANT, EventStore, SessionKey
from swarmkeep.store.schema import upgrade

TEAM_DATA_VARIABLE = "SWARMKEEP_TEAM_DATA"


@dataclass(frozen=True)
class Attempt:
    """One try of a case: what was wrong, and how long it took."""

    problems: list[str]
    seconds: float

    @property
    def passed(self) -> bool:
        return not self.problems


@dataclass
class CaseRunner:
    """Tries cases on agents. Without `settings` there is no model: cases then need `recorded` sessions."""

    registry: Registry
    settings: EngineSettings | None
    judge: Judge | None
    recorded: EventStore | None
    concurrency: int = 1
    _engine: Engine | None = field(default=None, init=False)

    async def run_rounds(
        self, cases: Sequence[Case], repeat: int, on_try: Callable[[], None] = lambda: None
    ) -> list[list[Attempt]]:
        """Try each case so many times; gives the attempts of each. `on_try` is called after each.

        Each round begins with a new database, and with new rows of the example teams.
        """
        tried: list[list[Attempt]] = [[] for _ in cases]

        async def attempt(limit: asyncio.Semaphore, case: Case) -> Attempt:
            made = await self._try_case(limit, case)
            on_try()
            return made

        for _ in range(repeat if cases else 0):
            async with self._open_round():
                limit = asyncio.Semaphore(self.concurrency)
                attempts = await asyncio.gather(*(attempt(limit, case) for case in cases))
            for of_case, made in zip(tried, attempts, strict=True):
                of_case.append(made)
        return tried

    @asynccontextmanager
    async def _open_round(self) -> AsyncIterator[None]:
        with tempfile.TemporaryDirectory(prefix="swarmkeep-eval-") as folder, _use_team_data(Path(folder)):
            if self.settings is None:
                yield
                return
            url = f"sqlite:///{Path(folder) / 'sessions.db'}"
            await asyncio.to_thread(upgrade, url)
            self._engine = build_engine(self.settings, self.registry, open_store(url), grace_seconds=0.0)
            try:
                await self._engine.start()
                yield
            finally:
                await self._engine.stop()

    async def _try_case(self, limit: asyncio.Semaphore, case: Case) -> Attempt:
        async with limit:
            started = time.perf_counter()
            try:
                found = await (
                    self._hold_conversation(case)
                    if case.recorded is None
                    else self._replay_recorded(case, case.recorded)
                )
            except DomainError as error:
                found = [str(error)]
            return Attempt(found, round(time.perf_counter() - started, 3))

    async def _hold_conversation(self, case: Case) -> list[str]:
        """Hold the conversation, up to the first message whose answer is not as expected."""
        engine = self._engine
        assert engine is not None
        key = SessionKey(DEFAULT_TENANT, make_id("eval"))
        await engine.sessions.create(
            key.tenant,
            session_id=key.id,
            agent=case.agent,
            context_variables=case.context_variables,
            messages=list(case.history),
        )
        begin = await engine.reader.state(key)
        for number, message in enumerate(case.messages, start=1):
            before = await engine.reader.state(key)
            may_be_refused = bool(message.expect.guardrail or case.expect.guardrail)
            failure = await self._run_message(engine, key, message.say, case, may_be_refused=may_be_refused)
            if failure:
                return [f"message {number}: {failure}"]
            wrong = await self._find_problems(message.expect, await _observe_since(engine.store, key, before))
            if wrong:
                return [f"message {number}: {problem}" for problem in wrong]
        return await self._find_problems(case.expect, await _observe_since(engine.store, key, begin))

    async def _run_message(
        self, engine: Engine, key: SessionKey, text: str, case: Case, *, may_be_refused: bool
    ) -> str | None:
        """Why the run did not come to its end; None if it did, or a guardrail ended it and may."""
        command = StartRun(
            run_id=make_id("run"),
            messages=({"role": "user", "content": text},),
            options=RunOptions(max_turns=case.max_turns, model_settings=case.model_settings or UNSET),
        )
        feed = await engine.runs.start(key, command)
        while (run := await engine.runs.wait(key, feed.run_id)).status == "waiting":
            if not await self._decide(engine, key, run, case):
                return "the run waits for a result from outside"
        if run.status == "completed" and run.stop_reason in ("end_turn", *(("guardrail",) if may_be_refused else ())):
            return None
        why = "" if run.error is None else f": {run.error.code}: {run.error.message}"
        return f"the run ended as {run.status} ({run.stop_reason}){why}"

    async def _decide(self, engine: Engine, key: SessionKey, run: RunView, case: Case) -> bool:
        """Decide what a run waits for, be it in the session of an agent that it asks; False if nothing is to decide."""
        for call in run.pending:
            if call.reason == "session" and call.session_id is not UNSET:
                below = SessionKey(key.tenant, call.session_id)
                state = await engine.reader.state(below)
                if state.run is None:
                    return True
                return await self._decide(engine, below, await engine.reader.get_run(below, state.run.id), case)
        decisions = [
            Approval(tool_call_id=call.tool_call_id, decision="approve" if case.approve else "deny")
            for call in run.pending
            if call.reason == "approval"
        ]
        if decisions:
            await engine.runs.resume(key, run.id, approvals=decisions)
        return bool(decisions)

    async def _replay_recorded(self, case: Case, session_id: str) -> list[str]:
        """Whether today's agents would take the recorded way, and whether that is the expected one."""
        assert self.recorded is not None
        key = SessionKey(DEFAULT_TENANT, session_id)
        replayed = await replay_session(self.recorded, self.registry, key, ignore=case.ignore)
        found = [
            f"event {difference.seq}: {difference.kind}: recorded {shorten(encode_text(difference.recorded))}, "
            f"today {shorten(encode_text(difference.actual))}"
            for difference in replayed.divergences
        ]
        return found + await self._find_problems(case.expect, await _observe_since(self.recorded, key, State()))

    async def _find_problems(self, expect: Expect, observed: Observation) -> list[str]:
        found = list(find_problems(expect, observed))
        if not found and expect.judge is not None:
            assert self.judge is not None
            verdict = await self.judge.ask(expect.judge, observed.transcript)
            if not verdict.holds:
                found.append(f"the judge says this is not true: {expect.judge!r}: {verdict.reason}")
        return found


async def _observe_since(store: EventStore, key: SessionKey, before: State) -> Observation:
    """What has happened since the session was like that."""
    events = await store.read(key, after=before.seq, types=(GuardrailTripped.type,))
    refused = tuple(event.fact.name for event in events if isinstance(event.fact, GuardrailTripped))
    return observe(await store.state(key), first=len(before.messages), guardrails=refused)


@contextmanager
def _use_team_data(folder: Path) -> Iterator[None]:
    """Within, the example teams keep their rows there: no case sees what an earlier round has done."""
    before = os.environ.get(TEAM_DATA_VARIABLE)
    os.environ[TEAM_DATA_VARIABLE] = str(folder)
    try:
        yield
    finally:
        if before is None:
            del os.environ[TEAM_DATA_VARIABLE]
        else:
            os.environ[TEAM_DATA_VARIABLE] = before
