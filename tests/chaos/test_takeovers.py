"""A server is killed as a person takes over, answers and hands back: what was recorded holds, nothing is said twice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import pytest

from swarmkeep_client import ConnectionFailed, Session
from tests.chaos.cluster import ServerCluster, Succession, wait_until_quiet
from tests.chaos.parallel import DATABASE_KINDS, Case, run_in_parallel
from tests.chaos.plans import call_step, make_plan, say_step, wait_until

pytestmark = pytest.mark.long

T = TypeVar("T")

# In their order: a function is under way, its result comes and the model would be asked, the answer, the end of it.
POINTS = ("session.taken_over:1", "message.added:3", "message.added:4", "session.handed_back:1")


def _cases() -> Iterator[Any]:
    for place, point in enumerate(POINTS):
        kind = DATABASE_KINDS[place % 2]
        yield pytest.param(Case(kind, kind == "sqlite", point), id=f"{point}-{kind}")


@run_in_parallel
@pytest.mark.parametrize("case", list(_cases()))
def test_a_takeover_outlives_its_server(cluster: ServerCluster, case: Case) -> None:
    servers = Succession(cluster, case.point, restarted=case.restarted)
    session = cluster.client(servers.armed).sessions.create(id="s")
    # The function waits at a door, so that it is under way when somebody takes over.
    plan = make_plan(call_step(("put", {"what": "1", "door": "door"})), say_step("The agent's."))
    run = session.run(plan, background=True)
    wait_until("the function is under way", lambda: cluster.effects.count("begin"))

    def insist(command: Callable[[Session], T]) -> T:
        """Have a command carried out; where the server dies of it, once more on another one."""
        nonlocal session
        try:
            return command(session)
        except ConnectionFailed:
            session = cluster.client(servers.outlive()).sessions.get("s")
            return command(session)

    insist(lambda session: session.take_over(note="n", idempotency_key="take"))
    cluster.open("door")

    def is_paused() -> bool:
        found = insist(lambda session: session.get_run(run.id))
        return found.status == "waiting" and found.pending[0].reason == "person"

    wait_until("the run waits for the person", is_paused)
    insist(lambda session: session.answer("The person's.", idempotency_key="answer"))
    insist(lambda session: session.hand_back(note="be kind", idempotency_key="back"))
    wait_until_quiet(session)
    log = cluster.read_checked_log("s")
    assert [log.types.count(f"session.{name}") for name in ("taken_over", "handed_back")] == [1, 1]
    said = [data for data in log.of("message.added") if "person" in data]
    assert [data["message"]["role"] for data in said] == ["assistant", "user"]
    assert log.list_ends(run.id) == ["run.completed"]
    assert not cluster.effects.list_repeated()
    # No model was asked after the takeover, and the agent answers again now.
    assert sum("completion" in data for data in log.of("message.added")) == 1
    assert session.run(make_plan(say_step("Again the agent's."))).output_text == "Again the agent's."
