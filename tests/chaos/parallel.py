"""Runs many waiting tests ahead in threads; each test then only collects its result."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import pytest

from tests.chaos.cluster import ServerCluster

DATABASE_KINDS = ("sqlite", "postgres")
MAX_PARALLEL = 6


@dataclass(frozen=True, eq=False)
class Case:
    """A kind of database, where the server dies, and whether the same one goes on or another one."""

    kind: str
    restarted: bool
    point: str = ""


OpenCluster = Callable[[str], AbstractContextManager[ServerCluster]]
Test = Callable[..., None]


def run_in_parallel(test: Test) -> Test:
    """Have a test that takes a `cluster` run ahead of its turn, in a thread, beside others.

    The cluster is on each kind of database in turn; or, if there is a parameter `case`, on the one that it names
    (`case.kind`). Of fixtures it can have no other.
    """
    names = [name for name in inspect.signature(test).parameters if name != "cluster"]
    if "case" not in names:
        names = ["kind", *names]

    def watched(request: pytest.FixtureRequest, parallel_tests: ParallelTests, **_: Any) -> None:
        parallel_tests.wait_for(request.node)

    parameters = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in ("request", "parallel_tests", *names)
    ]
    watched.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    for name in ("__name__", "__qualname__", "__module__", "__doc__"):
        setattr(watched, name, getattr(test, name))
    watched.pytestmark = list(getattr(test, "pytestmark", ()))  # type: ignore[attr-defined]
    watched.test_body = test  # type: ignore[attr-defined]
    return watched if "case" in names else pytest.mark.parametrize("kind", DATABASE_KINDS)(watched)


def read_kind(item: Any) -> str:
    params = item.callspec.params
    return str(params["case"].kind if "case" in params else params["kind"])


class ParallelTests:
    def __init__(self, open_cluster: OpenCluster) -> None:
        self._open_cluster = open_cluster
        self._pool = ThreadPoolExecutor(MAX_PARALLEL)
        self._ends: dict[str, Future[None]] = {}

    def submit(self, items: Iterable[Any]) -> None:
        """Begin to run them, in this order."""
        for item in items:
            self._ends[item.nodeid] = self._pool.submit(self._run, item)

    def wait_for(self, item: Any) -> None:
        """Wait for the end of a test that was announced, and raise what it raises."""
        self._ends[item.nodeid].result()

    def wait(self) -> None:
        """Wait until none of them is running: whoever measures wants the machine for himself."""
        wait(self._ends.values())

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)

    def _run(self, item: Any) -> None:
        test = item.function.test_body
        wanted = inspect.signature(test).parameters
        with self._open_cluster(read_kind(item)) as cluster:
            test(cluster=cluster, **{name: value for name, value in item.callspec.params.items() if name in wanted})
