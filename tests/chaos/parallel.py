"""Many small catastrophes at a time: each is mostly waiting. They are played ahead, and then looked at in turn."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager
from typing import Any

import pytest

from tests.chaos.cluster import ServerCluster

DATABASE_KINDS = ("sqlite", "postgres")
MAX_PARALLEL = 6

OpenCluster = Callable[[str], AbstractContextManager[ServerCluster]]
Test = Callable[..., None]


def run_in_parallel(test: Test) -> Test:
    """Have a test that takes a `house` played ahead of its turn, in a thread, beside others.

    The house is on each kind of database in turn; or, if there is a parameter `case`, on the one that it names
    (`case.kind`). Of fixtures it can have no other.
    """
    names = [name for name in inspect.signature(test).parameters if name != "house"]
    if "case" not in names:
        names = ["kind", *names]

    def watched(request: pytest.FixtureRequest, scene: ParallelTests, **_: Any) -> None:
        scene.watch(request.node)

    parameters = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in ("request", "scene", *names)]
    watched.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    for name in ("__name__", "__qualname__", "__module__", "__doc__"):
        setattr(watched, name, getattr(test, name))
    watched.pytestmark = list(getattr(test, "pytestmark", ()))  # type: ignore[attr-defined]
    watched.played = test  # type: ignore[attr-defined]
    return watched if "case" in names else pytest.mark.parametrize("kind", DATABASE_KINDS)(watched)


def read_kind(item: Any) -> str:
    params = item.callspec.params
    return str(params["case"].kind if "case" in params else params["kind"])


class ParallelTests:
    def __init__(self, build: OpenCluster) -> None:
        self._build = build
        self._pool = ThreadPoolExecutor(MAX_PARALLEL)
        self._ends: dict[str, Future[None]] = {}

    def submit(self, items: Iterable[Any]) -> None:
        """Begin to play them, in this order."""
        for item in items:
            self._ends[item.nodeid] = self._pool.submit(self._run, item)

    def watch(self, item: Any) -> None:
        """Wait for the end of a test that was announced, and raise what it raises."""
        self._ends[item.nodeid].result()

    def wait(self) -> None:
        """Wait until nothing is being played any more: whoever measures wants the machine for himself."""
        wait(self._ends.values())

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)

    def _run(self, item: Any) -> None:
        test = item.function.played
        wanted = inspect.signature(test).parameters
        with self._build(read_kind(item)) as house:
            test(house=house, **{name: value for name, value in item.callspec.params.items() if name in wanted})
