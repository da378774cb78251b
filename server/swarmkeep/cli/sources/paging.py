"""Pages of a list, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol, TypeVar


class Page(Protocol):
    @property
    def next_cursor(self) -> str | None: ...


P = TypeVar("P", bound=Page)


def iterate_pages(read: Callable[[str | None], P]) -> Iterator[P]:
    """Each page that there is; `read` gives the one that a cursor leads to. They are read as they are needed."""
    cursor = None
    while True:
        page = read(cursor)
        yield page
        cursor = page.next_cursor
        if cursor is None:
            return
