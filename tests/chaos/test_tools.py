"""A server is killed before, during and after a tool's effect: alone, and anywhere in a batch of calls."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from tests.chaos.cluster import (
    Acknowledgements,
    ServerCluster,
    compute_allowed_seconds,
    ignore_lost_connection,
    restart_unarmed,
    wait_until_quiet,
)
from tests.chaos.parallel import run_in_parallel
from tests.chaos.plans import call_step, make_plan, say_step, wait_until

pytestmark = pytest.mark.long

KILLED = -9
ROUNDS = int(os.environ.get("CHAOS_ROUNDS", "3"))
OTHERS = ("pay", "put", "visit")


@dataclass(frozen=True, eq=False)
class Case:
    """`tool` is hit at `place` in a batch of `size` calls."""

    kind: str
    tool: str
    when: str
    place: int
    size: int
    restarted: bool

    @property
    def name(self) -> str:
        mode = "restart" if self.restarted else "takeover"
        return f"{self.when}-{self.tool}-{self.place}of{self.size}-{self.kind}-{mode}"

    @property
    def tools(self) -> list[str]:
        """The batch: the tool that is hit, and others around it."""
        return [self.tool if place == self.place else OTHERS[place % 3] for place in range(1, self.size + 1)]

    @property
    def kill_at(self) -> str | None:
        point = {"before": "tool.started", "after": "tool.done"}.get(self.when)
        return point and f"{point}:{self.place}"


def _cases() -> Iterator[Any]:
    short = [("during", tool, place, size) for tool in ("pay", "put", "visit") for place, size in ((1, 1), (2, 3))]
    short += [("before", "visit", 1, 1), ("after", "visit", 1, 1)]
    for kind, restarted in (("sqlite", True), ("postgres", False)):
        for when, tool, place, size in short:
            case = Case(kind, tool, when, place, size, restarted)
            yield pytest.param(case, id=case.name)
    for number in range(ROUNDS):
        for kind in ("sqlite", "postgres"):
            for when in ("before", "during", "after"):
                for tool in ("pay", "put", "visit"):
                    for place, size in ((1, 1), (1, 3), (2, 3), (3, 3)):
                        case = Case(kind, tool, when, place, size, restarted=number % 2 == 0)
                        yield pytest.param(case, id=f"{case.name}-round{number + 1}", marks=pytest.mark.chaos)


@run_in_parallel
@pytest.mark.parametrize("case", list(_cases()))
def test_a_tool_that_must_not_run_twice_does_not(cluster: ServerCluster, case: Case) -> None:
    server = cluster.server(kill_at=case.kill_at)
    heir = None if case.restarted else cluster.server()
    witness = Acknowledgements()
    session = witness.session(cluster.client(server).sessions.create(id="s"))
    batch = [
        (tool, {"what": str(place), **({"door": "door"} if (place, case.when) == (case.place, "during") else {})})
        for place, tool in enumerate(case.tools, 1)
    ]
    message = make_plan(call_step(*batch), say_step("Done."))
    if case.when == "during":
        witness.run(session.run(message, background=True))
        wait_until("the effect has begun", lambda: len(cluster.effects.count()) == case.place)
        server.kill()
    else:
        with ignore_lost_connection():
            session.run(message)
    assert server.wait() == KILLED
    cluster.open("door")
    if heir is None:
        restart_unarmed(server)
    begun = time.monotonic()
    session = wait_until_quiet(cluster.client(heir or server).sessions.get("s"))
    assert time.monotonic() - begun <= compute_allowed_seconds()
    assert session.run("And then?").status == "completed"
    _check(case, cluster, witness)


def _check(case: Case, cluster: ServerCluster, witness: Acknowledgements) -> None:
    log = cluster.read_checked_log("s")
    assert not witness.list_missing(log)
    assert [log.list_ends(run_id) for run_id in log.run_ids] == [["run.completed"]] * 2
    started = log.of("tool.started")
    calls_made = list(dict.fromkeys(data["tool_call_id"] for data in started))
    begins, ends, status = cluster.effects.count("begin"), cluster.effects.count("end"), log.read_tool_status()
    assert not cluster.effects.list_repeated()
    assert set(begins) <= set(calls_made)
    for place, call_id in enumerate(calls_made, 1):
        hit, again = place == case.place, case.tool == "put"
        attempts = log.attempts()[call_id]
        assert attempts == (2 if hit and again else 1)
        assert status[call_id] == ("unknown_outcome" if hit and not again else "ok")
        first = {"before": 0, "during": 1, "after": 1}[case.when] if hit else 1
        assert begins[call_id] == first + (1 if hit and again else 0)
        assert ends[call_id] == begins[call_id] - (1 if hit and case.when == "during" else 0)
