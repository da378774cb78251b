"""An event store with the reads that auditors need beside the engine's."""

from __future__ import annotations

from typing import Protocol

from swarmkeep.store.ports import EventStore
from swarmkeep.store.ports.audit import AuditLog, AuditReader
from swarmkeep.store.stamps import IntegrityKeys


class Archive(EventStore, AuditReader, AuditLog, Protocol):
    """An event store whose contents can be checked against each other."""

    @property
    def integrity_keys(self) -> IntegrityKeys:
        """Those that heads are stamped with."""
        ...
