"""What connects a worker with the process that started it: one pipe each way."""

from __future__ import annotations

import contextlib
import os

_READY = b"ready\n"
_FAILED = b"failed "
# What a pipe takes in one piece.
_MAX_REASON_BYTES = 4000


class WorkerLink:
    """The worker's end. `stop_fd` becomes readable when it has to stop: on request, or because its parent is gone."""

    def __init__(self, number: int, stop_fd: int, report_fd: int) -> None:
        self.number = number
        self.stop_fd = stop_fd
        self._report_fd = report_fd

    def report_ready(self) -> None:
        self._report(_READY)

    def report_failure(self, reason: str) -> None:
        """Say why this worker cannot start, in a sentence for whoever started the server."""
        self._report(_FAILED + " ".join(reason.split()).encode()[:_MAX_REASON_BYTES] + b"\n")

    def _report(self, line: bytes) -> None:
        # Nobody listens any more when the parent has been killed.
        with contextlib.suppress(OSError):
            os.write(self._report_fd, line)


class Reports:
    """The parent's end: what one worker has reported so far."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.is_open = True
        self._text = b""

    def read(self) -> None:
        """Take what has come, or nothing."""
        while self.is_open:
            try:
                piece = os.read(self.fd, 8192)
            except BlockingIOError:
                return
            self._text += piece
            self.is_open = bool(piece)

    def close(self) -> None:
        os.close(self.fd)

    @property
    def is_ready(self) -> bool:
        return self._text.startswith(_READY)

    @property
    def failure(self) -> str | None:
        text = self._text.removeprefix(_READY)
        return text.removeprefix(_FAILED).decode(errors="replace").strip() if text.startswith(_FAILED) else None
