"""Convert between the objects of the store and the types of the client."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable, Callable, Iterable, Iterator
from itertools import dropwhile
from typing import TYPE_CHECKING, Protocol, TypeVar

import msgspec

from swarmkeep.cli.sources import Walk
from swarmkeep.cli.terminal import Refused
from swarmkeep.events.codec import decode, encode
from swarmkeep.events.facts import EventView, RecordedEvent, view_event
from swarmkeep.events.views import ListedSession, SessionView
from swarmkeep.history.export import to_recorded_event
from swarmkeep.store.records import DEFAULT_TENANT, SessionKey
from swarmkeep.store.records import SessionCounts as StoredCounts
from swarmkeep_client import Event, SessionCounts, SessionState, Verification

if TYPE_CHECKING:
    from swarmkeep.history.verify import Verification as StoredVerification


# Ways through many sessions that can begin, and end, in the middle.

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


def from_client_event(event: Event) -> RecordedEvent:
    """The event as it was recorded, from what a server says of it."""
    return to_recorded_event(
        EventView(
            session_id=event.session_id,
            seq=event.seq,
            type=event.type,
            version=event.version,
            run_id=event.run_id,
            agent=event.agent or "",
            at=event.at,
            data=msgspec.Raw(encode(event.data)),
            hash=event.hash,
        )
    )


def to_client_event(event: RecordedEvent) -> Event:
    return decode(encode(view_event(event)), Event)


def to_session_state(view: SessionView | ListedSession) -> SessionState:
    # Through plain JSON values, which leave out what was not asked for.
    return msgspec.convert(msgspec.to_builtins(view), SessionState)


def to_client_verification(found: StoredVerification) -> Verification:
    return msgspec.convert(found, Verification, from_attributes=True)


def to_session_counts(found: StoredCounts) -> SessionCounts:
    return msgspec.convert(msgspec.to_builtins(found), SessionCounts)


# Pages of a list, one after the other.


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
