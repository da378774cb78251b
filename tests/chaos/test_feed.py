"""The feed under writers on two servers, one of which is killed again and again: a consumer gets each event once and in
order, on whichever server it reads."""

from __future__ import annotations

import threading
from collections import defaultdict
from contextlib import suppress

import pytest

from swarmkeep_client import ApiError, Client, ConnectionFailed
from tests.chaos.cluster import ServerCluster
from tests.chaos.parallel import run_in_parallel
from tests.support.processes import ServerProcess

pytestmark = pytest.mark.long

KILLS = 6
WRITERS = 8


@pytest.mark.chaos
@run_in_parallel
def test_consumer_misses_nothing_through_kills(cluster: ServerCluster) -> None:
    steady, mortal = cluster.server(), cluster.server()
    done = threading.Event()

    def write(number: int) -> None:
        server = (steady, mortal)[number % 2]
        round = 0
        while not done.is_set():
            round += 1
            with suppress(ConnectionFailed, ApiError), Client(server.url, max_retries=0) as client:
                session = client.sessions.create(id=f"w{number}.{round}")
                for step in range(3):
                    session.add_messages([{"role": "user", "content": str(step)}])

    writers = [threading.Thread(target=write, args=(number,)) for number in range(WRITERS)]
    for writer in writers:
        writer.start()
    told: list[tuple[str, int]] = []
    for _ in range(KILLS):
        # A consumer that dies with the server it reads from: what it had and did not confirm comes again.
        read_some(cluster, mortal, told, most=40)
        mortal.kill()
        read_some(cluster, steady, told, most=40)
        mortal.start()
    done.set()
    for writer in writers:
        writer.join()
    read_some(cluster, steady, told, most=None)
    names = {name for (name,) in cluster.sql("SELECT id FROM sessions")}
    assert len(names) > WRITERS
    by_session: dict[str, list[int]] = defaultdict(list)
    for name, seq in told:
        by_session[name].append(seq)
    assert by_session.keys() == names
    for log in cluster.logs(sorted(names)):
        assert by_session[log.session_id] == sorted(log.hashes), log.session_id
    assert len(cluster.client(steady).feed.consumers()) == 1


def read_some(cluster: ServerCluster, server: ServerProcess, told: list[tuple[str, int]], *, most: int | None) -> None:
    """Read as a consumer does, and confirm every few events."""
    client = cluster.client(server)
    unconfirmed: list[tuple[str, int]] = []
    for number, event in enumerate(client.feed.events(consumer="crm", page_size=17), start=1):
        unconfirmed.append((event.session_id, event.seq))
        if number % 7 == 0 or most is None:
            client.feed.confirm("crm", event.cursor)
            told += unconfirmed
            unconfirmed = []
        if number == most:
            break
    # What is not confirmed was not dealt with.
