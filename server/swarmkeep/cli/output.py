"""Files that a command writes."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import BinaryIO, cast

from swarmkeep.cli.terminal import Refused, describe_os_error

try:
    import fcntl
except ImportError:
    # Not on Windows.
    fcntl = None  # type: ignore[assignment]

# The name of standard input and output.
STANDARD = "-"

# What the write-ahead log of a SQLite file grows to before it is used again.
WORKING_BYTES = 4_000_000


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
    # What somebody else has put there is neither followed nor written to: the name can be guessed.
    descriptor = os.open(partial, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w+b") as file:
            _lock(file.fileno())
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
    """Whether there is such a process beside this one on this machine; if in doubt, there is."""
    if process_id == os.getpid():
        return False
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    return True


def _lock(file: int) -> bool:
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
        return not _lock(file.fileno())
