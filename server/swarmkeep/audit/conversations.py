"""Recorded conversations out of an export: whole ones, with the texts that their requests name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from swarmkeep.audit.export_lines import BadLine, BlobLine, End, Header, read_line
from swarmkeep.audit.lines import event_of_line
from swarmkeep.domain.codec import MalformedJson
from swarmkeep.domain.envelope import Recorded
from swarmkeep.domain.errors import InvalidImport
from swarmkeep.store.hashing import Sealed


class Conversation(msgspec.Struct, kw_only=True):
    """A session's events, oldest first, and instructions and tool schemas by their content hash."""

    session_id: str
    events: list[Recorded] = []
    texts: dict[str, str] = {}


def conversations(lines: Iterable[bytes]) -> Iterator[Conversation]:
    """The sessions of an export, one after the other; also of a list of events as the API gives them, in lines.

    What it reads is not verified: an import does that. Raises InvalidImport, which names the line.
    """
    current: Conversation | None = None
    for number, line in enumerate(lines, start=1):
        found = _read(line.strip(), number)
        if isinstance(found, Header):
            yield from _told(current)
            current = Conversation(session_id=found.session_id, events=[], texts={})
        elif isinstance(found, BlobLine) and current is not None:
            current.texts[found.hash] = found.text
        elif isinstance(found, Recorded):
            if current is None or current.session_id != found.session_id:
                yield from _told(current)
                current = Conversation(session_id=found.session_id, events=[], texts={})
            current.events.append(found)
    yield from _told(current)


def _told(conversation: Conversation | None) -> Iterator[Conversation]:
    if conversation is not None and conversation.events:
        yield conversation


def _read(line: bytes, number: int) -> Header | BlobLine | End | Recorded | None:
    if not line:
        return None
    try:
        found = read_line(line)
        return found.event if isinstance(found, Sealed) else found
    except BadLine as bad:
        try:
            return event_of_line(line)
        except (MalformedJson, msgspec.ValidationError):
            raise InvalidImport(str(bad), line=number) from None


def split_lines(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """The lines of a document that comes in pieces, without their breaks."""
    rest = b""
    for piece in pieces:
        *whole, rest = (rest + piece).split(b"\n")
        yield from whole
    if rest:
        yield rest
