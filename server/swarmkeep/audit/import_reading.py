"""An export, read and verified line by line, so that nothing is believed that its hashes do not prove."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import BinaryIO

import msgspec

from swarmkeep.audit.export_lines import MAX_LINE_BYTES, BadLine, Begin, End, EventLine, read_line
from swarmkeep.audit.findings import Findings
from swarmkeep.audit.verify_chain import ChainCheck
from swarmkeep.domain.errors import InvalidImport, InvalidRequest
from swarmkeep.domain.events import SessionCreated
from swarmkeep.domain.request import digest, texts_of
from swarmkeep.engine.inputs import checked_id
from swarmkeep.store.hashing import Sealed
from swarmkeep.store.port import Chunk

_CHUNK_EVENTS = 200
_CHUNK_BYTES = 4 * 1024 * 1024

Record = EventLine | End


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """A session in an export: what its first line says of it, and where that line begins."""

    session_id: str
    begin: Begin
    line: int
    offset: int


class Lines:
    """The lines of a file from one place on, counted, and digested for the end of the document."""

    def __init__(self, file: BinaryIO, *, line: int = 1, offset: int = 0) -> None:
        file.seek(offset)
        self._file = file
        self._next_line, self._next_offset = line, offset
        self.line, self.offset, self.size = line, offset, 0
        self.sha256 = hashlib.sha256()

    def next(self) -> Record | None:
        """What the next line says; None after the last. Raises InvalidImport."""
        text = self._file.readline(MAX_LINE_BYTES + 1)
        if not text:
            return None
        self.line, self.offset = self._next_line, self._next_offset
        if len(text) > MAX_LINE_BYTES:
            raise self.refusal(f"the line is longer than {MAX_LINE_BYTES} bytes")
        if not text.endswith(b"\n"):
            raise self.refusal("the export is cut off in the middle of this line")
        self.size = len(text)
        self._next_line, self._next_offset = self.line + 1, self.offset + self.size
        try:
            record = read_line(text[:-1])
        except BadLine as error:
            raise self.refusal(str(error)) from None
        if not isinstance(record, End):
            self.sha256.update(text)
        return record

    def refusal(self, why: str) -> InvalidImport:
        return InvalidImport(why, line=self.line)


def survey(file: BinaryIO) -> Iterator[Place]:
    """Verify an export from its first line to its last; gives each session once it has proved to be whole.

    Raises InvalidImport, which names the line.
    """
    lines = Lines(file)
    seen: set[str] = set()
    begun = ended = False
    sessions = events = 0
    while (record := lines.next()) is not None:
        begun = True
        if isinstance(record, End):
            found = End(sessions=sessions, events=events, sha256=lines.sha256.hexdigest())
            if record != found:
                raise lines.refusal("what came before this line is not what was exported: lines are missing or changed")
            ended = True
        else:
            place = _place(lines, record)
            if place.session_id in seen:
                raise lines.refusal(f"session {place.session_id!r} is in this file twice")
            seen.add(place.session_id)
            if place.begin.alone and sessions:
                raise lines.refusal("the export before this line is cut off: its last line is missing")
            sessions += 1
            events += sum(len(chunk.events) for chunk in _chunks(lines, place, record))
            ended = place.begin.alone
            yield place
        if ended:
            sessions = events = 0
            lines.sha256 = hashlib.sha256()
    if not ended:
        lines.line += begun
        raise lines.refusal("the export is cut off: its last line is missing" if begun else "the file is empty")


def _place(lines: Lines, record: EventLine) -> Place:
    if record.begin is None:
        raise lines.refusal("here was to be the first event of a session")
    try:
        session_id = checked_id(record.sealed.event.session_id)
    except InvalidRequest as error:
        raise lines.refusal(str(error)) from None
    return Place(session_id=session_id, begin=record.begin, line=lines.line, offset=lines.offset)


def chunks(file: BinaryIO, place: Place, session_id: str) -> Iterator[Chunk]:
    """The events and texts of one session, under the id that it is to have, verified once more on the way.

    Raises InvalidImport.
    """
    lines = Lines(file, line=place.line, offset=place.offset)
    first = lines.next()
    if not isinstance(first, EventLine) or _place(lines, first) != place:
        raise lines.refusal("the file was changed while it was read")
    for chunk in _chunks(lines, place, first):
        if session_id == place.session_id:
            yield chunk
            continue
        renamed = [
            msgspec.structs.replace(one, event=msgspec.structs.replace(one.event, session_id=session_id))
            for one in chunk.events
        ]
        yield Chunk(renamed, chunk.blobs)


def _chunks(lines: Lines, place: Place, first: EventLine) -> Iterator[Chunk]:
    """A session from its first line on, up to the last event, which must have the seq and hash that this line names."""
    chain = _Chain(place, lines)
    events: list[Sealed] = []
    blobs: dict[str, str] = {}
    size = 0
    record: Record | None = first
    while True:
        size += lines.size
        if record is None:
            lines.line += 1
            raise lines.refusal(f"the export is cut off: event {chain.seq + 1} of {place.begin.seq} is missing")
        if not isinstance(record, EventLine):
            raise lines.refusal(f"here was to be event {chain.seq + 1} of session {place.session_id!r}")
        chain.follow(record)
        events.append(record.sealed)
        blobs |= record.texts
        if chain.seq == place.begin.seq:
            break
        if len(events) >= _CHUNK_EVENTS or size >= _CHUNK_BYTES:
            yield Chunk(events, blobs)
            events, blobs, size = [], {}, 0
        record = lines.next()
    chain.close()
    yield Chunk(events, blobs)


class _Chain:
    """One session's events as they come: each is the next one, and follows from those before it."""

    def __init__(self, place: Place, lines: Lines) -> None:
        self.seq = 0
        self._place = place
        self._lines = lines
        self._hash = ""
        self._named: set[str] = set()
        self._findings = Findings()
        self._check = ChainCheck(self._findings)

    def follow(self, line: EventLine) -> None:
        one, refusal = line.sealed, self._lines.refusal
        event = one.event
        self.seq += 1
        if event.session_id != self._place.session_id or event.seq != self.seq or (line.begin and self.seq > 1):
            raise refusal(
                f"here was to be event {self.seq} of session {self._place.session_id!r}, "
                f"not event {event.seq} of {event.session_id!r}"
            )
        if self.seq == 1 and event.type != SessionCreated.type:
            raise refusal(f"a session begins with {SessionCreated.type}, not with {event.type}")
        self._take_texts(line)
        self._hash = event.hash
        self._check.take(one)
        self._refuse_problems()

    def _take_texts(self, line: EventLine) -> None:
        named = [name for name in texts_of(line.sealed.event.fact) if name not in self._named]
        self._named.update(named)
        if not line.texts.keys() <= set(named):
            raise self._lines.refusal("it brings a text that its event does not name, or that an earlier one did")
        if any(digest(text) != name for name, text in line.texts.items()):
            raise self._lines.refusal("the text is not the one that its hash names")

    def close(self) -> None:
        if self._hash != self._place.begin.hash:
            raise self._lines.refusal("the last event is not the one that the session's first line names")
        self._check.finish()
        self._refuse_problems()

    def _refuse_problems(self) -> None:
        for problem in self._findings.verification(self.seq, None).problems if self._findings.count else ():
            line = self._lines.line if problem.seq is None else self._place.line + problem.seq - 1
            raise InvalidImport(problem.detail, line=line)
