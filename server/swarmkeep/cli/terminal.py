"""Output of the command line: data on stdout, messages on stderr."""

from __future__ import annotations

import codecs
import contextlib
import errno
import io
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING, Any, BinaryIO, TextIO, TypeVar

import typer

from swarmkeep.events.wording import escape_controls, escape_json, escape_line, pluralize

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as RichProgress

    from swarmkeep_client import SwarmkeepError


class Refused(Exception):
    """The command says no: its sentence goes to stderr, and the exit code is 1."""


# What a disk says that takes nothing more.
NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_MAY_NOT = (errno.EACCES, errno.EPERM, errno.EROFS)


def describe_os_error(error: OSError) -> str:
    """Describe the system's error with a file, and its remedy if that is known."""
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
    _print(escape_json(text) if can_encode(text, "utf-8") else json.dumps(plain, indent=2))


def put_json_line(value: Any) -> None:
    """Give one of many documents, in a line of its own."""
    from swarmkeep.events.codec import encode_text

    _print(escape_json(encode_text(value)))


def put_result(value: Any, text: str, *, as_json: bool) -> None:
    """Give what a command has made or found: to a program as JSON, to a person as a text about it."""
    if as_json:
        put_json(value)
    else:
        put(text)


def put_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Rows in aligned columns; the last column may be as long as it likes."""
    table = [[escape_line(cell) for cell in row] for row in (headings, *rows)]
    widths = [max(len(row[column]) for row in table) for column in range(len(headings) - 1)]
    for row in table:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
        _print("  ".join([*cells, row[-1]]).rstrip())


def put_rows(headings: Sequence[str], rows: Sequence[Sequence[str]], *, none: str) -> None:
    """A table, or on stderr that there is nothing to put into it."""
    if rows:
        put_table(headings, rows)
    else:
        say(none)


def can_encode(text: str, encoding: str) -> bool:
    try:
        text.encode(encoding)
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


def has_cursor(stream: TextIO) -> bool:
    """Tell if it is a terminal on which a line can be written over."""
    return is_terminal(stream) and os.environ.get("TERM") != "dumb"


def is_interactive() -> bool:
    """Tell if it is a person who types the input and reads the output."""
    return is_terminal(sys.stdin) and is_terminal(sys.stdout)


def escape_unencodable() -> None:
    """From now on what the outputs' encodings cannot hold is shown as an escape, and ends nothing."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def drop_stdout() -> None:
    """Drop output that could not be written, or the interpreter tries it again as it ends, and complains."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def has_colours(stream: TextIO) -> bool:
    """Tell if colours may be used there; see https://no-color.org."""
    return has_cursor(stream) and not os.environ.get("NO_COLOR")


def make_console(**options: Any) -> Console:
    """Standard output as rich writes to it: colours where they may be used; nothing that a text holds is markup."""
    from rich.console import Console

    options["color_system"] = "auto" if has_colours(sys.stdout) else None
    return Console(file=sys.stdout, highlight=False, markup=False, emoji=False, **options)


# Show the progress of long work: a line on standard error, for a person at a terminal, and what is said when Ctrl-C
# ends it.

T = TypeVar("T")

# What is done sooner is not announced.
SHOW_AFTER_SECONDS = 0.5
REDRAW_SECONDS = 0.1
INTERRUPTED = 128 + signal.SIGINT
_CLEAR_LINE = "\r\x1b[2K"


class Progress:
    """The amount done so far, and the total, if that is known."""

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

    Once the work is over it gives no more, so that no caller waits for a thread that reads to the end.
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


@contextmanager
def exit_on_signals() -> Iterator[None]:
    """Within, a signal that ends the process is an exception, so that what is open is closed on the way out."""

    def end(number: int, frame: FrameType | None) -> None:
        sys.exit(128 + number)

    numbers = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    # `nohup` has them ignored.
    before = [(n, signal.signal(n, end)) for n in numbers if signal.getsignal(n) is not signal.SIG_IGN]
    try:
        yield
    finally:
        for number, handler in before:
            signal.signal(number, handler)


# Choose the errors that are shown as one line instead of a traceback.

# By the module that defines them: what has not been imported has not been raised.
_REFUSED = {
    "swarmkeep.events.errors": ("DomainError",),
    "swarmkeep.store.records": ("StoreUnavailable", "SchemaBehind", "NoSuchRevision"),
    "swarmkeep.store.backup": ("BadBackup",),
    "swarmkeep.history.anchors": ("AnchorRefused",),
    "swarmkeep.history.archives": ("ArchiveError",),
    "swarmkeep.history.checkpoints": ("BadCheckpoint",),
    "swarmkeep.history.compare": ("PricesError",),
    "swarmkeep.history.retention": ("RetentionError",),
    "swarmkeep.runs.agents": ("AgentsError",),
    "swarmkeep.serve.app": ("ServeError",),
}
_KEY_HINT = "; give a key of this server in SWARMKEEP_API_KEY or with --api-key"
_WRONG_USE = {
    "swarmkeep.store.person_keys": ("PersonKeyError",),
    "swarmkeep.store.urls": ("BadDatabaseUrl",),
    "swarmkeep.evals.cases": ("InvalidCases",),
    "swarmkeep.serve.workers": ("WorkersRefused",),
}


@dataclass(frozen=True)
class Refusal:
    sentence: str
    exit_code: int = 1


def find_refusal(error: Exception) -> Refusal | None:
    """Return the message of the command, if the error is an answer; None for one that is a mistake of ours."""
    while isinstance(error, ExceptionGroup) and len(error.exceptions) == 1:
        # Task groups wrap what one of their tasks raised.
        error = error.exceptions[0]
    if isinstance(error, Refused) or _is_one_of(error, _REFUSED):
        return Refusal(_join_lines(str(error)))
    if _is_one_of(error, _WRONG_USE):
        return Refusal(_join_lines(str(error)), exit_code=2)
    # Writing to a stream names no file.
    if isinstance(error, OSError) and error.errno in NO_SPACE and error.filename is None:
        return Refusal(f"cannot write the output: {describe_os_error(error)}")
    if isinstance(error, FileNotFoundError) and not _is_in_a_folder():
        return Refusal("the current folder does not exist any more; change to another one")
    client = sys.modules.get("swarmkeep_client")
    if client is not None and isinstance(error, client.SwarmkeepError):
        return Refusal(_join_lines(error.detail or str(error)) + _make_hint(error))
    return None


def _is_in_a_folder() -> bool:
    try:
        return bool(os.getcwd())
    except FileNotFoundError:
        return False


def _make_hint(error: SwarmkeepError) -> str:
    """Return a hint on an answer of a server; of one that says no more, where its log does."""
    if error.code == "unauthenticated":
        return _KEY_HINT
    return f" (request {error.request_id})" if error.code == "internal_error" and error.request_id else ""


def _is_one_of(error: Exception, names: Mapping[str, tuple[str, ...]]) -> bool:
    return any(
        isinstance(error, getattr(sys.modules[module], name))
        for module, classes in names.items()
        if module in sys.modules
        for name in classes
    )


def _join_lines(text: str) -> str:
    return " ".join(text.split())
