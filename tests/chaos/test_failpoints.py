"""A server dies at each point that has a name, and another one, or the same one started again, goes on."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest

from swarmkeep_client import RunFailed, Session
from tests.chaos.cluster import (
    Acknowledgements,
    ServerCluster,
    compute_allowed_seconds,
    ignore_lost_connection,
    restart_unarmed,
)
from tests.chaos.parallel import run_in_parallel
from tests.chaos.plans import PATIENCE_SECONDS, Json, call_step, make_plan, refuse_step, say_step, wait_until
from tests.chaos.records import LogRows

pytestmark = pytest.mark.long

KILLED = -9


class ArmedSession:
    """One death: a session on a server that is armed, and what its client was told."""

    def __init__(self, cluster: ServerCluster, kill_at: str) -> None:
        self.cluster = cluster
        self.session_id = "s"
        self.armed_server = cluster.server(kill_at=kill_at)
        self.client = cluster.client(self.armed_server)
        self.acknowledged = Acknowledgements()
        self.asked: Json = {}

    def begin(self) -> Session:
        return self.acknowledged.session(self.client.sessions.create(id=self.session_id))

    def run(self, *steps: Json, **options: Any) -> None:
        """Run a plan on the armed server, which should not live to tell."""
        session = self.begin()
        self.asked = {"input": make_plan(*steps), "idempotency_key": "key", **options}
        with ignore_lost_connection():
            self.acknowledged.run(session.run(**self.asked))

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

    def gate(self) -> str:
        return "gate"


@dataclass(frozen=True)
class Crash:
    """Where to die, how to get there, and what should have become of it in the end.

    `tools`: the final status of each call, in order. `begun`: how many calls had an effect at all.
    """

    point: str
    provoke: Callable[[ArmedSession], None]
    runs: tuple[str, ...] = ("completed",)
    tools: tuple[str, ...] = ()
    effect_count: int = 0
    after: Callable[[ArmedSession, Session], None] = lambda stage, session: None

    @property
    def event(self) -> str:
        return self.point.partition(":")[0]


DONE = say_step("Done.")
BATCH_PLAN = (call_step(("pay", {"what": "a"}), ("put", {"what": "b"}), ("pay", {"what": "c"})), DONE)
HANDOFFS_PLAN = (
    call_step(("to_boss", {}), ("remember", {"key": "k", "value": "v"}), ("to_clerk", {})),
    say_step("At your service."),
)
REFUND_PLAN = (call_step(("refund", {"what": "a"})), DONE)


def run_plain_turn(stage: ArmedSession) -> None:
    stage.run(say_step("Hello."))


def read_stream(stage: ArmedSession) -> None:
    stage.stream(say_step("One two three four five six."))


def run_batch(stage: ArmedSession) -> None:
    stage.run(*BATCH_PLAN)


def run_handoffs(stage: ArmedSession) -> None:
    stage.run(*HANDOFFS_PLAN)


def ask_for_refund(stage: ArmedSession) -> None:
    stage.run(*REFUND_PLAN)


def approve_refund(stage: ArmedSession) -> None:
    stage.run(*REFUND_PLAN)
    run = stage.acknowledged.runs[-1]
    assert run.status == "waiting"
    with ignore_lost_connection():
        approve(stage.client.sessions.get(stage.session_id), run.id, run.pending[0].tool_call_id)


def approve(session: Session, run_id: str, call_id: str) -> None:
    session.resume(run_id, approvals=[{"tool_call_id": call_id, "decision": "approve"}])


def approve_later(stage: ArmedSession, session: Session) -> None:
    """The run waits still, and goes on once somebody decides."""
    run = next(session.runs())
    assert run.status == "waiting"
    approve(session, run.id, run.pending[0].tool_call_id)


def run_failing_turn(stage: ArmedSession) -> None:
    stage.run(refuse_step(400))


def queue_run(stage: ArmedSession) -> None:
    session = stage.begin()
    stage.acknowledged.run(session.run(make_plan(say_step("First.", hold=stage.gate())), background=True))
    stage.cluster.planned_model.wait_for(stage.gate())
    with ignore_lost_connection():
        session.run(make_plan(say_step("Second.")), on_busy="queue", background=True)


def leave_queued_run(stage: ArmedSession) -> None:
    session = stage.begin()
    stage.acknowledged.run(session.run(make_plan(say_step("First.", hold=stage.gate())), background=True))
    stage.cluster.planned_model.wait_for(stage.gate())
    stage.acknowledged.run(session.run(make_plan(say_step("Second.")), on_busy="queue", background=True))
    stage.cluster.planned_model.release(stage.gate())


def cancel_active_run(stage: ArmedSession) -> None:
    session = stage.begin()
    run = session.run(make_plan(say_step("First.", hold=stage.gate())), background=True)
    stage.cluster.planned_model.wait_for(stage.gate())
    with ignore_lost_connection():
        session.cancel(run.id)


def stop_server(stage: ArmedSession) -> None:
    session = stage.begin()
    stage.acknowledged.run(session.run(make_plan(say_step("Late.", hold=stage.gate())), background=True))
    stage.cluster.planned_model.wait_for(stage.gate())
    stage.armed_server.signal(15)


def resume_interrupted(stage: ArmedSession, session: Session) -> None:
    run = next(session.runs())
    assert run.status == "interrupted"
    assert session.resume(run.id).output_text == "Late."


def update_session(stage: ArmedSession) -> None:
    session = stage.begin()
    with ignore_lost_connection():
        session.update(metadata={"name": "new"})


def create_session(stage: ArmedSession) -> None:
    with ignore_lost_connection():
        stage.begin()


def fork_session(stage: ArmedSession) -> None:
    session = stage.begin()
    assert session.run(make_plan(say_step("Hello."))).status == "completed"
    with ignore_lost_connection():
        session.fork(id=f"{stage.session_id}-fork")


def check_fork(stage: ArmedSession, session: Session) -> None:
    assert stage.cluster.read_checked_log(f"{stage.session_id}-fork").types[-1] == "session.forked"


OK, UNKNOWN = "ok", "unknown_outcome"

CRASHES = [
    Crash("session.created", create_session, runs=()),
    Crash("session.updated", update_session, runs=()),
    Crash("session.forked", fork_session, after=check_fork),
    Crash("request.parsed", run_plain_turn),
    Crash("run.started", run_plain_turn),
    Crash("message.added", run_plain_turn),
    Crash("model.sent", run_plain_turn),
    Crash("model.delta:4", read_stream),
    Crash("message.added:2", run_plain_turn),
    Crash("run.completed", run_plain_turn),
    Crash("answer.ready", run_plain_turn),
    Crash("run.failed", run_failing_turn, runs=("failed",)),
    # The reply and the first start share a commit: that call is lost, the others run.
    Crash("message.added:2", run_batch, tools=(UNKNOWN, OK, OK), effect_count=2),
    Crash("tool.started", run_batch, tools=(UNKNOWN, OK, OK), effect_count=2),
    Crash("tool.done", run_batch, tools=(UNKNOWN, OK, OK), effect_count=3),
    # An idempotent call is run again.
    Crash("tool.started:2", run_batch, tools=(OK, OK, OK), effect_count=3),
    Crash("tool.done:2", run_batch, tools=(OK, OK, OK), effect_count=3),
    Crash("tool.started:3", run_batch, tools=(OK, OK, UNKNOWN), effect_count=2),
    Crash("tool.done:3", run_batch, tools=(OK, OK, UNKNOWN), effect_count=3),
    Crash("message.added:5", run_batch, tools=(OK, OK, OK), effect_count=3),
    Crash("model.sent:2", run_batch, tools=(OK, OK, OK), effect_count=3),
    Crash("context.updated", run_handoffs, tools=(OK, OK, UNKNOWN)),
    Crash("handoff.ignored", run_handoffs, tools=(OK, OK, OK)),
    Crash("handoff.made", run_handoffs, tools=(OK, OK, OK)),
    Crash("approval.requested", ask_for_refund, tools=(OK,), effect_count=1, after=approve_later),
    Crash("run.waiting", ask_for_refund, tools=(OK,), effect_count=1, after=approve_later),
    Crash("approval.decided", approve_refund, tools=(UNKNOWN,)),
    Crash("run.resumed", approve_refund, tools=(UNKNOWN,)),
    Crash("run.queued", queue_run, runs=("completed", "completed")),
    Crash("run.completed", leave_queued_run, runs=("completed", "completed")),
    Crash("run.cancelled", cancel_active_run, runs=("cancelled",)),
    Crash("run.interrupted", stop_server, after=resume_interrupted),
]

# Points that leave nothing in the session's own log.
UNRECORDED_POINTS = {"request.parsed", "model.sent", "model.delta", "tool.done", "answer.ready", "session.forked"}

# A lone server on a file is started again; of several on PostgreSQL another one takes over. The other way round, and
# everything else, in the long run.
USUAL_MODES = {"sqlite": "restart", "postgres": "takeover"}


@dataclass(frozen=True, eq=False)
class Case:
    death: Crash
    kind: str
    mode: str


def _cases() -> Iterator[Any]:
    for death in CRASHES:
        for kind in ("sqlite", "postgres"):
            for mode in ("restart", "takeover"):
                marks = [] if mode == USUAL_MODES[kind] else [pytest.mark.chaos]
                name = f"{death.point}-{death.provoke.__name__}-{kind}-{mode}"
                yield pytest.param(Case(death, kind, mode), id=name, marks=marks)


@run_in_parallel
@pytest.mark.parametrize("case", list(_cases()))
def test_after_a_death_anywhere_the_session_goes_on(cluster: ServerCluster, case: Case) -> None:
    death = case.death
    stage = ArmedSession(cluster, death.point)
    heir = None if case.mode == "restart" else cluster.server()
    death.provoke(stage)
    assert stage.armed_server.wait(PATIENCE_SECONDS) == KILLED
    if heir is None:
        restart_unarmed(stage.armed_server)
    begun = time.monotonic()
    cluster.planned_model.release(stage.gate())
    # Made before the death or now, as the client would that never got an answer.
    session = cluster.client(heir or stage.armed_server).sessions.create(id=stage.session_id)
    wait_until("no run is left", lambda: has_no_open_runs(session))
    assert time.monotonic() - begun <= compute_allowed_seconds()
    log = cluster.log(stage.session_id)
    # What was recorded last is there, although nobody may have been told.
    assert death.event in UNRECORDED_POINTS or death.event in log.types
    assert not stage.acknowledged.list_missing(log)
    stage.ask_again(session)
    death.after(stage, session)
    assert session.run("And then?").status == "completed"
    log = cluster.read_checked_log(stage.session_id)
    assert not stage.acknowledged.list_missing(log)
    ends = [log.list_ends(run_id)[-1].removeprefix("run.") for run_id in log.run_ids]
    assert ends == [*death.runs, "completed"]
    assert tuple(log.read_tool_status().values()) == death.tools
    check_effects(cluster, log, death.effect_count)


def has_no_open_runs(session: Session) -> bool:
    return not {run.status for run in session.runs()} & {"queued", "running"}


def check_effects(cluster: ServerCluster, log: LogRows, begun: int) -> None:
    status, attempts, begins = log.read_tool_status(), log.attempts(), cluster.effects.count()
    assert len(begins) == begun
    assert not cluster.effects.list_repeated()
    ends = cluster.effects.count("end")
    for call_id, end in status.items():
        # Never more effects than recorded starts, and what is recorded as done has had its effect.
        assert begins[call_id] <= attempts[call_id]
        if end == "ok" and call_id in begins:
            assert ends[call_id] >= 1
