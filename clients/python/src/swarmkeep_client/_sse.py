"""Server-sent events, read as they arrive: bytes in, frames out, wherever the network cuts them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_LINE_END = re.compile(rb"\r\n|\n|\r")
_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class Frame:
    """One event of a stream. `id` is None when this very frame carried none; `data` is UTF-8 text, undecoded."""

    event: str
    data: bytes
    id: str | None = None


class FrameParser:
    """Turns chunks of one response's body into frames. A frame without its closing empty line is never given."""

    def __init__(self) -> None:
        # Pieces of the line that is still open: joined once at its end, so that a large frame in many small chunks
        # costs its length and not its square.
        self._open: list[bytes] = []
        self._after_cr = False
        self._first = True
        self._event = ""
        self._id: str | None = None
        self._data: list[bytes] = []

    def feed(self, chunk: bytes) -> Iterator[Frame]:
        for line in self._lines(chunk):
            if line:
                self._field(line)
            elif frame := self._frame():
                yield frame

    def _lines(self, chunk: bytes) -> Iterator[bytes]:
        if not chunk:
            return
        # A CR at the end of one chunk ends the line; an LF at the start of the next belongs to it.
        start = 1 if self._after_cr and chunk.startswith(b"\n") else 0
        self._after_cr = chunk.endswith(b"\r")
        for end in _LINE_END.finditer(chunk, start):
            line = b"".join([*self._open, chunk[start : end.start()]])
            self._open.clear()
            start = end.end()
            if self._first:
                self._first = False
                line = line.removeprefix(_BOM)
            yield line
        if start < len(chunk):
            self._open.append(chunk[start:])

    def _field(self, line: bytes) -> None:
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        match name:
            case b"data":
                self._data.append(value)
            case b"event":
                self._event = value.decode(errors="replace")
            case b"id" if b"\0" not in value:
                self._id = value.decode(errors="replace")
            case _:  # a comment (empty name), `retry`, or a field of the future
                pass

    def _frame(self) -> Frame | None:
        frame = Frame(self._event or "message", b"\n".join(self._data), self._id) if self._data else None
        self._event, self._id, self._data = "", None, []
        return frame
