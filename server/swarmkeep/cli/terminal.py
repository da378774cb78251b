"""Output of the command line: data on stdout, messages on stderr."""

from __future__ import annotations

import codecs
import contextlib
import errno
import io
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TextIO

from swarmkeep.domain.wording import escape_controls, escape_json, escape_line


class Refused(Exception):
    """The command says no: its sentence goes to stderr, and the exit code is 1."""


# What a disk says that takes nothing more.
NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_MAY_NOT = (errno.EACCES, errno.EPERM, errno.EROFS)


def describe_os_error(error: OSError) -> str:
    """What the system says about a file, and what to do about it where that is known."""
    said = error.strerror or str(error)
    if error.errno in NO_SPACE:
        return f"{said}; free some space, or write somewhere else"
    if error.errno in _MAY_NOT:
        return f"{said}; choose a folder that you may write to"
    return said


# Who has something at the end of the terminal that lines are put above.
_guard: Callable[[], AbstractContextManager[None]] = nullcontext


def put_above(guard: Callable[[], AbstractContextManager[None]] | None) -> None:
    """From now on each line is written within this guard; None is without."""
    global _guard
    _guard = guard or nullcontext


def _print(text: str, file: TextIO | None = None) -> None:
    with _guard():
        print(text, file=file, flush=True)


def say(text: str = "") -> None:
    """Tell what is happening, on stderr."""
    _print(escape_controls(text), sys.stderr)


_said: set[str] = set()


def say_once(text: str) -> None:
    """Tell something on stderr, unless this command has told it before."""
    if text not in _said:
        say(text)
    _said.add(text)


def forget_said() -> None:
    """From now on it is another command that tells."""
    _said.clear()


def put(text: str = "") -> None:
    """Give data that a person reads, on stdout."""
    _print(escape_controls(text))


def put_bytes(pieces: Iterable[bytes]) -> None:
    """Give data as it is, on stdout; but what a terminal would obey, it is shown as escapes."""
    sys.stdout.flush()
    for piece in _escape_pieces(pieces) if is_terminal(sys.stdout) else pieces:
        sys.stdout.buffer.write(piece)
    sys.stdout.buffer.flush()


def _escape_pieces(pieces: Iterable[bytes]) -> Iterator[bytes]:
    for text in codecs.iterdecode(pieces, "utf-8", "replace"):
        yield escape_json(text).encode()


def put_json(value: Any) -> None:
    """Give data that a program reads: one document."""
    import msgspec

    plain = msgspec.to_builtins(value)
    text = json.dumps(plain, indent=2, ensure_ascii=False)
    # Lone surrogates, which no encoding holds, are JSON only as escapes.
    _print(escape_json(text) if is_utf8(text) else json.dumps(plain, indent=2))


def put_json_line(value: Any) -> None:
    """Give one of many documents, in a line of its own."""
    from swarmkeep.domain.codec import encode_text

    _print(escape_json(encode_text(value)))


def put_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Rows in aligned columns; the last column may be as long as it likes."""
    table = [[escape_line(cell) for cell in row] for row in (headings, *rows)]
    widths = [max(len(row[column]) for row in table) for column in range(len(headings) - 1)]
    for row in table:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
        _print("  ".join([*cells, row[-1]]).rstrip())


def is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def shorten(text: str, length: int) -> str:
    """The text on one line, cut to `length`."""
    line = " ".join(text.split())
    return line if len(line) <= length else line[: max(length - 1, 0)] + "…"


def is_terminal(stream: TextIO) -> bool:
    try:
        return stream.isatty()
    except ValueError:
        return False


def can_show(text: str, stream: TextIO) -> bool:
    """Whether the stream's encoding has these characters."""
    try:
        text.encode(stream.encoding or "ascii")
    except UnicodeEncodeError:
        return False
    return True


def has_cursor(stream: TextIO) -> bool:
    """Whether it is a terminal on which a line can be written over."""
    return is_terminal(stream) and os.environ.get("TERM") != "dumb"


def is_interactive() -> bool:
    """Whether it is a person who types the input and reads the output."""
    return is_terminal(sys.stdin) and is_terminal(sys.stdout)


def escape_unencodable() -> None:
    """From now on what the outputs' encodings cannot hold is shown as an escape, and ends nothing."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def drop_stdout() -> None:
    """What could not be written is dropped, or the interpreter tries it once more as it ends, and complains."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def has_colours(stream: TextIO) -> bool:
    """Whether colours may be used there; see https://no-color.org."""
    return has_cursor(stream) and not os.environ.get("NO_COLOR")
