"""The person or queue that looks after a session. Only a database that was taken back to 0018 knows of any."""

from __future__ import annotations

import json

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None

TEXT = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    op.add_column("sessions", sa.Column("assignee", TEXT, comment="the person or queue that looks after it"))
    connection = op.get_bind()
    sessions = sa.table("sessions", *(sa.column(name, TEXT) for name in ("tenant", "id", "view", "assignee")))
    found = connection.execute(
        sa.select(sessions.c.tenant, sessions.c.id, sessions.c.view).where(sessions.c.view.like('%"assignee":"%'))
    ).all()
    for tenant, name, view in found:
        here = sa.update(sessions).where(sessions.c.tenant == tenant, sessions.c.id == name)
        connection.execute(here.values(assignee=_read_assignee(view)))
    condition = sa.text("assignee IS NOT NULL")
    op.create_index(
        "ix_sessions_assignee",
        "sessions",
        ["tenant", "assignee", "created_at", "id"],
        sqlite_where=condition,
        postgresql_where=condition,
    )


def _read_assignee(view: str) -> str | None:
    try:
        assignee = json.loads(view).get("assignee")
    except (ValueError, AttributeError):
        # A damaged one.
        return None
    return assignee if isinstance(assignee, str) else None


def downgrade() -> None:
    op.drop_index("ix_sessions_assignee", "sessions")
    with op.batch_alter_table("sessions") as changed:
        changed.drop_column("assignee")
