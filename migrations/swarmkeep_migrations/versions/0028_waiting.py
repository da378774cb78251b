"""The sessions that wait, by how long they do. Only statements that say all of the condition take the index."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0028"
down_revision = "0027"
branch_labels = None
depends_on = None


def upgrade() -> None:
    condition = sa.text("status = 'waiting' AND active_at >= ''")
    op.create_index(
        "ix_sessions_waiting",
        "sessions",
        ["tenant", "active_at", "id"],
        sqlite_where=condition,
        postgresql_where=condition,
    )


def downgrade() -> None:
    op.drop_index("ix_sessions_waiting", "sessions")
