"""API keys say what they may do, and when they were last used."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("api_keys") as table:
        table.add_column(sa.Column("role", sa.Text, nullable=False, server_default="write"))
        table.add_column(sa.Column("last_used_at", sa.Text))


def downgrade() -> None:
    with op.batch_alter_table("api_keys") as table:
        table.drop_column("last_used_at")
        table.drop_column("role")
