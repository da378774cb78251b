"""Ways through many sessions that can begin, and end, in the middle."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable, Callable, Iterable, Iterator
from itertools import dropwhile
from typing import TypeVar

from swarmkeep.cli.sources.source import Walk
from swarmkeep.cli.terminal import Refused
from swarmkeep.store.ports import DEFAULT_TENANT, SessionKey

T = TypeVar("T")


async def follow_walk(keys: AsyncIterable[SessionKey], walk: Walk) -> AsyncGenerator[SessionKey]:
    """The sessions from the first one on, as long as the walk is not to end. Raises Refused if there is no such one."""
    begun = walk.first is None
    async for key in keys:
        begun = begun or key.id == walk.first
        if not begun:
            continue
        if walk.ends():
            walk.next = key.id
            return
        yield key
        walk.done += 1
    if not begun:
        raise make_missing_session_error(walk.first)


def start_at(items: Iterable[T], first: str | None, get_name: Callable[[T], str]) -> Iterator[T]:
    """The items from the first one on. Raises Refused if there is no such one."""
    if first is None:
        yield from items
        return
    rest = dropwhile(lambda item: get_name(item) != first, items)
    found = next(rest, None)
    if found is None:
        raise make_missing_session_error(first)
    yield found
    yield from rest


def parse_name(name: str, tenant: str | None) -> SessionKey:
    """The session of a name as `verify_all` gives it: TENANT/ID where no tenant is named."""
    first, slash, session_id = name.partition("/")
    return SessionKey(first, session_id) if slash and tenant is None else SessionKey(tenant or DEFAULT_TENANT, name)


def make_missing_session_error(name: str | None) -> Refused:
    return Refused(f"there is no session {name!r} to begin with; leave --from out to begin with the first one")
