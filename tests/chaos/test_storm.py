"""Servers and their workers are killed or stand still at random moments while clients talk: nothing acknowledged is
lost, nothing runs twice, and others go on."""

from __future__ import annotations

import os
import random
import re
import signal
import threading
import time
from functools import partial

import psutil
import pytest

from swarmkeep_client import Client
from tests.chaos.cluster import ServerCluster, compute_allowed_seconds
from tests.chaos.parallel import DATABASE_KINDS, OpenCluster, ParallelTests, run_in_parallel
from tests.chaos.plans import wait_until
from tests.chaos.storm import BEGIN, END, Report, Row, ServerSlot, Storm
from tests.support.source import ROOT

pytestmark = pytest.mark.long

# Over all of the long run; it has four parts.
KILLS = int(os.environ.get("CHAOS_KILLS", "500"))
SEED = int(os.environ.get("CHAOS_SEED", "1"))
# A request to a server that stands still gets no answer, and is sent to another one.
ANSWER_SECONDS = 3.0
WORKER_KILLS = 4
DEATH_LINE = re.compile(r"worker \d \(process (\d+)\) was killed by SIGKILL.*; a new one starts")


def run_storm(cluster: ServerCluster, row: Row, *, talkers: int, kills: int) -> None:
    Storm(cluster, servers=row.servers, talkers=talkers, kills=kills, seed=SEED).check(row)
    assert max(row.taken_over, default=0.0) <= compute_allowed_seconds()


@run_in_parallel
def test_a_short_storm(cluster: ServerCluster) -> None:
    run_storm(cluster, Row("short", 2), talkers=3, kills=4)


@pytest.mark.chaos
@pytest.mark.parametrize("servers", [1, 2])
@pytest.mark.parametrize("kind", DATABASE_KINDS)
def test_a_long_storm(
    kind: str, servers: int, open_cluster: OpenCluster, parallel_tests: ParallelTests, report: Report
) -> None:
    parallel_tests.wait()
    row = Row(kind, servers)
    report.rows.append(row)
    with open_cluster(kind) as cluster:
        run_storm(cluster, row, talkers=6, kills=-(-KILLS // 4))


class StandingSlot(ServerSlot):
    """A server that stands still until all that it did is done by others. One does so at a time."""

    def __init__(self, turn: threading.Lock, cluster: ServerCluster) -> None:
        super().__init__(cluster)
        self._turn = turn
        self._cluster = cluster
        self._dice = random.Random(1)

    def kill(self) -> None:
        with self._turn:
            self._cluster.freeze(self.server)
            self.lifetimes[-1][1] = time.time()
            try:
                held = self._list_runs()
                # Whoever goes on with a run has a lease of its own; those that another server has are soon over.
                wait_until("others go on with all that it did", lambda: not held & self._list_runs())
                # Some wake up at once, others when all is long over.
                time.sleep(self._dice.choice((0.0, 0.0, 1.0)))
            finally:
                self.server.resume()

    def start(self) -> None:
        """It goes on where it was."""
        self.lifetimes.append([time.time(), float("inf")])

    def _list_runs(self) -> set[tuple[str, str, int]]:
        """The sessions that are running, with whose lease it is, and which."""
        found = self._cluster.sql("SELECT id, lease_owner, lease_epoch FROM sessions WHERE status = 'running'")
        return {(name, owner, epoch) for name, owner, epoch in found}


class StandingStorm(Storm):
    """One whose clients do not wait for who stands still."""

    def __init__(self, cluster: ServerCluster, *, standstills: int) -> None:
        super().__init__(
            cluster,
            servers=2,
            talkers=4,
            kills=standstills,
            seed=1,
            open_slot=partial(StandingSlot, threading.Lock()),
            measures_take_overs=False,
        )
        self._hasty = [cluster.client(slot.server, seconds=ANSWER_SECONDS) for slot in self.slots]

    def client(self, place: int) -> Client:
        return super().client(place) if self.ended.is_set() else self._hasty[place]


def stand_still(cluster: ServerCluster, standstills: int) -> None:
    row = Row("standstills", 2)
    StandingStorm(cluster, standstills=standstills).check(row)
    assert row.kills == standstills
    assert row.posted > standstills


@run_in_parallel
def test_a_few_standstills(cluster: ServerCluster) -> None:
    stand_still(cluster, 3)


@pytest.mark.chaos
@pytest.mark.parametrize("kind", DATABASE_KINDS)
def test_many_standstills(kind: str, open_cluster: OpenCluster, parallel_tests: ParallelTests) -> None:
    parallel_tests.wait()
    with open_cluster(kind) as cluster:
        stand_still(cluster, KILLS // 10)


class WorkersSlot(ServerSlot):
    """A server with two workers, of which one is killed at a time."""

    def __init__(self, cluster: ServerCluster) -> None:
        self.server = cluster.server(WORKERS="2")
        # One serves while the other still starts; a server that loses both then could not begin, and says so.
        wait_until("all serve", lambda: "Swarmkeep is listening on" in self.server.output())
        self.lifetimes = [[time.time(), float("inf")]]
        self.killed: list[int] = []
        self._dice = random.Random(1)

    def kill(self) -> None:
        living = wait_until("somebody lives", self.list_workers)
        self.killed.append(self._dice.choice(living))
        os.kill(self.killed[-1], signal.SIGKILL)
        self.lifetimes[-1][1] = time.time()

    def start(self) -> None:
        """Its parent does that."""
        wait_until("its death is told", lambda: str(self.killed[-1]) in DEATH_LINE.findall(self.server.output()))
        self.lifetimes.append([time.time(), float("inf")])

    def list_workers(self) -> list[int]:
        return [child.pid for child in psutil.Process(self.server.pid).children() if child.is_running()]


def test_workers_that_are_killed_under_load(open_cluster: OpenCluster, parallel_tests: ParallelTests) -> None:
    row = Row("workers", 1)
    with open_cluster("postgres") as cluster:
        storm = Storm(
            cluster, servers=1, talkers=4, kills=WORKER_KILLS, seed=1, open_slot=WorkersSlot, measures_take_overs=False
        )
        storm.check(row)
        (slot,) = storm.slots
        assert isinstance(slot, WorkersSlot)
        taken_over = slot.server.output().count(": took over run ")
        # The parent is the one that began, and everybody is there again.
        wait_until("all serve", lambda: len(slot.list_workers()) == 2)
        assert slot.server.stop() == 0
    assert len(set(slot.killed)) == WORKER_KILLS
    assert row.posted > WORKER_KILLS
    assert taken_over > 0


def test_documentation_has_report_place() -> None:
    page = (ROOT / "docs/running.md").read_text()
    assert page.count(BEGIN) == page.count(END) == 1
