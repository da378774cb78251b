"""Servers that start: many at once on nothing, and again and again on a queue."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from swarmkeep.store import schema
from tests.chaos.house import House, quiet
from tests.chaos.plans import plan, say
from tests.chaos.scene import KINDS, at_once
from tests.chaos.warm import Nursery

STARTERS = 6
QUEUED = 5


@pytest.fixture
def empty_house(request: pytest.FixtureRequest, nursery: Nursery, tmp_path: Path) -> House:
    """On a database that has nothing in it, not even tables."""
    kind = request.node.callspec.params["kind"]
    url = f"sqlite:///{tmp_path / 'new.db'}" if kind == "sqlite" else request.getfixturevalue("postgres_url")
    return House(nursery, url, tmp_path)


@pytest.mark.parametrize("kind", KINDS)
def test_many_that_start_at_once_on_an_empty_database_all_come_up(kind: str, empty_house: House) -> None:
    with empty_house as house:
        with ThreadPoolExecutor(STARTERS) as pool:
            servers = list(pool.map(lambda _: house.server(MIGRATE="true"), range(STARTERS)))
        assert schema.check(house.url) == []
        first, *others = (house.client(server).sessions for server in servers)
        first.create(id="s")
        for number, sessions in enumerate(others):
            assert sessions.get("s").run(plan(say(f"{number}"))).output_text == f"{number}"
        house.checked("s")


@at_once
def test_a_queue_survives_every_restart_in_its_order(house: House) -> None:
    server = house.server(LEASE_SECONDS="0.6")
    session = house.client(server).sessions.create(id="s")
    session.run(plan(say("First.", hold="gate", always=True)), background=True)
    queued = [
        session.run(plan(say(f"{number}.", hold=f"gate {number}")), background=True, on_busy="queue")
        for number in range(QUEUED)
    ]
    house.mind.wait_for("gate")
    for number in range(QUEUED):
        server.kill()
        log = house.log("s")
        assert [log.ends(run.id) for run in queued[number:]] == [[]] * (QUEUED - number)
        house.mind.release("gate")
        server.start()
        house.mind.wait_for(f"gate {number}")
        house.mind.release(f"gate {number}")
    quiet(session)
    log = house.checked("s")
    assert [event.run_id for event in log.events if event.type == "run.started"][1:] == [run.id for run in queued]
    assert [session.get_run(run.id).output_text for run in queued] == [f"{number}." for number in range(QUEUED)]
