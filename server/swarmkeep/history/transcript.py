"""A session as a document for people: Markdown, or a page of HTML that needs nothing else.

Every message is shown as text and never as markup: a transcript of a hostile conversation is a dull document.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import Literal, Protocol

from swarmkeep.describe import TimelineEntry
from swarmkeep.events.errors import EventNotFound
from swarmkeep.events.facts import RecordedEvent
from swarmkeep.events.fold import evolve
from swarmkeep.events.state import State
from swarmkeep.history import html, markdown
from swarmkeep.history.entries import build_entry
from swarmkeep.history.verify import Verification, verify
from swarmkeep.store.opening import SqlStore
from swarmkeep.store.records import SessionKey, StoreUnavailable
from swarmkeep.store.threads import free_state_aside

TranscriptFormat = Literal["markdown", "html"]
MEDIA_TYPES: dict[TranscriptFormat, str] = {"markdown": "text/markdown", "html": "text/html"}
_PAGE_EVENTS = 50
_PAGE_BYTES = 1_000_000


class TranscriptWriter(Protocol):
    """A form of document. Each function gives a piece of it."""

    def write_head(self, session_id: str, warning: str | None) -> str: ...

    def write_entry(self, entry: TimelineEntry) -> str: ...

    def write_foot(self, session_id: str, state: State) -> str: ...


_WRITERS: dict[TranscriptFormat, TranscriptWriter] = {"markdown": markdown, "html": html}


async def open_transcript(
    store: SqlStore, key: SessionKey, form: TranscriptFormat, *, at: int | None = None
) -> AsyncGenerator[bytes]:
    """The document, piece by piece: the session now, or as it was after event `at`. It says if the log does not verify.

    Raises SessionNotFound, and EventNotFound when there is no event `at`.
    """
    # The head row may be damaged, or gone: a log is shown as far as it goes.
    newest = (await store.state(key)).seq
    last = newest if at is None else at
    if not 1 <= last <= newest:
        raise EventNotFound.out_of_range(key.id, newest, last)
    return _write_document(store, key, _WRITERS[form], last, describe_damage(await verify(store, key)))


def describe_damage(found: Verification) -> str | None:
    """Describe the damage to the reader of a log that does not verify."""
    if found.valid:
        return None
    first = found.problems[0]
    return f"this session does not verify: {first.detail} ({first.code})"


async def _write_document(
    store: SqlStore, key: SessionKey, writer: TranscriptWriter, last: int, warning: str | None
) -> AsyncGenerator[bytes]:
    yield _encode(writer.write_head(key.id, warning))
    state = State()
    while events := await store.read(key, after=state.seq, upto=last, limit=_PAGE_EVENTS, max_bytes=_PAGE_BYTES):
        # Messages may be long, and no other task waits until they are written.
        page, state = await asyncio.to_thread(_write_page, writer, state, events)
        yield page
    if state.seq < last:
        # No reader is to take this part for all of it.
        raise StoreUnavailable(f"session {key.id!r} was deleted while its transcript was written")
    yield _encode(writer.write_foot(key.id, state))


def _write_page(writer: TranscriptWriter, state: State, events: Sequence[RecordedEvent]) -> tuple[bytes, State]:
    """Write the descriptions of some events that follow a state, and return the state after them."""
    pieces = []
    for event in events:
        before, state = state, evolve(state, event)
        pieces.append(writer.write_entry(build_entry(before, event, state)))
    free_state_aside(state)
    return _encode("".join(pieces)), state


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "replace")
