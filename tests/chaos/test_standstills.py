"""Servers stand still at random moments while clients talk: others go on with what they did, whatever they held."""

from __future__ import annotations

import os
import random
import threading
import time
from functools import partial

import pytest

from swarmkeep_client import Client
from tests.chaos.cluster import ServerCluster
from tests.chaos.parallel import DATABASE_KINDS, OpenCluster, ParallelTests, run_in_parallel
from tests.chaos.plans import wait_until
from tests.chaos.storm.report import Row
from tests.chaos.storm.storm import ServerSlot, Storm

pytestmark = pytest.mark.long

STANDSTILLS = int(os.environ.get("CHAOS_KILLS", "500")) // 10
# A request to a server that stands still gets no answer, and is sent to another one.
ANSWER_SECONDS = 3.0


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
    storm = StandingStorm(cluster, standstills=standstills)
    storm.run()
    problems = storm.check_aftermath(row)
    assert not problems, problems[:20]
    assert (row.lost, row.double_starts, row.stuck) == (0, 0, 0)
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
        stand_still(cluster, STANDSTILLS)
