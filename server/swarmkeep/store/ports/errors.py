"""Errors of a store. No message shows a password."""

from __future__ import annotations

from swarmkeep.store.ports.log import AppendResult

UPGRADE_HINT = "run `swarmkeep db upgrade`"

TOO_SLOW_DETAIL = "this took too long in the database; ask for less at once, or use fewer filters"


class StoreUnavailable(Exception):
    """The database cannot be reached; the message names it without its password."""


class OutcomeUnknown(StoreUnavailable):
    """The connection broke during a commit, which may have worked. `appended` is what it recorded if it did, but for a
    claimed lease, whose epoch nobody knows."""

    appended: AppendResult | None = None


class SchemaBehind(Exception):
    """The database's schema is not this release's; the message says which command changes that."""


class NoSuchRevision(Exception):
    """There is no such revision of the schema; the message says which ones there are."""


def missing_schema_error(display: str) -> SchemaBehind:
    return SchemaBehind(f"the schema of the database at {display} is not that of this release; {UPGRADE_HINT}")
