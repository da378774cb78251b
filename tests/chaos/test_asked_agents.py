"""A server is killed while an agent asks another one: both go on, and nothing is asked for or paid twice."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.chaos.cluster import KILLED, ServerCluster, Succession, ignore_lost_connection, wait_until_quiet
from tests.chaos.parallel import Case, run_in_parallel
from tests.chaos.plans import call_step, make_plan, say_step, wait_until
from tests.chaos.records import LogRows

pytestmark = pytest.mark.long

# From the start of the call to its result: what is recorded of both sessions, and what is done between.
POINTS = (
    "tool.started:1",  # the call that asks, of which nothing exists below yet
    "session.created:2",
    "run.started:2",
    "tool.started:2",  # a call of the agent that is asked
    "tool.done:1",
    "run.completed:1",
    "child.ended:1",  # its answer is known above
    "tool.done:2",
    "message.added:7",  # and recorded
)
SHORT = ("session.created:2", "tool.done:1", "child.ended:1")
# The same for two calls that start together.
AT_ONCE = (
    "tool.started:1",
    "tool.started:2",
    "session.created:2",
    "session.created:3",
    "child.ended:1",
    "child.ended:2",
)
AT_ONCE_SHORT = ("session.created:3", "child.ended:2")


def _cases(points: tuple[str, ...] = POINTS, short: tuple[str, ...] = SHORT) -> Iterator[Any]:
    for point in points:
        for kind, restarted in (("sqlite", True), ("postgres", False)):
            marks = () if point in short else (pytest.mark.chaos,)
            yield pytest.param(Case(kind, restarted, point), id=f"{point}-{kind}", marks=marks)


def ask_plan(*steps: Any) -> str:
    """A message that has the lead ask the clerk to take these steps."""
    return make_plan(call_step(("ask_clerk", {"input": make_plan(*steps)})), say_step("All is done."))


def read_child_ids(cluster: ServerCluster) -> list[str]:
    return [name for (name,) in cluster.sql("SELECT id FROM sessions WHERE id LIKE 'subsess%'")]


def recover(cluster: ServerCluster, servers: Succession) -> LogRows:
    """The log of the session that asks, once its server has died and its run has come to its end."""
    session = wait_until_quiet(cluster.client(servers.outlive()).sessions.get("s"))
    assert next(session.runs()).output_text == "All is done."
    return cluster.read_checked_log("s")


@run_in_parallel
@pytest.mark.parametrize("case", list(_cases()))
def test_asking_call_is_taken_up(cluster: ServerCluster, case: Case) -> None:
    servers = Succession(cluster, case.point, restarted=case.restarted)
    session = cluster.client(servers.armed).sessions.create(id="s", agent="Lead")
    with ignore_lost_connection():
        session.run(ask_plan(call_step(("put", {"what": "1"})), say_step("It is put.")))
    log = recover(cluster, servers)
    assert list(log.read_tool_status().values()) == ["ok"]
    assert list(log.attempts().values()) == [1]
    (child,) = read_child_ids(cluster)
    below = cluster.read_checked_log(child)
    assert [below.types.count(name) for name in ("run.started", "run.completed")] == [1, 1]
    assert list(below.read_tool_status().values()) == ["ok"]
    assert below.data[0]["parent"]["session_id"] == "s"
    # Model calls that are recorded: two above and two below, each once.
    assert sum("completion" in data for data in (*log.of("message.added"), *below.of("message.added"))) == 4


@run_in_parallel
@pytest.mark.parametrize("case", list(_cases(AT_ONCE, AT_ONCE_SHORT)))
def test_two_asked_agents_are_taken_up(cluster: ServerCluster, case: Case) -> None:
    servers = Succession(cluster, case.point, restarted=case.restarted)
    session = cluster.client(servers.armed).sessions.create(id="s", agent="Lead")
    errands = [make_plan(call_step(("put", {"what": what})), say_step(f"{what} is put.")) for what in ("1", "2")]
    plan = make_plan(call_step(*[("ask_clerk", {"input": each}) for each in errands]), say_step("All is done."))
    with ignore_lost_connection():
        session.run(plan)
    log = recover(cluster, servers)
    assert list(log.read_tool_status().values()) == ["ok", "ok"]
    assert list(log.attempts().values()) == [1, 1]
    children = [cluster.read_checked_log(child) for child in read_child_ids(cluster)]
    assert [below.types.count("run.started") for below in children] == [1, 1]
    assert [list(below.read_tool_status().values()) for below in children] == [["ok"], ["ok"]]
    assert sum("completion" in data for each in (log, *children) for data in each.of("message.added")) == 6


@run_in_parallel
def test_cancelled_runs_child_does_not_continue(cluster: ServerCluster) -> None:
    # It dies between the two cancels: the one above is recorded.
    servers = Succession(cluster, "run.cancelled")
    session = cluster.client(servers.armed).sessions.create(id="s", agent="Lead")
    run = session.run(ask_plan(call_step(("pay", {"what": "1", "door": "door"}))), background=True)
    wait_until("the effect has begun", lambda: cluster.effects.count())
    with ignore_lost_connection():
        session.cancel(run.id)
    assert servers.armed.wait() == KILLED
    cluster.open("door")
    server = servers.outlive()
    (child,) = read_child_ids(cluster)
    below = wait_until_quiet(cluster.client(server).sessions.get(child))
    assert [each.status for each in below.runs()] == ["cancelled"]
    assert sum("completion" in data for data in cluster.read_checked_log(child).of("message.added")) == 1
    assert not cluster.effects.list_repeated()


@run_in_parallel
def test_child_decision_survives_server_death(cluster: ServerCluster) -> None:
    # It dies when the decision is recorded, and nobody has told the run above.
    servers = Succession(cluster, "run.resumed")
    session = cluster.client(servers.armed).sessions.create(id="s", agent="Lead")
    run = session.run(ask_plan(call_step(("refund", {"what": "1"})), say_step("Refunded.")))
    assert (run.status, [call.reason for call in run.pending]) == ("waiting", ["session"])
    (child,) = read_child_ids(cluster)
    below = cluster.client(servers.armed).sessions.get(child)
    (asked,) = list(below.runs())
    with ignore_lost_connection():
        below.resume(asked.id, approvals=[{"tool_call_id": asked.pending[0].tool_call_id, "decision": "approve"}])
    session = cluster.client(servers.outlive()).sessions.get("s")
    wait_until("it went on", lambda: session.refresh().status == "idle")
    assert next(session.runs()).output_text == "All is done."
    # The call that was approved had been started; whether it took effect, nobody knows.
    assert list(cluster.read_checked_log(child).read_tool_status().values()) == ["unknown_outcome"]
    assert list(cluster.read_checked_log("s").read_tool_status().values()) == ["ok"]
