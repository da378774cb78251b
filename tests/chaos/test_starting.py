"""Servers that start: many at once on nothing, and again and again on a queue."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from swarmkeep.store import schema
from tests.chaos.cluster import ServerCluster, wait_until_quiet
from tests.chaos.parallel import DATABASE_KINDS, run_in_parallel
from tests.chaos.plans import make_plan, say_step

pytestmark = pytest.mark.long

STARTERS = 4
QUEUED = 3


@pytest.fixture
def empty_cluster(request: pytest.FixtureRequest, tmp_path: Path) -> ServerCluster:
    """On a database that has nothing in it, not even tables."""
    kind = request.node.callspec.params["kind"]
    url = f"sqlite:///{tmp_path / 'new.db'}" if kind == "sqlite" else request.getfixturevalue("postgres_url")
    return ServerCluster(url, tmp_path)


@pytest.mark.parametrize("kind", DATABASE_KINDS)
def test_concurrent_starts_on_empty_database_succeed(kind: str, empty_cluster: ServerCluster) -> None:
    with empty_cluster as cluster:
        with ThreadPoolExecutor(STARTERS) as pool:
            servers = list(pool.map(lambda _: cluster.server(MIGRATE="true"), range(STARTERS)))
        assert schema.check(cluster.url) == []
        first, *others = (cluster.client(server).sessions for server in servers)
        first.create(id="s")
        for number, sessions in enumerate(others):
            assert sessions.get("s").run(make_plan(say_step(f"{number}"))).output_text == f"{number}"
        cluster.read_checked_log("s")


@run_in_parallel
def test_queue_order_survives_restarts(cluster: ServerCluster) -> None:
    server = cluster.server(LEASE_SECONDS="0.6")
    session = cluster.client(server).sessions.create(id="s")
    session.run(make_plan(say_step("First.", hold="gate", always=True)), background=True)
    queued = [
        session.run(make_plan(say_step(f"{number}.", hold=f"gate {number}")), background=True, on_busy="queue")
        for number in range(QUEUED)
    ]
    cluster.planned_model.wait_for("gate")
    for number in range(QUEUED):
        server.kill()
        log = cluster.log("s")
        assert [log.list_ends(run.id) for run in queued[number:]] == [[]] * (QUEUED - number)
        cluster.planned_model.release("gate")
        server.start()
        cluster.planned_model.wait_for(f"gate {number}")
        cluster.planned_model.release(f"gate {number}")
    wait_until_quiet(session)
    log = cluster.read_checked_log("s")
    assert [event.run_id for event in log.events if event.type == "run.started"][1:] == [run.id for run in queued]
    assert [session.get_run(run.id).output_text for run in queued] == [f"{number}." for number in range(QUEUED)]
