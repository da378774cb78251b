"""Recovery: when it gives up, what does not stop it, and how soon it comes."""

from __future__ import annotations

import time
from contextlib import suppress

import pytest

from tests.chaos.cluster import ServerCluster, compute_allowed_seconds, ignore_lost_connection, wait_until_quiet
from tests.chaos.parallel import run_in_parallel
from tests.chaos.plans import make_plan, say_step, wait_until
from tests.support.processes import ProcessFailed

OTHERS = 'from swarmkeep import Agent\n\nother = Agent(name="Other")\n'


@pytest.mark.chaos
@run_in_parallel
def test_run_killing_every_server_given_up(cluster: ServerCluster) -> None:
    server = cluster.server(kill_at="model.sent", LEASE_SECONDS="0.6")
    with ignore_lost_connection():
        cluster.client(server).sessions.create(id="s").run(make_plan(say_step("Hello.")))
    deaths = 0
    while True:
        with suppress(ProcessFailed):
            server.start() if server.returncode is not None else None
        wait_until(
            "it died, or gave up", lambda: server.returncode is not None or cluster.log("s").of("run.interrupted")
        )
        if server.returncode is None:
            break
        deaths += 1
        assert deaths < 10
    log = cluster.read_checked_log("s")
    assert len(log.of("run.resumed")) == 5
    (end,) = log.of("run.interrupted")
    assert end["error"]["code"] == "too_many_recoveries"
    calm = cluster.server()
    session = cluster.client(calm).sessions.get("s")
    assert session.resume(log.run_ids[0]).output_text == "Hello."
    assert session.run("And then?").status == "completed"
    cluster.read_checked_log("s")


@pytest.mark.chaos
@run_in_parallel
def test_run_waits_for_server_with_agent(cluster: ServerCluster) -> None:
    server = cluster.server()
    session = cluster.client(server).sessions.create(id="s")
    run = session.run(make_plan(say_step("Hello.", hold="gate")), background=True)
    cluster.planned_model.wait_for("gate")
    server.kill()
    team = cluster.folder / "others.py"
    team.write_text(OTHERS)
    stranger = cluster.client(cluster.server(agents=team)).sessions
    wait_until("it is given up", lambda: stranger.get("s").status == "idle")
    given_up = stranger.get("s").get_run(run.id)
    assert (given_up.status, given_up.error and given_up.error.code) == ("interrupted", "agent_unavailable")
    server.start()
    assert session.resume(run.id).output_text == "Hello."
    cluster.read_checked_log("s")


@run_in_parallel
def test_damaged_session_harms_no_others(cluster: ServerCluster) -> None:
    server = cluster.server()
    sessions = {name: cluster.client(server).sessions.create(id=name) for name in ("broken", "whole")}
    for name, session in sessions.items():
        session.run(make_plan(say_step("Hello.", hold=name)), background=True)
        cluster.planned_model.wait_for(name)
    server.kill()
    cluster.sql("UPDATE events SET payload = '{' WHERE session_id = 'broken' AND seq = 3")
    server.start()
    wait_until_quiet(sessions["whole"])
    assert sessions["whole"].run("And then?").status == "completed"


@pytest.mark.chaos
@run_in_parallel
def test_usual_lease_takes_over_in_time(cluster: ServerCluster) -> None:
    lease = 15.0
    server = cluster.server(LEASE_SECONDS=str(lease))
    cluster.server(LEASE_SECONDS=str(lease))
    # The heir has just looked around as the run begins, so it looks again shortly before the lease ends.
    with ignore_lost_connection():
        session = cluster.client(server).sessions.create(id="s")
        session.run(make_plan(say_step("Hello.", hold="gate")), background=True)
    cluster.planned_model.wait_for("gate")
    server.kill()
    died = time.monotonic()
    wait_until("it is taken over", lambda: cluster.log("s").of("run.resumed"), every=0.1)
    assert time.monotonic() - died <= compute_allowed_seconds(lease)
