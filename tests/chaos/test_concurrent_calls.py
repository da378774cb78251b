"""Servers die after each prefix of the starts and results of calls that run at once, and another one goes on."""

from __future__ import annotations

from typing import Any

import pytest

from swarmkeep_client import Session
from tests.chaos.cluster import ServerCluster
from tests.chaos.deaths import Aftermath, ArmedSession, Crash, check_effects, list_cases
from tests.chaos.parallel import Case, run_in_parallel
from tests.chaos.plans import call_step, say_step
from tests.chaos.records import LogRows

pytestmark = pytest.mark.long

# Where it dies, and how many of the three results are recorded by then.
POINTS = {
    "message.added:2": 0,
    "tool.started:1": 0,
    "tool.started:2": 0,
    "tool.started:3": 0,
    "tool.done:1": 0,
    "message.added:3": 1,
    "tool.done:2": 1,
    "message.added:4": 2,
    "tool.done:3": 2,
    "message.added:5": 3,
    "model.sent:2": 3,
}
PLAN = {
    "wash": [("wash", {"what": "a"}), ("wash", {"what": "b"}), ("wash", {"what": "c"})],
    "dry": [("dry", {"what": "a"}), ("dry", {"what": "b"}), ("dry", {"what": "c"})],
    "both": [("dry", {"what": "a"}), ("wash", {"what": "b"}), ("dry", {"what": "c"})],
}


def run_plan(name: str) -> Any:
    def run(stage: ArmedSession) -> None:
        stage.run(call_step(*PLAN[name]), say_step("Done."), agent="Crew")

    run.__name__ = name
    return run


@run_in_parallel
@pytest.mark.parametrize("case", list(list_cases()))
def test_death_among_calls_keeps_recorded_results(cluster: ServerCluster, case: Case) -> None:
    recorded: set[str] = set()

    def check_and_note(crash: Crash, stage: ArmedSession, session: Session, log: LogRows) -> None:
        check(crash, stage, session, log)
        recorded.update(log.attempts())

    crashes = [Crash(point, run_plan(name)) for point in POINTS for name in PLAN]
    Aftermath(cluster, case, crashes).check_each(check_and_note)
    # Nothing had an effect that no log knows of.
    assert set(cluster.effects.count()) <= recorded


def check(crash: Crash, stage: ArmedSession, session: Session, log: LogRows) -> None:
    assert not (found := log.problems()), found
    assert not stage.acknowledged.list_missing(log)
    calls = PLAN[crash.provoke.__name__]
    by_call = log.read_tool_status()
    messages = [data["message"] for data in log.of("message.added")]
    statuses = [by_call[call["id"]] for message in messages for call in message.get("tool_calls") or ()]
    names = [name for name, _ in calls]
    recorded = POINTS[crash.point]
    lost = statuses.count("unknown_outcome")
    # An idempotent one is run again, of the others nobody knows.
    assert statuses == ["ok" if name == "dry" else status for name, status in zip(names, statuses, strict=True)]
    assert set(statuses) <= {"ok", "unknown_outcome"}
    assert lost <= min(3 - recorded, names.count("wash"))
    assert lost >= min(3 - recorded, names.count("wash")) - (names.count("dry") if recorded else 0)
    begins = stage.cluster.effects.count()
    check_effects(stage.cluster, log, sum(call_id in begins for call_id in by_call))
    done = [given["what"] for (_, given), status in zip(calls, statuses, strict=True) if status == "ok"]
    context = session.state().context_variables
    assert sorted(context) == sorted([*done, *(["last"] if done else [])])
    assert context.get("last") == (done[-1] if done else None)
    assert session.run("And then?").status == "completed"
