"""Conversations that were kept elsewhere, as they become sessions here."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any, BinaryIO, Literal

import msgspec

from swarmkeep.domain.codec import Json, MalformedJson, decode, encode
from swarmkeep.domain.errors import InvalidImport

ForeignFormat = Literal["chat", "swarm", "assistants"]

MAX_FILE_BYTES = 64 * 1024 * 1024
"""Such a file is a document, which has to be in memory as a whole."""


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
    """A JSON value of a file, and the line that it stands in if the file has one in each."""

    value: Any
    line: int | None


def read_documents(file: BinaryIO) -> Iterator[Document]:
    """The file as one JSON document, or as one in each line. Raises InvalidImport."""
    file.seek(0)
    text = file.read(MAX_FILE_BYTES + 1)
    if len(text) > MAX_FILE_BYTES:
        raise InvalidImport(f"the file is larger than {MAX_FILE_BYTES} bytes; import it in parts")
    text = text.removeprefix(b"\xef\xbb\xbf")
    if not text.strip():
        raise InvalidImport("the file is empty", line=1)
    try:
        yield Document(decode(text), None)
        return
    except MalformedJson as error:
        whole, line = _explain(text, error)
    lines = [(number, line) for number, line in enumerate(text.split(b"\n"), 1) if line.strip()]
    if len(lines) == 1 or not _is_json(lines[0][1]):
        raise InvalidImport(f"this is not JSON: {whole}", line=line)
    for number, content in lines:
        try:
            yield Document(decode(content), number)
        except MalformedJson as error:
            raise InvalidImport(f"this is not JSON: {error}", line=number) from None


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
