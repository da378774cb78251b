"""Sessions as bytes that leave nothing out: everything that an import needs to record them again as they were."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncGenerator, AsyncIterable, Mapping, Sequence

from swarmkeep.audit.transfer.export_lines import (
    ExportEnd,
    ExportStart,
    write_end_line,
    write_event_line,
    write_file_line,
)
from swarmkeep.domain.envelope import RecordedEvent
from swarmkeep.domain.errors import SessionNotFound
from swarmkeep.domain.files.facts import list_fact_files
from swarmkeep.domain.request import list_text_hashes
from swarmkeep.domain.state import SessionStatus
from swarmkeep.store.ports import EventStore, SessionKey, StoreUnavailable

JSON_LINES = "application/x-ndjson"

# How much of a log is read at once: a page is followed by a smaller one when it was large.
_PAGE_BYTES = 1024 * 1024
_MAX_PAGE_EVENTS = 500


async def write_export(
    store: EventStore, keys: AsyncIterable[SessionKey], *, alone: bool = False
) -> AsyncGenerator[bytes]:
    """The export of these sessions, piece by piece. A session that is not there any more is left out.

    Each is as it was when its turn came. `alone`: it is one session, and its last event is the last line. Raises
    StoreUnavailable if one is deleted in the middle of it: what has come until then has no end, and cannot be imported.
    """
    tally = _Tally()
    async for key in keys:
        head = await store.read_head(key)
        if head is None:
            continue
        tally.sessions += 1
        tally.events += head.seq
        async for page in _write_session(store, key, ExportStart(seq=head.seq, hash=head.hash, alone=alone)):
            yield tally.add(page)
    if not alone:
        yield tally.end()


async def _write_session(store: EventStore, key: SessionKey, begin: ExportStart) -> AsyncGenerator[bytes]:
    seq, limit = 0, 10
    named: set[str] = set()
    files: set[str] = set()
    while seq < begin.seq:
        events = await store.read_sealed(key, after=seq, limit=min(limit, begin.seq - seq), max_bytes=_PAGE_BYTES)
        if not events:
            raise StoreUnavailable(f"session {key.id!r} was deleted while it was exported")
        new = {one.event.seq: _take_new_names(one.event, named) for one in events}
        texts = await store.read_blobs(key, [name for names in new.values() for name in names])
        page: list[bytes] = []
        size = 1
        for one in events:
            async for line in _write_new_files(store, key, one.event, files):
                # A file is a piece by itself, with what comes before it: no two are in memory.
                yield b"".join([*page, line])
                page.clear()
            page.append(
                write_event_line(
                    one,
                    {name: texts[name] for name in new[one.event.seq] if name in texts},
                    begin if one.event.seq == 1 else None,
                )
            )
            size += len(page[-1])
        seq = events[-1].event.seq
        limit = max(1, min(limit * 4, limit * _PAGE_BYTES // size, _MAX_PAGE_EVENTS))
        page[:] = [b"".join(page)]
        # Of a large event they take several times what is sent, and a reader may be slow, or many.
        del events, one, new, texts
        yield page.pop()


async def _write_new_files(
    store: EventStore, key: SessionKey, event: RecordedEvent, written: set[str]
) -> AsyncGenerator[bytes]:
    """The files that an event refers to and none before it did, each as a line."""
    for name in dict.fromkeys(list_fact_files(event.fact)):
        if name in written:
            continue
        written.add(name)
        found = await store.read_files(key, [name])
        if name in found:
            yield write_file_line(name, found[name])


def _take_new_names(event: RecordedEvent, named: set[str]) -> list[str]:
    """The texts that an event names and none before it did."""
    new = [name for name in list_text_hashes(event.fact) if name not in named]
    named.update(new)
    return new


class _Tally:
    """What was exported so far, for the last line."""

    def __init__(self) -> None:
        self.sessions = self.events = 0
        self._digest = hashlib.sha256()

    def add(self, piece: bytes) -> bytes:
        self._digest.update(piece)
        return piece

    def end(self) -> bytes:
        return write_end_line(ExportEnd(sessions=self.sessions, events=self.events, sha256=self._digest.hexdigest()))


async def find_sessions(store: EventStore, tenant: str, session_ids: Sequence[str]) -> list[SessionKey]:
    """The sessions with these ids, each once. Raises SessionNotFound for the first that is not there."""
    keys = [SessionKey(tenant, session_id) for session_id in dict.fromkeys(session_ids)]
    for key in keys:
        if await store.read_head(key) is None:
            raise SessionNotFound(key.id)
    return keys


async def iterate_keys(keys: Sequence[SessionKey]) -> AsyncGenerator[SessionKey]:
    for key in keys:
        yield key


async def filter_sessions(
    store: EventStore,
    tenant: str,
    *,
    agent: str | None = None,
    status: SessionStatus | None = None,
    metadata: Mapping[str, str] | None = None,
) -> AsyncGenerator[SessionKey]:
    """A tenant's sessions, newest first, by the filters of a list."""
    cursor = None
    while True:
        page = await store.list_sessions(
            tenant, agent=agent, status=status, metadata=metadata, limit=100, cursor=cursor
        )
        for session in page.sessions:
            yield SessionKey(tenant, session.id)
        if (cursor := page.next_cursor) is None:
            return
