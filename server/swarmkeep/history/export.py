"""Sessions as bytes that leave nothing out: everything that an import needs to record them again as they were."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Mapping, Sequence
from functools import partial
from typing import Annotated, BinaryIO, Literal, TypeVar

import msgspec
from msgspec import UNSET

from swarmkeep.events.codec import MalformedJson, convert, count_levels, decode, encode, parse_timestamp
from swarmkeep.events.errors import HistoryDamaged, InvalidImport, SessionNotFound
from swarmkeep.events.facts import ApprovalRequested, ContextUpdated, EventView, RecordedEvent, RunWaiting, SessionEvent
from swarmkeep.events.messages import list_fact_files, list_fact_references, list_text_hashes
from swarmkeep.events.state import SessionStatus
from swarmkeep.store.archives import ArchiveOutage
from swarmkeep.store.hashing import MAX_PAYLOAD_DEPTH, SealedEvent
from swarmkeep.store.index import SessionFilter
from swarmkeep.store.opening import SqlStore
from swarmkeep.store.reading import upcast
from swarmkeep.store.records import ArchiveUnavailable, SealedBatch, SessionKey, StoreUnavailable

# Finds values in imported events that no server records: what reads as a fact may still be made up.

MAX_NULLS = 100_000


def find_odd_value(fact: SessionEvent) -> str | None:
    """Describe the first such value; None if there is none."""
    match fact:
        case ApprovalRequested(expires_at=end):
            return _explain_times([end])
        case RunWaiting(pending=pending):
            return _explain_times([call.expires_at for call in pending])
        case ContextUpdated(nulls=nulls) if nulls is not UNSET:
            return _explain_nulls(nulls)
        case _:
            return None


def _explain_times(times: list[str | None]) -> str | None:
    odd = next((text for text in times if text is not None and parse_timestamp(text) is None), None)
    return None if odd is None else f"its data has a time that is not valid: {odd!r}"


def _explain_nulls(pointers: tuple[str, ...]) -> str | None:
    if len(pointers) > MAX_NULLS:
        return f"it sets more than {MAX_NULLS} values to null at once"
    if any(pointer.count("/") > MAX_PAYLOAD_DEPTH for pointer in pointers):
        return f"it sets a value to null that is nested deeper than {MAX_PAYLOAD_DEPTH} levels"
    return None


# The export format, line by line: written here and read back here, byte for byte.

FORMAT = 2
"""Of these lines. In 2 the hashes may be of either format; a file of format 1 is read as well."""
MAX_LINE_BYTES = 64 * 1024 * 1024
MAX_INTEGER = 2**31 - 1
MAX_SEQ = 2**53 - 1

_BEGINNINGS = (b'{"session_id":', b'{"record":')
_ADVICE = "to import the file of another program, set `from` (`--from`) to its format, or to auto"
_NO_EXPORT = f"this is not a line of an export; {_ADVICE}"


def is_export(file: BinaryIO) -> bool:
    """Tell if a file begins as an export does."""
    file.seek(0)
    return file.read(max(map(len, _BEGINNINGS))).startswith(_BEGINNINGS)


# A line may be anything: no repetition gives back what it took, and JSON values are left to a JSON scanner.
_TEXT_PATTERN = r'"(?:[^"\\\x00-\x1f]|\\.)*+"'
_BEFORE_DATA = re.compile(
    rf'\{{"session_id":({_TEXT_PATTERN}),"seq":([0-9]{{1,16}}),"type":({_TEXT_PATTERN}),"version":([0-9]{{1,10}}),'
    rf'"run_id":(null|{_TEXT_PATTERN}),"agent":({_TEXT_PATTERN}),'
    r'"at":"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z)","data":',
    re.ASCII | re.DOTALL,
)
_AFTER_DATA = re.compile(
    r',"hash":"([0-9a-f]{64})","salt":(?:null|"([0-9a-f]{32})"),"commitment":"([0-9a-f]{64})"', re.ASCII
)


def _refuse_repeats(pairs: list[tuple[str, object]]) -> None:
    if len({name for name, _ in pairs}) < len(pairs):
        raise ValueError


# It only finds where a value ends, so nothing is made of what is in it; but of a key that stands twice, one reader
# takes the first value and another one the last.
_SCANNER = json.JSONDecoder(object_pairs_hook=_refuse_repeats, parse_int=len, parse_float=len, parse_constant=len)


class ExportStart(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content that a session's first line adds: how far the session goes, and the hash that this proves it by.

    `alone`: the document is this session, and ends with its last event; others end with a line that says so.
    """

    format: int = FORMAT
    seq: int
    hash: str
    alone: bool


class EventLine(msgspec.Struct, frozen=True):
    """An event, and the texts that it is the first of its session to name: instructions or tool schemas, by hash."""

    sealed: SealedEvent
    texts: dict[str, str]
    begin: ExportStart | None


class FileLine(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file or picture: it stands before the event that is the first of its session to refer to it."""

    record: Literal["file"] = "file"
    sha256: str
    content: bytes


class ExportEnd(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The last line: what came before it, and SHA-256 over its bytes. Where it is missing, the rest is too."""

    record: Literal["end"] = "end"
    sessions: int
    events: int
    sha256: str


class MissingSession(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A session that was to be here, and that the archive did not give back; its line stands where it would begin.

    `code` is `archive_unavailable`, or that of the problem which `verify` finds.
    """

    record: Literal["missing"] = "missing"
    session_id: str
    code: Annotated[str, msgspec.Meta(pattern=r"^[a-z_]{1,40}\Z")]
    # Readers repeat it.
    detail: Annotated[str, msgspec.Meta(pattern=r"^[ -~]{1,300}\Z")]


ExportLine = EventLine | FileLine | MissingSession | ExportEnd
_RECORDS: Mapping[object, type[FileLine | MissingSession | ExportEnd]] = {
    "file": FileLine, "missing": MissingSession, "end": ExportEnd,
}  # fmt: skip


class InvalidLine(ValueError):
    """A line that is not what this format has there."""


def write_end_line(end: ExportEnd) -> bytes:
    return encode(end) + b"\n"


def write_file_line(name: str, content: bytes) -> bytes:
    return encode(FileLine(sha256=name, content=content)) + b"\n"


def write_event_line(one: SealedEvent, texts: Mapping[str, str], begin: ExportStart | None) -> bytes:
    """An event as the API shows it, then what its hash is made of, and what else this line brings."""
    event = one.event
    salt = b"null" if one.salt is None else b'"%b"' % one.salt.hex().encode()
    more = b',"texts":%b' % encode(texts) if texts else b""
    if begin is not None:
        more += b',"export":%b' % encode(begin)
    return (
        b'{"session_id":%b,"seq":%d,"type":%b,"version":%d,"run_id":%b,"agent":%b,"at":"%b","data":%b,'
        b'"hash":"%b","salt":%b,"commitment":"%b"%b}\n'
    ) % (
        encode(event.session_id),
        event.seq,
        encode(event.type),
        event.version,
        encode(event.run_id),
        encode(event.agent),
        event.at.encode(),
        event.payload.encode(),
        event.hash.encode(),
        salt,
        one.commitment.hex().encode(),
        more,
    )


def read_export_line(line: bytes) -> ExportLine:
    """Read a line without its break. Raises InvalidLine."""
    if line.startswith(_BEGINNINGS[0]):
        return _read_event_line(line)
    try:
        value = decode(line)
    except MalformedJson as error:
        # JSON in several lines is what other programs write.
        why = str(error) if line.startswith(_BEGINNINGS) else f"no export has such a line; {_ADVICE}"
        raise InvalidLine(f"this is not JSON: {why}") from None
    record = value.get("record") if isinstance(value, dict) else None
    if record not in _RECORDS:
        raise InvalidLine(_NO_EXPORT)
    found = _convert(value, _RECORDS[record])
    # No hash is over the way in which these are written.
    if encode(found) != line:
        raise InvalidLine(_WRITTEN_DIFFERENTLY)
    return found


def explain_cut_line(line: bytes) -> str:
    """Explain the fault of a file's last line, which has no break."""
    is_event = any(begin.startswith(line[: len(begin)]) for begin in _BEGINNINGS)
    return "the export is cut off in the middle of this line" if is_event else _NO_EXPORT


T = TypeVar("T")


def _convert(value: object, kind: type[T]) -> T:
    try:
        return convert(value, kind)
    except msgspec.ValidationError as error:
        raise InvalidLine(str(error).replace("`", "'")) from None


def _read_start(text: str) -> ExportStart:
    value = decode(text)
    if isinstance(value, dict) and isinstance(made := value.get("format"), int) and made > FORMAT:
        raise InvalidLine(
            f"it was made by a later release: its format is {made}, and this release reads formats up to {FORMAT}"
        )
    return _convert(value, ExportStart)


class _EventParts(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of an event's line, as they are written there."""

    session_id: str
    seq: str
    type: str
    version: str
    run_id: str
    agent: str
    at: str
    data: str
    hash: str
    salt: str | None
    commitment: str
    texts: str | None
    begin: str | None


def _split_event_line(line: str) -> _EventParts | None:
    """The line's parts, found from left to right; None if it is written differently."""
    if (before := _BEFORE_DATA.match(line)) is None:
        return None
    try:
        data_end = _find_value_end(line, before.end())
        if (after := _AFTER_DATA.match(line, data_end)) is None:
            return None
        texts, end = _cut_member(line, after.end(), ',"texts":')
        begin, end = _cut_member(line, end, ',"export":')
    except (ValueError, RecursionError):
        return None
    if line[end:] != "}":
        return None
    session_id, seq, type_, version, run_id, agent, at = before.groups()
    digest, salt, commitment = after.groups()
    return _EventParts(
        session_id=session_id,
        seq=seq,
        type=type_,
        version=version,
        run_id=run_id,
        agent=agent,
        at=at,
        data=line[before.end() : data_end],
        hash=digest,
        salt=salt,
        commitment=commitment,
        texts=texts,
        begin=begin,
    )


def _find_value_end(line: str, start: int) -> int:
    return _SCANNER.raw_decode(line, start)[1]


def _cut_member(line: str, start: int, name: str) -> tuple[str | None, int]:
    """The value of a member that may stand here, and where the line goes on."""
    if not line.startswith(name, start):
        return None, start
    end = _find_value_end(line, start + len(name))
    return line[start + len(name) : end], end


def _read_event_line(line: bytes) -> EventLine:
    try:
        parts = _split_event_line(line.decode())
    except UnicodeDecodeError as error:
        raise InvalidLine(f"this is not JSON: {error}") from None
    if parts is None:
        raise InvalidLine(_explain_invalid_event(line))
    seq, version = int(parts.seq), int(parts.version)
    try:
        session_id, type_, agent = (decode(text, str) for text in (parts.session_id, parts.type, parts.agent))
        value = decode(parts.data)
        run_id = None if parts.run_id == "null" else decode(parts.run_id, str)
        texts = {} if parts.texts is None else decode(parts.texts, dict[str, str])
        begin = None if parts.begin is None else _read_start(parts.begin)
    except (MalformedJson, msgspec.ValidationError) as error:
        raise InvalidLine(f"this is not JSON: {error}") from None
    # No hash is over the way in which these are written.
    if (parts.texts and parts.texts.encode() != encode(texts)) or (begin and parts.begin != encode(begin).decode()):
        raise InvalidLine(_WRITTEN_DIFFERENTLY)
    if count_levels(value) > MAX_PAYLOAD_DEPTH:
        raise InvalidLine(f"its data is nested deeper than {MAX_PAYLOAD_DEPTH} levels")
    if parse_timestamp(parts.at) is None:
        raise InvalidLine(f"its time is not valid: {parts.at}")
    if not 1 <= seq <= MAX_SEQ or not 0 <= version <= MAX_INTEGER:
        raise InvalidLine("its seq or its version is out of range")
    event = RecordedEvent(
        session_id=session_id,
        seq=seq,
        type=type_,
        version=version,
        run_id=run_id,
        agent=agent,
        at=parts.at,
        hash=parts.hash,
        payload=parts.data,
        fact=upcast(type_, version, parts.data),
    )
    if (odd := find_odd_value(event.fact)) is not None:
        raise InvalidLine(odd)
    salt = None if parts.salt is None else bytes.fromhex(parts.salt)
    return EventLine(SealedEvent(event, salt, bytes.fromhex(parts.commitment)), texts, begin)


def _explain_invalid_event(line: bytes) -> str:
    try:
        value = decode(line)
    except MalformedJson as error:
        return f"this is not JSON: {error}"
    if isinstance(value, dict) and "salt" not in value and "hash" in value:
        return "this event has no salt: it comes from a list of events, not from an export"
    return _WRITTEN_DIFFERENTLY


_WRITTEN_DIFFERENTLY = (
    "this is not an event as an export writes it: members are missing, in another order, or written differently"
)


JSON_LINES = "application/x-ndjson"

# Why the archive does not give a session back; all but the last are problems that `verify` finds.
LOSSES = {
    "archive_missing": "the session is archived, and its object is not there",
    "archive_differs": "the session is archived, and its object is not what was written there",
    "archive_erased": "the session is archived, and the key of the person that encrypts its object is gone",
    "archive_unavailable": "the session is archived, and the archive did not answer",
}

# How much of a log is read at once: a page is followed by a smaller one when it was large.
_PAGE_BYTES = 1024 * 1024
_MAX_PAGE_EVENTS = 500


async def write_export(
    store: SqlStore,
    keys: AsyncIterable[SessionKey],
    *,
    alone: bool = False,
    whole: bool = False,
) -> AsyncGenerator[bytes]:
    """The export of these sessions, piece by piece. A session that is not there any more is left out.

    Each is as it was when its turn came; one that is archived is read there, and stays there. `alone`: it is one
    session, and its last event is the last line. Raises StoreUnavailable if one is deleted in the middle of it: what
    has come until then has no end, and cannot be imported. In the place of a session that the archive does not give
    back is a line that says so; if it is to be `alone` or `whole`, ArchiveUnavailable or HistoryDamaged is raised.
    """
    tally = _Tally()
    outage = ArchiveOutage(store)
    async for key in keys:
        head = await store.read_head(key)
        if head is None:
            continue
        try:
            source = await outage.attempt(key, partial(_find_source, store, key, head.seq))
        except (ArchiveUnavailable, HistoryDamaged) as lost:
            if alone or whole:
                raise
            code = getattr(lost, "problem", None) or "archive_unavailable"
            yield tally.add(encode(MissingSession(session_id=key.id, code=code, detail=LOSSES[code])) + b"\n")
            continue
        tally.sessions += 1
        tally.events += head.seq
        async for page in _write_session(source, key, ExportStart(seq=head.seq, hash=head.hash, alone=alone)):
            yield tally.add(page)
    if not alone:
        yield tally.end()


class _ArchivedSource:
    """What an export reads of a session, from its object in the archive."""

    def __init__(self, batches: Sequence[SealedBatch]) -> None:
        self.events = [one for batch in batches for one in batch.events]
        self._texts = {name: text for batch in batches for name, text in batch.blobs.items()}
        self._files = {name: content for batch in batches for name, content in batch.files.items()}

    async def read_sealed(self, key: SessionKey, *, after: int, limit: int, max_bytes: int) -> Sequence[SealedEvent]:
        return self.events[after : after + limit]

    async def read_blobs(self, key: SessionKey, hashes: Sequence[str]) -> dict[str, str]:
        return {name: self._texts[name] for name in hashes if name in self._texts}

    async def read_files(self, key: SessionKey, hashes: Sequence[str]) -> dict[str, bytes]:
        return {name: self._files[name] for name in hashes if name in self._files}


async def _find_source(store: SqlStore, key: SessionKey, seq: int) -> SqlStore | _ArchivedSource:
    """Where the session's events up to `seq` are. Raises StoreUnavailable and HistoryDamaged."""
    batches = None if await store.find_archived(key) is None else await store.read_archived(key)
    found = None if batches is None else _ArchivedSource(batches)
    # Something may have been recorded by who did not need to read it.
    return store if found is None or len(found.events) != seq else found


async def _write_session(
    store: SqlStore | _ArchivedSource, key: SessionKey, begin: ExportStart
) -> AsyncGenerator[bytes]:
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
    store: SqlStore | _ArchivedSource, key: SessionKey, event: RecordedEvent, written: set[str]
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
    """The totals exported so far, for the last line."""

    def __init__(self) -> None:
        self.sessions = self.events = 0
        self._digest = hashlib.sha256()

    def add(self, piece: bytes) -> bytes:
        self._digest.update(piece)
        return piece

    def end(self) -> bytes:
        return write_end_line(ExportEnd(sessions=self.sessions, events=self.events, sha256=self._digest.hexdigest()))


async def find_sessions(store: SqlStore, tenant: str, session_ids: Sequence[str]) -> list[SessionKey]:
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
    store: SqlStore,
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
            SessionFilter(tenant, agent=agent, status=status, metadata=metadata), limit=100, cursor=cursor
        )
        for session in page.sessions:
            yield SessionKey(tenant, session.id)
        if (cursor := page.next_cursor) is None:
            return


# Events as they stand in an export: one JSON object in a line, as the API shows events.


def parse_event_line(line: str | bytes) -> RecordedEvent:
    """The event that a line holds, its payload to the byte.

    Raises MalformedJson and msgspec.ValidationError for a line that is no event.
    """
    try:
        return to_recorded_event(msgspec.json.decode(line, type=EventView))
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        pass
    # Lone surrogates in the envelope: Python's JSON reads them, and our own writes the payload as it was.
    plain = decode(line)
    if isinstance(plain, dict) and "data" in plain:
        plain = {**plain, "data": msgspec.Raw(encode(plain["data"]))}
    return to_recorded_event(convert(plain, EventView))


def to_recorded_event(view: EventView) -> RecordedEvent:
    """The event behind its public form."""
    payload = bytes(view.data).decode()
    return RecordedEvent(
        session_id=view.session_id,
        seq=view.seq,
        type=view.type,
        version=view.version,
        run_id=view.run_id,
        agent=view.agent,
        at=view.at,
        hash=view.hash,
        payload=payload,
        fact=upcast(view.type, view.version, payload),
    )


# The files of one session in an export: each is what its hash names, and what the event after it refers to.

MakeError = Callable[[str], InvalidImport]


class ExportedFiles:
    """The files brought and referred to so far."""

    def __init__(self) -> None:
        self._named: dict[str, int] = {}
        self._waiting: dict[str, int] = {}

    def take(self, line: FileLine, make_error: MakeError) -> None:
        """A file that the next event refers to. Raises InvalidImport."""
        if hashlib.sha256(line.content).hexdigest() != line.sha256:
            raise make_error("the file does not match its hash")
        if line.sha256 in self._waiting or line.sha256 in self._named:
            raise make_error("it has a file that an earlier line already had")
        self._waiting[line.sha256] = len(line.content)

    def check(self, line: EventLine, make_error: MakeError) -> None:
        """The event that the files since the last one are for. Raises InvalidImport."""
        named = list_fact_references(line.sealed.event.fact)
        if not self._waiting.keys() <= {one.sha256 for one in named}:
            raise make_error("the line before it has a file that it does not refer to")
        self._named |= self._waiting
        # How much of a history is sent goes by what its events say.
        if any(self._named.setdefault(one.sha256, one.size) != one.size for one in named):
            raise make_error("it names the wrong size of a file")
        self._waiting.clear()
