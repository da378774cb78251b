"""Files that a command writes."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from swarmkeep.cli.terminal import Refused


def write_atomically(output: Path, pieces: Iterable[bytes]) -> None:
    """Write a file that is there under its name only once all of it is. Only its owner may read it."""
    with open_atomically(output) as file:
        for piece in pieces:
            file.write(piece)


@contextmanager
def open_atomically(output: Path) -> Iterator[BinaryIO]:
    """A file to write to, which takes its name at the end, unless something goes wrong. Only its owner may read it.

    Raises Refused where it cannot be written.
    """
    folder = Path(tempfile.gettempdir()) if output.exists() and not output.is_file() else output.parent
    partial = folder / f".{output.name}.{os.getpid()}.part"
    try:
        with os.fdopen(os.open(partial, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600), "w+b") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        if output.exists() and not output.is_file():
            # A device or a pipe: its place is not to be taken.
            with partial.open("rb") as source, output.open("wb") as target:
                shutil.copyfileobj(source, target)
        else:
            partial.replace(output)
    except OSError as error:
        raise Refused(f"cannot write {output}: {error.strerror or error}") from None
    finally:
        partial.unlink(missing_ok=True)
