"""Output of the command line: data on stdout, messages on stderr."""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
from collections.abc import Iterable, Sequence
from typing import Any, TextIO

from swarmkeep.domain.wording import escape_controls, escape_json, escape_line


class Refused(Exception):
    """The command says no: its sentence goes to stderr, and the exit code is 1."""


def say(text: str = "") -> None:
    """Tell what is happening, on stderr."""
    print(escape_controls(text), file=sys.stderr, flush=True)


def put(text: str = "") -> None:
    """Give data that a person reads, on stdout."""
    print(escape_controls(text), flush=True)


def put_json(value: Any) -> None:
    """Give data that a program reads: one document."""
    import msgspec

    plain = msgspec.to_builtins(value)
    text = json.dumps(plain, indent=2, ensure_ascii=False)
    # Lone surrogates, which no encoding holds, are JSON only as escapes.
    print(escape_json(text) if is_utf8(text) else json.dumps(plain, indent=2), flush=True)


def put_json_line(value: Any) -> None:
    """Give one of many documents, in a line of its own."""
    from swarmkeep.domain.codec import encode_text

    print(escape_json(encode_text(value)), flush=True)


def put_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Rows in aligned columns; the last column may be as long as it likes."""
    table = [[escape_line(cell) for cell in row] for row in (headings, *rows)]
    widths = [max(len(row[column]) for row in table) for column in range(len(headings) - 1)]
    for row in table:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
        print("  ".join([*cells, row[-1]]).rstrip(), flush=True)


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
    return is_terminal(stream) and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
