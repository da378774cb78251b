"""The live view: draws, waits for keys, and draws again."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from queue import Empty
from types import FrameType
from typing import TYPE_CHECKING

from rich.live import Live

from swarmkeep.cli.render.console import make_console
from swarmkeep.cli.top.drawing import Room, draw
from swarmkeep.cli.top.keys import Keyboard, open_keyboard
from swarmkeep.cli.top.snapshot import Reader
from swarmkeep.cli.top.view import View
from swarmkeep.cli.top.work import Work

if TYPE_CHECKING:
    from swarmkeep.cli.sources.source import Source

REDRAW_SECONDS = 0.5
_END_SECONDS = 1.0


def watch(source: Source, where: str, url: str | None, *, seconds: float) -> None:
    """Show it until `q`. Raises KeyboardInterrupt for Ctrl-C; the terminal is as it was by then."""
    reader = Reader(source, url)
    # What is the matter at once is said as by every command.
    first = reader.read()
    view = View(first.snapshot, first.taken)
    work = Work(source, reader, first, seconds=seconds)
    # Exported once, these would be the size for ever.
    console = make_console(
        _environ={name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    )
    with (
        _end_on_signals(),
        open_keyboard() as keyboard,
        Live(
            console=console,
            screen=True,
            auto_refresh=False,
            redirect_stdout=False,
            redirect_stderr=False,
        ) as live,
    ):
        work.start(keyboard.wake)
        try:
            _run(view, work, keyboard, live, where)
        finally:
            work.end(_END_SECONDS)


def _run(view: View, work: Work, keyboard: Keyboard, live: Live, where: str) -> None:
    while True:
        _apply(view, work)
        # Asked for each time: terminals change their size.
        width, height = live.console.size
        room = Room(width, height, live.console.encoding)
        live.update(draw(view, where, room, time.monotonic()), refresh=True)
        for key in keyboard.wait(REDRAW_SECONDS):
            if key == "ctrl-c":
                raise KeyboardInterrupt
            job = view.press(key) if key != "ctrl-d" else None
            if key == "ctrl-d" or (job is not None and job.kind == "quit"):
                return
            if job is not None:
                work.do(job)


def _apply(view: View, work: Work) -> None:
    while True:
        try:
            change = work.changes.get_nowait()
        except Empty:
            return
        if isinstance(change, BaseException):
            raise change
        change(view)


@contextmanager
def _end_on_signals() -> Iterator[None]:
    """Within, a signal that ends the process lets it put the terminal back first."""

    def end(number: int, frame: FrameType | None) -> None:
        sys.exit(128 + number)

    numbers = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    before = [(number, signal.signal(number, end)) for number in numbers]
    try:
        yield
    finally:
        for number, handler in before:
            signal.signal(number, handler)
