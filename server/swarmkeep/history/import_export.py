"""Sessions taken in from an export: all that is in the file is verified before anything of it is recorded."""

from __future__ import annotations

import asyncio
import hashlib
import sys
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import BinaryIO, Literal

import msgspec

from swarmkeep.decide.checks import check_id
from swarmkeep.decide.settle import finish_import
from swarmkeep.events.codec import digest, has_more_values
from swarmkeep.events.errors import InvalidImport, InvalidRequest, SessionExists, TooLarge
from swarmkeep.events.facts import EventDraft, SessionCreated, SessionImported
from swarmkeep.events.fold import evolve
from swarmkeep.events.messages import list_text_hashes
from swarmkeep.events.sizes import UNBOUNDED, SizeLimits
from swarmkeep.events.state import State
from swarmkeep.events.wording import pluralize
from swarmkeep.history.export import (
    MAX_LINE_BYTES,
    EventLine,
    ExportedFiles,
    ExportEnd,
    ExportLine,
    ExportStart,
    FileLine,
    InvalidLine,
    MissingSession,
    explain_cut_line,
    read_export_line,
)
from swarmkeep.history.verify import ChainProblem, Head, Problems, Verification
from swarmkeep.store.hashing import SealedEvent
from swarmkeep.store.integrity import ChainCheck
from swarmkeep.store.opening import SqlStore
from swarmkeep.store.records import AuditAction, Restoration, SealedBatch, SessionHead, SessionKey, StorageQuota

# Bound the amounts that a session of a file may hold at once: each event that follows costs what it holds.

MAX_QUEUED_RUNS = 10_000
"""In one session, where no setting says how many: more than any server has let wait."""
MAX_REPLY_CALLS = 1000
"""Of one reply: far more than any server takes of a model."""


def find_excess(state: State, max_queued_runs: int) -> str | None:
    """Name the part of a state that there is too much of."""
    if len(state.queue) > max_queued_runs:
        waiting = pluralize(max_queued_runs, "run waits", "runs wait")
        return f"more than {waiting} in the session's queue (SWARMKEEP_MAX_QUEUED_RUNS)"
    if state.run is not None and len(state.run.calls) > MAX_REPLY_CALLS:
        return f"one reply of a model asks for more than {MAX_REPLY_CALLS} calls"
    return None


# An export, read and verified line by line, so that nothing is believed that its hashes do not prove.

MAX_SESSION_BYTES = 128 * 1024 * 1024
"""Of one session's lines: it is recorded in one transaction, and on SQLite all other writes wait for that."""
MAX_LINE_VALUES = 200_000
"""JSON values of one line: many tiny ones take far more memory than their bytes."""
_MAX_CHUNK_EVENTS = 200
_MAX_CHUNK_BYTES = 4 * 1024 * 1024


class ExportedSession(msgspec.Struct, frozen=True, kw_only=True):
    """A session in an export: what its first line says of it, and where that line begins."""

    session_id: str
    begin: ExportStart
    line: int
    offset: int


class ExportLines:
    """The lines of a file from one place on, counted, and digested for the end of the document."""

    def __init__(
        self,
        file: BinaryIO,
        *,
        line: int = 1,
        offset: int = 0,
        max_line_bytes: int = MAX_LINE_BYTES,
        max_line_values: int | None = None,
    ) -> None:
        file.seek(offset)
        self._max_line_values = max_line_values
        self._max_line_bytes = max_line_bytes
        self._file = file
        self._next_line, self._next_offset = line, offset
        self.line, self.offset, self.size = line, offset, 0
        self.sha256 = hashlib.sha256()
        self.file_seqs: list[int] = []
        """The events of the session that is being read that have a file before them, once for each."""

    def next(self) -> ExportLine | None:
        """Read the next line; None after the last. Raises InvalidImport."""
        text = self._file.readline(self._max_line_bytes + 1)
        if not text:
            return None
        self.line, self.offset = self._next_line, self._next_offset
        if len(text) > self._max_line_bytes:
            raise self.make_error(f"the line is longer than {self._max_line_bytes} bytes")
        if not text.endswith(b"\n"):
            raise self.make_error(explain_cut_line(text))
        self.size = len(text)
        self._next_line, self._next_offset = self.line + 1, self.offset + self.size
        if self._max_line_values is not None and has_more_values(text, self._max_line_values):
            raise self.make_error(f"the line holds more than {self._max_line_values} JSON values")
        try:
            record = read_export_line(text[:-1])
        except InvalidLine as error:
            raise self.make_error(str(error)) from None
        if not isinstance(record, ExportEnd):
            self.sha256.update(text)
        return record

    @property
    def end(self) -> int:
        """The end of the last line that was read."""
        return self._next_offset

    def find_line(self, place: ExportedSession, seq: int) -> int:
        """The line of an event of the session that is being read."""
        return place.line + seq - 1 + bisect_right(self.file_seqs, seq)

    def make_error(self, why: str) -> InvalidImport:
        return InvalidImport(why, line=self.line)


def verify_export(
    file: BinaryIO,
    *,
    max_session_bytes: int = MAX_SESSION_BYTES,
    max_line_values: int = MAX_LINE_VALUES,
    max_queued_runs: int = MAX_QUEUED_RUNS,
    check_session: Callable[[State], None] = UNBOUNDED.check_session,
    on_event: Callable[[SealedEvent], None] = lambda _: None,
    missing: dict[str, MissingSession] | None = None,
) -> Iterator[ExportedSession]:
    """Verify an export from its first line to its last; gives each session once it has proved to be whole.

    `on_event` gets each event before its session has proved to be whole. In the end `missing` has the sessions, by
    their ids, that the file says are missing, and that no other part of it has.

    No session may have more than `max_session_bytes`, no line more than `max_line_values`, no queue ever more than
    `max_queued_runs`, and no reply more calls than any model makes. Sessions are folded one after the other, and
    `check_session` may refuse each in the end.

    Raises InvalidImport, which names the line, and what `check_session` raises.
    """
    lines = ExportLines(file, max_line_values=max_line_values)
    seen: set[str] = set()
    lost: dict[str, MissingSession] = {}
    document = _Document(lines)
    while (record := lines.next()) is not None:
        if isinstance(record, ExportEnd):
            document.end(record)
            continue
        if isinstance(record, MissingSession):
            document.begin()
            lost.setdefault(_check_id(lines, record.session_id), record)
            continue
        if not isinstance(record, EventLine):
            raise lines.make_error("this should be the first event of a session")
        place = _read_session_start(lines, record)
        if place.session_id in seen:
            raise lines.make_error(f"session {place.session_id!r} is in this file twice")
        seen.add(place.session_id)
        document.begin(place)
        state = _fold_session(lines, place, record, max_session_bytes, max_queued_runs, on_event)
        try:
            check_session(state)
        except TooLarge as error:
            raise TooLarge(f"session {place.session_id!r}: {error}") from None
        yield place
        if place.begin.alone:
            document.reset()
    document.close()
    if missing is not None:
        missing.update((name, one) for name, one in lost.items() if name not in seen)


class _Document:
    """A part of a file with an end of its own: sessions up to the last line of an export, or one that is alone."""

    def __init__(self, lines: ExportLines) -> None:
        self._lines = lines
        self.reset()
        self._has_ended = False

    def reset(self) -> None:
        self._sessions = self._events = 0
        self._is_open, self._has_ended = False, True
        self._lines.sha256 = hashlib.sha256()

    def begin(self, place: ExportedSession | None = None) -> None:
        """A session, or a line that says that one is missing. Raises InvalidImport."""
        if place is not None:
            if place.begin.alone and self._is_open:
                raise self._lines.make_error("the export before this line is cut off: its last line is missing")
            self._sessions += 1
            self._events += place.begin.seq
        self._is_open = True

    def end(self, record: ExportEnd) -> None:
        """The last line. Raises InvalidImport."""
        if record != ExportEnd(sessions=self._sessions, events=self._events, sha256=self._lines.sha256.hexdigest()):
            raise self._lines.make_error(
                "the lines before this one are not what was exported: some are missing or changed"
            )
        self.reset()

    def close(self) -> None:
        """The end of the file. Raises InvalidImport."""
        if self._is_open:
            self._lines.line += 1
            raise self._lines.make_error("the export is cut off: its last line is missing")
        if not self._has_ended:
            raise self._lines.make_error("the file is empty")


def _fold_session(
    lines: ExportLines,
    place: ExportedSession,
    first: EventLine,
    max_bytes: int,
    max_queued_runs: int,
    on_event: Callable[[SealedEvent], None],
) -> State:
    """Verify a session, and give its last state.

    It must not hold too much at any time (see `find_excess`).
    """
    state = State()
    for chunk in _read_verified_chunks(lines, place, first):
        for one in chunk.events:
            on_event(one)
            state = evolve(state, one.event)
            why = find_excess(state, max_queued_runs)
            if why is not None:
                raise InvalidImport(why, line=lines.find_line(place, one.event.seq))
        if lines.end - place.offset > max_bytes:
            raise lines.make_error(f"the session has more than {max_bytes} bytes up to here")
    return state


def _read_session_start(lines: ExportLines, record: EventLine) -> ExportedSession:
    if record.begin is None:
        raise lines.make_error("this should be the first event of a session")
    session_id = _check_id(lines, record.sealed.event.session_id)
    return ExportedSession(session_id=session_id, begin=record.begin, line=lines.line, offset=lines.offset)


def _check_id(lines: ExportLines, session_id: str) -> str:
    try:
        return check_id(session_id)
    except InvalidRequest as error:
        raise lines.make_error(str(error)) from None


def read_chunks(file: BinaryIO, place: ExportedSession, session_id: str) -> Iterator[SealedBatch]:
    """The events and texts of one session, under the id that it is to have, verified once more on the way.

    Raises InvalidImport.
    """
    lines = ExportLines(file, line=place.line, offset=place.offset)
    first = lines.next()
    if not isinstance(first, EventLine) or _read_session_start(lines, first) != place:
        raise lines.make_error("the file was changed while it was read")
    for chunk in _read_verified_chunks(lines, place, first):
        if session_id == place.session_id:
            yield chunk
            continue
        renamed = [
            msgspec.structs.replace(one, event=msgspec.structs.replace(one.event, session_id=session_id))
            for one in chunk.events
        ]
        yield SealedBatch(renamed, chunk.blobs, chunk.files)


def _read_verified_chunks(lines: ExportLines, place: ExportedSession, first: EventLine) -> Iterator[SealedBatch]:
    """A session from its first line on, up to the last event, which must have the seq and hash that this line names."""
    chain = _ExportedChain(place, lines)
    lines.file_seqs.clear()
    events: list[SealedEvent] = []
    blobs: dict[str, str] = {}
    files: dict[str, bytes] = {}
    size = 0
    record: ExportLine | None = first
    while True:
        size += lines.size
        if record is None:
            lines.line += 1
            raise lines.make_error(f"the export is cut off: event {chain.seq + 1} of {place.begin.seq} is missing")
        if isinstance(record, FileLine):
            chain.take_file(record)
            files[record.sha256] = record.content
            record = lines.next()
            continue
        if not isinstance(record, EventLine):
            raise lines.make_error(f"this should be event {chain.seq + 1} of session {place.session_id!r}")
        chain.follow(record)
        events.append(record.sealed)
        blobs |= record.texts
        if chain.seq == place.begin.seq:
            break
        if len(events) >= _MAX_CHUNK_EVENTS or size >= _MAX_CHUNK_BYTES:
            yield SealedBatch(events, blobs, files)
            events, blobs, files, size = [], {}, {}, 0
        record = lines.next()
    chain.close()
    yield SealedBatch(events, blobs, files)


class _ExportedChain:
    """One session's events as they come: each is the next one, and follows from those before it."""

    def __init__(self, place: ExportedSession, lines: ExportLines) -> None:
        self.seq = 0
        self._place = place
        self._lines = lines
        self._hash = ""
        self._named: set[str] = set()
        self._files = ExportedFiles()
        self._findings = Problems()
        self._check = ChainCheck(self._findings)

    def follow(self, line: EventLine) -> None:
        one, refusal = line.sealed, self._lines.make_error
        event = one.event
        self.seq += 1
        if event.session_id != self._place.session_id or event.seq != self.seq or (line.begin and self.seq > 1):
            raise refusal(
                f"this should be event {self.seq} of session {self._place.session_id!r}, "
                f"not event {event.seq} of {event.session_id!r}"
            )
        if self.seq == 1 and event.type != SessionCreated.type:
            raise refusal(f"a session begins with {SessionCreated.type}, not with {event.type}")
        self._check_texts(line)
        self._files.check(line, refusal)
        self._hash = event.hash
        self._check.take(one)
        self._refuse_problems()

    def _check_texts(self, line: EventLine) -> None:
        named = [name for name in list_text_hashes(line.sealed.event.fact) if name not in self._named]
        self._named.update(named)
        if not line.texts.keys() <= set(named):
            raise self._lines.make_error("it has a text that its event does not name, or that an earlier event named")
        if any(digest(text) != name for name, text in line.texts.items()):
            raise self._lines.make_error("the text does not match its hash")

    def take_file(self, line: FileLine) -> None:
        """A file that the next event refers to."""
        self._lines.file_seqs.append(self.seq + 1)
        self._files.take(line, self._lines.make_error)

    def close(self) -> None:
        if self._hash != self._place.begin.hash:
            raise self._lines.make_error("the last event does not match the session's first line")
        self._check.finish()
        self._refuse_problems()

    def _refuse_problems(self) -> None:
        for problem in self._findings.make_verification(self.seq, None).problems if self._findings.count else ():
            line = self._lines.line if problem.seq is None else self._lines.find_line(self._place, problem.seq)
            raise InvalidImport(problem.detail, line=line)


class ExportCheck:
    """Verifies an export alone, without a database, and compares it with heads that were noted down elsewhere."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._places: dict[str, ExportedSession] = {}
        self._compared: set[str] = set()
        self.missing: dict[str, MissingSession] = {}
        """The sessions that the file says are missing, once it was verified."""

    def verify(self) -> Iterator[tuple[str, Verification]]:
        """Give each session once it has proved to be whole; however large it is. Then those that the file says are
        missing. Raises InvalidImport."""
        redacted: list[int] = []

        def note(one: SealedEvent) -> None:
            if one.salt is None:
                redacted.append(one.event.seq)

        for place in verify_export(self._file, max_session_bytes=sys.maxsize, on_event=note, missing=self.missing):
            self._places[place.session_id] = place
            head = Head(seq=place.begin.seq, hash=place.begin.hash)
            yield place.session_id, Problems().make_verification(place.begin.seq, head, redacted)
            redacted.clear()
        for name, one in self.missing.items():
            problem = ChainProblem(seq=None, code=one.code, detail=one.detail)
            yield name, Verification(valid=False, events=0, head=None, problems=[problem], problem_count=1)

    @property
    def heads(self) -> Mapping[str, ExportedSession]:
        """The sessions that were verified, by their ids."""
        return self._places

    def list_uncompared(self) -> list[str]:
        """The sessions that no head was compared with."""
        return [name for name in self._places if name not in self._compared]

    def compare(self, session_id: str | None, seq: int, hash: str) -> tuple[str, str]:
        """The outcome for a head, in the words of `verify --checkpoint`: it is `not contained` in most files."""
        place = self._places.get(session_id or "")
        if place is None:
            return "not contained", ""
        self._compared.add(place.session_id)
        if seq > place.begin.seq:
            return "truncated", f"the file ends with event {place.begin.seq}, but the earlier head is event {seq}"
        chunks = read_chunks(self._file, place, place.session_id)
        found = next((one.event.hash for chunk in chunks for one in chunk.events if one.event.seq == seq), None)
        if found != hash:
            return "rewritten", f"event {seq} had the hash {hash} in the earlier head, and now has {found}"
        return "unchanged", ""


EXPORT = "export"
ImportOutcome = Literal["imported", "present", "extended"]
MAX_LISTED_SESSIONS = 1000
_PIECE_BYTES = 1024 * 1024
HEADS_AT_ONCE = 1000


class ImportedSession(msgspec.Struct, frozen=True, kw_only=True):
    """A session of the file."""

    id: str
    """Its id."""
    seq: int
    """Its last event."""
    hash: str
    """That event's hash."""
    outcome: ImportOutcome
    """`imported`; `present`: it was here before, with everything that the file has of it; or `extended`: it was here
    before, and got what is new of it."""


class ImportReport(msgspec.Struct, frozen=True, kw_only=True):
    """The effect of an import."""

    dry_run: bool
    """Nothing was recorded."""
    imported: int
    """How many sessions were recorded."""
    present: int
    """How many were here before."""
    extended: int = 0
    """How many were here before, and got what the file has more of them."""
    events: int
    """How many events were recorded."""
    sessions: list[ImportedSession]
    """The first thousand."""
    format: str = EXPORT
    """What the file was read as."""
    forks: int = 0
    """How many of the recorded ones were made of other branches."""
    left_out: dict[str, int] = {}
    """What the file has and no session gets, and how much of it."""
    missing: dict[str, str] = {}
    """The sessions that the file says are missing in it, the first thousand, and why."""


async def import_export(
    store: SqlStore,
    tenant: str,
    file: BinaryIO,
    *,
    as_id: str | None = None,
    dry_run: bool = False,
    by: str | None = None,
    max_line_values: int = MAX_LINE_VALUES,
    max_queued_runs: int = MAX_QUEUED_RUNS,
    sizes: SizeLimits = UNBOUNDED,
    quota: StorageQuota | None = None,
) -> ImportReport:
    """Record the sessions of an export as they were recorded: the same seqs, times, hashes and texts.

    The whole file is verified first, and checked against what is here. Then each session is recorded in a transaction
    of its own; one that is here already is left as it is, so an import that was broken off can be made again. That
    it was imported, and by whom, becomes an event of each, and an entry of the audit log (see `finish_import`).

    Raises InvalidImport, TooLarge for a session that is larger in a way than `sizes` allow, and SessionExists for
    another session under the same id; nothing was recorded then. Raises QuotaExceeded for the first session that is
    more than `quota` allows; those before it in the file were recorded.
    """
    if as_id is not None:
        check_id(as_id, "/query/as")
    missing: dict[str, MissingSession] = {}
    places, digest = await asyncio.to_thread(_verify_file, file, max_line_values, max_queued_runs, sizes, missing)
    if as_id is not None and len(places) != 1:
        raise InvalidImport(f"a new id needs a file with one session; this file has {len(places)}", line=1)
    keys = [SessionKey(tenant, as_id or place.session_id) for place in places]
    known = await read_known_heads(store, keys)
    present = [
        key in known and await _is_still_here(store, key, place) for key, place in zip(keys, places, strict=True)
    ]
    if not dry_run:
        new = [number for number, was in enumerate(present) if not was]
        made = await store.restore(
            (_make_restoration(keys[number], places[number], file, digest, by) for number in new),
            action=make_import_action(EXPORT, digest, by),
            quota=quota,
        )
        for number, end in zip(new, made, strict=True):
            if end is None:
                # Another process has just recorded it, and may even have deleted it since.
                await _is_still_here(store, keys[number], places[number])
                present[number] = True
    return _build_report(keys, places, present, missing, dry_run)


async def read_known_heads(store: SqlStore, keys: Sequence[SessionKey]) -> dict[SessionKey, SessionHead]:
    """Return the heads of those of the sessions that are here."""
    known: dict[SessionKey, SessionHead] = {}
    for start in range(0, len(keys), HEADS_AT_ONCE):
        known |= await store.read_heads(keys[start : start + HEADS_AT_ONCE])
    return known


def _verify_file(
    file: BinaryIO,
    max_line_values: int,
    max_queued_runs: int,
    sizes: SizeLimits,
    missing: dict[str, MissingSession],
) -> tuple[list[ExportedSession], str]:
    found = verify_export(
        file,
        max_line_values=max_line_values,
        max_queued_runs=max_queued_runs,
        check_session=sizes.check_session,
        missing=missing,
    )
    return list(found), digest_file(file)


def digest_file(file: BinaryIO) -> str:
    """The SHA-256 of all its bytes."""
    file.seek(0)
    digest = hashlib.sha256()
    while piece := file.read(_PIECE_BYTES):
        digest.update(piece)
    return digest.hexdigest()


def make_import_action(source: str, digest: str, by: str | None) -> AuditAction:
    """The entry of the audit log for a session out of a file."""
    return AuditAction(type=SessionImported.type, by=by, details={"source": source, "digest": digest})


def _make_restoration(
    key: SessionKey, place: ExportedSession, file: BinaryIO, digest: str, by: str | None
) -> Restoration:
    def finish(state: State) -> list[EventDraft]:
        return finish_import(state, source=EXPORT, digest=digest, by=by)

    return Restoration(key, lambda: read_chunks(file, place, key.id), finish)


async def _is_still_here(store: SqlStore, key: SessionKey, place: ExportedSession) -> bool:
    """Tell if a session that was here has not been deleted since; if so, it has all that the file has of it.

    A hash stands for everything up to it. Raises SessionExists if it is another one.
    """
    seq = place.begin.seq
    events = await store.read(key, after=seq - 1, upto=seq)
    if not events and await store.read_head(key) is None:
        return False
    if not events or events[0].hash != place.begin.hash:
        raise SessionExists(key.id, "exists already, with another history")
    return True


def _build_report(
    keys: Sequence[SessionKey],
    places: Sequence[ExportedSession],
    present: Sequence[bool],
    missing: Mapping[str, MissingSession],
    dry_run: bool,
) -> ImportReport:
    found = list(zip(keys, places, present, strict=True))
    return ImportReport(
        dry_run=dry_run,
        imported=present.count(False),
        present=present.count(True),
        events=sum(place.begin.seq for _, place, was in found if not was),
        sessions=[
            ImportedSession(
                id=key.id, seq=place.begin.seq, hash=place.begin.hash, outcome="present" if was else "imported"
            )
            for key, place, was in found[:MAX_LISTED_SESSIONS]
        ],
        missing={one.session_id: one.detail for one in islice(missing.values(), MAX_LISTED_SESSIONS)},
    )
