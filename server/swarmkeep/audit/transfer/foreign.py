"""Conversations that were kept elsewhere, as they become sessions here."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from io import BytesIO
from itertools import chain
from typing import Any, BinaryIO, Literal

import msgspec

from swarmkeep.audit.transfer.export_reader import MAX_LINE_VALUES
from swarmkeep.domain.codec import Json, MalformedJson, decode, encode, has_more_values
from swarmkeep.domain.errors import InvalidImport

ForeignFormat = Literal["chat", "swarm", "assistants"]

MAX_FILE_BYTES = 64 * 1024 * 1024
"""Such a file is a document, which has to be in memory as a whole."""
MAX_FILE_VALUES = 1_000_000
"""JSON values of one document: as objects they take many times their bytes, and they are made in one go."""
_GZIP = b"\x1f\x8b"


class ForeignConversation(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation that is to be a session. `place` is where in its file it stands, as a JSON pointer.

    `id` and `agent` are as far as the file names them; `origin` is what of it has no place in a session.
    """

    messages: list[Json]
    place: str = ""
    line: int | None = None
    id: str | None = None
    agent: str | None = None
    context_variables: Json = {}
    metadata: Json = {}
    origin: Json = {}

    def make_error(self, why: str, pointer: str = "") -> InvalidImport:
        where = f"{self.place}{pointer}"
        return InvalidImport(f"{where}: {why}" if where else why, line=self.line)

    @property
    def derived_id(self) -> str:
        """The id for one that names none: the same for the same content, so that it is not imported twice."""
        content = [self.messages, self.context_variables, self.metadata, self.origin]
        return f"import_{hashlib.sha256(encode(content)).hexdigest()[:32]}"


class Document(msgspec.Struct, frozen=True):
    """A JSON value of a file as it stands there, and its line if the file has one in each."""

    value: Any
    line: int | None
    text: bytes


def read_documents(
    file: BinaryIO, *, max_line_values: int = MAX_LINE_VALUES, max_values: int = MAX_FILE_VALUES
) -> Iterator[Document]:
    """The file as one JSON document, or as one in each line.

    A document holds no more than `max_values`, one in a line no more than `max_line_values`: they are counted before it
    is read. Raises InvalidImport.
    """
    file.seek(0)
    text = file.read(MAX_FILE_BYTES + 1)
    if len(text) > MAX_FILE_BYTES:
        raise InvalidImport(f"the file is larger than {MAX_FILE_BYTES} bytes; import it in parts")
    text = text.removeprefix(b"\xef\xbb\xbf")
    if text.startswith(_GZIP):
        raise InvalidImport("the file is compressed; unpack it first (gunzip)", line=1)
    first, second = next(lines := _read_lines(text), None), next(lines, None)
    if first is None:
        raise InvalidImport("the file is empty", line=1)
    # What begins with a whole value and goes on has one in each line. All of it is not tried to be read as one first.
    if second is not None and not has_more_values(first[1], max_values) and _is_json(first[1]):
        for number, content in chain((first, second), lines):
            yield _read_document(content, number, max_line_values)
    else:
        yield _read_document(text, None, max_values)


def _read_lines(text: bytes) -> Iterator[tuple[int, bytes]]:
    """The lines that are not blank, one at a time: of as many as a file may have there is no list."""
    for number, line in enumerate(BytesIO(text), 1):
        if not line.isspace():
            yield number, line


def _read_document(text: bytes, line: int | None, max_values: int) -> Document:
    if has_more_values(text, max_values):
        where = "the file" if line is None else "the line"
        advice = "put each conversation on a line of its own" if line is None else "import it in parts"
        raise InvalidImport(f"{where} holds more than {max_values} JSON values; {advice}", line=line)
    try:
        return Document(decode(text), line, text)
    except MalformedJson as error:
        why, place = _explain(text, error) if line is None else (str(error), line)
        raise InvalidImport(f"this is not JSON: {why}", line=place) from None


def _is_json(line: bytes) -> bool:
    try:
        return isinstance(decode(line), dict | list)
    except MalformedJson:
        return False


def _explain(text: bytes, error: MalformedJson) -> tuple[str, int | None]:
    """What is wrong with a document, and in which line."""
    try:
        json.loads(text)
    except json.JSONDecodeError as found:
        return f"{found.msg}, column {found.colno}", found.lineno
    except (ValueError, RecursionError):
        pass
    return str(error), None


def enumerate_places(items: Iterable[Any], place: str) -> Iterator[tuple[str, Any]]:
    return ((f"{place}/{number}", item) for number, item in enumerate(items))


ConversationReader = Callable[[Iterable[Document]], Iterator[ForeignConversation]]
