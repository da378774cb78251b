"""An event store with the reads that auditors need beside the engine's."""

from __future__ import annotations

from typing import Protocol

from swarmkeep.store.ports import EventStore
from swarmkeep.store.ports.audit import AuditLog, AuditReader


class Archive(EventStore, AuditReader, AuditLog, Protocol):
    """An event store whose contents can be checked against each other."""
