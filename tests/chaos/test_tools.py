"""A server is killed before, during and after a tool's effect: alone, and anywhere in a batch of calls."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest

from swarmkeep_client import Client
from tests.chaos.cluster import (
    KILLED,
    Acknowledgements,
    ServerCluster,
    Succession,
    ignore_lost_connection,
    wait_until_quiet,
)
from tests.chaos.parallel import DATABASE_KINDS, Case, run_in_parallel
from tests.chaos.plans import PATIENCE_SECONDS, call_step, make_plan, say_step, wait_until
from tests.chaos.records import LogRows

pytestmark = pytest.mark.long

ROUNDS = int(os.environ.get("CHAOS_ROUNDS", "3"))
OTHERS = ("pay", "put", "visit")


@dataclass(frozen=True, eq=False)
class Hit:
    """`tool` is hit at `place` in a batch of `size` calls."""

    when: str
    tool: str
    place: int
    size: int

    @property
    def session_id(self) -> str:
        return f"{self.when}-{self.tool}-{self.place}of{self.size}"

    @property
    def tools(self) -> list[str]:
        """The batch: the tool that is hit, and others around it."""
        return [self.tool if place == self.place else OTHERS[place % 3] for place in range(1, self.size + 1)]

    @property
    def message(self) -> str:
        batch = [
            (tool, {"what": str(place), **({"door": "door"} if (place, self.when) == (self.place, "during") else {})})
            for place, tool in enumerate(self.tools, 1)
        ]
        return make_plan(call_step(*batch), say_step("Done."))

    @property
    def kill_at(self) -> str:
        point = {"before": "tool.started", "after": "tool.done"}[self.when]
        return f"{self.session_id}@{point}:{self.place}"


PLACES = ((1, 1), (1, 3), (2, 3), (3, 3))
DURING = [Hit("during", tool, *place) for tool in OTHERS for place in PLACES]
BESIDE = [Hit(when, tool, *place) for when in ("before", "after") for tool in OTHERS for place in PLACES]


def _cases() -> Iterator[Any]:
    for number in range(ROUNDS):
        for kind in DATABASE_KINDS:
            restarted = (kind == "sqlite") == (number % 2 == 0)
            marks = [pytest.mark.chaos] if number else []
            mode = "restart" if restarted else "takeover"
            yield pytest.param(Case(kind, restarted), id=f"{kind}-{mode}-round{number + 1}", marks=marks)


@run_in_parallel
@pytest.mark.parametrize("case", list(_cases()))
def test_non_repeatable_tool_runs_once(cluster: ServerCluster, case: Case) -> None:
    servers = Succession(cluster, ",".join(hit.kill_at for hit in BESIDE), restarted=case.restarted)
    client = cluster.client(servers.armed)
    told = {hit: Acknowledgements() for hit in (*DURING, *BESIDE)}
    for hit, witness in told.items():
        witness.session(client.sessions.create(id=hit.session_id))
    for hit in DURING:
        told[hit].run(client.sessions.get(hit.session_id).run(hit.message, background=True))
    begun = sum(hit.place for hit in DURING)
    wait_until("the effects have begun", lambda: len(cluster.effects.count()) == begun)
    with ThreadPoolExecutor(len(BESIDE)) as pool:
        list(pool.map(lambda hit: _run_until_death(client, hit), BESIDE))
    assert servers.armed.wait(PATIENCE_SECONDS) == KILLED
    cluster.open("door")
    client = cluster.client(servers.outlive())
    sessions = [wait_until_quiet(client.sessions.get(hit.session_id)) for hit in told]
    assert {session.run("And then?").status for session in sessions} == {"completed"}
    logs = [cluster.read_checked_log(hit.session_id) for hit in told]
    begins, ends = cluster.effects.count("begin"), cluster.effects.count("end")
    assert not cluster.effects.list_repeated()
    assert set(begins) <= {call_id for log in logs for call_id in log.attempts()}
    for (hit, witness), log in zip(told.items(), logs, strict=True):
        assert not witness.list_missing(log), hit
        assert [log.list_ends(run_id) for run_id in log.run_ids] == [["run.completed"]] * 2, hit
        _check(hit, log, begins, ends)


def _run_until_death(client: Client, hit: Hit) -> None:
    with ignore_lost_connection():
        client.sessions.get(hit.session_id).run(hit.message)


def _check(hit: Hit, log: LogRows, begins: Counter[str], ends: Counter[str]) -> None:
    attempts, status = log.attempts(), log.read_tool_status()
    for place, call_id in enumerate(attempts, 1):
        is_hit, again = place == hit.place, hit.tool == "put"
        assert attempts[call_id] == (2 if is_hit and again else 1), hit
        assert status[call_id] == ("unknown_outcome" if is_hit and not again else "ok"), hit
        first = {"before": 0, "during": 1, "after": 1}[hit.when] if is_hit else 1
        assert begins[call_id] == first + (1 if is_hit and again else 0), hit
        assert ends[call_id] == begins[call_id] - (1 if is_hit and hit.when == "during" else 0), hit
