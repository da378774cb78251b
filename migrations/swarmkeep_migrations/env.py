"""How Alembic runs here: on a connection, and in a transaction, that the caller brings."""

from __future__ import annotations

from alembic import context
from sqlalchemy import Connection

from swarmkeep.store.sql.tables import metadata

connection: Connection = context.config.attributes["connection"]
# SQLite cannot alter most of a table, so Alembic copies it instead.
context.configure(connection=connection, target_metadata=metadata, render_as_batch=True)
with context.begin_transaction():
    context.run_migrations()
