"""Sessions on their way to object storage and back, by processes that are killed at any moment: none is lost, none is
half there, and each ends as it did before."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
from datetime import UTC, datetime, timedelta

import pytest

from swarmkeep.history.archives import Archive, ObjectStore
from swarmkeep.history.verify import verify
from swarmkeep.store.opening import open_store
from swarmkeep.store.records import SessionKey
from tests.chaos.cluster import ServerCluster
from tests.chaos.parallel import run_in_parallel
from tests.store.sessions import begin_session, draft_user_messages
from tests.support.processes import clean_environment

pytestmark = pytest.mark.long

SESSIONS = 400
KILLS = 12


@pytest.mark.chaos
@run_in_parallel
def test_killed_archiving_loses_nothing(cluster: ServerCluster) -> None:
    folder = f"file://{cluster.folder / 'archive'}"
    heads = asyncio.run(make_old_sessions(cluster.url))
    environment = clean_environment({"SWARMKEEP_ARCHIVE": folder, "SWARMKEEP_DATABASE_URL": cluster.url})
    archive = [sys.executable, "-m", "swarmkeep", "archive"]
    for number in range(KILLS):
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
        assert found.head is not None
        assert (found.head.seq, found.head.hash) == head
        assert len(await store.read(key)) == head[0]
    await store.close()
