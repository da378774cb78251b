"""Pages of lists that are put together in memory."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from swarmkeep.domain.codec import encode

T = TypeVar("T")


def take_page(items: Iterable[T], max_bytes: int) -> list[T]:
    """The first items, up to the one that fills so many bytes of JSON."""
    page: list[T] = []
    size = 0
    for item in items:
        page.append(item)
        size += len(encode(item))
        if size >= max_bytes:
            break
    return page
