"""Servers are killed at random moments while clients talk: nothing acknowledged is lost, and nothing runs twice."""

from __future__ import annotations

import os

import pytest

from tests.chaos.house import House, allowed_seconds
from tests.chaos.report import Report, Row
from tests.chaos.scene import KINDS, Build, Scene, at_once
from tests.chaos.storm import Storm

# Over all of the long run; it has four parts.
KILLS = int(os.environ.get("CHAOS_KILLS", "500"))
SEED = int(os.environ.get("CHAOS_SEED", "1"))


def weather(house: House, row: Row, *, talkers: int, kills: int) -> None:
    storm = Storm(house, servers=row.servers, talkers=talkers, kills=kills, seed=SEED)
    storm.rage()
    problems = storm.aftermath(row)
    assert not problems, problems[:20]
    assert (row.lost, row.double_starts, row.stuck) == (0, 0, 0)
    assert max(row.taken_over, default=0.0) <= allowed_seconds()


@at_once
def test_a_short_storm(house: House) -> None:
    weather(house, Row("short", 2), talkers=3, kills=6)


@pytest.mark.chaos
@pytest.mark.parametrize("servers", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_a_long_storm(kind: str, servers: int, build: Build, scene: Scene, report: Report) -> None:
    scene.wait()
    row = Row(kind, servers)
    report.rows.append(row)
    with build(kind) as house:
        weather(house, row, talkers=6, kills=-(-KILLS // 4))
