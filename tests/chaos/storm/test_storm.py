"""Servers are killed at random moments while clients talk: nothing acknowledged is lost, and nothing runs twice."""

from __future__ import annotations

import os

import pytest

from tests.chaos.cluster import ServerCluster, compute_allowed_seconds
from tests.chaos.parallel import DATABASE_KINDS, OpenCluster, ParallelTests, run_in_parallel
from tests.chaos.storm.report import Report, Row
from tests.chaos.storm.storm import Storm

pytestmark = pytest.mark.long

# Over all of the long run; it has four parts.
KILLS = int(os.environ.get("CHAOS_KILLS", "500"))
SEED = int(os.environ.get("CHAOS_SEED", "1"))


def run_storm(cluster: ServerCluster, row: Row, *, talkers: int, kills: int) -> None:
    storm = Storm(cluster, servers=row.servers, talkers=talkers, kills=kills, seed=SEED)
    storm.run()
    problems = storm.check_aftermath(row)
    assert not problems, problems[:20]
    assert (row.lost, row.double_starts, row.stuck) == (0, 0, 0)
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
