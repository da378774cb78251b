"""Many deaths for one: sessions on an armed server stop at points of their own, and it dies when all of them have."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest

from swarmkeep_client import RunFailed, Session
from tests.chaos.cluster import KILLED, Acknowledgements, ServerCluster, Succession, ignore_lost_connection
from tests.chaos.parallel import DATABASE_KINDS, Case
from tests.chaos.plans import PATIENCE_SECONDS, Json, make_plan, wait_until
from tests.chaos.records import LogRows
from tests.support.processes import ServerProcess

# Nobody takes over a session that has stopped, while the others are still on their way.
ARMED_LEASE_SECONDS = 8.0


def list_cases() -> Iterator[Any]:
    # A lone server on a file is started again; of several on PostgreSQL another one takes over. The other way round
    # in the long run.
    for kind in DATABASE_KINDS:
        for restarted in (True, False):
            marks = [] if restarted == (kind == "sqlite") else [pytest.mark.chaos]
            yield pytest.param(
                Case(kind, restarted), id=f"{kind}-{'restart' if restarted else 'takeover'}", marks=marks
            )


class ArmedSession:
    """A session on a server that is armed, and what its client was told."""

    def __init__(self, cluster: ServerCluster, server: ServerProcess, session_id: str) -> None:
        self.cluster = cluster
        self.session_id = session_id
        self.armed_server = server
        self.client = cluster.client(server)
        self.acknowledged = Acknowledgements()
        self.asked: Json = {}

    def begin(self) -> Session:
        return self.acknowledged.session(self.client.sessions.create(id=self.session_id))

    def run(self, *steps: Json, **options: Any) -> None:
        """Run a plan on the armed server, which may not live to tell."""
        session = self.begin()
        self.asked = {"input": make_plan(*steps), "idempotency_key": f"key of {self.session_id}", **options}
        with ignore_lost_connection():
            try:
                self.acknowledged.run(session.run(**self.asked))
            except RunFailed as failed:
                self.acknowledged.run(failed.run)

    def ask_again(self, session: Session) -> None:
        """Send the same request once more, as a client does that got no answer."""
        if self.asked:
            with suppress(RunFailed):
                session.run(**self.asked)

    def stream(self, *steps: Json) -> None:
        session = self.begin()
        with ignore_lost_connection():
            for item in session.stream(make_plan(*steps)):
                self.acknowledged.item(item)

    @property
    def gate(self) -> str:
        return f"gate of {self.session_id}"


@dataclass(frozen=True)
class Crash:
    """Where to die, how to get there, and what should have become of it in the end.

    `tools`: the final status of each call, in order. `effect_count`: how many calls had an effect at all. `in_fork`:
    what dies is the session's fork.
    """

    point: str
    provoke: Callable[[ArmedSession], None]
    runs: tuple[str, ...] = ("completed",)
    tools: tuple[str, ...] = ()
    effect_count: int = 0
    after: Callable[[ArmedSession, Session], None] = lambda stage, session: None
    in_fork: bool = False

    @property
    def event(self) -> str:
        return self.point.partition(":")[0]


class Aftermath:
    """The sessions after the death of their server, and before anybody has looked at them."""

    def __init__(self, cluster: ServerCluster, case: Case, crashes: Sequence[Crash]) -> None:
        self.cluster = cluster
        by_id = {f"s{number}": crash for number, crash in enumerate(crashes)}
        servers = Succession(cluster, arm(by_id), restarted=case.restarted, LEASE_SECONDS=str(ARMED_LEASE_SECONDS))
        stages = [ArmedSession(cluster, servers.armed, session_id) for session_id in by_id]
        with ThreadPoolExecutor(len(crashes)) as pool:
            provoked = [pool.submit(crash.provoke, stage) for crash, stage in zip(crashes, stages, strict=True)]
            try:
                assert servers.armed.wait(PATIENCE_SECONDS) == KILLED
            finally:
                servers.armed.kill()
        for attempt in provoked:
            attempt.result()
        # Not before: what was sent to the armed server is not for the one in its place.
        heir = servers.outlive()
        for stage in stages:
            cluster.planned_model.release(stage.gate)
        self.client = cluster.client(heir)
        self.sessions = list(zip(crashes, stages, strict=True))

    def check_each(self, check: Callable[[Crash, ArmedSession, Session, LogRows], None]) -> None:
        """Look at each session, once no run is left in it. All that do not pass are named."""
        # Made before the death or now, as the client would that never got an answer.
        found = {stage.session_id: self.client.sessions.create(id=stage.session_id) for _, stage in self.sessions}
        for session in found.values():
            wait_until(f"no run is left in {session.id}", lambda session=session: has_no_open_runs(session))
        logs = dict(zip(found, self.cluster.logs(found), strict=True))
        failures = []
        for crash, stage in self.sessions:
            try:
                check(crash, stage, found[stage.session_id], logs[stage.session_id])
            except Exception:
                failures.append(f"{crash.point} in {crash.provoke.__name__}:\n{traceback.format_exc(limit=-3)}")
        assert not failures, "\n".join(failures)


def arm(crashes: Mapping[str, Crash]) -> str:
    """What the sessions' server is to be told."""
    return ",".join(f"{name}{'-fork' if crash.in_fork else ''}@{crash.point}" for name, crash in crashes.items())


def has_no_open_runs(session: Session) -> bool:
    return not {run.status for run in session.runs()} & {"queued", "running"}


def check_effects(cluster: ServerCluster, log: LogRows, begun: int) -> None:
    status, attempts, begins = log.read_tool_status(), log.attempts(), cluster.effects.count()
    assert sum(call_id in begins for call_id in {*status, *attempts}) == begun
    assert not cluster.effects.list_repeated()
    ends = cluster.effects.count("end")
    for call_id, end in status.items():
        # Never more effects than recorded starts, and what is recorded as done has had its effect.
        assert begins[call_id] <= attempts[call_id]
        if end == "ok" and call_id in begins:
            assert ends[call_id] >= 1
