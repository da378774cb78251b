"""Whose automations and invocations are: of the session that they tell something, and of a person.

None is encrypted yet: each is when it is changed, or due.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0029"
down_revision = "0028"
branch_labels = None
depends_on = None

TEXT = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
KEYS = {"automations": ("id",), "invocations": ("automation_id", "number")}


def upgrade() -> None:
    for table, key in KEYS.items():
        comment = "the session that it tells something, with which it is deleted"
        op.add_column(table, sa.Column("session_id", TEXT, comment=comment))
        op.add_column(table, sa.Column("person_key", sa.Text(), comment="the key that its data are encrypted by"))
        _fill(table, ("tenant", *key))
        told = sa.text("session_id IS NOT NULL")
        columns = ["tenant", "session_id"]
        op.create_index(f"ix_{table}_session", table, columns, sqlite_where=told, postgresql_where=told)


def _fill(name: str, key: tuple[str, ...]) -> None:
    connection = op.get_bind()
    table = sa.table(name, *(sa.column(column) for column in (*key, "data", "session_id")))
    names = [table.c[column] for column in key]
    for *values, data in connection.execute(sa.select(*names, table.c.data)).all():
        if (session_id := _read_session_id(data)) is not None:
            here = [column == value for column, value in zip(names, values, strict=True)]
            connection.execute(sa.update(table).where(*here).values(session_id=session_id))


def _read_session_id(data: str) -> str | None:
    try:
        found = json.loads(data)
        automation: Mapping[str, Any] = found.get("automation", found)
        session_id = automation["target"]["session_id"]
    except (ValueError, LookupError, AttributeError, TypeError):
        return None
    return session_id if isinstance(session_id, str) else None


def downgrade() -> None:
    for table in KEYS:
        op.drop_index(f"ix_{table}_session", table)
        with op.batch_alter_table(table) as changed:
            changed.drop_column("person_key")
            changed.drop_column("session_id")
