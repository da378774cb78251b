"""Workers of one server are killed while clients talk: nothing acknowledged is lost, and nothing runs twice."""

from __future__ import annotations

import os
import random
import re
import signal
import time

import psutil
import pytest

from tests.chaos.cluster import ServerCluster
from tests.chaos.parallel import OpenCluster, ParallelTests
from tests.chaos.plans import wait_until
from tests.chaos.storm.report import Row
from tests.chaos.storm.storm import ServerSlot, Storm

pytestmark = pytest.mark.long

KILLS = 4
DEATH_LINE = re.compile(r"worker \d \(process (\d+)\) was killed by SIGKILL.*; a new one starts")


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
            cluster, servers=1, talkers=4, kills=KILLS, seed=1, open_slot=WorkersSlot, measures_take_overs=False
        )
        storm.run()
        problems = storm.check_aftermath(row)
        (slot,) = storm.slots
        assert isinstance(slot, WorkersSlot)
        taken_over = slot.server.output().count(": took over run ")
        # The parent is the one that began, and everybody is there again.
        wait_until("all serve", lambda: len(slot.list_workers()) == 2)
        assert slot.server.stop() == 0
    assert not problems, problems[:20]
    assert (row.lost, row.double_starts, row.stuck) == (0, 0, 0)
    assert len(set(slot.killed)) == KILLS
    assert row.posted > KILLS
    assert taken_over > 0
