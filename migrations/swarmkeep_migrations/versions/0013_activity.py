"""Of each session how its last run stands, and when something happened in it last: for lists by these."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    text = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
    op.add_column(
        "sessions", sa.Column("last_run", sa.Text, comment="the status of its last run; null before the first")
    )
    # A server of the release before, which may still run, writes sessions without the time.
    comment = "updated_at, but while a run is running what that was as it began: lists by activity are in this order"
    op.add_column("sessions", sa.Column("active_at", text, nullable=False, server_default="", comment=comment))
    op.execute("UPDATE sessions SET active_at = updated_at")
    # How its last run ended is not known of a session until something is recorded in it.
    op.create_index("ix_sessions_active", "sessions", ["tenant", "active_at", "id"])
    trouble = sa.text("last_run IN ('failed', 'interrupted')")
    place = ["created_at", "id"]
    op.create_index(
        "ix_sessions_trouble",
        "sessions",
        ["tenant", "last_run", *place],
        sqlite_where=trouble,
        postgresql_where=trouble,
    )


def downgrade() -> None:
    op.drop_index("ix_sessions_trouble", "sessions")
    op.drop_index("ix_sessions_active", "sessions")
    with op.batch_alter_table("sessions") as table:
        table.drop_column("active_at")
        table.drop_column("last_run")
