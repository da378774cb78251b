"""What others take of a log while servers are killed: webhooks, the feed, and sessions in object storage."""

from __future__ import annotations

import asyncio
import itertools
import random
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta

import pytest
from standardwebhooks import Webhook as Verifier

from swarmkeep.history.archives import Archive, ObjectStore
from swarmkeep.history.verify import verify
from swarmkeep.store.opening import open_store
from swarmkeep.store.records import SessionKey
from swarmkeep_client import ApiError, Client, ConnectionFailed
from tests.chaos.cluster import ServerCluster
from tests.chaos.parallel import run_in_parallel
from tests.store.sessions import begin_session, draft_user_messages
from tests.support.processes import ServerProcess, clean_environment
from tests.support.receiver import Received, Receiver, receiving

pytestmark = pytest.mark.long

HOOK_KILLS = 6
HOOK_WRITERS = 4


@contextmanager
def writing(servers: Sequence[ServerProcess], count: int) -> Iterator[None]:
    """So many clients make sessions with messages, each on the servers in turn, for as long as this lasts."""
    done = threading.Event()

    def write(number: int) -> None:
        for round in itertools.takewhile(lambda _: not done.is_set(), itertools.count(1)):
            server = servers[(number + round) % len(servers)]
            with suppress(ConnectionFailed, ApiError), Client(server.url, max_retries=0) as client:
                session = client.sessions.create(id=f"w{number}.{round}")
                for step in range(3):
                    session.add_messages([{"role": "user", "content": str(step)}])

    writers = [threading.Thread(target=write, args=(number,)) for number in range(count)]
    for writer in writers:
        writer.start()
    yield
    done.set()
    for writer in writers:
        writer.join()


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
    with writing(servers, HOOK_WRITERS):
        for kill in range(HOOK_KILLS):
            before = len(receiver.taken)
            receiver.wait(lambda: len(receiver.taken) >= before + 30, seconds=60.0)  # noqa: B023
            servers[kill % 2].kill()
            servers[kill % 2].start()
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


# A consumer of the feed, while one of two servers is killed again and again, gets each event once and in order.


FEED_KILLS = 6
FEED_WRITERS = 8


@pytest.mark.chaos
@run_in_parallel
def test_consumer_misses_nothing_through_kills(cluster: ServerCluster) -> None:
    steady, mortal = cluster.server(), cluster.server()
    told: list[tuple[str, int]] = []
    with writing([steady, mortal], FEED_WRITERS):
        for _ in range(FEED_KILLS):
            # A consumer that dies with the server it reads from: what it had and did not confirm comes again.
            read_some(cluster, mortal, told, most=40)
            mortal.kill()
            read_some(cluster, steady, told, most=40)
            mortal.start()
    read_some(cluster, steady, told, most=None)
    names = {name for (name,) in cluster.sql("SELECT id FROM sessions")}
    assert len(names) > FEED_WRITERS
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


# Sessions on their way to object storage and back, by processes that are killed at any moment, are whole.


SESSIONS = 400
ARCHIVE_KILLS = 12


@pytest.mark.chaos
@run_in_parallel
def test_killed_archiving_loses_nothing(cluster: ServerCluster) -> None:
    folder = f"file://{cluster.folder / 'archive'}"
    heads = asyncio.run(make_old_sessions(cluster.url))
    environment = clean_environment({"SWARMKEEP_ARCHIVE": folder, "SWARMKEEP_DATABASE_URL": cluster.url})
    archive = [sys.executable, "-m", "swarmkeep", "archive"]
    for number in range(ARCHIVE_KILLS):
        some = random.sample(sorted(heads), 20)
        back = [part for name in some for part in ("--bring-back", name)]
        for what in (["--older-than", "90d"], back):
            process = subprocess.Popen([*archive, *what], env=environment, stderr=subprocess.DEVNULL)
            try:
                process.wait(random.uniform(0.4, 1.5 + number / 4))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
    assert subprocess.run([*archive, "--older-than", "90d"], env=environment, check=False).returncode == 0
    ((count,),) = cluster.sql("SELECT count(*) FROM archives WHERE state = 'archived'")
    assert count > SESSIONS / 2
    asyncio.run(check_sessions(cluster.url, folder, heads))


async def make_old_sessions(url: str) -> dict[str, tuple[int, str]]:
    store = open_store(url, clock=lambda: datetime.now(UTC) - timedelta(days=365))
    heads = {}
    for number in range(SESSIONS):
        key = SessionKey("default", f"s{number}")
        state = await begin_session(store, key)
        state = (await store.append(key, state, draft_user_messages(*map(str, range(20))))).state
        heads[key.id] = state.seq, state.hash
    await store.close()
    return heads


async def check_sessions(url: str, folder: str, heads: dict[str, tuple[int, str]]) -> None:
    store = open_store(url)
    Archive(store, ObjectStore(folder))
    for name, head in heads.items():
        key = SessionKey("default", name)
        found = await verify(store, key)
        assert found.valid, (name, found.problems)
        assert (found.head.seq, found.head.hash) == head
        assert len(await store.read(key)) == head[0]
    await store.close()
