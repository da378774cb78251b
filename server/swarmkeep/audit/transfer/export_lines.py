"""The export format, line by line: written here and read back here, byte for byte.

Each line is an event, or a file that the next event is the first to refer to. An event's members come in one order, its
payload as it is stored, so the bytes that were hashed can be cut out of it. A session's first line says how far the
session goes; a document of several sessions has one more line at its end.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Literal, TypeVar

import msgspec

from swarmkeep.audit.transfer.odd_values import find_odd_value
from swarmkeep.domain.codec import MalformedJson, count_levels, decode, encode
from swarmkeep.domain.envelope import RecordedEvent
from swarmkeep.domain.timestamps import parse_timestamp
from swarmkeep.store.hashing import MAX_PAYLOAD_DEPTH, SealedEvent
from swarmkeep.store.upcast import upcast

FORMAT = 2
"""Of these lines. In 2 the hashes may be of either format; a file of format 1 is read as well."""
MAX_LINE_BYTES = 64 * 1024 * 1024
MAX_INTEGER = 2**31 - 1
MAX_SEQ = 2**53 - 1

_BEGINNINGS = (b'{"session_id":', b'{"record":')
_ADVICE = "for the file of another program, set `from` (`--from`) to chat, swarm or assistants"
_NO_EXPORT = f"this is not a line of an export; {_ADVICE}"

# A line is whatever somebody sends: no repetition gives back what it took, and JSON values are left to a JSON scanner.
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
# It only finds where a value ends, so nothing is made of what is in it.
_SCANNER = json.JSONDecoder(object_pairs_hook=len, parse_int=len, parse_float=len, parse_constant=len)


class ExportStart(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a session's first line adds: how far the session goes, and the hash that this proves it by.

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


def read_export_line(line: bytes) -> EventLine | FileLine | ExportEnd:
    """What a line, without its break, says. Raises InvalidLine."""
    if line.startswith(_BEGINNINGS[0]):
        return _read_event_line(line)
    try:
        value = decode(line)
    except MalformedJson as error:
        # JSON in several lines is what other programs write.
        why = str(error) if line.startswith(_BEGINNINGS) else f"no export has such a line; {_ADVICE}"
        raise InvalidLine(f"this is not JSON: {why}") from None
    record = value.get("record") if isinstance(value, dict) else None
    if record == "file":
        return _convert(value, FileLine)
    if record != "end":
        raise InvalidLine(_NO_EXPORT)
    return _convert(value, ExportEnd)


def explain_cut_line(line: bytes) -> str:
    """What is wrong with the last line of a file, which has no break."""
    is_event = any(begin.startswith(line[: len(begin)]) for begin in _BEGINNINGS)
    return "the export is cut off in the middle of this line" if is_event else _NO_EXPORT


T = TypeVar("T")


def _convert(value: object, kind: type[T]) -> T:
    try:
        return msgspec.convert(value, kind)
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
    return "this is not an event as an export writes it: members are missing, in another order, or written differently"
