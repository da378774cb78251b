"""A session with nearly every type of event, and a fork of it."""

from __future__ import annotations

from swarmkeep.domain.events import SessionRedacted
from swarmkeep.domain.state import State
from swarmkeep.store.port import Mark
from swarmkeep.store.sql import SqlStore
from tests.golden.conversations import BLOBS, fork_of, shop
from tests.golden.make import FORK, FORKED_AT, SHOP

__all__ = ["FORK", "SHOP", "fill"]


async def fill(store: SqlStore) -> None:
    state = State()
    for number, drafts in enumerate(shop()):
        if any(isinstance(draft.fact, SessionRedacted) for draft in drafts):
            continue
        mark = Mark(key="key-1", digest="d" * 64, run_id="run_1") if number == 1 else None
        state = (await store.append(SHOP, state, drafts, blobs=BLOBS if state.seq else {}, mark=mark)).state
    base = await store.state(SHOP, at=FORKED_AT)
    await store.fork(SHOP, base, FORK, fork_of(base.seq, base.hash))
