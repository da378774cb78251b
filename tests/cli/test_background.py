"""The loop beside the main thread: results, errors and items come over, and nothing stays behind."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Iterator

import pytest

from swarmkeep.cli.background import Background


@pytest.fixture
def background() -> Iterator[Background]:
    beside = Background()
    yield beside
    beside.close()


async def double(number: int) -> int:
    await asyncio.sleep(0)
    if number < 0:
        raise ValueError(number)
    return 2 * number


class CountingSource:
    """Items for ever, with ticks between them; knows whether it was closed."""

    def __init__(self) -> None:
        self.closed = threading.Event()

    async def items(self, last: int | None = None) -> AsyncGenerator[int | None]:
        number = 0
        try:
            while last is None or number < last:
                await asyncio.sleep(0)
                number += 1
                yield None
                yield number
        finally:
            self.closed.set()


def test_results_and_errors_come_over(background: Background) -> None:
    assert background.run(double(21)) == 42
    with pytest.raises(ValueError, match="-1"):
        background.run(double(-1))


def test_items_come_over_and_ticks_do_not(background: Background) -> None:
    assert list(background.iterate(CountingSource().items(3))) == [1, 2, 3]


def test_an_error_comes_over_after_the_items_before_it(background: Background) -> None:
    async def failing() -> AsyncGenerator[int]:
        yield 1
        raise ValueError("no more")

    items = background.iterate(failing())
    assert next(items) == 1
    with pytest.raises(ValueError, match="no more"):
        next(items)


def test_a_reader_that_stops_closes_what_it_read(background: Background) -> None:
    counting = CountingSource()
    for number in background.iterate(counting.items()):
        if number == 3:
            break
    assert counting.closed.wait(10)


def test_what_still_runs_is_cancelled_at_the_end() -> None:
    beside = Background()
    counting = CountingSource()
    items = beside.iterate(counting.items())
    assert next(items) == 1
    beside.close()
    assert counting.closed.is_set()
