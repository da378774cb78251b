"""A chain against a plain list."""

from __future__ import annotations

import sys
import threading
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule

from swarmkeep.events import chain as domain_chain
from swarmkeep.events.chain import _FEW, Chain, SharedList
from tests.support.hypothesis_profiles import examples

Pair = tuple[Chain[Any], list[Any]]


class ChainsAndLists(RuleBasedStateMachine):
    """Chains that branch off each other in any way, each beside the list that it stands for."""

    few = _FEW

    def __init__(self) -> None:
        super().__init__()
        self.all: list[Pair] = []
        domain_chain._FEW = self.few

    def teardown(self) -> None:
        domain_chain._FEW = _FEW

    pairs = Bundle("pairs")

    def _both(self, chain: Chain[Any], plain: list[Any]) -> Pair:
        self.all.append((chain, plain))
        return chain, plain

    @initialize(target=pairs, items=st.lists(st.integers(0, 3), max_size=3))
    def begin(self, items: list[int]) -> Pair:
        return self._both(Chain(items), list(items))

    @rule(target=pairs, pair=pairs, item=st.sampled_from((0, 1, 1, None, "text")))
    def append(self, pair: Pair, item: Any) -> Pair:
        chain, plain = pair
        return self._both(chain.append(item), [*plain, item])

    @rule(target=pairs, pair=pairs)
    def drop_last(self, pair: Pair) -> Pair:
        chain, plain = pair
        return self._both(chain.drop_last(), plain[:-1])

    @rule(target=pairs, pair=pairs)
    def branch(self, pair: Pair) -> Pair:
        chain, plain = pair
        return self._both(chain.branch(), plain)

    @rule(target=pairs, pair=pairs, data=st.data())
    def replace_at(self, pair: Pair, data: st.DataObject) -> Pair:
        chain, plain = pair
        if not plain:
            return pair
        index = data.draw(st.integers(-len(plain), len(plain) - 1))
        changed = list(plain)
        changed[index] = "new"
        return self._both(chain.replace_at(index, "new"), changed)

    @rule(pair=pairs, data=st.data())
    def remember(self, pair: Pair, data: st.DataObject) -> None:
        chain, plain = pair
        length = data.draw(st.integers(0, len(plain)))
        chain.remember(plain[:length] if data.draw(st.booleans()) else tuple(plain[:length]), length)

    @rule(pair=pairs, start=st.integers(-6, 6), stop=st.integers(-6, 6), step=st.sampled_from((1, 2, -1)))
    def slice(self, pair: Pair, start: int, stop: int, step: int) -> None:
        chain, plain = pair
        assert chain[start:stop:step] == plain[start:stop:step]
        assert chain[start:] == plain[start:]

    @rule(pair=pairs, index=st.integers(-6, 6))
    def item(self, pair: Pair, index: int) -> None:
        chain, plain = pair
        if -len(plain) <= index < len(plain):
            assert chain[index] == plain[index]
        else:
            with pytest.raises(IndexError):
                chain[index]

    @rule(left=pairs, right=pairs)
    def compare(self, left: Pair, right: Pair) -> None:
        assert (left[0] == right[0]) == (left[1] == right[1])

    @invariant()
    def every_chain_is_still_its_list(self) -> None:
        for chain, plain in self.all:
            assert len(chain) == len(plain)
            assert list(chain) == plain
            assert list(reversed(chain)) == plain[::-1]
            for memo in (chain.recall(list), chain.recall(tuple)):
                assert memo is None or list(memo) == plain[: len(memo)]


ChainsAndLists.TestCase.settings = settings(max_examples=examples(40), stateful_step_count=25)
TestChainsAndLists = ChainsAndLists.TestCase


class ChainsAndListsOfManyChanges(ChainsAndLists):
    """The same where one or two items that are exchanged are many."""

    few = 1


ChainsAndListsOfManyChanges.TestCase.settings = ChainsAndLists.TestCase.settings
TestChainsAndListsOfManyChanges = ChainsAndListsOfManyChanges.TestCase


def test_a_chain_is_a_sequence() -> None:
    chain = Chain([1, 2, 3])
    assert (2 in chain, 4 in chain, chain.index(3), bool(chain), bool(Chain())) == (True, False, 2, True, False)
    assert repr(chain) == "Chain([1, 2, 3])"
    assert chain != [1, 2, 3]


def test_iteration_misses_later_appends() -> None:
    chain = Chain([1, 2])
    seen = []
    longer = chain
    for item in chain:
        longer = longer.append(item)
        seen.append(item)
    assert seen == [1, 2]
    assert list(longer) == [1, 2, 1, 2]


def test_growth_is_shared_and_branches_hidden() -> None:
    base: Chain[int] = Chain()
    for number in range(1000):
        base = base.append(number)
    left, right = base.append(-1), base.append(-2)
    shorter = base.drop_last().append(-3)
    assert (left[-1], right[-1], shorter[-1], base[-1]) == (-1, -2, -3, 999)
    assert len(left) == len(right) == 1001


def test_prefix_results_outlive_later_exchanges() -> None:
    chain = Chain([1, 2, 3])
    chain.remember("of two", 2)
    assert chain.replace_at(2, 4).recall(str) == "of two"
    assert chain.replace_at(1, 4).recall(str) is None
    assert (chain.recall(str), chain.recall(int)) == ("of two", None)


def test_full_chain_exchange_copies_nothing() -> None:
    chain = Chain(range(1000))
    shared = chain._items
    for index in range(1000):
        chain = chain.replace_at(index, -index)
    assert chain._items is shared
    assert list(chain) == [-index for index in range(1000)]


def test_trial_branch_leaves_list_to_chain() -> None:
    chain = Chain(range(1000))
    chain.remember("of two", 2)
    shared = chain.shared
    for number in range(1000, 1100):
        tried = chain.branch().append("a").append("b")
        assert tried[-3:] == [number - 1, "a", "b"]
        assert list(tried.drop_last().drop_last().drop_last().append("c")) == [*range(number - 1), "c"]
        assert list(tried.replace_at(-1, "c").replace_at(0, "d")) == ["d", *range(1, number), "a", "c"]
        chain = chain.append(number)
        assert chain.shared is shared
    assert list(chain) == list(range(1100))
    assert tried.shared is shared
    assert tried.recall(str) == "of two"


def test_few_branch_exchanges_copy_nothing() -> None:
    chain = Chain(range(1000))
    branch = chain.branch().replace_at(5, "five").append("more").replace_at(-1, "last").replace_at(999, "before")
    assert branch.shared is chain.shared
    assert (branch[5], branch[-2:], chain[5]) == ("five", ["before", "last"], 5)
    assert list(branch) == [*range(5), "five", *range(6, 999), "before", "last"]


def test_full_branch_exchange_copies_list_once() -> None:
    chain = Chain(range(1000))
    branch = chain.branch().append(-1)
    lists = [branch.shared]
    for index in reversed(range(1000)):
        branch = branch.replace_at(index, -index)
        if branch.shared is not lists[-1]:
            lists.append(branch.shared)
    assert len(lists) == 2
    assert list(chain) == list(range(1000))
    assert list(branch) == [*(-index for index in range(1000)), -1]


class RacedList(SharedList[Any]):
    """A list to which somebody else appends at the worst moment."""

    def append(self, item: Any) -> None:
        super().append("theirs")
        super().append(item)


def test_losing_append_race_copies_the_list() -> None:
    chain = Chain([1])
    chain._items = RacedList([1])
    longer = chain.append("mine")
    assert (list(chain), list(longer), list(longer.append(2))) == ([1], [1, "mine"], [1, "mine", 2])


def grow_by_threads(base: Chain[Any]) -> dict[int, list[Chain[Any]]]:
    """What four threads make of one chain at once: all the chains that each of them grew."""
    grown: dict[int, list[Chain[Any]]] = {}
    ready = threading.Barrier(4)

    def grow(name: int) -> None:
        chain, made = base, []
        ready.wait()
        for number in range(50):
            chain = chain.append((name, 0)).replace_at(100 + number, (name, number))
            made.append(chain)
        grown[name] = made

    threads = [threading.Thread(target=grow, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return grown


def test_appending_threads_get_their_own_chains() -> None:
    often = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(20):
            base = Chain(range(100))
            for name, made in grow_by_threads(base).items():
                for length, chain in enumerate(made, 1):
                    assert chain[100:] == [(name, number) for number in range(length)]
            assert list(base) == list(range(100))
    finally:
        sys.setswitchinterval(often)
