"""The store against a plain list: whatever is done in whatever order, both hold the same."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from swarmkeep.events.errors import LeaseLost, SeqConflict, SessionNotFound
from swarmkeep.events.facts import EventDraft, RecordedEvent, SessionForked
from swarmkeep.events.fold import fold
from swarmkeep.events.state import State
from swarmkeep.store.index import SessionFilter
from swarmkeep.store.opening import SqlStore, open_store
from swarmkeep.store.records import Claim, Lease, SessionKey
from swarmkeep.store.usage import recount_totals
from tests.store.sessions import draft_creation, draft_run_completion, draft_run_start, draft_user_messages, list_seqs
from tests.support.hypothesis_profiles import examples

NAMES = st.sampled_from([(tenant, id) for tenant in ("one", "two") for id in ("a", "b")])
STORES = st.integers(0, 1)
OWNERS = st.sampled_from(["p", "q"])


Name = tuple[str, str]


class Model:
    """The contents that the store should have."""

    def __init__(self) -> None:
        self.logs: dict[SessionKey, list[RecordedEvent]] = {}
        self.leases: dict[SessionKey, Lease] = {}
        self.old: dict[SessionKey, list[State]] = {}


class StoreMachine(RuleBasedStateMachine):
    """One machine's sessions have tenants of their own, so that all can share a database."""

    open: Callable[[], SqlStore]
    prefix: str

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.model = Model()

    @initialize()
    def begin(self) -> None:
        self.stores = [self.open(), self.open()]

    def key(self, name: Name) -> SessionKey:
        return SessionKey(self.prefix + name[0], name[1])

    def do(self, work: Awaitable[Any]) -> Any:
        async def run() -> Any:
            return await work

        return self.runner.run(run())

    def state(self, key: SessionKey) -> State:
        return fold(self.model.logs.get(key, []))

    @rule(name=NAMES, which=STORES, count=st.integers(1, 3), owner=st.none() | OWNERS, running=st.booleans())
    def append(self, name: Name, which: int, count: int, owner: str | None, running: bool) -> None:
        key = self.key(name)
        base = self.state(key)
        drafts = draft_user_messages(*("x" * count)) if base.seq else draft_creation()
        if running and base.run is None:
            drafts += draft_run_start(base, f"r{base.seq}")
        lease: Lease | Claim | None = None
        held = self.model.leases.get(key)
        if owner is not None:
            lease = held if held is not None and held.owner == owner else Claim(owner, 60)
        work = self.stores[which].append(key, base, drafts, lease=lease)
        if isinstance(lease, Claim) and held is not None:
            with pytest.raises(LeaseLost):
                self.do(work)
            return
        self.record_append(key, self.do(work), held)

    @rule(name=NAMES, which=STORES)
    def finish(self, name: Name, which: int) -> None:
        key = self.key(name)
        base = self.state(key)
        if base.run is not None:
            self.record_append(key, self.do(self.stores[which].append(key, base, draft_run_completion(base))), None)

    def record_append(self, key: SessionKey, appended: Any, held: Lease | None) -> None:
        log = self.model.logs.setdefault(key, [])
        log += appended.events
        self.model.old.setdefault(key, []).append(appended.state)
        assert appended.state == fold(log)
        if appended.state.status != "running":
            assert appended.lease is None
            self.model.leases.pop(key, None)
        elif appended.lease is not None:
            assert held is None or held == appended.lease
            self.model.leases[key] = appended.lease

    @rule(name=NAMES, which=STORES, data=st.data())
    def append_stale(self, name: Name, which: int, data: st.DataObject) -> None:
        key = self.key(name)
        old = [State(), *self.model.old.get(key, [])]
        stale = [state for state in old if state.hash != self.state(key).hash]
        if stale:
            with pytest.raises(SeqConflict):
                self.do(self.stores[which].append(key, data.draw(st.sampled_from(stale)), draft_user_messages("late")))

    @rule(origin=NAMES, goal=NAMES, which=STORES, data=st.data())
    def fork(self, origin: Name, goal: Name, which: int, data: st.DataObject) -> None:
        source, to = self.key(origin), self.key(goal)
        log = self.model.logs.get(source, [])
        if not log:
            return
        base = fold(log[: data.draw(st.integers(1, len(log)))])
        fact = SessionForked(from_session_id=source.id, from_seq=base.seq, from_hash=base.hash)
        work = self.stores[which].fork(source, base, to, [EventDraft(fact, None, base.agent)])
        if to in self.model.logs:
            with pytest.raises(SeqConflict):
                self.do(work)
            return
        forked = self.do(work)
        copied = self.do(self.stores[1 - which].read(to))
        assert [event.hash for event in copied[:-1]] == [event.hash for event in log[: base.seq]]
        assert copied[-1:] == forked.events
        self.model.logs[to] = copied
        self.model.old.setdefault(to, []).append(forked.state)

    @rule(name=NAMES, which=STORES)
    def delete(self, name: Name, which: int) -> None:
        key = self.key(name)
        work = self.stores[which].delete(key)
        if key not in self.model.logs:
            with pytest.raises(SessionNotFound):
                self.do(work)
            return
        self.do(work)
        del self.model.logs[key]
        self.model.leases.pop(key, None)

    @rule(name=NAMES, which=STORES, at=st.integers(1, 4))
    def read_past_state(self, name: Name, which: int, at: int) -> None:
        key = self.key(name)
        log = self.model.logs.get(key, [])
        if at <= len(log):
            assert self.do(self.stores[which].state(key, at=at)) == fold(log[:at])

    @invariant()
    def both_hold_the_same(self) -> None:
        if not hasattr(self, "stores"):
            return
        for key, log in self.model.logs.items():
            assert list_seqs(log) == list(range(1, len(log) + 1))
            for store in self.stores:
                assert self.do(store.state(key)) == fold(log)
        for tenant in ("one", "two"):
            mine = {key.id: len(log) for key, log in self.model.logs.items() if key.tenant == self.prefix + tenant}
            page = self.do(self.stores[0].list_sessions(SessionFilter(self.prefix + tenant)))
            assert {view.id: view.seq for view in page.sessions} == mine

    def teardown(self) -> None:
        if hasattr(self, "stores"):
            assert self.do(recount_totals(self.stores[0].database, mend=False)) == []
        for store in getattr(self, "stores", []):
            self.do(store.close())
        self.runner.close()


def test_store_agrees_with_plain_list(url: str) -> None:
    numbers = itertools.count()

    class Machine(StoreMachine):
        def __init__(self) -> None:
            super().__init__()
            self.open = lambda: open_store(url)
            self.prefix = f"{next(numbers)}-"

    run_state_machine_as_test(
        Machine, settings=settings(max_examples=examples(6), stateful_step_count=20, deadline=None)
    )
