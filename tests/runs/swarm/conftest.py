"""Each test of what both share runs on Swarm and on AsyncSwarm."""

from __future__ import annotations

import pytest

from tests.runs.swarm.runners import AsyncRunner, Runner, SyncRunner
from tests.support.scripted import ScriptedModel


@pytest.fixture(params=[SyncRunner, AsyncRunner], ids=["Swarm", "AsyncSwarm"])
def swarm(request: pytest.FixtureRequest, model: ScriptedModel) -> Runner:
    runner: Runner = request.param(model.url)
    return runner
