"""What the subjects of the store have in common."""

from __future__ import annotations

from swarmkeep.store.ports.database import Database


class OnDatabase:
    """A subject of the store, on a Database."""

    read_seconds: float | None = None
    """How long a query may take whose shape and cost its caller chose."""

    def __init__(self, database: Database) -> None:
        self.database = database
