"""API keys may have an end date.

An older release knows no end dates and fewer roles. For it, keys with an end date are revoked, and each other key has a
role that allows no more than its own did.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("api_keys") as table:
        table.add_column(sa.Column("expires_at", sa.Text))


def downgrade() -> None:
    op.execute("UPDATE api_keys SET revoked_at = expires_at WHERE revoked_at IS NULL AND expires_at IS NOT NULL")
    op.execute("UPDATE api_keys SET role = 'read' WHERE role IN ('run', 'approve', 'support', 'audit')")
    op.execute("UPDATE api_keys SET role = 'write' WHERE role = 'admin'")
    with op.batch_alter_table("api_keys") as table:
        table.drop_column("expires_at")
