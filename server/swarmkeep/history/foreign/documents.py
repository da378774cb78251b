"""The file of a foreign program: JSON documents, one at a time however large it is, or a SQLite database."""

from __future__ import annotations

import json
import re
import shutil
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from io import SEEK_SET
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO, cast

import msgspec

from swarmkeep.events.codec import MalformedJson, decode, has_more_values
from swarmkeep.events.errors import InvalidImport
from swarmkeep.history.import_export import MAX_LINE_VALUES

MAX_FILE_BYTES = 64 * 1024 * 1024
"""Of one document, which has to be in memory as a whole; a file may have any number of them."""
MAX_FILE_VALUES = 1_000_000
"""JSON values of one document: as objects they take many times their bytes, and they are made in one go."""
_PIECE_BYTES = 256 * 1024
_BOM = b"\xef\xbb\xbf"
_ARCHIVES = {b"\x1f\x8b": "compressed; unpack it first (gunzip)", b"PK\x03\x04": "a ZIP archive; unpack it first"}
_SQLITE = b"SQLite format 3\x00"


class Document(msgspec.Struct, frozen=True):
    """A JSON value of a file as it stands there, and its line if the file has one in each.

    `place` is its JSON pointer if it is one of a list.
    """

    value: Any
    line: int | None
    text: bytes
    place: str = ""


class Sample(msgspec.Struct, frozen=True):
    """The first of a file, by which its format is recognised: the first value, or the columns of the tables by name.

    Of a document that is a list, `value` is what the list begins with.
    """

    value: Any
    is_database: bool = False


def take_sample(file: BinaryIO) -> Sample:
    """Read as little of a file as its format can be recognised by. Raises InvalidImport for what is neither."""
    file.seek(0)
    if file.read(len(_SQLITE)) == _SQLITE:
        with open_database(file) as database:
            return Sample(list_columns(database), is_database=True)
    for document in read_documents(file, splits=True, max_line_values=MAX_FILE_VALUES):
        return Sample(document.value)
    return Sample([])


# JSON: one document, one in each line, or one after the other out of a list.


def read_documents(
    file: BinaryIO,
    *,
    splits: bool = False,
    max_line_values: int = MAX_LINE_VALUES,
    max_values: int = MAX_FILE_VALUES,
) -> Iterator[Document]:
    """The file as one JSON document, or as one in each line; with `splits` a list as the values in it.

    A document holds no more than `max_values`, one in a line no more than `max_line_values`: they are counted before it
    is read. No more than one document is in memory. Raises InvalidImport.
    """
    beginning = find_beginning(file)
    first_mark, goes_on = _look_ahead(file, beginning[0])
    if not first_mark:
        raise InvalidImport("the file is empty", line=1)
    # What begins with a whole value and goes on has one in each line. All of it is not tried to be read as one first.
    first = next(_read_lines(file, *beginning))[1] if goes_on else b""
    if goes_on and not has_more_values(first, max_values) and _is_json(first):
        for number, text in _read_lines(file, *beginning):
            if len(text) > MAX_FILE_BYTES:
                raise InvalidImport(f"the line is longer than {MAX_FILE_BYTES} bytes", line=number)
            yield _read_document(text, number, max_line_values)
    elif splits and first_mark == b"[":
        for number, (line, text) in enumerate(_split_list(file, *beginning)):
            yield _read_element(text, line, number, max_values)
    else:
        file.seek(beginning[0])
        text = file.read(MAX_FILE_BYTES + 1)
        if len(text) > MAX_FILE_BYTES:
            raise InvalidImport(
                f"the file is one document of more than {MAX_FILE_BYTES} bytes; "
                "put each conversation on a line of its own, or import it in parts"
            )
        yield _read_document(text, None, max_values)


def find_beginning(file: BinaryIO) -> tuple[int, int]:
    """The offset and line at which the text of a file begins. Raises InvalidImport for an archive."""
    file.seek(0)
    head = file.read(4)
    for magic, why in _ARCHIVES.items():
        if head.startswith(magic):
            raise InvalidImport(f"the file is {why}", line=1)
    # No text of JSON in UTF-8 has a zero byte.
    if head.startswith((b"\xff\xfe", b"\xfe\xff")) or b"\x00" in head:
        raise InvalidImport("the file is not in UTF-8, but in UTF-16 or UTF-32; save it as UTF-8 first", line=1)
    return (len(_BOM) if head.startswith(_BOM) else 0), 1


def _look_ahead(file: BinaryIO, offset: int) -> tuple[bytes, bool]:
    """The first character that is no space, and whether a line that may be a document is followed by another one.

    An export of any size may be a single line: no more than a piece of it is in memory.
    """
    file.seek(offset)
    first, size, ended = b"", 0, False
    while (piece := file.read(_PIECE_BYTES)) and size <= MAX_FILE_BYTES:
        piece = piece if first else piece.lstrip()
        first = first or piece[:1]
        if first and not ended:
            end = piece.find(b"\n")
            size, ended = size + len(piece), end >= 0
            piece = piece[end + 1 :] if ended else b""
        if ended and piece.strip():
            return first, True
    return first, False


def _read_lines(file: BinaryIO, offset: int, line: int) -> Iterator[tuple[int, bytes]]:
    """The lines that are not blank, one at a time; of a longer one than a document may have, its beginning."""
    file.seek(offset)
    while text := file.readline(MAX_FILE_BYTES + 1):
        if not text.isspace():
            yield line, text
        line += 1


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


def _read_element(text: bytes, line: int, number: int, max_values: int) -> Document:
    if has_more_values(text, max_values):
        raise InvalidImport(f"conversation {number + 1} holds more than {max_values} JSON values", line=line)
    try:
        return Document(decode(text), None, text, f"/{number}")
    except MalformedJson as error:
        why, place = _explain(text, error)
        raise InvalidImport(f"this is not JSON: {why}", line=line + (place or 1) - 1) from None


def _is_json(line: bytes) -> bool:
    try:
        return isinstance(decode(line), dict | list)
    except MalformedJson:
        return False


def _explain(text: bytes, error: MalformedJson) -> tuple[str, int | None]:
    """Explain the fault of a document, and in which line it is."""
    try:
        json.loads(text)
    except json.JSONDecodeError as found:
        return f"{found.msg}, column {found.colno}", found.lineno
    except (ValueError, RecursionError):
        pass
    return str(error), None


# Finds where values end, and nothing else: what is between the brackets is read once its end is known. A quotation mark
# alone begins a text that goes on behind what was read so far.
_MARKS = re.compile(rb'"(?:[^"\\]++|\\.)*+"|["\[\]{}]', re.DOTALL)
_TEXT_REST = re.compile(rb'(?:[^"\\]++|\\.)*+', re.DOTALL)
_SPACE = re.compile(rb"[ \t\r\n]*+")


class _ListText:
    """The text of a file behind a list's first bracket, as far as it is needed for the next value."""

    def __init__(self, file: BinaryIO, offset: int, line: int) -> None:
        file.seek(offset, SEEK_SET)
        self._file = file
        self._text = bytearray()
        self._scanned = 0
        self.line = line

    def more(self) -> bool:
        piece = self._file.read(_PIECE_BYTES)
        self._text += piece
        return bool(piece)

    def skip_space(self) -> bytes:
        """The next character that is no space, empty at the end."""
        while True:
            self._drop(cast(re.Match[bytes], _SPACE.match(self._text)).end())
            if self._text or not self.more():
                return bytes(self._text[:1])

    def take(self) -> None:
        """Drop the character that `skip_space` found."""
        self._drop(1)

    def take_value(self) -> bytes:
        """The object or list that begins here. Raises EOFError where the file ends in it, OverflowError if it is too
        large."""
        depth, self._scanned = 0, 0
        while True:
            # One mark at a time: what still walks through the text would keep it from being cut.
            found = _MARKS.search(self._text, self._scanned)
            if found is None:
                self._scanned = len(self._text)
                self._grow()
                continue
            begin, self._scanned = found.span()
            mark = self._text[begin]
            if mark in b"[{":
                depth += 1
            elif mark in b"]}":
                depth -= 1
                if depth == 0:
                    return self._cut()
            elif self._scanned == begin + 1:
                self._end_text()

    def _end_text(self) -> None:
        """Go behind the text that was begun, reading what is missing of it."""
        while True:
            self._scanned = cast(re.Match[bytes], _TEXT_REST.match(self._text, self._scanned)).end()
            if self._text[self._scanned : self._scanned + 1] == b'"':
                self._scanned += 1
                return
            self._grow()

    def _grow(self) -> None:
        if len(self._text) > MAX_FILE_BYTES:
            raise OverflowError
        if not self.more():
            raise EOFError

    def _cut(self) -> bytes:
        value = bytes(self._text[: self._scanned])
        self._drop(self._scanned)
        return value

    def _drop(self, size: int) -> None:
        self.line += self._text.count(b"\n", 0, size)
        del self._text[:size]


def _split_list(file: BinaryIO, offset: int, line: int) -> Iterator[tuple[int, bytes]]:
    """The values of a list that is the whole file, each with the line that it begins in."""
    text = _ListText(file, offset, line)
    text.skip_space()
    text.take()
    number = 0
    if text.skip_space() == b"]":
        text.take()
    else:
        while True:
            number += 1
            if text.skip_space() not in (b"{", b"["):
                raise InvalidImport(f"this is not JSON of conversations: value {number} is no object", line=text.line)
            begin = text.line
            try:
                yield begin, text.take_value()
            except EOFError:
                raise InvalidImport(f"the file ends in the middle of conversation {number}", line=begin) from None
            except OverflowError:
                why = f"conversation {number} is larger than {MAX_FILE_BYTES} bytes"
                raise InvalidImport(why, line=begin) from None
            mark = text.skip_space()
            text.take()
            if mark == b"]":
                break
            if mark != b",":
                why = "the file ends" if not mark else "a comma is missing"
                raise InvalidImport(f"this is not JSON: {why} after conversation {number}", line=text.line)
    if text.skip_space():
        raise InvalidImport("this is not JSON: something follows the end of the list", line=text.line)


def enumerate_places(items: Iterable[Any], place: str) -> Iterator[tuple[str, Any]]:
    return ((f"{place}/{number}", item) for number, item in enumerate(items))


# SQLite: read where it was copied to, by nothing but plain queries of plain tables.

# `LIKE` is a function.
_READS = (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION)


@contextmanager
def open_database(file: BinaryIO, indexes: Iterable[str] = ()) -> Iterator[sqlite3.Connection]:
    """Open a copy of another program's database, as far as its file has it. Raises InvalidImport for a damaged one.

    The copy gets the `indexes`, `table (columns)`, by which it is read one conversation at a time: not every program
    has them. The file may be hostile: nothing of it that could compute for long is read, which are views, virtual
    tables and columns that are computed.
    """
    with TemporaryDirectory() as folder:
        path = Path(folder) / "foreign.db"
        with path.open("wb") as copy:
            file.seek(0)
            shutil.copyfileobj(file, copy)
        try:
            _add_indexes(path, indexes)
            with closing(sqlite3.connect(f"{path.as_uri()}?immutable=1", uri=True, check_same_thread=False)) as opened:
                opened.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_FILE_BYTES)
                opened.execute("PRAGMA trusted_schema = OFF")
                _refuse_computed_columns(opened)
                opened.set_authorizer(lambda action, *_: sqlite3.SQLITE_OK if action in _READS else sqlite3.SQLITE_DENY)
                opened.row_factory = sqlite3.Row
                yield opened
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise InvalidImport(f"the SQLite database cannot be read: {error}") from None


def _add_indexes(path: Path, indexes: Iterable[str]) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as copy:
        copy.execute("PRAGMA trusted_schema = OFF")
        for number, index in enumerate(indexes):
            # Some tables only some versions of a program have.
            if copy.execute(_IS_TABLE, [index.partition(" ")[0]]).fetchone():
                copy.execute(f"CREATE INDEX swarmkeep_{number} ON {index}")


_IS_TABLE = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ? COLLATE NOCASE"
_TABLES = "SELECT name FROM sqlite_master WHERE type = 'table' AND sql NOT LIKE 'CREATE VIRTUAL%'"
_COMPUTED = "SELECT name FROM pragma_table_xinfo(?) WHERE hidden IN (2, 3)"


def _refuse_computed_columns(database: sqlite3.Connection) -> None:
    for (table,) in database.execute(_TABLES).fetchall():
        computed = database.execute(_COMPUTED, (table,)).fetchone()
        if computed is not None:
            raise InvalidImport(f"the column {computed[0]!r} of the table {table!r} is computed, which is not read")


def list_columns(database: sqlite3.Connection) -> Mapping[str, set[str]]:
    """The names of the columns of each plain table."""
    return {row["name"]: _list_columns(database, row["name"]) for row in database.execute(_TABLES).fetchall()}


def _list_columns(database: sqlite3.Connection, table: str) -> set[str]:
    quoted = table.replace('"', '""')
    return {str(column[0]) for column in database.execute(f'SELECT * FROM "{quoted}" LIMIT 0').description}


def decode_text(value: Any, what: str) -> Any:
    """The JSON value of a column. Raises InvalidImport."""
    if value is None:
        return None
    try:
        text = value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogatepass")
        if has_more_values(text, MAX_FILE_VALUES):
            raise InvalidImport(f"{what} holds more than {MAX_FILE_VALUES} JSON values")
        return decode(text)
    except MalformedJson as error:
        raise InvalidImport(f"{what} is not JSON: {error}") from None
