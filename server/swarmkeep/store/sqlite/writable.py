"""Whether a database file can be written to, which SQLite says only when it is tried."""

from __future__ import annotations

import os
from pathlib import Path

from swarmkeep.store.ports.errors import StoreUnavailable
from swarmkeep.store.urls import SqliteFile

READ_ONLY_HINT = "make it and its folder writable, or name another database with --database-url"


def refuse_read_only(file: SqliteFile) -> None:
    """Raises StoreUnavailable for a file, or a folder, that this process may not write to."""
    for path in (file.path, file.path.parent):
        if path.exists() and not _is_writable(path):
            raise StoreUnavailable(f"the database at {file.display} is read-only: {READ_ONLY_HINT}")


def _is_writable(path: Path) -> bool:
    return os.access(path, os.W_OK, effective_ids=os.access in os.supports_effective_ids)
