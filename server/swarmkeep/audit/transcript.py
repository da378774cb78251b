"""A session as a document for people: Markdown, or a page of HTML that needs nothing else.

Whatever was said is shown as text and never as markup: a transcript of a hostile conversation is a dull document.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Literal, Protocol

from swarmkeep.audit import transcript_html, transcript_markdown
from swarmkeep.audit.narrate import Scene, scene
from swarmkeep.domain.errors import EventNotFound, SessionNotFound
from swarmkeep.domain.fold import evolve
from swarmkeep.domain.state import State
from swarmkeep.store.port import EventStore, SessionKey

Form = Literal["markdown", "html"]
MEDIA_TYPES: dict[Form, str] = {"markdown": "text/markdown", "html": "text/html"}
_PAGE = 50


class Writer(Protocol):
    """A form of document. Each function gives a piece of it."""

    def begin(self, session_id: str) -> str: ...

    def shown(self, scene: Scene) -> str: ...

    def end(self, session_id: str, state: State) -> str: ...


_WRITERS: dict[Form, Writer] = {"markdown": transcript_markdown, "html": transcript_html}


async def transcript(store: EventStore, key: SessionKey, form: Form, *, at: int | None = None) -> AsyncGenerator[bytes]:
    """The document, piece by piece: the session now, or as it was after event `at`.

    Raises SessionNotFound, and EventNotFound when there is no event `at`.
    """
    head = await store.head(key)
    if head is None:
        raise SessionNotFound(key.id)
    last = head.seq if at is None else at
    if not 1 <= last <= head.seq:
        raise EventNotFound(last, f"session {key.id!r} has the events 1 to {head.seq}; there is no event {last}")
    return _document(store, key, _WRITERS[form], last)


async def _document(store: EventStore, key: SessionKey, writer: Writer, last: int) -> AsyncGenerator[bytes]:
    yield _bytes(writer.begin(key.id))
    state = State()
    while events := await store.read(key, after=state.seq, upto=last, limit=_PAGE):
        pieces = []
        for event in events:
            before, state = state, evolve(state, event)
            pieces.append(writer.shown(scene(before, event, state)))
        yield _bytes("".join(pieces))
    yield _bytes(writer.end(key.id, state))


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "replace")
