"""How far long work is: a line on standard error, for a person at a terminal, and what is said when Ctrl-C ends it."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import TYPE_CHECKING, BinaryIO, TypeVar

import typer

from swarmkeep.cli.terminal import has_cursor, put_above, say
from swarmkeep.domain.wording import pluralize

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress

T = TypeVar("T")

# What is done sooner is not announced.
SHOW_AFTER_SECONDS = 0.5
REDRAW_SECONDS = 0.1
INTERRUPTED = 128 + signal.SIGINT
_CLEAR_LINE = "\r\x1b[2K"


class Progress:
    """What is done so far, of how much, if that is known."""

    def __init__(self, what: str, unit: str, total: int | None = None) -> None:
        self.what = what
        self.unit = unit
        self.total = total
        self.done = 0
        self.is_over = False

    def advance(self, count: int = 1) -> None:
        self.done += count

    def reach(self, done: int, total: int | None) -> None:
        """For who finds out the total on the way."""
        self.done, self.total = done, total

    def track(self, items: Iterable[T]) -> Iterator[T]:
        """The items; each counts once the next is asked for."""
        for item in items:
            yield item
            self.advance()

    def __str__(self) -> str:
        return (
            pluralize(self.done, self.unit)
            if self.total is None
            else f"{self.done} of {pluralize(max(self.done, self.total), self.unit)}"
        )


class WorkIsOver(Exception):
    """Ctrl-C has ended it, while a thread still reads for it."""


class TrackedFile:
    """A file whose bytes count as they are read; where it is read again from its beginning, they count again.

    Once the work is over it gives no more, so that nobody waits for a thread that reads to the end.
    """

    def __init__(self, file: BinaryIO, progress: Progress) -> None:
        self._file = file
        self._progress = progress

    def read(self, size: int = -1) -> bytes:
        return self._count(self._file.read(size))

    def readline(self, size: int = -1) -> bytes:
        return self._count(self._file.readline(size))

    def __getattr__(self, name: str) -> object:
        return getattr(self._file, name)

    def __iter__(self) -> Iterator[bytes]:
        while line := self.readline():
            yield line

    def _count(self, read: bytes) -> bytes:
        if self._progress.is_over:
            raise WorkIsOver
        self._progress.advance(len(read))
        return read


@contextmanager
def show_progress(
    what: str,
    unit: str,
    total: int | Callable[[], int | None] | None = None,
    *,
    quiet: bool = False,
    on_interrupt: Callable[[Progress], str] | None = None,
    after_seconds: float = SHOW_AFTER_SECONDS,
) -> Iterator[Progress]:
    """Within, it is shown how far the work is. On Ctrl-C one line says what was done, and the exit code is 130.

    `total` may be a function that finds it out: it is called only if it is to be shown. `on_interrupt` makes that line;
    without it, nothing was changed by what was done. `quiet` shows nothing.
    """
    shown = not quiet and has_cursor(sys.stderr)
    progress = Progress(what, unit, total if isinstance(total, int) else None)
    bar = _Bar(progress, after_seconds) if shown else None
    try:
        if bar is not None:
            bar.start()
            # It may have to be asked for.
            progress.total = total() if callable(total) else total
        yield progress
    except KeyboardInterrupt:
        progress.is_over = True
        if bar is not None:
            bar.end()
        so_far = f"{progress} so far; " if unit else ""
        outcome = f"{so_far}nothing was changed" if on_interrupt is None else on_interrupt(progress)
        say(f"interrupted: {outcome}")
        raise typer.Exit(INTERRUPTED) from None
    finally:
        if bar is not None:
            bar.end()


class _Bar:
    """Draws the line, in a thread of its own, and takes it away before anything else is written to the terminal."""

    def __init__(self, progress: Progress, after_seconds: float) -> None:
        self._progress = progress
        self._after_seconds = after_seconds
        self._ended = threading.Event()
        self._writing = threading.RLock()
        self._thread = threading.Thread(target=self._run, name="progress", daemon=True)
        self._drawn = False

    def start(self) -> None:
        put_above(self._make_room)
        self._thread.start()

    def end(self) -> None:
        self._ended.set()
        # Ctrl-C may have come before it was started.
        with suppress(RuntimeError):
            self._thread.join()
        put_above(None)
        self._clear()

    def _run(self) -> None:
        if self._ended.wait(self._after_seconds):
            return
        rich = _make_rich(self._progress)
        while not self._ended.is_set():
            self._draw(rich)
            self._ended.wait(REDRAW_SECONDS)

    def _draw(self, rich: RichProgress) -> None:
        task, progress = rich.tasks[0], self._progress
        rich.update(task.id, completed=progress.done, total=progress.total)
        with rich.console.capture() as captured:
            rich.console.print(rich.make_tasks_table(rich.tasks), end="")
        line = captured.get().splitlines()[0]
        with self._writing:
            if not self._ended.is_set():
                sys.stderr.write(_CLEAR_LINE + line)
                sys.stderr.flush()
                self._drawn = True

    @contextmanager
    def _make_room(self) -> Iterator[None]:
        with self._writing:
            self._clear()
            yield

    def _clear(self) -> None:
        with self._writing:
            if self._drawn:
                sys.stderr.write(_CLEAR_LINE)
                sys.stderr.flush()
            self._drawn = False


def _make_rich(progress: Progress) -> RichProgress:
    from rich.console import Console
    from rich.progress import BarColumn, ProgressColumn, SpinnerColumn, Task, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as RichProgress
    from rich.text import Text

    class Count(ProgressColumn):
        def render(self, task: Task) -> Text:
            rate = "" if task.speed is None else f", {_format_count(task.speed, progress.unit)} a second"
            of = f" of {_format_count(progress.total, progress.unit)}" if progress.total else ", of an unknown number"
            return Text(f"{_format_count(progress.done, progress.unit)}{of}{rate}")

    class Left(TimeRemainingColumn):
        def render(self, task: Task) -> Text:
            return Text() if task.total is None else super().render(task).append(" left")

    columns: list[ProgressColumn] = [SpinnerColumn(), TextColumn("{task.description}")]
    if progress.unit:
        columns += [BarColumn(bar_width=20), Count()]
        columns += [Left()]
    rich = RichProgress(*columns, console=Console(file=sys.stderr), auto_refresh=False)
    rich.add_task(progress.what, total=progress.total)
    return rich


def _format_count(count: float, unit: str) -> str:
    """`1.2 MB`, `340 sessions`."""
    if unit != "byte":
        return pluralize(round(count), unit)
    return next(
        f"{count / size:.1f} {name}" for size, name in ((10**9, "GB"), (10**6, "MB"), (10**3, "kB"), (1, "B"))
        if count >= size or size == 1
    )  # fmt: skip


@contextmanager
def end_early() -> Iterator[threading.Event]:
    """Within, the first Ctrl-C sets the event, for work that can end well by itself; the second interrupts."""
    asked = threading.Event()

    def note(number: int, frame: FrameType | None) -> None:
        asked.set()
        signal.signal(number, signal.default_int_handler)

    before = signal.signal(signal.SIGINT, note)
    try:
        yield asked
    finally:
        signal.signal(signal.SIGINT, before)
