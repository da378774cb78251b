"""Servers die at each point that has a name, and another one, or the same one started again, goes on."""

from __future__ import annotations

import pytest

from swarmkeep_client import Session
from tests.chaos.cluster import ServerCluster, ignore_lost_connection
from tests.chaos.deaths import Aftermath, ArmedSession, Crash, check_effects, list_cases
from tests.chaos.parallel import Case, run_in_parallel
from tests.chaos.plans import call_step, make_plan, refuse_step, say_step
from tests.chaos.records import LogRows

pytestmark = pytest.mark.long

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


def ask_for_refused_call(stage: ArmedSession) -> None:
    stage.run(call_step(("publish", {"what": "classified"})), DONE)


def say_what_is_refused(stage: ArmedSession) -> None:
    stage.run(say_step("top secret"))


def queue_run(stage: ArmedSession) -> None:
    session = stage.begin()
    stage.acknowledged.run(session.run(make_plan(say_step("First.", hold=stage.gate)), background=True))
    stage.cluster.planned_model.wait_for(stage.gate)
    with ignore_lost_connection():
        session.run(make_plan(say_step("Second.")), on_busy="queue", background=True)


def leave_queued_run(stage: ArmedSession) -> None:
    session = stage.begin()
    stage.acknowledged.run(session.run(make_plan(say_step("First.", hold=stage.gate)), background=True))
    stage.cluster.planned_model.wait_for(stage.gate)
    stage.acknowledged.run(session.run(make_plan(say_step("Second.")), on_busy="queue", background=True))
    stage.cluster.planned_model.release(stage.gate)


def cancel_active_run(stage: ArmedSession) -> None:
    session = stage.begin()
    run = session.run(make_plan(say_step("First.", hold=stage.gate)), background=True)
    stage.cluster.planned_model.wait_for(stage.gate)
    with ignore_lost_connection():
        session.cancel(run.id)


def stop_server(stage: ArmedSession) -> None:
    session = stage.begin()
    stage.acknowledged.run(session.run(make_plan(say_step("Late.", hold=stage.gate)), background=True))
    stage.cluster.planned_model.wait_for(stage.gate)
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
    Crash("session.forked", fork_session, in_fork=True, after=check_fork),
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
    Crash("guardrail.tripped", ask_for_refused_call, tools=("refused",)),
    Crash("tool.started", ask_for_refused_call, tools=("refused",)),
    Crash("guardrail.tripped", say_what_is_refused),
    Crash("run.started", say_what_is_refused),
    Crash("handoff.ignored", run_handoffs, tools=(OK, OK, OK)),
    Crash("handoff.made", run_handoffs, tools=(OK, OK, OK)),
    Crash("approval.requested", ask_for_refund, tools=(OK,), effect_count=1, after=approve_later),
    Crash("run.waiting", ask_for_refund, tools=(OK,), effect_count=1, after=approve_later),
    Crash("approval.decided", approve_refund, tools=(UNKNOWN,)),
    Crash("run.resumed", approve_refund, tools=(UNKNOWN,)),
    Crash("run.queued", queue_run, runs=("completed", "completed")),
    Crash("run.completed", leave_queued_run, runs=("completed", "completed")),
    Crash("run.cancelled", cancel_active_run, runs=("cancelled",)),
]
# A server that stops interrupts every session.
STOPPED = Crash("run.interrupted", stop_server, after=resume_interrupted)

# Points that leave nothing in the session's own log.
UNRECORDED_POINTS = {"request.parsed", "model.sent", "model.delta", "tool.done", "answer.ready", "session.forked"}


@run_in_parallel
@pytest.mark.parametrize("case", list(list_cases()))
def test_sessions_continue_after_any_death(cluster: ServerCluster, case: Case) -> None:
    check_aftermath(cluster, Aftermath(cluster, case, CRASHES))


@run_in_parallel
@pytest.mark.parametrize("case", list(list_cases()))
def test_session_continues_after_death_while_stopping(cluster: ServerCluster, case: Case) -> None:
    check_aftermath(cluster, Aftermath(cluster, case, [STOPPED]))


def check_aftermath(cluster: ServerCluster, aftermath: Aftermath) -> None:
    def check(crash: Crash, stage: ArmedSession, session: Session, log: LogRows) -> None:
        # What was recorded last is there, although nobody may have been told.
        assert crash.event in UNRECORDED_POINTS or crash.event in log.types
        assert not stage.acknowledged.list_missing(log)
        stage.ask_again(session)
        crash.after(stage, session)
        assert session.run("And then?").status == "completed"
        log = cluster.read_checked_log(stage.session_id)
        assert not stage.acknowledged.list_missing(log)
        ends = [log.list_ends(run_id)[-1].removeprefix("run.") for run_id in log.run_ids]
        assert ends == [*crash.runs, "completed"]
        assert tuple(log.read_tool_status().values()) == crash.tools
        check_effects(cluster, log, crash.effect_count)

    aftermath.check_each(check)
    assert len(cluster.effects.count()) == sum(crash.effect_count for crash, _ in aftermath.sessions)
