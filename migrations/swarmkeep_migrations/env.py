"""How Alembic runs here: on a connection, and in a transaction, that the caller brings."""

from __future__ import annotations

from alembic import context
from sqlalchemy import Connection

connection: Connection = context.config.attributes["connection"]
context.configure(connection=connection, on_version_apply=context.config.attributes["on_version_apply"])
with context.begin_transaction():
    context.run_migrations()
