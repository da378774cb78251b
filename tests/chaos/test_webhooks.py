"""Webhooks under writers on two servers, which are killed in turn: a receiver that now and then fails gets every event,
signed, and those of a session in their order."""

from __future__ import annotations

import itertools
import threading
from collections import defaultdict
from contextlib import suppress

import pytest
from standardwebhooks import Webhook as Verifier

from swarmkeep_client import ApiError, Client, ConnectionFailed
from tests.chaos.cluster import ServerCluster
from tests.chaos.parallel import run_in_parallel
from tests.support.receiver import Received, Receiver, receiving

pytestmark = pytest.mark.long

KILLS = 6
WRITERS = 4


@pytest.mark.chaos
@run_in_parallel
def test_webhook_misses_nothing_through_kills(cluster: ServerCluster) -> None:
    with receiving() as receiver:
        deliver_through_kills(cluster, receiver)


def deliver_through_kills(cluster: ServerCluster, receiver: Receiver) -> None:
    servers = [cluster.server(WEBHOOK_NETWORKS="127.0.0.0/8") for _ in range(2)]
    hook = cluster.client(servers[0]).webhooks.create(receiver.url)
    numbers = itertools.count(1)

    async def answer(_: Received) -> int:
        return 503 if next(numbers) % 50 == 0 else 200

    receiver.answer = answer  # type: ignore[method-assign]
    done = threading.Event()

    def write(number: int) -> None:
        round = 0
        while not done.is_set():
            round += 1
            server = servers[(number + round) % 2]
            with suppress(ConnectionFailed, ApiError), Client(server.url, max_retries=0) as client:
                session = client.sessions.create(id=f"w{number}.{round}")
                for step in range(3):
                    session.add_messages([{"role": "user", "content": str(step)}])

    writers = [threading.Thread(target=write, args=(number,)) for number in range(WRITERS)]
    for writer in writers:
        writer.start()
    for kill in range(KILLS):
        before = len(receiver.taken)
        receiver.wait(lambda: len(receiver.taken) >= before + 30, seconds=60.0)  # noqa: B023
        servers[kill % 2].kill()
        servers[kill % 2].start()
    done.set()
    for writer in writers:
        writer.join()
    check_taken(cluster, receiver, hook.secret)


def check_taken(cluster: ServerCluster, receiver: Receiver, secret: str) -> None:
    logs = cluster.logs(sorted(name for (name,) in cluster.sql("SELECT id FROM sessions")))
    wanted = {(log.session_id, seq) for log in logs for seq in log.hashes}
    receiver.wait(lambda: wanted <= {got.place for got in list(receiver.taken)}, seconds=120.0)
    by_session: dict[str, list[int]] = defaultdict(list)
    for got in receiver.received:
        Verifier(secret).verify(got.body, dict(got.headers))
    for got in receiver.taken:
        name, seq = got.place
        if seq not in by_session[name]:
            by_session[name].append(seq)
    for log in logs:
        assert by_session[log.session_id] == sorted(log.hashes), log.session_id
