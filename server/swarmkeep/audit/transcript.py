"""A session as a document for people: Markdown, or a page of HTML that needs nothing else.

Whatever was said is shown as text and never as markup: a transcript of a hostile conversation is a dull document.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Literal, Protocol

from swarmkeep.audit import transcript_html, transcript_markdown
from swarmkeep.audit.findings import Verification
from swarmkeep.audit.narrate import Scene, scene
from swarmkeep.audit.verify import verify
from swarmkeep.domain.errors import EventNotFound
from swarmkeep.domain.fold import evolve
from swarmkeep.domain.state import State
from swarmkeep.store.archive import Archive
from swarmkeep.store.port import SessionKey

Form = Literal["markdown", "html"]
MEDIA_TYPES: dict[Form, str] = {"markdown": "text/markdown", "html": "text/html"}
_PAGE = 50


class Writer(Protocol):
    """A form of document. Each function gives a piece of it."""

    def begin(self, session_id: str, warning: str | None) -> str: ...

    def shown(self, scene: Scene) -> str: ...

    def end(self, session_id: str, state: State) -> str: ...


_WRITERS: dict[Form, Writer] = {"markdown": transcript_markdown, "html": transcript_html}


async def transcript(store: Archive, key: SessionKey, form: Form, *, at: int | None = None) -> AsyncGenerator[bytes]:
    """The document, piece by piece: the session now, or as it was after event `at`. It says if the log does not verify.

    Raises SessionNotFound, and EventNotFound when there is no event `at`.
    """
    # The head row may be damaged, or gone: a log is shown as far as it goes.
    newest = (await store.state(key)).seq
    last = newest if at is None else at
    if not 1 <= last <= newest:
        raise EventNotFound.beyond(key.id, newest, last)
    return _document(store, key, _WRITERS[form], last, damage(await verify(store, key)))


def damage(found: Verification) -> str | None:
    """What to tell whoever is shown a log that does not verify."""
    if found.valid:
        return None
    first = found.problems[0]
    return f"this session does not verify: {first.detail} ({first.code})"


async def _document(
    store: Archive, key: SessionKey, writer: Writer, last: int, warning: str | None
) -> AsyncGenerator[bytes]:
    yield _bytes(writer.begin(key.id, warning))
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
