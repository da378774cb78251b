"""Files that commands read."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from tempfile import TemporaryFile
from typing import BinaryIO, cast

from swarmkeep.cli.output import STANDARD
from swarmkeep.cli.terminal import Refused


@contextmanager
def open_input(name: str) -> Iterator[BinaryIO]:
    """A file that can be read more than once, or with - what standard input gives. Raises Refused."""
    if name != STANDARD:
        try:
            with open(name, "rb") as file:
                if not file.seekable():
                    raise Refused(f"cannot go back in {name}; use - to read it from standard input")
                yield file
        except OSError as error:
            raise Refused(f"cannot read {name}: {error.strerror or error}") from None
        return
    # It is read twice: once to verify it, and once to record it.
    with TemporaryFile() as spooled:
        shutil.copyfileobj(sys.stdin.buffer, spooled)
        spooled.seek(0)
        yield cast(BinaryIO, spooled)
