"""Whether a database file can be written to, or made: SQLite says so only when it is tried, or not at all."""

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


def refuse_orphaned_log(file: SqliteFile) -> None:
    """Raises StoreUnavailable if the log of a database is there without its file: SQLite would delete it."""
    log = file.path.with_name(f"{file.path.name}-wal")
    if not file.path.exists() and log.exists() and log.stat().st_size:
        raise StoreUnavailable(
            f"the file of the database at {file.display} is missing, and {log.name} beside it holds what was committed "
            "last: put the file back, or move the log away to begin with an empty database"
        )


def _is_writable(path: Path) -> bool:
    return os.access(path, os.W_OK, effective_ids=os.access in os.supports_effective_ids)
