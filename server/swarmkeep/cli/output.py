"""Files that a command writes."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import re
import shutil
import sys
import tempfile
import threading
from collections.abc import AsyncGenerator, Coroutine, Iterable, Iterator
from contextlib import aclosing, contextmanager, nullcontext
from datetime import UTC, datetime, timedelta
from pathlib import Path
from queue import SimpleQueue
from tempfile import TemporaryFile
from typing import Any, BinaryIO, TypeVar, cast

import typer

from swarmkeep.cli.terminal import Refused, describe_os_error, put_bytes

try:
    import fcntl
except ImportError:
    # Not on Windows.
    fcntl = None  # type: ignore[assignment]

# The name of standard input and output.
STANDARD = "-"

# What the write-ahead log of a SQLite file grows to before it is used again.
WORKING_BYTES = 4_000_000


def write_output(pieces: Iterable[bytes], output: Path | None) -> None:
    """Write to a file, which appears once it is complete, or without one to standard output."""
    if output is None:
        put_bytes(pieces)
    else:
        write_atomically(output, pieces)


def write_atomically(output: Path, pieces: Iterable[bytes]) -> None:
    """Write a file that is there under its name only once all of it is. Only its owner may read it."""
    with open_atomically(output) as file:
        for piece in pieces:
            file.write(piece)


@contextmanager
def open_atomically(output: Path) -> Iterator[BinaryIO]:
    """A file to write to, which takes its name at the end, unless something goes wrong. Only its owner may read it.

    What is written to - goes to standard output then. Raises Refused where it cannot be written.
    """
    try:
        if str(output) == STANDARD or (output.exists() and not output.is_file()):
            # Also a device or a pipe: its place is not to be taken.
            with tempfile.TemporaryFile() as whole:
                yield cast(BinaryIO, whole)
                whole.seek(0)
                with nullcontext(sys.stdout.buffer) if str(output) == STANDARD else output.open("wb") as target:
                    shutil.copyfileobj(whole, target)
                    target.flush()
            return
        with _open_beside(output) as file:
            yield file
    except OSError as error:
        raise Refused(f"cannot write {output}: {describe_os_error(error)}") from None


@contextmanager
def _open_beside(output: Path) -> Iterator[BinaryIO]:
    """A new file in the same folder, which takes the other's place at the end."""
    partial = output.parent / f".{output.name}.{os.getpid()}.part"
    _remove_leftovers(output.parent, output.name)
    # A file of another user is neither followed nor written to: the name can be guessed.
    descriptor = os.open(partial, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w+b") as file:
            lock_file(file.fileno())
            yield file
            file.flush()
            os.fsync(file.fileno())
        partial.replace(output)
    except BaseException:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        raise


def try_writing(folder: Path) -> None:
    """Write WORKING_BYTES in the folder, and take them away again.

    Raises OSError where they have no place. What a disk says of its free space leaves quotas and limits out.
    """
    with tempfile.TemporaryFile(dir=folder) as file:
        # Bytes that no file system can make smaller.
        file.write(os.urandom(WORKING_BYTES))
        file.flush()
        os.fsync(file.fileno())


def _remove_leftovers(folder: Path, name: str) -> None:
    """Remove what processes have left that were killed as they wrote this file; those that live still write."""
    pattern = re.compile(rf"\.{re.escape(name)}\.([1-9][0-9]{{0,9}})\.part", re.ASCII)
    with contextlib.suppress(OSError):
        for found in folder.iterdir():
            part = pattern.fullmatch(found.name)
            if part is not None and not _is_other(int(part[1])) and not _is_locked(found):
                found.unlink(missing_ok=True)


def _is_other(process_id: int) -> bool:
    """Tell if there is such a process beside this one on this machine; if in doubt, there is."""
    if process_id == os.getpid():
        return False
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    return True


def lock_file(file: int) -> bool:
    """Lock an open file until it is closed, also for processes of other machines that share the folder."""
    if fcntl is None:
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        # Some file systems have no locks.
        return error.errno not in (errno.EAGAIN, errno.EACCES)
    return True


def _is_locked(path: Path) -> bool:
    with path.open("rb") as file:
        return not lock_file(file.fileno())


# An event loop beside the main thread, which stays free to wait for a person and to be interrupted by one.

T = TypeVar("T")


class Background:
    """Runs coroutines in a thread of its own.

    Ctrl-C is raised in the main thread only: what runs here is not torn in the middle of a step, and leases go on being
    renewed while the main thread waits for input.
    """

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="swarmkeep", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run the coroutine; return its result, or raise its error."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def iterate(self, items: AsyncGenerator[T | None]) -> Iterator[T]:
        """The items of an asynchronous generator; a None is left out. The generator is closed when the reader stops."""
        arrived: SimpleQueue[tuple[T | None, BaseException | None, bool]] = SimpleQueue()

        async def pump() -> None:
            try:
                async with aclosing(items):
                    async for item in items:
                        if item is not None:
                            arrived.put((item, None, False))
            except BaseException as error:
                arrived.put((None, error, True))
                raise
            arrived.put((None, None, True))

        pumping = asyncio.run_coroutine_threadsafe(pump(), self._loop)
        try:
            while True:
                item, error, ended = arrived.get()
                if error is not None:
                    raise error
                if ended:
                    return
                yield item  # type: ignore[misc]
        finally:
            pumping.cancel()

    def close(self) -> None:
        """Cancel what still runs, and end the thread."""
        self.run(_cancel_others())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    await asyncio.get_running_loop().shutdown_asyncgens()
    await asyncio.get_running_loop().shutdown_default_executor()


# Durations and times as people write them in options.

# Up to 99999 weeks: with more, the calendar ends before the duration does.
_DURATION = re.compile(r"([1-9][0-9]{0,4})([smhdw])", re.ASCII)
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_DAY = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)


def parse_duration(text: str, option: str) -> timedelta:
    """A duration such as 90d. Raises BadParameter."""
    match = _DURATION.fullmatch(text)
    if match is None:
        raise typer.BadParameter("write a number and s, m, h, d or w, as in 90d", param_hint=f"'{option}'")
    return timedelta(**{_UNITS[match[2]]: int(match[1])})


def parse_end(text: str, option: str) -> datetime:
    """A time: so long from now, a date (its beginning, UTC), or a time with its zone. Raises BadParameter."""
    if _DURATION.fullmatch(text):
        return datetime.now(UTC) + parse_duration(text, option)
    try:
        at = datetime.fromisoformat(f"{text}T00:00:00Z" if _DAY.fullmatch(text) else text)
    except ValueError:
        at = datetime.min
    if at.tzinfo is None:
        detail = "write how long, as in 30d, or when, as in 2026-12-31 or 2026-12-31T00:00:00Z"
        raise typer.BadParameter(detail, param_hint=f"'{option}'")
    return at


# Files that commands read.


@contextmanager
def open_input(name: str) -> Iterator[BinaryIO]:
    """A file that can be read more than once; - is standard input. Raises Refused."""
    with contextlib.ExitStack() as opened:
        try:
            file = sys.stdin.buffer if name == STANDARD else opened.enter_context(open(name, "rb"))
            if name == STANDARD or not file.seekable():
                # It is read twice: once to verify it, and once to record it.
                spooled = opened.enter_context(TemporaryFile())
                shutil.copyfileobj(file, spooled)
                spooled.seek(0)
                file = cast(BinaryIO, spooled)
            yield file
        except OSError as error:
            raise Refused(f"cannot read {name}: {error.strerror or error}") from None
