"""Keeps the index of words: what was recorded since a session was indexed last is added to it, behind the appends."""

from __future__ import annotations

import asyncio
import functools
import logging

import msgspec

from swarmkeep.domain.codec import Json, decode
from swarmkeep.domain.errors import Overloaded
from swarmkeep.domain.events import MessageAdded
from swarmkeep.domain.facts.history import MessageRemoved
from swarmkeep.domain.finding.words import list_labels, list_said, list_words
from swarmkeep.store.ports.errors import OutcomeUnknown, StoreUnavailable
from swarmkeep.store.ports.index import MANY_BEHIND
from swarmkeep.store.sql.columns import as_text
from swarmkeep.store.sql.database import OnDatabase
from swarmkeep.store.sql.searching.marks import Mark, add_marks, count_behind, void_all
from swarmkeep.store.sql.searching.reading import Part, read_parts
from swarmkeep.store.sql.searching.storing import FoundWords, render_words, store_words
from swarmkeep.store.sql.searching.tokens import join_words
from swarmkeep.store.upcast import upcast

log = logging.getLogger(__name__)

LABELS = 0
"""The seq of a session's id and metadata in the index."""


class SqlSearchIndexer(OnDatabase):
    """SearchIndexer (see there for what each call promises) on a Database."""

    async def index_some(self) -> int:
        parts = await self.database.read_snapshot(read_parts)
        if not parts:
            return 0
        found = await asyncio.to_thread(lambda: [_work_out_or_skip(part) for part in parts])
        for words, error in zip(
            found, await self.database.write_each(store_words, found, render=render_words), strict=True
        ):
            if isinstance(error, StoreUnavailable | OutcomeUnknown | Overloaded):
                raise error
            if error is not None:
                await self.database.write(functools.partial(store_words, some=[_skip(words.mark, words.upto, error)]))
        return len(parts)

    async def count_sessions_behind(self, most: int | None = MANY_BEHIND) -> int:
        return await self.database.read(lambda connection: count_behind(connection, most))

    async def void_search_index(self) -> None:
        await self.database.write(void_all, erases=True)

    async def add_missing_marks(self) -> None:
        """Have sessions indexed that were made by who does not know the index."""
        await self.database.write(add_marks)


def _work_out_or_skip(part: Part) -> FoundWords:
    try:
        return work_out(part)
    except Exception as error:
        return _skip(part.mark, part.upto, error)


def _skip(mark: Mark, upto: int, error: Exception) -> FoundWords:
    """Nothing, in the place of what cannot be indexed: it must not keep the others from being found."""
    # Not the error's text, nor where it came from: what somebody said may stand there.
    log.error("session %s: the words of some of its events cannot be indexed: %s", mark.key.id, type(error).__name__)
    return FoundWords(mark, upto, {}, set(), None)


def work_out(part: Part) -> FoundWords:
    """The words of what was read."""
    texts: dict[int, str] = {}
    removed: set[int] = set()
    for seq, type_, version, payload, salt, _ in part.rows:
        # What stands in the place of what was removed says nothing.
        if salt is None or type_ not in (MessageAdded.type, MessageRemoved.type):
            continue
        match upcast(type_, version, as_text(payload)):
            case MessageAdded(message=message):
                texts[seq] = list_said(message)
            case MessageRemoved(message_seq=one, seqs=seqs, content=content):
                removed |= {*seqs, *((one,) if content is True else ())}
            case _:
                continue
    if part.view is not None:
        removed.add(LABELS)
        texts[LABELS] = list_labels(part.mark.key.id, read_metadata(part.view))
    tenant = part.mark.key.tenant
    found = {seq: join_words(tenant, list_words(text)) for seq, text in texts.items() if seq not in removed or not seq}
    seq, *_, digest = part.rows[-1] if part.rows else (0, None)
    last = (seq, digest) if isinstance(digest, bytes) else None
    return FoundWords(part.mark, part.upto, found, removed, last)


def read_metadata(view: str) -> Json:
    """The metadata of a session as its head row has it; none if that is damaged."""
    try:
        return decode(view, _Labelled).metadata
    except (ValueError, TypeError):
        return {}


class _Labelled(msgspec.Struct, frozen=True):
    metadata: Json = {}
