"""An export, read and verified line by line, so that nothing is believed that its hashes do not prove."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import BinaryIO

import msgspec

from swarmkeep.audit.export_lines import MAX_LINE_BYTES, BadLine, BlobLine, End, Header, read_line
from swarmkeep.audit.findings import Findings
from swarmkeep.audit.verify_chain import ChainCheck
from swarmkeep.domain.errors import InvalidImport, InvalidRequest
from swarmkeep.domain.events import SessionCreated
from swarmkeep.domain.request import digest
from swarmkeep.engine.inputs import checked_id
from swarmkeep.store.hashing import Sealed
from swarmkeep.store.port import Chunk

_CHUNK_EVENTS = 200
_CHUNK_BYTES = 4 * 1024 * 1024

Record = Header | BlobLine | End | Sealed


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """A session in an export: its header, and where that line begins."""

    header: Header
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
    sessions = blobs = events = 0
    while (record := lines.next()) is not None:
        begun, ended = True, isinstance(record, End)
        if isinstance(record, Header):
            place = Place(header=record, line=lines.line, offset=lines.offset)
            if record.session_id in seen:
                raise lines.refusal(f"session {record.session_id!r} is in this file twice")
            seen.add(record.session_id)
            sessions += 1
            for chunk in _chunks(lines, record):
                blobs, events = blobs + len(chunk.blobs), events + len(chunk.events)
            yield place
        elif isinstance(record, End):
            found = End(sessions=sessions, blobs=blobs, events=events, sha256=lines.sha256.hexdigest())
            if record != found:
                raise lines.refusal("what came before this line is not what was exported: lines are missing or changed")
            sessions = blobs = events = 0
            lines.sha256 = hashlib.sha256()
        else:
            raise lines.refusal("an export begins with the line of a session")
    if not ended:
        lines.line += begun
        raise lines.refusal("the export is cut off: its last line is missing" if begun else "the file is empty")


def chunks(file: BinaryIO, place: Place, session_id: str) -> Iterator[Chunk]:
    """The events and texts of one session, under the id that it is to have, verified once more on the way.

    Raises InvalidImport.
    """
    lines = Lines(file, line=place.line, offset=place.offset)
    if lines.next() != place.header:
        raise lines.refusal("the file was changed while it was read")
    for chunk in _chunks(lines, place.header):
        if session_id == place.header.session_id:
            yield chunk
            continue
        renamed = [
            msgspec.structs.replace(one, event=msgspec.structs.replace(one.event, session_id=session_id))
            for one in chunk.events
        ]
        yield Chunk(renamed, chunk.blobs)


def _chunks(lines: Lines, header: Header) -> Iterator[Chunk]:
    """What follows a header, up to the session's last event, which must have the seq and hash that it names."""
    try:
        checked_id(header.session_id)
    except InvalidRequest as error:
        raise lines.refusal(str(error)) from None
    chain = _Chain(header, lines)
    events: list[Sealed] = []
    blobs: dict[str, str] = {}
    size, last_hash = 0, ""
    while chain.seq < header.seq:
        record = lines.next()
        size += lines.size
        match record:
            case Sealed():
                chain.follow(record)
                events.append(record)
            case BlobLine() if chain.seq == 0 and record.hash > last_hash:
                if digest(record.text) != record.hash:
                    raise lines.refusal("the text is not the one that its hash names")
                blobs[record.hash] = record.text
                last_hash = record.hash
            case None:
                lines.line += 1
                raise lines.refusal(f"the export is cut off: event {chain.seq + 1} of {header.seq} is missing")
            case _:
                raise lines.refusal(f"here was to be event {chain.seq + 1} of session {header.session_id!r}")
        if len(events) >= _CHUNK_EVENTS or (events and size >= _CHUNK_BYTES):
            yield Chunk(events, blobs)
            events, blobs, size = [], {}, 0
    chain.close()
    yield Chunk(events, blobs)


class _Chain:
    """One session's events as they come: each is the next one, and follows from those before it."""

    def __init__(self, header: Header, lines: Lines) -> None:
        self.seq = 0
        self._header = header
        self._lines = lines
        self._hash = ""
        self._first_line = 0
        self._findings = Findings()
        self._check = ChainCheck(self._findings)
        if header.seq < 1:
            raise lines.refusal("a session has at least one event")

    def follow(self, one: Sealed) -> None:
        event, refusal = one.event, self._lines.refusal
        self.seq += 1
        if event.session_id != self._header.session_id or event.seq != self.seq:
            raise refusal(
                f"here was to be event {self.seq} of session {self._header.session_id!r}, "
                f"not event {event.seq} of {event.session_id!r}"
            )
        if self.seq == 1:
            self._first_line = self._lines.line
            if event.type != SessionCreated.type:
                raise refusal(f"a session begins with {SessionCreated.type}, not with {event.type}")
        self._hash = event.hash
        self._check.take(one)
        self._refuse_problems()

    def close(self) -> None:
        if self._hash != self._header.hash:
            raise self._lines.refusal("the last event is not the one that the session's line names")
        self._check.finish()
        self._refuse_problems()

    def _refuse_problems(self) -> None:
        for problem in self._findings.verification(self.seq, None).problems if self._findings.count else ():
            line = self._lines.line if problem.seq is None else self._first_line + problem.seq - 1
            raise InvalidImport(problem.detail, line=line)
