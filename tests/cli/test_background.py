"""The loop beside the main thread: results, errors and items come over, and nothing stays behind."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Iterator

import pytest

from swarmkeep.cli.output import Background


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


def test_items_arrive_without_ticks(background: Background) -> None:
    assert list(background.iterate(CountingSource().items(3))) == [1, 2, 3]


def test_error_arrives_after_earlier_items(background: Background) -> None:
    async def failing() -> AsyncGenerator[int]:
        yield 1
        raise ValueError("no more")

    items = background.iterate(failing())
    assert next(items) == 1
    with pytest.raises(ValueError, match="no more"):
        next(items)


def test_stopping_reader_closes_its_source(background: Background) -> None:
    counting = CountingSource()
    for number in background.iterate(counting.items()):
        if number == 3:
            break
    assert counting.closed.wait(10)


def test_leftover_work_cancelled_at_end() -> None:
    beside = Background()
    counting = CountingSource()
    items = beside.iterate(counting.items())
    assert next(items) == 1
    beside.close()
    assert counting.closed.is_set()
