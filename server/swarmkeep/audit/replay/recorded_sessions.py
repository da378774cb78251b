"""Recorded conversations out of an export: whole ones, with the texts that their requests name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from swarmkeep.audit.transfer.event_lines import parse_event_line
from swarmkeep.audit.transfer.export_lines import EventLine, InvalidLine, read_export_line
from swarmkeep.domain.codec import MalformedJson
from swarmkeep.domain.envelope import RecordedEvent
from swarmkeep.domain.errors import InvalidImport


class RecordedSession(msgspec.Struct, kw_only=True):
    """A session's events, oldest first, and instructions and tool schemas by their content hash."""

    session_id: str
    events: list[RecordedEvent] = []
    texts: dict[str, str] = {}


def read_recorded_sessions(lines: Iterable[bytes]) -> Iterator[RecordedSession]:
    """The sessions of an export, one after the other; also of a list of events as the API gives them, in lines.

    What it reads is not verified: an import does that. Raises InvalidImport, which names the line.
    """
    current: RecordedSession | None = None
    for number, line in enumerate(lines, start=1):
        found = _read_event(line.strip(), number)
        if found is None:
            continue
        event, texts = found
        if current is None or current.session_id != event.session_id:
            if current is not None:
                yield current
            current = RecordedSession(session_id=event.session_id, events=[], texts={})
        current.events.append(event)
        current.texts |= texts
    if current is not None:
        yield current


def _read_event(line: bytes, number: int) -> tuple[RecordedEvent, dict[str, str]] | None:
    if not line:
        return None
    try:
        found = read_export_line(line)
    except InvalidLine as bad:
        try:
            return parse_event_line(line), {}
        except (MalformedJson, msgspec.ValidationError):
            raise InvalidImport(str(bad), line=number) from None
    return (found.sealed.event, found.texts) if isinstance(found, EventLine) else None


def split_lines(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """The lines of a document that comes in pieces, without their breaks."""
    rest = b""
    for piece in pieces:
        *whole, rest = (rest + piece).split(b"\n")
        yield from whole
    if rest:
        yield rest
