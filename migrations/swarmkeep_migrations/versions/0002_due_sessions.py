"""When a session that is not running has to go on: its queue, or approvals that expire."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    comment = "when somebody has to go on with it though it is not running; seconds since 1970"
    op.add_column("sessions", sa.Column("due_at", sa.Double, comment=comment))
    due = sa.text("due_at IS NOT NULL")
    op.create_index("ix_sessions_due_at", "sessions", ["due_at"], sqlite_where=due, postgresql_where=due)


def downgrade() -> None:
    op.drop_index("ix_sessions_due_at", "sessions")
    with op.batch_alter_table("sessions") as table:
        table.drop_column("due_at")
