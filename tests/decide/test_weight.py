"""What is heavy is known without all of it being looked at."""

from __future__ import annotations

from typing import Any

import pytest

from swarmkeep.events.facts import MessageAdded
from swarmkeep.events.sizes import is_heavy


@pytest.mark.parametrize(
    "value",
    [None, 1, "x" * 1000, [1] * 1000, {"a": {"b": ["c"]}}, MessageAdded(message={"role": "user", "content": "x"})],
)
def test_what_is_small_is_light(value: Any) -> None:
    assert not is_heavy(value)


@pytest.mark.parametrize("size", [1_000_000])
def test_long_text_or_many_values_are_heavy(size: int) -> None:
    wide = {str(number): None for number in range(3_000)}
    for value in ("x" * size, [None] * size, wide, {"a": [wide]}, [["x" * 1000]] * 1000):
        assert is_heavy(value)
        assert is_heavy(1, [value])
        assert is_heavy(MessageAdded(message={"role": "user", "content": value}))


def test_many_small_values_are_heavy_together() -> None:
    assert is_heavy(*[[1, 2, 3]] * 1000)


@pytest.mark.long
def test_heavy_values_are_not_read_on() -> None:
    seen = []

    class Noting(list[Any]):
        def __iter__(self) -> Any:
            seen.append(len(self))
            return super().__iter__()

    assert is_heavy([Noting([1]) for _ in range(1_000_000)])
    assert seen == []
