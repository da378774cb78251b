"""Reads a database's schema revision and checks that it is this release's."""

from __future__ import annotations

from sqlalchemy import Connection, inspect, text

from swarmkeep.store.ports.errors import UPGRADE_HINT, SchemaBehind
from swarmkeep.store.sql.tables import metadata
from swarmkeep_migrations import REVISIONS

LATEST_REVISION = REVISIONS[-1]


def current_revision(connection: Connection) -> str | None:
    """The revision a database is at; None for one without a schema. Raises SchemaBehind for another program's."""
    if not inspect(connection).has_table("alembic_version"):
        _refuse_foreign(connection)
        return None
    revision: str | None = connection.scalar(text("SELECT version_num FROM alembic_version"))
    return revision


def _refuse_foreign(connection: Connection) -> None:
    foreign = set(inspect(connection).get_table_names())
    if connection.dialect.name != "sqlite":
        # Programs share such a database, and extensions have tables in it. A file belongs to one program.
        foreign &= set(metadata.tables)
    if foreign:
        raise SchemaBehind(
            f"the database belongs to another program: it has a table {min(foreign)!r} but no Swarmkeep schema; "
            "use a separate database for Swarmkeep"
        )


def require_latest(connection: Connection, display: str) -> None:
    """Raises SchemaBehind unless the database has this release's schema."""
    revision = current_revision(connection)
    if revision == LATEST_REVISION:
        return
    if revision is None:
        raise SchemaBehind(f"the database at {display} is empty; {UPGRADE_HINT}")
    if revision in REVISIONS:
        raise SchemaBehind(
            f"the database at {display} is at revision {revision}, this release needs {LATEST_REVISION}; {UPGRADE_HINT}"
        )
    refuse_unknown(revision, display)


def refuse_unknown(revision: str | None, display: str) -> None:
    """Raises SchemaBehind for a schema that only a newer release knows, and so only that one can change."""
    if revision is None or revision in REVISIONS:
        return
    raise SchemaBehind(
        f"the database at {display} is at revision {revision}, but this release only knows revisions "
        f"up to {LATEST_REVISION}; upgrade swarmkeep, or run `swarmkeep db downgrade` with the newer release"
    )
