"""The task that keeps the index of words: how it goes about what is recorded while it works."""

from __future__ import annotations

from typing import Any

from swarmkeep.runs.watcher import SearchIndexing
from swarmkeep.store.opening import open_store
from swarmkeep.store.records import SessionKey
from tests.store.sessions import begin_session


async def test_records_during_indexing_are_gathered_again(sqlite_ready: str) -> None:
    store = open_store(sqlite_ready)
    names = iter(["late"])
    for number in range(3):
        await begin_session(store, SessionKey("default", f"s{number}"))
    index_some = store.index_some

    async def index_some_while_it_goes_on() -> int:
        count = await index_some()
        for name in names:
            await begin_session(store, SessionKey("default", name))
        return count

    watched: Any = store
    watched.index_some = index_some_while_it_goes_on
    indexing = SearchIndexing(store)
    await indexing._index_all()
    assert (await store.count_sessions_behind(), indexing.sessions_behind) == (1, 1)
    # As if it had been told of them just now.
    assert indexing._recorded.is_set()
    await indexing._index_all()
    assert indexing.sessions_behind == 0
    await store.close()
