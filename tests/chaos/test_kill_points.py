"""A server dies at each point that has a name, and another one, or the same one started again, goes on."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest

from swarmkeep_client import RunFailed, Session
from tests.chaos.house import (
    House,
    Witness,
    allowed_seconds,
    broken_off,
    revive,
)
from tests.chaos.plans import PATIENCE_SECONDS, Json, calls, plan, refuse, say, until
from tests.chaos.records import Log
from tests.chaos.scene import at_once

KILLED = -9


class Stage:
    """One death: a session on a server that is armed, and what its client was told."""

    def __init__(self, house: House, kill_at: str) -> None:
        self.house = house
        self.session_id = "s"
        self.armed = house.server(kill_at=kill_at)
        self.client = house.client(self.armed)
        self.witness = Witness()
        self.asked: Json = {}

    def begin(self) -> Session:
        return self.witness.session(self.client.sessions.create(id=self.session_id))

    def run(self, *steps: Json, **options: Any) -> None:
        """Run a plan on the armed server, which should not live to tell."""
        session = self.begin()
        self.asked = {"input": plan(*steps), "idempotency_key": "key", **options}
        with broken_off():
            self.witness.run(session.run(**self.asked))

    def ask_again(self, session: Session) -> None:
        """Send the same request once more, as a client does that got no answer."""
        if self.asked:
            with suppress(RunFailed):
                session.run(**self.asked)

    def stream(self, *steps: Json) -> None:
        session = self.begin()
        with broken_off():
            for item in session.stream(plan(*steps)):
                self.witness.item(item)

    def gate(self) -> str:
        return "gate"


@dataclass(frozen=True)
class Death:
    """Where to die, how to get there, and what should have become of it in the end.

    `tools`: the final status of each call, in order. `begun`: how many calls had an effect at all.
    """

    point: str
    act: Callable[[Stage], None]
    runs: tuple[str, ...] = ("completed",)
    tools: tuple[str, ...] = ()
    begun: int = 0
    after: Callable[[Stage, Session], None] = lambda stage, session: None

    @property
    def event(self) -> str:
        return self.point.partition(":")[0]


DONE = say("Done.")
BATCH = (calls(("pay", {"what": "a"}), ("put", {"what": "b"}), ("pay", {"what": "c"})), DONE)
HANDOFFS = (calls(("to_boss", {}), ("remember", {"key": "k", "value": "v"}), ("to_clerk", {})), say("At your service."))
REFUND = (calls(("refund", {"what": "a"})), DONE)


def just_talk(stage: Stage) -> None:
    stage.run(say("Hello."))


def listen(stage: Stage) -> None:
    stage.stream(say("One two three four five six."))


def batch(stage: Stage) -> None:
    stage.run(*BATCH)


def handoffs(stage: Stage) -> None:
    stage.run(*HANDOFFS)


def ask_for_refund(stage: Stage) -> None:
    stage.run(*REFUND)


def approve_refund(stage: Stage) -> None:
    stage.run(*REFUND)
    run = stage.witness.runs[-1]
    assert run.status == "waiting"
    with broken_off():
        approve(stage.client.sessions.get(stage.session_id), run.id, run.pending[0].tool_call_id)


def approve(session: Session, run_id: str, call_id: str) -> None:
    session.resume(run_id, approvals=[{"tool_call_id": call_id, "decision": "approve"}])


def approve_later(stage: Stage, session: Session) -> None:
    """The run waits still, and goes on once somebody decides."""
    run = next(session.runs())
    assert run.status == "waiting"
    approve(session, run.id, run.pending[0].tool_call_id)


def fail(stage: Stage) -> None:
    stage.run(refuse(400))


def queue(stage: Stage) -> None:
    session = stage.begin()
    stage.witness.run(session.run(plan(say("First.", hold=stage.gate())), background=True))
    stage.house.mind.wait_for(stage.gate())
    with broken_off():
        session.run(plan(say("Second.")), on_busy="queue", background=True)


def leave_a_queue(stage: Stage) -> None:
    session = stage.begin()
    stage.witness.run(session.run(plan(say("First.", hold=stage.gate())), background=True))
    stage.house.mind.wait_for(stage.gate())
    stage.witness.run(session.run(plan(say("Second.")), on_busy="queue", background=True))
    stage.house.mind.release(stage.gate())


def cancel(stage: Stage) -> None:
    session = stage.begin()
    run = session.run(plan(say("First.", hold=stage.gate())), background=True)
    stage.house.mind.wait_for(stage.gate())
    with broken_off():
        session.cancel(run.id)


def stop(stage: Stage) -> None:
    session = stage.begin()
    stage.witness.run(session.run(plan(say("Late.", hold=stage.gate())), background=True))
    stage.house.mind.wait_for(stage.gate())
    stage.armed.signal(15)


def resume_interrupted(stage: Stage, session: Session) -> None:
    run = next(session.runs())
    assert run.status == "interrupted"
    assert session.resume(run.id).output_text == "Late."


def rename(stage: Stage) -> None:
    session = stage.begin()
    with broken_off():
        session.update(metadata={"name": "new"})


def create(stage: Stage) -> None:
    with broken_off():
        stage.begin()


def fork(stage: Stage) -> None:
    session = stage.begin()
    assert session.run(plan(say("Hello."))).status == "completed"
    with broken_off():
        session.fork(id=f"{stage.session_id}-fork")


def fork_again(stage: Stage, session: Session) -> None:
    assert stage.house.checked(f"{stage.session_id}-fork").types[-1] == "session.forked"


OK, UNKNOWN = "ok", "unknown_outcome"

DEATHS = [
    Death("session.created", create, runs=()),
    Death("session.updated", rename, runs=()),
    Death("session.forked", fork, after=fork_again),
    Death("request.parsed", just_talk),
    Death("run.started", just_talk),
    Death("message.added", just_talk),
    Death("model.sent", just_talk),
    Death("model.delta:4", listen),
    Death("message.added:2", just_talk),
    Death("run.completed", just_talk),
    Death("answer.ready", just_talk),
    Death("run.failed", fail, runs=("failed",)),
    # The reply and the first start share a commit: that call is lost, the others run.
    Death("message.added:2", batch, tools=(UNKNOWN, OK, OK), begun=2),
    Death("tool.started", batch, tools=(UNKNOWN, OK, OK), begun=2),
    Death("tool.done", batch, tools=(UNKNOWN, OK, OK), begun=3),
    # An idempotent call is run again.
    Death("tool.started:2", batch, tools=(OK, OK, OK), begun=3),
    Death("tool.done:2", batch, tools=(OK, OK, OK), begun=3),
    Death("tool.started:3", batch, tools=(OK, OK, UNKNOWN), begun=2),
    Death("tool.done:3", batch, tools=(OK, OK, UNKNOWN), begun=3),
    Death("message.added:5", batch, tools=(OK, OK, OK), begun=3),
    Death("model.sent:2", batch, tools=(OK, OK, OK), begun=3),
    Death("context.updated", handoffs, tools=(OK, OK, UNKNOWN)),
    Death("handoff.ignored", handoffs, tools=(OK, OK, OK)),
    Death("handoff.made", handoffs, tools=(OK, OK, OK)),
    Death("approval.requested", ask_for_refund, tools=(OK,), begun=1, after=approve_later),
    Death("run.waiting", ask_for_refund, tools=(OK,), begun=1, after=approve_later),
    Death("approval.decided", approve_refund, tools=(UNKNOWN,)),
    Death("run.resumed", approve_refund, tools=(UNKNOWN,)),
    Death("run.queued", queue, runs=("completed", "completed")),
    Death("run.completed", leave_a_queue, runs=("completed", "completed")),
    Death("run.cancelled", cancel, runs=("cancelled",)),
    Death("run.interrupted", stop, after=resume_interrupted),
]

# Points that leave nothing in the session's own log.
PASSING = {"request.parsed", "model.sent", "model.delta", "tool.done", "answer.ready", "session.forked"}

# A lone server on a file is started again; of several on PostgreSQL another one takes over. The other way round, and
# everything else, in the long run.
USUAL = {"sqlite": "restart", "postgres": "takeover"}


@dataclass(frozen=True, eq=False)
class Case:
    death: Death
    kind: str
    mode: str


def _cases() -> Iterator[Any]:
    for death in DEATHS:
        for kind in ("sqlite", "postgres"):
            for mode in ("restart", "takeover"):
                marks = [] if mode == USUAL[kind] else [pytest.mark.chaos]
                name = f"{death.point}-{death.act.__name__}-{kind}-{mode}"
                yield pytest.param(Case(death, kind, mode), id=name, marks=marks)


@at_once
@pytest.mark.parametrize("case", list(_cases()))
def test_after_a_death_anywhere_the_session_goes_on(house: House, case: Case) -> None:
    death = case.death
    stage = Stage(house, death.point)
    heir = None if case.mode == "restart" else house.server()
    death.act(stage)
    assert stage.armed.wait(PATIENCE_SECONDS) == KILLED
    if heir is None:
        revive(stage.armed)
    begun = time.monotonic()
    house.mind.release(stage.gate())
    # Made before the death or now, as the client would that never got an answer.
    session = house.client(heir or stage.armed).sessions.create(id=stage.session_id)
    until("no run is left", lambda: all_settled(session))
    assert time.monotonic() - begun <= allowed_seconds()
    log = house.log(stage.session_id)
    # What was recorded last is there, although nobody may have been told.
    assert death.event in PASSING or death.event in log.types
    assert not stage.witness.missing(log)
    stage.ask_again(session)
    death.after(stage, session)
    assert session.run("And then?").status == "completed"
    log = house.checked(stage.session_id)
    assert not stage.witness.missing(log)
    ends = [log.ends(run_id)[-1].removeprefix("run.") for run_id in log.run_ids]
    assert ends == [*death.runs, "completed"]
    assert tuple(log.tool_status().values()) == death.tools
    check_effects(house, log, death.begun)


def all_settled(session: Session) -> bool:
    return not {run.status for run in session.runs()} & {"queued", "running"}


def check_effects(house: House, log: Log, begun: int) -> None:
    status, attempts, begins = log.tool_status(), log.attempts(), house.effects.count()
    assert len(begins) == begun
    assert not house.effects.twice()
    ends = house.effects.count("end")
    for call_id, end in status.items():
        # Never more effects than recorded starts, and what is recorded as done has had its effect.
        assert begins[call_id] <= attempts[call_id]
        if end == "ok" and call_id in begins:
            assert ends[call_id] >= 1
