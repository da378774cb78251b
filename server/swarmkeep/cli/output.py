"""Files that a command writes."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path

from swarmkeep.cli.terminal import Refused


def write_atomically(output: Path, pieces: Iterable[bytes]) -> None:
    """Write a file that is there under its name only once all of it is. Only its owner may read it."""
    folder = Path(tempfile.gettempdir()) if output.exists() and not output.is_file() else output.parent
    partial = folder / f".{output.name}.{os.getpid()}.part"
    try:
        with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            for piece in pieces:
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())
        if output.exists() and not output.is_file():
            # A device or a pipe: its place is not to be taken.
            with partial.open("rb") as file, output.open("wb") as target:
                shutil.copyfileobj(file, target)
        else:
            partial.replace(output)
    except OSError as error:
        raise Refused(f"cannot write {output}: {error.strerror or error}") from None
    finally:
        partial.unlink(missing_ok=True)
