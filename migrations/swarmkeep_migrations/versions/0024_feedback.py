"""What people think of a session's answers. Only a database that was taken back to 0023 knows of any."""

from __future__ import annotations

import json

import sqlalchemy as sa
from alembic import op

revision = "0024"
down_revision = "0023"
branch_labels = None
depends_on = None

TEXT = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    comment = "down: people do not find one of its answers good; up: they find them good"
    op.add_column("sessions", sa.Column("feedback", sa.Text, comment=comment))
    connection = op.get_bind()
    sessions = sa.table("sessions", *(sa.column(name, TEXT) for name in ("tenant", "id", "view", "feedback")))
    found = connection.execute(
        sa.select(sessions.c.tenant, sessions.c.id, sessions.c.view).where(sessions.c.view.like('%"feedback":{%'))
    ).all()
    for tenant, name, view in found:
        here = sa.update(sessions).where(sessions.c.tenant == tenant, sessions.c.id == name)
        connection.execute(here.values(feedback=_read_verdict(view)))
    condition = sa.text("feedback IS NOT NULL")
    op.create_index(
        "ix_sessions_feedback",
        "sessions",
        ["tenant", "feedback", "created_at", "id"],
        sqlite_where=condition,
        postgresql_where=condition,
    )


def _read_verdict(view: str) -> str | None:
    try:
        feedback = json.loads(view).get("feedback") or {}
        return "down" if feedback.get("down") else "up" if feedback.get("up") else None
    except (ValueError, AttributeError):
        # A damaged one.
        return None


def downgrade() -> None:
    op.drop_index("ix_sessions_feedback", "sessions")
    with op.batch_alter_table("sessions") as changed:
        changed.drop_column("feedback")
