"""A SQLite file is for its owner alone: it holds every conversation in plain text."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def create_private_file(path: Path) -> None:
    """Make the file, for its owner alone, if there is none; SQLite gives the files beside it the same mode."""
    # What keeps it from being made is said when it is opened.
    with suppress(OSError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))


def find_exposed_files(path: Path) -> list[Path]:
    """The database's files that other users of this machine may read or write."""
    if os.name != "posix":
        return []
    beside = [path, *(path.with_name(path.name + suffix) for suffix in ("-wal", "-shm"))]
    return [file for file in beside if file.exists() and file.stat().st_mode & _OTHERS]


def describe_exposure(files: list[Path]) -> str:
    names = ", ".join(map(str, files))
    return f"other users of this machine may read or change {names}; chmod 600 prevents this"
